import io
import itertools
import re
import struct
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import PIL.features
import PIL.Image
import PIL.ImageOps
import pytest
import simplejpeg

from loaders.codecs.picture import PictureCodec
from loaders.errors import CodecError, SchemaError
from loaders.schema import Mask
from packdata.images.fit import SizeOption
from packdata.images.masks import decode_mask
from packdata.images.pictures import Picture, decode_picture
from packdata.images.stored import stored_picture
from tests.packdata.pngs import png

Array = npt.NDArray[Any]

ZERO = PIL.Image.new("L", (3, 2))


def photo(height: int = 60, width: int = 90, seed: int = 0) -> Array:
    """Noise on all scales, as in photographs: amplitude falls with frequency."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width, 3))
    for octave in range(8):
        grid = rng.normal(size=(2**octave + 1, 2**octave + 1, 3)) / 2**octave
        total += cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(128 + 60 * total, 0, 255).astype(np.uint8)


def save(pixels: Array | PIL.Image.Image, format: str, **options: Any) -> bytes:
    image = pixels if isinstance(pixels, PIL.Image.Image) else PIL.Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def tiff(pixels: Array, orientation: int, *, order: str = "<", white: int = 1) -> bytes:
    """Write a TIFF of 16 bits (Pillow and OpenCV write none with an orientation), H x W x C."""
    height, width, channels = pixels.shape
    offset, count, length = "I", "H", 12
    tags = {256: width, 257: height, 258: 16, 259: 1, 262: white if channels < 3 else 2, 273: 0}
    tags |= {274: orientation, 277: channels, 278: height, 279: pixels.nbytes}
    tags |= {338: 0} if channels in (2, 4) else {}
    bits = 8 + struct.calcsize(f"{order}{count}{offset}") + length * len(tags)
    tags[273] = bits + 2 * channels
    entries = b""
    for tag, value in tags.items():
        num = channels if tag == 258 else 1
        # Several depths of 2 bytes fit into an entry only if they are two.
        is_far = tag == 258 and num > 2
        form = f"{order}HH{offset}{'I' if is_far or tag in (273, 279) else 'H' * num}"
        values = [bits] if is_far else [value] * num
        entry = struct.pack(form, tag, 4 if tag in (273, 279) else 3, num, *values)
        entries += entry.ljust(length, b"\0")
    start = struct.pack(f"{order}HI", 42, 8)
    directory = struct.pack(f"{order}{count}", len(tags)) + entries + bytes(4)
    depths = struct.pack(f"{order}{channels}H", *[16] * channels)
    mark = b"II" if order == "<" else b"MM"
    return mark + start + directory + depths + pixels.astype(f"{order}u2").tobytes()


def bmp(bits: int, palette: list[tuple[int, int, int]]) -> bytes:
    """Write a BMP of 3 x 5 zeros."""
    rows = bytes(5 * 4)
    colors = b"".join(bytes(color) + b"\0" for color in palette)
    head = struct.pack("<IiiHHIIiiII", 40, 3, 5, 1, bits, 0, 0, 0, 0, len(palette), 0)
    start = 14 + len(head) + len(colors)
    return struct.pack("<2sIII", b"BM", start + len(rows), 0, start) + head + colors + rows


def upright(pixels: Array, orientation: int) -> Array:
    """Turn pixels as Pillow does."""
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    places: Array = np.arange(pixels.shape[0] * pixels.shape[1], dtype=np.int32)
    image = PIL.Image.fromarray(places.reshape(pixels.shape[:2]))
    image.info["exif"] = exif.tobytes()
    turned: npt.NDArray[np.int32] = np.asarray(PIL.ImageOps.exif_transpose(image))
    return np.take(pixels.reshape(-1, *pixels.shape[2:]), turned, axis=0)


def psnr(a: Array, b: Array) -> float:
    return float(10 * np.log10(255**2 / max(1e-9, np.mean((a.astype(float) - b) ** 2))))


def changes(data: bytes, **options: Any) -> tuple[str, ...]:
    return decode_picture(data, **options).changes


class TestPlain:
    @pytest.mark.parametrize("format", ["PNG", "WEBP"])
    @pytest.mark.parametrize("gray", [False, True])
    def test_lossless_files_come_back_exactly(self, format: str, gray: bool) -> None:
        pixels = photo()[:, :, 0] if gray else photo()

        picture = decode_picture(save(pixels, format, lossless=True))

        assert (picture.format, picture.size, picture.changes) == (format.lower(), (60, 90), ())
        expected = np.repeat(pixels[:, :, None], 3, axis=2) if gray else pixels
        assert np.array_equal(picture.pixels, expected)
        assert picture.gray == (gray and format == "PNG")

    def test_jpeg_is_what_libjpeg_says(self) -> None:
        data = save(photo(), "JPEG", quality=95)

        picture = decode_picture(data)

        assert picture.changes == ()
        assert np.array_equal(picture.pixels, np.asarray(PIL.Image.open(io.BytesIO(data))))

    @pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "BMP"])
    def test_gray_has_one_channel(self, format: str) -> None:
        picture = decode_picture(save(photo(), format), channels=1)

        expected = cv2.cvtColor(photo(), cv2.COLOR_RGB2GRAY)
        assert picture.pixels.shape == (60, 90, 1)
        assert psnr(picture.pixels[:, :, 0], expected) > 30

    @pytest.mark.parametrize("format", ["BMP", "GIF", "TIFF", "PPM", "JPEG2000"])
    def test_other_formats_are_named(self, format: str) -> None:
        pixels = np.full((3, 4, 3), (200, 100, 50), np.uint8)

        picture = decode_picture(save(pixels, format))

        assert picture.changes[0] == format.lower()
        assert np.array_equal(picture.pixels, pixels)

    @pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF"])
    @pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 20_000), (20_000, 1)])
    def test_extreme_shapes(self, format: str, height: int, width: int) -> None:
        if format == "WEBP":  # it ends at 16,383 pixels
            height, width = min(height, 16_383), min(width, 16_383)
        pixels = np.full((height, width, 3), 77, np.uint8)

        picture = decode_picture(save(pixels, format))

        assert np.array_equal(picture.pixels, pixels)


class TestOrientation:
    @pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF", "JPEG"])
    def test_pixels_are_upright(self, format: str) -> None:
        exif = PIL.Image.Exif()
        options = {"quality": 100, "subsampling": 0} if format == "JPEG" else {"lossless": True}
        for orientation in range(1, 9):
            exif[0x0112] = orientation
            data = save(photo(8, 16), format, exif=exif, **options)

            picture = decode_picture(data)

            expected = np.asarray(PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data))))
            assert picture.size == expected.shape[:2] == ((8, 16) if orientation < 5 else (16, 8))
            assert np.array_equal(picture.pixels, expected)
            if format != "TIFF":
                assert picture.changes == (() if orientation == 1 else ("rotated",))

    @pytest.mark.parametrize("order", ["<", ">"])
    def test_gray_tiff_of_16_bits_is_turned(self, order: str) -> None:
        pixels = np.random.default_rng(0).integers(0, 65_536, (5, 8, 1), np.uint16)
        for orientation in range(1, 9):
            data = tiff(pixels, orientation, order=order)

            picture = decode_picture(data, channels=1, dtype="uint16")

            assert np.array_equal(picture.pixels, upright(pixels, orientation))

    def test_colours_of_a_tiff_of_16_bits_are_refused(self) -> None:
        """Pillow drops 8 of them, of a PNG none."""
        with pytest.raises(CodecError, match="as PNG"):
            decode_picture(tiff(np.zeros((5, 8, 3), np.uint16), 1), dtype="uint16")

    @pytest.mark.parametrize("channels", [2, 4, 5])
    def test_bands_that_are_no_colours_are_refused(self, channels: int) -> None:
        """A near-infrared band would be dropped, or blended as alpha."""
        pixels = np.zeros((5, 8, channels), np.uint16)

        with pytest.raises(CodecError):
            decode_picture(tiff(pixels, 1))

    @pytest.mark.parametrize(
        "data",
        [
            tiff(np.zeros((5, 8, 1), np.uint16), 1, white=0),
            save(np.zeros((5, 8), np.uint8), "TIFF", tiffinfo={339: 2}),
            b"P6 " + b"# " * 40 + b"of a scanner\n+8 5\n4095\n" + bytes(240),
            bmp(8, [(0, 0, 0), (255, 255, 255)]),
        ],
        ids=["0 is white", "signed", "PPM of 12 bits", "BMP of 8 bits"],
    )
    @pytest.mark.parametrize("dtype", ["uint8", "uint16"])
    def test_pixels_that_pillow_would_change_are_refused(self, data: bytes, dtype: str) -> None:
        with pytest.raises(CodecError):
            decode_picture(data, dtype=dtype)

    def test_colours_of_a_jpeg_2000_of_16_bits_are_refused(self) -> None:
        _, data = cv2.imencode(".jp2", np.zeros((64, 64, 3), np.uint16))

        with pytest.raises(CodecError):
            decode_picture(data.tobytes(), dtype="uint16")

    @pytest.mark.parametrize("mode", ["RGBX", "CMYK"])
    def test_four_bands_without_alpha_are_refused(self, mode: str) -> None:
        with pytest.raises(CodecError):
            decode_picture(save(PIL.Image.new(mode, (8, 5)), "TIFF"))

    @pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's
    def test_a_damaged_exif_block_is_passed_over(self) -> None:
        exif = PIL.Image.Exif()
        exif[0x0112] = 6
        data = save(photo(), "JPEG", exif=exif)
        at = data.index(b"Exif\0\0") + 6

        for cut in range(24):
            broken = data[: at + cut] + b"\xee" * (24 - cut) + data[at + 24 :]
            assert decode_picture(broken).size in ((60, 90), (90, 60))

    def test_a_png_may_say_behind_its_pixels_how_it_is_turned(self) -> None:
        data, exif = save(photo(8, 16), "PNG"), PIL.Image.Exif()
        exif[0x0112] = 6
        block = b"eXIf" + exif.tobytes()[6:]
        chunk = struct.pack(">I", len(block) - 4) + block + struct.pack(">I", zlib.crc32(block))

        picture = decode_picture(data[:-12] + chunk + data[-12:])

        assert np.array_equal(picture.pixels, upright(photo(8, 16), 6))
        assert picture.changes == ("rotated",)


class TestColors:
    def test_cmyk(self) -> None:
        """Photoshop's way (inverted, as Pillow writes it); the colors of a photo survive."""
        image = PIL.Image.fromarray(photo()).convert("CMYK")

        picture = decode_picture(save(image, "JPEG", quality=95))

        assert picture.changes == ("cmyk",)
        assert psnr(picture.pixels, photo()) > 35

    def test_palettes_are_colors(self) -> None:
        image = PIL.Image.fromarray(photo()).quantize(16)

        picture = decode_picture(save(image, "PNG"))

        assert picture.changes == ("palette",)
        assert np.array_equal(picture.pixels, np.asarray(image.convert("RGB")))

    @pytest.mark.parametrize("depth", [1, 2, 4])
    def test_few_bits_are_stretched_to_8(self, depth: int) -> None:
        rows = np.random.default_rng(0).integers(0, 256, (5, depth), dtype=np.uint8)

        picture = decode_picture(png(rows, 8, depth, 0), channels=1)

        bits = np.unpackbits(rows, axis=1).reshape(5, 8, depth)
        values = (bits @ (1 << np.arange(depth)[::-1])).astype(int)
        assert picture.changes == (f"{depth}-bit",)
        assert np.array_equal(picture.pixels[:, :, 0], values * 255 // (2**depth - 1))

    @pytest.mark.parametrize(
        ("mode", "format"),
        [("RGBA", "PNG"), ("LA", "PNG"), ("RGBA", "WEBP"), ("RGBA", "TIFF"), ("LA", "TIFF")],
    )
    def test_transparency_is_laid_on_white(self, mode: str, format: str) -> None:
        image = PIL.Image.fromarray(photo()).convert(mode)
        image.putalpha(PIL.Image.fromarray(photo(seed=1)[:, :, 0]))

        picture = decode_picture(save(image, format, lossless=True, exact=True))

        white = PIL.Image.new("RGBA", image.size, (255, 255, 255, 255))
        expected = np.asarray(PIL.Image.alpha_composite(white, image.convert("RGBA")))[:, :, :3]
        assert "alpha" in picture.changes
        assert np.abs(picture.pixels.astype(int) - expected).max() <= 1

    @pytest.mark.parametrize("color", [0, 2, 3])
    def test_a_transparent_color_is_white(self, color: int) -> None:
        """PNG's tRNS chunk: one gray or color, or a palette entry, that is not there."""
        rows = np.array([[1, 2, 1] if color != 2 else [9, 9, 1, 9, 9, 2, 9, 9, 1]], np.uint8)
        palette = (b"PLTE", bytes([0] * 3 + [9, 9, 1] + [9, 9, 2]))
        gone = {0: b"\0\1", 2: b"\0\x09\0\x09\0\1", 3: b"\xff\0\xff"}[color]

        picture = decode_picture(png(rows, 3, 8, color, palette, (b"tRNS", gone)))

        expected = [2, 2, 2] if color == 0 else [9, 9, 2]
        assert picture.pixels.tolist() == [[[255] * 3, expected, [255] * 3]]
        assert "alpha" in picture.changes

    @pytest.mark.parametrize("dtype", ["uint8", "uint16"])
    @pytest.mark.parametrize("animated", [False, True])
    def test_a_transparent_gray_is_white_and_no_other(self, animated: bool, dtype: str) -> None:
        rows = np.arange(16, dtype=np.uint8).reshape(2, 8)
        first = (b"fcTL", struct.pack(">5I2H2B", 0, 8, 2, 0, 0, 1, 1, 0, 0))
        white = np.iinfo(dtype).max

        for gone in (0, 1, 15):
            chunks = [(b"tRNS", struct.pack(">H", gone))]
            chunks += [(b"acTL", struct.pack(">II", 1, 0)), first] if animated else []
            picture = decode_picture(png(rows, 8, 8, 0, *chunks), channels=1, dtype=dtype)

            expected = np.where(rows == gone, white, rows.astype(int) * (white // 255))
            assert picture.pixels[:, :, 0].tolist() == expected.tolist()

    @pytest.mark.parametrize("depth", [1, 2, 4, 16])
    def test_a_transparent_gray_of_other_bits_is_refused(self, depth: int) -> None:
        """Pillow stretches the pixels, and not the value that is transparent."""
        rows = np.zeros((2, depth), np.uint8)

        with pytest.raises(CodecError):
            decode_picture(png(rows, 8, depth, 0, (b"tRNS", b"\0\1")))

    def test_an_opaque_alpha_channel_changes_nothing(self) -> None:
        image = PIL.Image.fromarray(photo()).convert("RGBA")

        picture = decode_picture(save(image, "PNG"))

        assert picture.changes == ()
        assert np.array_equal(picture.pixels, photo())

    @pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF"])
    def test_the_first_picture_counts(self, format: str) -> None:
        frames = [PIL.Image.new("RGB", (9, 7), (value,) * 3) for value in (10, 200, 90)]

        data = save(frames[0], format, save_all=True, append_images=frames[1:], lossless=True)
        picture = decode_picture(data)

        assert "animated" in picture.changes
        assert picture.pixels.tolist() == [[[10] * 3] * 9] * 7


def test_an_animated_png_of_one_frame_is_a_png() -> None:
    frame = (b"fcTL", struct.pack(">5I2H2B", 0, 2, 1, 0, 0, 1, 1, 0, 0))
    rows = np.array([[9, 8, 7, 6, 5, 4]], np.uint8)

    data = png(rows, 2, 8, 2, (b"acTL", struct.pack(">II", 1, 0)), frame)
    picture = decode_picture(data)

    assert (picture.changes, picture.kept) == ((), data)
    assert picture.pixels.tolist() == [[[9, 8, 7], [6, 5, 4]]]


def sixteen(channels: int = 1) -> Array:
    values = np.random.default_rng(0).integers(0, 65_536, (5, 7, channels), dtype=np.uint16)
    values[0, 0], values[0, 1], values[0, 2], values[0, 3] = 0, 65_535, 128, 129
    return values[:, :, 0] if channels == 1 else values


class TestDepth:
    @pytest.mark.parametrize(("suffix", "channels"), [("png", 1), ("png", 3), ("tiff", 1)])
    def test_16_bits_are_scaled_or_kept(self, suffix: str, channels: int) -> None:
        pixels = sixteen(channels)
        data = cv2.imencode(f".{suffix}", pixels[..., ::-1] if channels == 3 else pixels)[
            1
        ].tobytes()

        narrow = decode_picture(data, channels=channels)
        wide = decode_picture(data, channels=channels, dtype="uint16")

        expected = pixels.reshape(5, 7, channels)
        assert narrow.pixels.dtype == np.uint8
        assert np.array_equal(narrow.pixels, np.round(expected / 257))
        assert np.array_equal(wide.pixels, expected)
        assert "16-bit" in narrow.changes
        assert wide.changes == (() if suffix == "png" else wide.changes)

    def test_8_bits_are_widened(self) -> None:
        picture = decode_picture(save(photo(), "PNG"), dtype="uint16")

        assert picture.changes == ("8-bit",)
        assert np.array_equal(picture.pixels, photo().astype(np.uint16) * 257)

    def test_16_bits_with_alpha(self) -> None:
        pixels = sixteen(4)

        picture = decode_picture(cv2.imencode(".png", pixels)[1].tobytes(), dtype="uint16")

        color, alpha = pixels[:, :, 2::-1].astype(float), pixels[:, :, 3:] / 65_535
        assert picture.changes == ("alpha",)
        assert np.abs(picture.pixels - (color * alpha + 65_535 * (1 - alpha))).max() <= 0.51

    @pytest.mark.parametrize("dtype", [np.float32, np.int32])
    def test_32_bits_are_refused(self, dtype: type) -> None:
        """Floats have no one right form of 8 bits."""
        image = PIL.Image.fromarray(np.zeros((3, 3), dtype))

        for decode in (decode_picture, decode_mask):
            with pytest.raises(CodecError):
                decode(save(image, "TIFF"))


def jpeg(**options: Any) -> bytes:
    return save(photo(), "JPEG", quality=90, **options)


def _outcome(data: bytes, needed: Any) -> Picture | None:
    try:
        return decode_picture(data, needed=needed)
    except CodecError:
        return None


def _with_odd_scan(data: bytes) -> bytes:
    """Give a JPEG the header of a scan that libjpeg warns of, and then reads as if it were right."""
    at = data.index(b"\xff\xda") + 11
    return data[:at] + b"\0\0\0" + data[at + 3 :]


class TestDamage:
    @pytest.mark.parametrize("progressive", [False, True])
    def test_a_cut_jpeg_is_refused_wherever_it_is_cut(self, progressive: bool) -> None:
        data = jpeg(progressive=progressive)

        for size in [*range(0, len(data) - 2, 37), len(data) - 4]:  # the end marker alone may lack
            with pytest.raises(CodecError):
                decode_picture(data[:size])

    @pytest.mark.parametrize("progressive", [False, True])
    def test_a_cut_jpeg_with_an_end_mark_is_refused(self, progressive: bool) -> None:
        """Viewers show it with a gray rest; so do OpenCV and Pillow."""
        data = jpeg(progressive=progressive)

        with pytest.raises(CodecError):
            decode_picture(data[: len(data) // 2] + b"\xff\xd9")

    @pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
    def test_a_progressive_jpeg_without_its_last_scans_is_refused(self, mode: str) -> None:
        """Viewers show it blurred."""
        data = save(PIL.Image.fromarray(photo()).convert(mode), "JPEG", progressive=True)

        decode_picture(data)

        for match in [*re.finditer(b"\xff\xda", data)][1:]:
            for end in range(match.start(), match.start() + 8):  # in the header of the scan, too
                with pytest.raises(CodecError):
                    decode_picture(data[:end])
                with pytest.raises(CodecError):
                    decode_picture(data[:end] + b"\xff\xd9")

    def test_a_cut_jpeg_is_refused_when_reduced(self) -> None:
        data = save(photo(400, 400), "JPEG")

        with pytest.raises(CodecError):
            decode_picture(data[: len(data) * 3 // 4], needed=lambda size: (20, 20))

    @pytest.mark.parametrize(
        ("format", "options"),
        [
            ("PNG", {}),
            ("WEBP", {}),
            ("WEBP", {"lossless": True}),
            ("GIF", {}),
            ("BMP", {}),
            ("TIFF", {}),
        ],
    )
    def test_other_cut_files_are_refused(self, format: str, options: dict[str, Any]) -> None:
        data = save(photo(), format, **options)

        for size in [0, 1, 7, 12, 20, 40, len(data) // 2, len(data) * 9 // 10]:
            with pytest.raises(CodecError):
                decode_picture(data[:size])

    @pytest.mark.parametrize(("format", "first"), [("GIF", 6), ("TIFF", 6), ("JPEG2000", 12)])
    def test_a_file_cut_in_its_header_is_still_known(self, format: str, first: int) -> None:
        data = save(photo(), format)

        for size in (first, 50, 100, 399):
            with pytest.raises(CodecError):
                decode_picture(data[:size])

    def test_a_damaged_avif_is_refused(self) -> None:
        """Pillow raises RuntimeError there."""
        if not PIL.features.check("avif"):
            pytest.skip("this Pillow reads no AVIF")
        data = save(photo(), "AVIF")
        at = data.index(b"mdat") + 4

        assert decode_picture(data).changes == ("avif",)
        with pytest.raises(CodecError):
            decode_picture(data[:at] + bytes(len(data) - at))

    @pytest.mark.parametrize("which", [0, 1])
    @pytest.mark.parametrize("decode", [decode_picture, decode_mask])
    def test_a_gif_frame_of_four_gigapixels_is_refused_or_is_not_the_first(
        self, decode: Callable[[bytes], object], which: int
    ) -> None:
        """Pillow raises DecompressionBombError, which is of no kind that it raises elsewhere."""
        frames = [PIL.Image.fromarray(np.full((4, 4), i, np.uint8), "L") for i in range(2)]
        data = bytearray(save(frames[0], "GIF", save_all=True, append_images=frames[1:]))
        at = -1
        for _ in range(which + 1):
            at = data.index(b",\0\0\0\0\4\0\4\0", at + 1)
        data[at + 5 : at + 9] = b"\xff" * 4

        is_refused = which == 0 or decode is decode_mask  # which takes no second frame
        with pytest.raises(CodecError) if is_refused else nullcontext():
            decode(bytes(data))

    def test_a_flipped_byte_in_a_png_is_refused(self) -> None:
        data = bytearray(save(photo(), "PNG"))
        data[len(data) // 2] ^= 1

        with pytest.raises(CodecError):
            decode_picture(bytes(data))

    def test_an_empty_file_is_called_so(self) -> None:
        with pytest.raises(CodecError, match="empty"):
            decode_picture(b"")

    def test_what_is_no_picture_is_refused(self) -> None:
        eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
        for data in (b"", b"hello, world", b"\0" * 99, b"GIF89a", b"\xff\xd8\xff", b"RIFF", eps):
            with pytest.raises(CodecError):
                decode_picture(data)

    def test_a_header_of_a_million_by_a_million_is_refused_before_decoding(self) -> None:
        rows = np.zeros((1, 1), np.uint8)
        data = bytearray(png(rows, 1, 8, 0))
        data[16:24] = struct.pack(">II", 60_000, 60_000)

        with pytest.raises(CodecError):
            decode_picture(bytes(data))

    @pytest.mark.parametrize(
        "options", [{}, {"progressive": True}, {"quality": 30, "optimize": True}]
    )
    @pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
    def test_a_flipped_bit_never_passes_for_padding(
        self, mode: str, options: dict[str, Any]
    ) -> None:
        """Behind it blocks are read from the wrong bits, and bytes stay over at the end."""
        image = PIL.Image.fromarray(photo(96, 144)).convert(mode)
        data = save(image, "JPEG", **options)
        scan = data.index(b"\xff\xda") + 14
        num_refused = 0

        for at in range(scan, len(data) - 2, max(1, len(data) // 80)):
            flipped = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
            found = [_outcome(flipped, needed) for needed in (None, SizeOption(20, 20).scaled)]
            assert (found[0] is None) == (found[1] is None)  # alike with and without a size
            num_refused += found[0] is None
            assert found[0] is None or "odd jpeg" not in found[0].changes

        assert num_refused > 4

    @pytest.mark.parametrize(
        "padding",
        [b"\0" * 20, b"\0" * 5000, b"\0\xff\0\xff\xff\0" * 9],
        ids=["20 zeros", "5000 zeros", "zeros and fill bytes"],
    )
    @pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
    def test_padding_before_the_end_passes(self, mode: str, padding: bytes) -> None:
        image = PIL.Image.fromarray(photo()).convert(mode)
        options: list[dict[str, Any]] = [{}, {"progressive": True}, {"restart_marker_rows": 1}]
        files = [save(image, "JPEG", **each) for each in options]

        for data, needed in itertools.product(files, (None, SizeOption(20, 20).scaled)):
            plain = decode_picture(data, needed=needed)
            picture = decode_picture(data[:-2] + padding + data[-2:], needed=needed)
            assert np.array_equal(picture.pixels, plain.pixels)
            assert picture.changes == (("cmyk",) if mode == "CMYK" else ("odd jpeg",))

    def test_damage_behind_a_harmless_oddity_is_refused(self) -> None:
        """Libjpeg names its first warning only."""
        data = _with_odd_scan(jpeg())
        half = len(data) // 2

        assert decode_picture(data).changes == ("odd jpeg",)
        assert np.array_equal(decode_picture(data).pixels, decode_picture(jpeg()).pixels)
        with pytest.raises(CodecError):
            decode_picture(data[:half] + b"\xff\xd9")

    def test_several_oddities_pass_together(self) -> None:
        data = _with_odd_scan(jpeg())

        for end in (bytes(30), bytes(30) + data[-2:]):
            picture = decode_picture(data[:-2] + end)
            assert np.array_equal(picture.pixels, decode_picture(jpeg()).pixels)

    def test_bytes_behind_the_end_pass_and_others_before_it_do_not(self) -> None:
        plain = jpeg()

        picture = decode_picture(plain + b"\0junk")

        assert np.array_equal(picture.pixels, decode_picture(plain).pixels)
        assert picture.changes == ()
        with pytest.raises(CodecError):
            decode_picture(plain[:-2] + bytes(range(1, 60)) + plain[-2:])


def _bright_edged(shape: tuple[int, int]) -> Array:
    pixels = np.zeros((*shape, 3), np.uint8)
    pixels[:, shape[1] * 9 // 10 :] = 255
    pixels[shape[0] * 9 // 10 :] = 255
    return pixels


def _areas(old: int, new: int) -> Array:
    """Return by how much each of the old pixels of a side counts in the new."""
    edges, pixels = np.arange(new + 1)[:, None] * old / new, np.arange(old)
    covered = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
    shares: Array = np.maximum(covered, 0) * new / old
    return shares


class TestReduction:
    @pytest.mark.parametrize(
        ("target", "decoded"), [(300, 600), (150, 300), (149, 300), (75, 150), (10, 75)]
    )
    def test_a_jpeg_is_decoded_at_twice_the_needed_size_or_more(
        self, target: int, decoded: int
    ) -> None:
        data = save(photo(600, 901), "JPEG")

        picture = decode_picture(data, needed=SizeOption(target, target).scaled)

        assert picture.size == (600, 901)
        assert picture.pixels.shape[0] == decoded

    @pytest.mark.parametrize("side", [75, 64, 50, 33])
    def test_the_result_is_that_of_full_decoding(self, side: int) -> None:
        data = save(photo(300, 451), "JPEG", quality=92)
        resize = SizeOption(side, side)

        reduced = decode_picture(data, needed=resize.scaled)
        full = decode_picture(data)

        assert 2 * side <= reduced.pixels.shape[0] <= 150
        assert psnr(resize.apply(reduced.pixels, reduced.size), resize.apply(full.pixels)) > 38

    @pytest.mark.parametrize("shape", [(513, 513), (517, 775), (402, 601), (57, 71)])
    def test_a_last_column_counts_for_what_it_covers(self, shape: tuple[int, int]) -> None:
        """The result is the average of areas of the whole picture, also at sides not of whole 8."""
        pixels = _bright_edged(shape)
        data = save(pixels, "JPEG", quality=100, subsampling=0)

        for side in (4, 32):
            resize = SizeOption(side, side)
            height, width = resize.scaled(shape)
            picture = decode_picture(data, needed=resize.scaled)
            result = resize.apply(picture.pixels, picture.size)[:, :, 0]
            areas = _areas(shape[0], height) @ pixels[:, :, 0] @ _areas(shape[1], width).T
            assert np.abs(result - areas).max() <= 16

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_a_turned_picture_is_scaled_as_a_plain_one(self, orientation: int) -> None:
        exif = PIL.Image.Exif()
        exif[0x0112] = orientation
        data = save(_bright_edged((517, 389)), "JPEG", quality=100, subsampling=0, exif=exif)
        resize = SizeOption(32, 32)

        reduced = decode_picture(data, needed=resize.scaled)
        full = decode_picture(data)

        result = resize.apply(reduced.pixels, reduced.size).astype(int)
        assert np.abs(result - resize.apply(full.pixels)).max() <= 16

    def test_reduction_goes_with_orientation(self) -> None:
        exif = PIL.Image.Exif()
        exif[0x0112] = 6
        data = save(photo(64, 160), "JPEG", exif=exif)

        picture = decode_picture(data, needed=SizeOption(16, 16).scaled)

        assert picture.size == (160, 64)
        assert picture.pixels.shape == (80, 32, 3)


class TestResize:
    @pytest.mark.parametrize(
        ("size", "fit", "source", "expected"),
        [
            (20, "shorter", (60, 90), (20, 30)),
            (20, "shorter", (90, 61), (30, 20)),
            (80, "shorter", (60, 90), (60, 90)),
            (20, "shorter", (1, 20_000), (1, 20_000)),
            (20, "cover", (60, 90), (20, 20)),
            ("8x30", "cover", (60, 90), (8, 30)),
            (200, "cover", (60, 90), (200, 200)),
            (32, "cover", (1, 20_000), (32, 32)),
            (20, "contain", (60, 90), (20, 20)),
            (200, "contain", (60, 90), (200, 200)),
            (32, "contain", (1, 20_000), (32, 32)),
            ((10, 100), "stretch", (60, 90), (10, 100)),
            ("5", "stretch", (1, 1), (5, 5)),
        ],
    )
    def test_sizes(self, size: Any, fit: str, source: Any, expected: Any) -> None:
        resize = SizeOption.parse(size, fit)
        pixels = np.full((*source, 3), 99, np.uint8)

        result = resize.apply(pixels)
        mask = resize.apply(pixels[:, :, 0], nearest=True)

        assert result.shape == (*expected, 3)
        assert mask.shape == expected
        assert result.flags.c_contiguous
        assert result.max() == 99
        assert fit == "contain" or result.min() == 99
        assert resize.fixed == (None if fit == "shorter" else expected)
        assert resize.keeps(source) == (source == expected)

    @pytest.mark.parametrize("shape", [(7, 9), (7, 9, 1), (7, 9, 3)])
    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
    def test_channels_and_dtype_stay(self, shape: tuple[int, ...], dtype: type) -> None:
        for size in (4, 20):
            result = SizeOption(size, size, "stretch").apply(np.ones(shape, dtype))
            assert result.shape == (size, size, *shape[2:])
            assert result.dtype == dtype

    def test_cover_keeps_the_centre_and_contain_pads_evenly(self) -> None:
        pixels = np.tile(np.arange(12, dtype=np.uint8), (4, 1))

        assert SizeOption(4, 4, "cover").apply(pixels)[0].tolist() == [4, 5, 6, 7]
        tall = SizeOption(12, 12, "contain").apply(pixels)
        assert np.array_equal(tall[4:8], pixels)
        assert not tall[:4].any()
        assert not tall[8:].any()

    @pytest.mark.parametrize("size", [(4, 5), (4, 7), (7, 12)])
    def test_what_is_left_over_is_where_boxes_expect_it(self, size: tuple[int, int]) -> None:
        """One pixel more at one side than at the other: cut or padded alike for pixels and boxes."""
        resize = SizeOption(*size, "cover" if size[1] < 12 else "contain")
        pixels = np.arange(1, 49, dtype=np.uint8).reshape(4, 12)
        y, x, height, width = resize.move((4, 12)).box

        whole = np.pad(pixels, 12)[12 + int(y) :, 12 + int(x) :]

        assert np.array_equal(resize.apply(pixels), whole[: int(height), : int(width)])

    @pytest.mark.parametrize("is_tall", [False, True])
    def test_what_is_cut_before_enlarging_changes_no_pixel(self, is_tall: bool) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (4, 200), np.uint8)
        middle = cv2.resize(pixels, (2000, 40), interpolation=cv2.INTER_CUBIC)[:, 980:1020]

        result = SizeOption(40, 40, "cover").apply(pixels.T if is_tall else pixels)

        assert np.array_equal(result.T if is_tall else result, middle)

    def test_a_wide_sliver_is_cut_before_it_is_enlarged(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And from its middle: 20,000 x 1 pixels at 224 would be 4.5 million wide."""
        pixels = np.zeros((1, 20_000), np.uint8)
        pixels[:, 9_999:10_001] = 255
        resize, widths = cv2.resize, []

        def watch(source: Array, size: tuple[int, int], **options: Any) -> Array:
            widths.append(size[0])
            return resize(source, size, **options)

        monkeypatch.setattr(cv2, "resize", watch)
        result = SizeOption(224, 224, "cover").apply(pixels)

        assert result.mean() > 250
        assert max(widths) < 1000

    def test_shrinking_averages(self) -> None:
        pixels = np.zeros((8, 8), np.uint8)
        pixels[0, 0] = 128

        assert SizeOption(1, 1, "stretch").apply(pixels).item() == 2

    def test_nearest_takes_pixel_centres_as_pillow_does(self) -> None:
        labels = np.random.default_rng(0).integers(0, 65_536, (37, 53), dtype=np.uint16)

        for size in ((5, 7), (37, 53), (80, 111), (18, 26)):
            image = PIL.Image.fromarray(labels).resize(size[::-1], PIL.Image.Resampling.NEAREST)
            result = SizeOption(*size, "stretch").apply(labels, nearest=True)
            assert np.array_equal(result, np.asarray(image))

    def test_picture_and_mask_stay_aligned(self) -> None:
        """Also when the picture comes reduced from a JPEG: halves, up to a pixel at the edge."""
        mask = np.zeros((400, 601), np.uint8)
        mask[:, 300:] = 255
        data = save(np.repeat(mask[:, :, None], 3, axis=2), "JPEG", quality=95)

        for fit in ("shorter", "cover", "contain", "stretch"):
            resize = SizeOption(50, 50, fit)
            picture = decode_picture(data, needed=resize.scaled)
            left = resize.apply(picture.pixels, picture.size)[:, :, 0] > 127
            right = resize.apply(mask, nearest=True) > 127
            assert picture.pixels.shape[0] == 100
            assert (left != right).mean() <= 1 / 50

    @pytest.mark.parametrize(
        ("size", "fit"),
        [
            (0, "cover"),
            (70000, "cover"),
            ("224x", "cover"),
            ("-3", "cover"),
            (1.5, "cover"),
            ("20x30", "shorter"),
            (20, "longer"),
        ],
    )
    def test_wrong_sizes_are_refused(self, size: Any, fit: str) -> None:
        with pytest.raises(SchemaError):
            SizeOption.parse(size, fit)


class TestMasks:
    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
    def test_integers_are_exact(self, dtype: type) -> None:
        values: Array = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (5, 7), dtype)

        for format in ("PNG", "TIFF"):
            mask = decode_mask(save(values, format))
            assert mask.dtype == dtype
            assert np.array_equal(mask, values)

    @pytest.mark.parametrize("format", ["PNG", "TIFF"])
    @pytest.mark.parametrize("mode", ["L", "P", "1", "I;16"])
    def test_masks_are_turned_upright_as_pictures_are(self, mode: str, format: str) -> None:
        values: Array = np.random.default_rng(0).integers(0, 2, (8, 8), np.uint8)
        image = PIL.Image.fromarray(values.astype(np.uint16) if mode == "I;16" else values)
        if mode == "P":
            image = image.convert("P")
        elif mode == "1":
            image = image.point([0, 255] * 128, "1")
        exif = PIL.Image.Exif()
        for orientation in range(1, 9):
            exif[0x0112] = orientation

            mask = decode_mask(save(image, format, exif=exif))

            assert np.array_equal(mask, upright(values, orientation))

    def test_a_turned_mask_that_a_writer_gets_is_stored_upright(self) -> None:
        """Readers of masks do not turn them."""
        values = np.random.default_rng(0).integers(0, 256, (5, 7), dtype=np.uint8)
        exif = PIL.Image.Exif()
        exif[0x0112] = 6

        record, size = stored_picture(save(values, "PNG", exif=exif), Mask(), PictureCodec(Mask()))
        served = PictureCodec(Mask()).decode(np.frombuffer(record, np.uint8))

        assert size == (7, 5)
        assert np.array_equal(served, upright(values, 6))

    @pytest.mark.parametrize("format", ["PNG", "GIF", "BMP", "TIFF"])
    def test_palettes_give_indices(self, format: str) -> None:
        values = np.random.default_rng(0).integers(0, 21, (5, 7), dtype=np.uint8)
        image = PIL.Image.fromarray(values).convert("P")
        image.putpalette(list(range(255, -1, -1)) * 3)

        assert np.array_equal(decode_mask(save(image, format, optimize=False)), values)

    @pytest.mark.parametrize("color", [0, 3])
    @pytest.mark.parametrize("depth", [1, 2, 4])
    def test_few_bits_give_their_values(self, depth: int, color: int) -> None:
        rows = np.random.default_rng(0).integers(0, 256, (5, depth), dtype=np.uint8)
        palette = (b"PLTE", bytes(np.random.default_rng(1).integers(0, 256, 3 * 2**depth)))

        mask = decode_mask(png(rows, 8, depth, color, *[palette][: color // 3]))

        bits = np.unpackbits(rows, axis=1).reshape(5, 8, depth)
        assert np.array_equal(mask, bits @ (1 << np.arange(depth)[::-1]))

    def test_equal_channels_pass_and_colors_do_not(self) -> None:
        values = photo()[:, :, 0]
        three = np.repeat(values[:, :, None], 3, axis=2)

        assert np.array_equal(decode_mask(save(three, "PNG")), values)
        opaque = PIL.Image.fromarray(values).convert("RGBA")
        assert np.array_equal(decode_mask(save(opaque, "PNG")), values)
        clear = PIL.Image.new("RGBA", (4, 4), (1, 1, 1, 0))
        for file in (save(photo(), "PNG"), save(photo(), "BMP"), save(clear, "PNG")):
            with pytest.raises(CodecError):
                decode_mask(file)

    @pytest.mark.parametrize("format", ["WEBP", "AVIF", "JPEG2000"])
    def test_formats_that_may_lose_pixels_are_no_masks(self, format: str) -> None:
        with pytest.raises(CodecError):
            decode_mask(save(photo()[:, :, 0], format, lossless=True))

    @pytest.mark.parametrize(
        "data",
        [
            b"P5 3 2 5\n" + bytes(range(6)),
            b"P1 3 2\n1 0 1 0 1 0\n",
            save(ZERO, "TIFF", tiffinfo={262: 0}),
            save(ZERO, "TIFF", save_all=True, append_images=[PIL.Image.new("L", (3, 2), 1)]),
            save(ZERO, "GIF", save_all=True, append_images=[PIL.Image.new("L", (3, 2), 1)]),
        ],
        ids=["PGM", "PBM", "0 is white", "two of TIFF", "two of GIF"],
    )
    def test_masks_whose_numbers_pillow_would_change_or_drop_are_refused(
        self, data: bytes
    ) -> None:
        with pytest.raises(CodecError):
            decode_mask(data)

    def test_lossy_empty_and_damaged_masks_are_refused(self) -> None:
        data = save(photo()[:, :, 0], "PNG")

        with pytest.raises(CodecError):
            decode_mask(jpeg())
        with pytest.raises(CodecError):
            decode_mask(b"")
        palette = save(PIL.Image.fromarray(photo()).quantize(9), "PNG")
        for whole in (data, palette):
            for size in (5, 20, len(whole) // 2, len(whole) - 12, len(whole) - 3):
                with pytest.raises(CodecError):
                    decode_mask(whole[:size])
        with pytest.raises(CodecError):
            decode_mask(save(PIL.Image.fromarray(np.full((2, 2), 70_000, np.int32)), "TIFF"))


def test_pictures_are_values() -> None:
    picture = decode_picture(simplejpeg.encode_jpeg(photo()))

    assert isinstance(picture, Picture)
    assert picture.pixels.flags.c_contiguous
