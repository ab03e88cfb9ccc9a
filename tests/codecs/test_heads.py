"""Headers of many pictures at once: the same as one by one."""

import struct
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st

from loaders.codecs import heads
from loaders.codecs.heads import PictureHead, picture_head, picture_heads
from loaders.codecs.picture import PictureCodec, encode_jpeg
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


def assert_alike(files: list[UInt8Array]) -> None:
    found = picture_heads(files)
    alone = [picture_head(file) for file in files]

    assert found.sizes.dtype == np.int64
    assert found.sizes.tolist() == [[head.height, head.width] for head in alone]
    assert found.jpegs == [head.jpeg for head in alone]


def errors_of(files: list[UInt8Array]) -> set[str]:
    """Return what is wrong with each alone."""
    errors = set()
    for file in files:
        try:
            picture_head(file)
        except CodecError as error:
            errors.add(str(error))
    return errors


@pytest.mark.parametrize("count", [0, 1, 7, 8, 40, 200])
def test_headers_of_any_files_together(count: int) -> None:
    for seed in range(3):
        order = np.random.default_rng(seed).integers(len(FILES), size=count)

        assert_alike([FILES[i] for i in order])


def test_headers_of_many_files_of_a_kind_and_some_others() -> None:
    for file in FILES:
        assert_alike([file] * 10 + FILES[::5] + [file] * 10)


def test_a_file_that_ends_within_its_header_is_read_as_if_alone() -> None:
    """And the others as if it was not there."""
    for nbytes in (*range(0, 40, 3), 160, 170, 400, *range(600, 640)):
        files = [FILES[0]] * 9 + [FILES[0][:nbytes]]

        if errors := errors_of(files):
            with pytest.raises(CodecError) as caught:
                picture_heads(files)
            assert {str(caught.value)} == errors
        else:
            assert_alike(files)


@given(st.data())
def test_damaged_headers_are_read_as_if_alone(data: st.DataObject) -> None:
    files = [FILES[data.draw(st.integers(0, len(FILES) - 1))]] * 9
    files += [FILES[data.draw(st.integers(0, len(FILES) - 1))]] * 3
    for _ in range(data.draw(st.integers(1, 4))):
        i = data.draw(st.integers(0, len(files) - 1))
        files[i] = files[i].copy()
        at = data.draw(st.integers(0, min(len(files[i]) - 1, 700)))
        files[i][at] = data.draw(st.integers(0, 255))

    if errors := errors_of(files):
        with pytest.raises(CodecError) as caught:
            picture_heads(files)
        assert str(caught.value) in errors
    else:
        assert_alike(files)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (65_000, 65_000)])
def test_absurd_sizes_are_found_among_many(size: tuple[int, int]) -> None:
    good = jpeg(photo(8, 8))
    bad = bomb_jpeg(*size) if min(size) else good.copy()
    if not min(size):
        layout = picture_head(good).jpeg
        assert layout is not None
        bad[layout.height_at : layout.height_at + 4] = [0, size[0], 0, size[1]]
    name = f"the picture has {size[0]} x {size[1]} pixels"

    with pytest.raises(CodecError, match=name):
        picture_heads([good] * 10 + [bad] + [good] * 10)


def test_headers_of_any_length_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Counter[str]()

    def counted(data: Any, max_pixels: int) -> PictureHead:
        read["alone"] += 1
        return picture_head(data, max_pixels)

    monkeypatch.setattr(heads, "picture_head", counted)
    kinds = [jpeg(photo(64, 64)), of_pil(64, 64, comment=b"a"), record(encode_jpeg(photo(64, 64)))]
    picture_heads([file for file in kinds for _ in range(20)])
    exif = (b"Exif\0\0" + bytes(80 * i) for i in range(40))  # most of them behind the first window
    picture_heads([of_pil(64, 64, exif=each) for each in exif])
    sides = range(100, 400, 10)
    picture_heads([record(encode_jpeg(photo(120, side))) for side in sides])  # intervals, too
    assert not read

    picture_heads([FILES[-1]] * 20)
    assert read["alone"] == 20


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"exif": b"Exif\0\0"}])
def test_a_stub_is_cut(kind: str, options: dict[str, Any]) -> None:
    """In words, not in those of ``struct``, and whatever the size lies behind."""
    file = pil_file(photo(40, 300), kind, **options)

    told = {str(len(stub)): errors_of([stub]) for stub in (file[:n] for n in range(12, 24))}

    name = {"PNG": "PNG", "WEBP": "WebP"}[kind]
    assert told == {num: {f"the {name} is cut: it has {num} bytes"} for num in told}
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
