"""Headers of pictures: what they say, and what is kept of it."""

import struct
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st

from loaders.codecs import heads
from loaders.codecs.heads import kept_heads, picture_head, picture_heads
from loaders.codecs.picture import PictureCodec, encode_jpeg
from loaders.data.formats.checksums import HEAD_BYTES
from loaders.errors import CodecError
from loaders.schema import Image
from tests.codecs.test_codecs import bomb_jpeg, jpeg, photo, pil_file, record

UInt8Array = npt.NDArray[np.uint8]
SIZES = [(64, 48), (64, 48), (97, 200), (256, 320)]


def of_pil(height: int, width: int, **options: Any) -> UInt8Array:
    data: UInt8Array = pil_file(photo(height, width), "JPEG", **options)
    return data


def of_441(*, progressive: bool) -> bytes:
    """Make a JPEG whose sampling has no name in simplejpeg; it has as many blocks a unit as 4:2:0."""
    file = bytearray(of_pil(32, 64, progressive=progressive, subsampling=2))
    at = file.index(b"\xff\xc2" if progressive else b"\xff\xc0")
    file[at + 5 : at + 9] = struct.pack(">HH", 64, 32)
    file[at + 11] = 0x14
    return bytes(file)


FILES = [
    *(
        record(encode_jpeg(photo(*size)).replace(heads.INDEX, name))
        for size in SIZES for name in (heads.INDEX, b"ANYTHING")
    ),
    *(jpeg(photo(*size), quality=quality) for size in SIZES for quality in (50, 90, 100)),
    *(jpeg(photo(*size), kind) for size in SIZES for kind in ("444", "422", "Gray")),
    *(record(encode_jpeg(photo(*size, channels))) for size in SIZES for channels in (1, 3)),
    *(
        of_pil(*size, restart_marker_blocks=n, subsampling=kind)
        for size in SIZES for n in (2, 4) for kind in (0, 1, 2)
    ),
    *(of_pil(*size, **options) for size in SIZES for options in (
        {"progressive": True}, {"optimize": True}, {"exif": b"Exif\0\0" + bytes(900)},
        {"comment": b"a"}, {"comment": b"b" * 3}, {"icc_profile": bytes(3000)},
    )),
    *(pil_file(photo(*size), kind) for size in SIZES for kind in ("PNG", "WEBP")),
]  # fmt: skip


def test_heads_that_are_known_are_not_read_again() -> None:
    """Those of a file that cannot be cut, too; ``heads`` of all are as of each alone."""
    known = np.zeros(len(FILES), heads.HEAD)

    found = picture_heads(FILES, known=known)
    again = picture_heads([np.zeros(1, np.uint8)] * len(FILES), known=known)

    assert found.tolist() == again.tolist() == [picture_head(file) for file in FILES]
    assert not picture_heads([]).size


def test_heads_that_a_shard_keeps_are_those_of_the_files() -> None:
    bad = np.frombuffer(b"no picture", np.uint8)

    kept = kept_heads([*FILES, bad])

    assert kept[:-1].tolist() == [tuple(picture_head(file)) for file in FILES]
    assert not any(kept[-1].tolist())
    assert heads.HEAD.itemsize == HEAD_BYTES


def test_sides_beyond_16_bits_are_read_each_time() -> None:
    file, known = pil_file(np.zeros((2, 70_000, 3), np.uint8), "PNG"), np.zeros(1, heads.HEAD)

    for _ in range(2):
        assert picture_heads([file], known=known).item()[:2] == (2, 70_000)
    assert not kept_heads([file])["height"].any()
    assert not known["height"].any()


@given(st.data())
def test_damaged_headers_are_heads_or_codec_errors(data: st.DataObject) -> None:
    file = FILES[data.draw(st.integers(0, len(FILES) - 1))].copy()
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, min(len(file) - 1, 700)))] = data.draw(st.integers(0, 255))

    with suppress(CodecError):
        head = picture_head(file)
        known = np.zeros(1, heads.HEAD)
        assert picture_heads([file], known=known).item() == head
        assert picture_heads([file], known=known).item() == head


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (65_000, 65_000)])
def test_absurd_sizes_are_found_among_many(size: tuple[int, int]) -> None:
    good = jpeg(photo(8, 8))
    bad = bomb_jpeg(*size) if min(size) else good.copy()
    if not min(size):
        at = picture_head(good).height_at
        bad[at : at + 4] = [0, size[0], 0, size[1]]
    name = f"the picture has {size[0]} x {size[1]} pixels"

    with pytest.raises(CodecError, match=name):
        picture_heads([good] * 10 + [bad] + [good] * 10)


def test_a_limit_holds_for_heads_that_are_known() -> None:
    files, known = [jpeg(photo(64, 48))], np.zeros(1, heads.HEAD)
    picture_heads(files, known=known)

    with pytest.raises(CodecError, match="max_picture_mb"):
        picture_heads(files, 64 * 48 - 1, known)


def errors_of(files: list[UInt8Array]) -> set[str]:
    """Return what is wrong with each alone."""
    errors = set()
    for file in files:
        try:
            picture_head(file)
        except CodecError as error:
            errors.add(str(error))
    return errors


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"exif": b"Exif\0\0"}])
def test_a_stub_is_cut(kind: str, options: dict[str, Any]) -> None:
    """In words, not in those of ``struct``, and whatever the size lies behind."""
    file = pil_file(photo(40, 300), kind, **options)

    for num in range(12, 24):
        (said,) = errors_of([file[:num]])
        assert said.startswith(f"these {num} bytes are no JPEG, PNG or WebP, or cut")
    assert picture_head(file[:30])[:2] == (40, 300)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_sampling_without_a_name_is_one_as_any_other(progressive: bool) -> None:
    data = of_441(progressive=progressive)
    filled = data[:2] + b"\xff\xff\xc4\0\2" + data[2:]  # a byte to fill up, and no tables

    for file in (data, filled):
        assert picture_head(file)[:2] == (64, 32)
        pixels = PictureCodec(Image()).decode(record(file))
        assert np.array_equal(pixels, simplejpeg.decode_jpeg(file))
    with pytest.raises(CodecError):
        picture_head(data[:100])
