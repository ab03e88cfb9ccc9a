"""Files of other kinds than they are called, or that decoders refuse for reasons of their own."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.ExifTags
import PIL.Image
import pytest

from loaders.codecs.heads import frame_of, with_end
from loaders.codecs.picture import PictureCodec
from loaders.errors import CodecError
from loaders.schema import Image
from packdata.images.pictures import decode_picture

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)


def saved(format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(PIXELS).save(file, format, **options)
    return file.getvalue()


def box(kind: bytes, body: bytes) -> bytes:
    return (len(body) + 8).to_bytes(4, "big") + kind + body


def container(brand: bytes, more: bytes = b"") -> bytes:
    """Return the first box of a picture without the rest."""
    return box(b"ftyp", brand + bytes(4) + more)


def small_webp(width: int, height: int) -> bytes:
    """Return a lossless WebP of black in 28 bytes: five prefix codes of one symbol each."""
    codes = sum(bit << i for i, bit in enumerate([0, 0, 0] + [1, 0, 0, 0] * 5))
    size = (width - 1) | (height - 1) << 14
    stream = b"\x2f" + size.to_bytes(4, "little") + codes.to_bytes(3, "little")
    body = b"WEBPVP8L" + len(stream).to_bytes(4, "little") + stream
    return b"RIFF" + len(body).to_bytes(4, "little") + body


def reason(data: bytes) -> str:
    with pytest.raises(CodecError) as caught:
        decode_picture(data)
    return str(caught.value)


class TestEndMarker:
    @pytest.mark.parametrize("missing", [1, 2])
    @pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 2}])
    def test_a_jpeg_that_lacks_only_its_end_is_whole(
        self, missing: int, options: dict[str, Any]
    ) -> None:
        whole = saved("JPEG", **options)

        picture = decode_picture(whole[:-missing])

        assert np.array_equal(picture.pixels, decode_picture(whole).pixels)
        assert (picture.changes, picture.kept) == (("odd jpeg",), whole)

    def test_one_that_is_turned_too_is_not_stored_as_it_is(self) -> None:
        exif = PIL.Image.Exif()
        exif[PIL.ExifTags.Base.Orientation] = 6

        picture = decode_picture(saved("JPEG", exif=exif)[:-2])

        assert set(picture.changes) == {"odd jpeg", "rotated"}
        assert picture.kept is None

    @pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 2}])
    def test_one_that_lacks_more_is_cut(self, options: dict[str, Any]) -> None:
        """Also between two scans of a progressive file, where no decoder warns."""
        whole = saved("JPEG", **options)

        for length in range(700, len(whole) - 4, 97):
            assert "cut, damaged" in reason(whole[:length])
        second = whole.find(b"\xff\xda", whole.index(b"\xff\xda") + 2)
        if options.get("progressive"):
            tables = whole.rfind(b"\xff\xc4", 0, second)
            assert "cut, damaged" in reason(whole[:tables])

    def test_every_scan_of_a_progressive_file_counts(self) -> None:
        whole = saved("JPEG", progressive=True)
        last = whole.rfind(b"\xff\xda")

        assert with_end(whole) is None
        assert with_end(whole[:-2]) == whole
        assert with_end(whole[: whole.rfind(b"\xff\xc4", 0, last)]) is None


class TestKinds:
    @pytest.mark.parametrize(
        "data",
        [container(b"heic"), container(b"mif1", b"mif1avifmiaf"), b"\xff\x0a\x00\x00"],
    )
    def test_what_no_decoder_reads_is_refused_with_what_to_install(self, data: bytes) -> None:
        assert "loaders[pictures]" in reason(data) or "cut, damaged" in reason(data)

    @pytest.mark.parametrize(
        ("format", "module"), [("HEIF", "pillow_heif"), ("JXL", "pillow_jxl")]
    )
    def test_it_is_read_where_the_plugin_is_installed(self, format: str, module: str) -> None:
        plugin = pytest.importorskip(module)
        if format == "HEIF":
            plugin.register_heif_opener()
        data = saved(format)

        picture = decode_picture(data)

        assert (picture.size, picture.changes) == ((40, 56), (format.lower(),))
        assert np.corrcoef(picture.pixels.ravel(), PIXELS.ravel())[0, 1] > 0.5  # of noise

    @pytest.mark.parametrize(("depth", "mark"), [(12, 0xC1), (8, 0xC3), (8, 0xC5)])
    def test_a_jpeg_of_another_kind_is_refused(self, depth: int, mark: int) -> None:
        """12 bits, lossless, hierarchical."""
        data = bytearray(saved("JPEG"))
        at = data.index(b"\xff\xc0")
        data[at + 1], data[at + 4] = mark, depth

        frame = frame_of(bytes(data))

        assert frame is not None
        assert (frame.depth, frame.height, frame.width, frame.components) == (
            depth,
            40,
            56,
            (1, 2, 3),
        )
        assert reason(bytes(data))

    def test_a_tiny_webp_is_read_kept_and_served(self) -> None:
        data = small_webp(3, 2)

        picture = decode_picture(data)
        served = PictureCodec(Image(codec="webp")).decode(np.frombuffer(data, np.uint8))

        assert len(data) == 28
        assert picture.kept == data
        for pixels in (picture.pixels, served):
            assert _is_black(pixels)


def _is_black(pixels: npt.NDArray[Any]) -> bool:
    return pixels.shape == (2, 3, 3) and not pixels.any()
