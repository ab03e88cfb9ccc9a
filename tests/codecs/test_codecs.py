"""One suite for all codecs: what they keep, what they refuse, and that damage is an error."""

import io
import json
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st

from loaders import codecs
from loaders.codecs import codec_for, register_codec
from loaders.codecs.heads import MAX_PIXELS, picture_head, picture_size
from loaders.codecs.jpeg import cut_out
from loaders.codecs.picture import PictureCodec, encode_jpeg
from loaders.codecs.raw import cast_exactly
from loaders.codecs.text import TextCodec
from loaders.errors import CodecError
from loaders.schema import Array, Boxes, Bytes, Field, Image, Json, Label, Mask, MultiLabel, Text
from tests.refusals import accepted

Pixels = npt.NDArray[Any]
SUBSAMPLINGS = ["444", "422", "420", "440", "411", "Gray"]


def record(data: bytes) -> npt.NDArray[np.uint8]:
    """Return bytes as shards hand them out: read-only."""
    return np.frombuffer(data, np.uint8)


def photo(height: int, width: int, channels: int = 3, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Return an image with detail at every scale."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (height, width, channels), np.uint8)
    coarse = cv2.GaussianBlur(noise, (0, 0), 3).reshape(noise.shape).astype(int)
    image: npt.NDArray[np.uint8] = np.clip((coarse - 128) * 6 + 128 + noise // 8, 0, 255).astype(
        np.uint8
    )
    return image


def jpeg(image: Pixels, subsampling: str = "420", quality: int = 90) -> npt.NDArray[np.uint8]:
    space = "GRAY" if subsampling == "Gray" else "RGB"
    image = image[:, :, :1].copy() if subsampling == "Gray" else image
    return record(simplejpeg.encode_jpeg(image, quality, space, subsampling))


def pil_file(image: Pixels, kind: str, mode: str | None = None, **options: Any) -> Any:
    file = io.BytesIO()
    picture = PIL.Image.fromarray(image.squeeze())
    picture = picture if mode is None else picture.convert(mode)
    picture.save(file, kind, **options)
    return record(file.getvalue())


# -- what is kept ------------------------------------------------------------------------------

EXACT: dict[str, tuple[Field, list[Any]]] = {
    "raw image": (Image(codec="raw"), [photo(5, 7), photo(1, 1), np.zeros((0, 3, 3), np.uint8)]),
    "raw image of 5": (Image(codec="raw", channels=5, size=(4, 3)), [photo(4, 3, 5)]),
    "raw image of 16 bits": (
        Image(codec="raw", dtype="uint16", channels=1),
        [photo(5, 7, 1).astype(np.uint16) * 257],
    ),
    "raw mask": (Mask(codec="raw", dtype="int32"), [np.array([[-1, 2**31 - 1]], np.int32)]),
    "png": (Image(codec="png"), [photo(5, 7), photo(1, 1)]),
    "png gray": (Image(codec="png", channels=1), [photo(5, 7, 1)]),
    "png rgba": (Image(codec="png", channels=4), [photo(5, 7, 4)]),
    "png of 16 bits": (Image(codec="png", dtype="uint16"), [photo(5, 7).astype(np.uint16) * 251]),
    "png rgba of 16 bits": (
        Image(codec="png", dtype="uint16", channels=4),
        [photo(5, 7, 4).astype(np.uint16) * 251],
    ),
    "png gray of 16 bits": (
        Image(codec="png", dtype="uint16", channels=1),
        [np.arange(65536, dtype=np.uint16).reshape(256, 256, 1)],
    ),
    "mask": (Mask(), [np.arange(256, dtype=np.uint8).reshape(16, 16), np.zeros((1, 1), np.uint8)]),
    "mask of 16 bits": (Mask(dtype="uint16"), [np.array([[0, 65535, 256]], np.uint16)]),
    "label": (Label(), [np.int64(-(2**63)), np.int64(2**63 - 1)]),
    "multilabel": (MultiLabel(classes=("a", "b")), [np.array([0, 1], np.uint8)]),
    "boxes": (Boxes(), [np.zeros((0, 4), np.float32), np.ones((3, 4), np.float32)]),
    "array": (Array(dims=(2, 3)), [np.array([[0, -0.0, np.inf], [np.nan, 1e-45, 1]], np.float32)]),
    "bool": (Array(dtype="bool", dims=(3,)), [np.array([True, False, True])]),
    "ragged": (Array(dims=(None,)), [np.zeros(0, np.float32), np.arange(9, dtype=np.float32)]),
    "ragged inside": (
        Array(dims=(2, None)),
        [np.zeros((2, 0), np.float32), np.ones((2, 3), "f4")],
    ),
    "ragged twice": (
        Array(dtype="int16", dims=(None, 2, None)),
        [
            np.zeros((0, 2, 5), np.int16),
            np.ones((3, 2, 0), np.int16),
            np.ones((3, 2, 1), np.int16),
        ],
    ),
    "text": (Text(), ["", "grüße 猫 \0 \n 😀"]),
    "json": (Json(), [None, True, 0, -1.5, "ü", [], {}, {"a": [1, {"b": None}]}, 10**30]),
    "bytes": (Bytes(), [b"", bytes(range(256))]),
}


@pytest.mark.parametrize("name", EXACT)
def test_what_goes_in_comes_out(name: str) -> None:
    field, values = EXACT[name]
    codec = codec_for(field)

    for value in values:
        data = codec.encode(value)
        found = codec.decode(record(data))

        assert isinstance(data, bytes)
        assert field.record_nbytes in (None, len(data))
        if isinstance(value, np.ndarray | np.generic):
            assert found.dtype == value.dtype
            assert found.shape == value.shape
            np.testing.assert_array_equal(found, value)
            assert found.tobytes() == value.tobytes()  # also -0.0 and NaN
        else:
            assert type(found) is type(value)
            assert found == value


@pytest.mark.parametrize("codec", ["jpeg", "webp"])
@pytest.mark.parametrize("channels", [1, 3])
def test_lossy_codecs_come_close(codec: str, channels: int) -> None:
    image = cv2.GaussianBlur(photo(40, 50, channels), (0, 0), 3).reshape(40, 50, channels)
    kind = codec_for(Image(codec=codec, channels=channels))

    found = kind.decode(record(kind.encode(image)))

    assert found.shape == image.shape
    assert np.abs(found.astype(int) - image).mean() < 4


def test_quality_is_the_callers() -> None:
    for name in ("jpeg", "webp"):
        codecs = [PictureCodec(Image(codec=name), quality=quality) for quality in (10, 50, 90)]
        sizes = [len(codec.encode(photo(64, 64))) for codec in codecs]
        assert sizes == sorted(set(sizes))


@given(
    dtype=st.sampled_from(["bool", "int8", "uint16", "float32", "int64"]),
    dims=st.lists(st.none() | st.integers(1, 4), max_size=4),
    data=st.data(),
)
def test_arrays_of_any_shape_come_back_from_any_address(
    dtype: str, dims: list[int | None], data: st.DataObject
) -> None:
    shape = [data.draw(st.integers(0, 3)) if n is None else n for n in dims]
    rng = np.random.default_rng(0)
    value = rng.integers(0, 2, shape).astype(dtype)
    codec = codec_for(Array(dtype=dtype, dims=tuple(dims)))

    text = codec.encode(value)
    for shift in (0, 1, 4):
        found = codec.decode(record(b"x" * shift + text)[shift:])
        assert found.shape == value.shape or 0 in value.shape
        assert found.dtype == value.dtype
        assert found.tolist() == value.tolist() or 0 in value.shape
        assert found.flags.aligned
        assert found.flags.c_contiguous
        assert not found.flags.writeable


def test_decoding_to_a_view_never_hands_out_memory_that_can_be_written_to() -> None:
    """Records may lie in an arena that others share."""
    arena = np.zeros(8, np.uint8)

    found = codec_for(Label()).decode(arena)

    assert np.shares_memory(found, arena)
    assert not found.flags.writeable
    assert arena.flags.writeable


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    codec = codec_for(Text())

    assert codec.decode(record(codec.encode(text))) == text


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=9,
)  # fmt: skip


@given(json_values)
def test_any_json_comes_back_and_is_json_to_others(value: Any) -> None:
    codec = codec_for(Json())

    data = codec.encode(value)

    assert codec.decode(record(data)) == value
    assert json.loads(data.decode(), parse_constant=pytest.fail) == value


# -- what is refused ---------------------------------------------------------------------------

WITH_ITSELF: list[Any] = []
WITH_ITSELF.append(WITH_ITSELF)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]

REFUSED: list[tuple[Field, Any]] = [
    (Text(), b"bytes"),
    (Text(), None),
    (Text(), "half a pair \ud800"),
    (Json(), {1, 2}),
    (Json(), b"bytes"),
    (Json(), float("nan")),
    (Json(), [float("inf")]),
    (Json(), "\udcff"),
    (Json(), {(1, 2): 3}),
    (Json(), WITH_ITSELF),
    (Json(), DEEP),
    (Bytes(), "text"),
    (Bytes(), None),
    (Bytes(), 5),
    (Label(), "cat"),
    (Label(), 1.5),
    (Label(), float("nan")),
    (Label(), 1e300),
    (Label(), 2**63),
    (Label(), 10**30),
    (Label(), np.uint64(2**64 - 1)),
    (Label(), [1]),
    (Label(), None),
    (Label(), 1j),
    (Label(), np.datetime64(5, "s")),
    (Label(), [[1], [2, 3]]),
    (MultiLabel(classes=("a", "b")), [0, 1, 0]),
    (MultiLabel(classes=("a", "b")), [0, 256]),
    (MultiLabel(classes=("a", "b")), [0, -1]),
    (MultiLabel(classes=("a", "b")), np.array([0, -1], np.int8)),
    (Boxes(), np.zeros((2, 5))),
    (Boxes(), np.zeros(4)),
    (Boxes(), np.array([[2**24 + 1, 0, 0, 0]])),
    (Array(dtype="uint64"), -1),
    (Array(dtype="uint64"), np.int64(-1)),
    (Array(dtype="uint32"), np.int32(-1)),
    (Array(dtype="uint16"), np.int16(-1)),
    (Array(dtype="int64"), np.uint64(2**63)),
    (Array(dtype="int32"), np.uint32(2**31)),
    (Array(dtype="int8"), np.uint8(200)),
    (Array(dtype="bool"), 2),
    (Array(dtype="bool"), 0.5),
    (Array(dtype="float32"), 2**24 + 1),
    (Array(dtype="float64"), 2**53 + 1),
    (Array(dtype="float32"), 1e300),
    (Array(dtype="float16"), np.float32(70_000)),
    (Array(dims=(2, None)), np.zeros((3, 4))),
    (Array(dims=(None, None)), np.zeros(4)),
    (Image(codec="raw"), photo(4, 4, 4)),
    (Image(codec="raw"), photo(4, 4, 1)[:, :, 0]),
    (Image(codec="raw", size=(4, 4)), photo(4, 5)),
    (Image(), photo(4, 4, 4)),
    (Image(), photo(4, 4, 1)),
    (Image(), photo(4, 4)[:, :, 0]),
    (Image(), photo(4, 4).astype(np.uint16)),
    (Image(), photo(4, 4).astype(np.float32)),
    (Image(), np.zeros((0, 4, 3), np.uint8)),
    (Image(), np.zeros((1, 65_536, 3), np.uint8)),
    (Image(), [[1, 2], [3]]),
    (Image(), 5),
    (Image(channels=4), photo(4, 4, 4)),
    (Image(codec="png"), np.zeros((4, 0, 3), np.uint8)),
    (Image(codec="png", dtype="uint16"), photo(4, 4)),
    (Image(codec="webp"), np.zeros((1, 16_384, 3), np.uint8)),
    (Mask(), np.zeros((4, 4, 1), np.uint8)),
    (Mask(), np.zeros((4, 4), np.int64)),
    (Mask(dtype="uint16"), np.zeros((4, 4), np.uint8)),
]  # fmt: skip


def test_a_value_that_the_field_cannot_hold_is_refused() -> None:
    assert accepted(CodecError, lambda each: codec_for(each[0]).encode(each[1]), REFUSED) == []


@pytest.mark.slow
def test_a_picture_that_could_not_be_read_again_is_not_written() -> None:
    image = np.broadcast_to(np.uint8(0), (1 << 15, (1 << 15) + 1))
    with pytest.raises(CodecError):
        codec_for(Mask()).encode(image)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        (Label(), 5, 5),
        (Label(), True, 1),
        (Label(), 3.0, 3),
        (Label(), np.uint8(200), 200),
        (Array(dtype="float32"), 0.1, np.float32(0.1)),
        (Array(dtype="float16"), 1e-30, 0),
        (Array(dtype="float32"), np.inf, np.inf),
        (Array(dtype="float32"), 2**24, 2**24),
        (Array(dtype="bool"), 1, True),
        (Array(dtype="uint8", dims=(2,)), [1, 2], [1, 2]),
        (Array(dtype="int16"), np.array(-5, ">i2"), -5),
    ],
)
def test_numbers_that_fit_are_converted(field: Field, value: Any, expected: Any) -> None:
    codec = codec_for(field)

    assert codec.decode(record(codec.encode(value))).tolist() == np.asarray(expected).tolist()


class Saturating(np.ndarray[Any, Any]):
    """Floats that no whole number of a type stands for become its least or its largest, as on ARM."""

    def astype(self, dtype: Any, *args: Any, **options: Any) -> Any:
        dtype = np.dtype(dtype)
        if self.dtype.kind == "f" and dtype.kind in "ui":
            limits = np.iinfo(dtype)
            whole = [min(max(int(value), limits.min), limits.max) for value in self.tolist()]
            return np.array(whole, dtype).view(Saturating)
        return super().astype(dtype, *args, **options)


@pytest.mark.parametrize(
    ("value", "dtype", "to"),
    [
        (2**64 - 1, "uint64", "float64"),
        (2**63 - 1, "int64", "float64"),
        (2**32 - 1, "uint32", "float32"),
        (2.0**64, "float64", "uint64"),
        (2.0**63, "float64", "int64"),
        (2.0**32, "float32", "uint32"),
        (2.0**31, "float32", "int32"),
    ],
)
def test_a_number_that_is_rounded_beyond_its_type_does_not_fit(
    value: float, dtype: str, to: str
) -> None:
    """Whatever the processor makes of it on the way back."""
    for array in (np.array([value], dtype), np.array([0, value], dtype).view(Saturating)):
        with pytest.raises(CodecError):
            cast_exactly(array, np.dtype(to))


@pytest.mark.parametrize(
    ("value", "dtype", "to"),
    [
        (2**63, "uint64", "float64"),
        (-(2**63), "int64", "float64"),
        (2.0**64 - 2048, "float64", "uint64"),
        (-(2.0**63), "float64", "int64"),
        (65_504, "float16", "uint64"),
        (-128.0, "float16", "int8"),
        (255.0, "float32", "uint8"),
        (1.0, "float32", "bool"),
    ],
)
def test_the_largest_numbers_that_two_types_share_fit(value: float, dtype: str, to: str) -> None:
    for array in (np.array([value], dtype), np.array([value], dtype).view(Saturating)):
        assert cast_exactly(array, np.dtype(to)).tolist() == [value]


def test_a_gray_picture_may_lack_its_channel_axis() -> None:
    image = photo(6, 5, 1)

    for codec in ("raw", "png"):
        kind = codec_for(Image(codec=codec, channels=1))
        assert np.array_equal(kind.decode(record(kind.encode(image[:, :, 0]))), image)


def test_arrays_may_lie_in_memory_anyhow() -> None:
    image = photo(40, 30)[::-1, ::2]

    for name in ("raw", "png", "jpeg", "webp"):
        codec = codec_for(Image(codec=name))
        assert codec.encode(image) == codec.encode(image.copy())


MISFITS: list[Field] = [
    *(Label(codec=name) for name in ("jpeg", "png", "text", "json", "bytes")),
    *(Text(codec=name) for name in ("raw", "json", "bytes", "jpeg")),
    *(Image(codec=name) for name in ("text", "json", "bytes")),
    *(Mask(codec=name) for name in ("jpeg", "webp", "bytes")),
    *(Bytes(codec=name) for name in ("raw", "text")),
    Boxes(codec="json"),
    Json(codec="text"),
    Image(codec="jpeg", dtype="uint16"),
    Image(codec="webp", dtype="uint16"),
    Image(codec="png", dtype="uint32"),
    Image(codec="png", channels=2),
    Image(codec="png", channels=5),
    Mask(dtype="int32"),
    Mask(dtype="int8"),
]


def test_a_codec_that_does_not_fit_its_field_is_refused() -> None:
    assert accepted(CodecError, codec_for, MISFITS) == []


def test_an_unknown_codec_says_what_to_do() -> None:
    with pytest.raises(CodecError):
        codec_for(Image(codec="dct2"))


def test_a_codec_can_be_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Upper(TextCodec):
        def __init__(self, field: Field) -> None:
            self.field = field

        def decode(self, data: npt.NDArray[np.uint8]) -> str:
            return super().decode(data).upper()

    monkeypatch.setattr(codecs, "_FACTORIES", dict(codecs._FACTORIES))

    register_codec("upper", Upper)
    register_codec("upper", Upper)

    assert codec_for(Text(codec="upper")).decode(record(b"abc")) == "ABC"
    with pytest.raises(CodecError):
        register_codec("upper", TextCodec)
    with pytest.raises(CodecError):
        register_codec("raw", Upper)


# -- damage ------------------------------------------------------------------------------------


DAMAGED: list[tuple[Field, bytes]] = [
    (Text(), b"\xff"),
    (Text(), "ü".encode()[:1]),
    (Json(), b""),
    (Json(), b"{"),
    (Json(), b"\xff\xfe"),
    (Json(), b"[" * 100_000),
    (Json(), b"9" * 5000),
    (Label(), b""),
    (Label(), bytes(7)),
    (Label(), bytes(9)),
    (Array(dims=(2, 3)), bytes(20)),
    (Array(dims=(None,)), bytes(5)),
    (Boxes(), bytes(8)),
    (Array(dims=(2, None)), bytes(12)),
    (Array(dims=(None, None)), b""),
    (Array(dims=(None, None)), bytes(7)),
    (Array(dims=(None, None)), struct.pack("<II", 2, 2) + bytes(12)),
    (Array(dims=(None, None)), struct.pack("<II", 2**32 - 1, 2**32 - 1)),
    (Array(dims=(None, None)), struct.pack("<II", 2**31, 2**31) + bytes(16)),
    (Array(dims=(None,) * 5), struct.pack("<IIIII", *[2**32 - 1] * 5) + bytes(16)),
    (Image(codec="raw"), struct.pack("<II", 2**31, 2**31)),
    (Image(codec="raw"), bytes(10)),
]


def test_a_damaged_record_is_a_codec_error() -> None:
    assert (
        accepted(CodecError, lambda each: codec_for(each[0]).decode(record(each[1])), DAMAGED)
        == []
    )


@given(st.binary(max_size=80))
def test_any_bytes_are_a_value_or_a_codec_error(data: bytes) -> None:
    """A value is one that the field may have, whatever the bytes were."""
    heads = (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBPVP8 ")
    for field in (*(field for field, _ in EXACT.values()), Image(), Image(codec="webp")):
        for head in heads:
            with suppress(CodecError):
                assert is_value_of(field, codec_for(field).decode(record(head + data)))


def is_value_of(field: Field, value: Any) -> bool:
    """Tell whether a codec may return this, by its type, dtype and shape."""
    if isinstance(field, Text | Json | Bytes):
        kinds = {"text": str, "bytes": bytes, "json": object}
        return isinstance(value, kinds[field.kind])
    shape = field.shape
    assert shape is not None
    if isinstance(field, Image):  # channels come last here
        shape = (*shape[1:], shape[0])
    fits = [want in (None, got) for want, got in zip(shape, value.shape, strict=True)]
    return all(fits) and value.dtype == field.dtype


PICTURES: dict[str, tuple[Image | Mask, npt.NDArray[np.uint8]]] = {
    "jpeg": (Image(), jpeg(photo(60, 50))),
    "gray jpeg": (Image(channels=1), jpeg(photo(60, 50), "Gray")),
    "progressive jpeg": (Image(), pil_file(photo(60, 50), "JPEG", progressive=True)),
    "png": (Image(codec="png"), pil_file(photo(60, 50), "PNG")),
    "png of 16 bits": (
        Image(codec="png", channels=1, dtype="uint16"),
        pil_file(photo(60, 50, 1).astype(np.uint16) * 257, "PNG"),
    ),
    "rgba png": (Image(codec="png", channels=4), pil_file(photo(60, 50, 4), "PNG")),
    "mask": (Mask(), pil_file(photo(60, 50, 1), "PNG")),
    "webp": (Image(codec="webp"), pil_file(photo(60, 50), "WEBP")),
    "lossless webp": (Image(codec="webp"), pil_file(photo(60, 50), "WEBP", lossless=True)),
    "rgba webp": (Image(codec="webp", channels=4), pil_file(photo(60, 50, 4), "WEBP")),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_cut_picture_is_a_codec_error(name: str) -> None:
    field, data = PICTURES[name]
    codec = PictureCodec(field)
    assert codec.decode(data).shape[:2] == (60, 50)

    end = len(data) - (3 if data[0] == 0xFF else 0)  # a JPEG may lack its end marker
    for size in {*range(40), *range(40, len(data) - 8, 97), *range(len(data) - 8, end)}:
        with pytest.raises(CodecError):
            codec.decode(data[:size])
        with pytest.raises(CodecError):
            codec.decode(data[:size], 2)


@pytest.mark.parametrize("name", PICTURES)
def test_a_flipped_picture_is_a_picture_or_a_codec_error(name: str) -> None:
    field, data = PICTURES[name]
    codec = PictureCodec(field)
    shape = codec.decode(data).shape
    rng = np.random.default_rng(3)

    for i in range(200):
        damaged = data.copy()
        at = i if i < 40 else int(rng.integers(len(data)))
        damaged[at] ^= 1 << int(rng.integers(8))
        try:
            found = codec.decode(damaged, out=np.empty(60 * 50 * 3, np.uint8))
        except CodecError:
            continue
        assert found.ndim == len(shape)
        assert found.shape[2:] == shape[2:]


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def bomb_png(height: int, width: int) -> npt.NDArray[np.uint8]:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    return record(b"\x89PNG\r\n\x1a\n" + body)


def bomb_jpeg(height: int, width: int) -> npt.NDArray[np.uint8]:
    data = jpeg(photo(16, 16)).copy()
    at = data.tobytes().index(b"\xff\xc0") + 5
    data[at : at + 4] = list(struct.pack(">HH", height, width))
    return data


def bomb_webp(height: int, width: int) -> npt.NDArray[np.uint8]:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"VP8X" + struct.pack("<I", 10) + bytes(4) + sides
    return record(b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body + bytes(40))


@pytest.mark.parametrize(
    "data",
    [
        bomb_jpeg(65_500, 65_500),
        bomb_jpeg(0, 100),
        bomb_png(2**31 - 1, 2**31 - 1),
        bomb_png(2**32 - 1, 1),
        bomb_png(0, 5),
        bomb_webp(2**24, 2**24),
        bomb_webp(1, 2**24 - 1),
    ],
    ids=range(7),
)
def test_a_header_that_asks_for_absurd_sizes_allocates_nothing(
    data: npt.NDArray[np.uint8],
) -> None:
    for field in (Image(), Image(channels=4), Mask(), Image(channels=1)):
        for options in ({}, {"reduction": 8}, {"out": np.empty(768, np.uint8)}):
            with pytest.raises(CodecError):
                PictureCodec(field).decode(data, **options)


@pytest.mark.parametrize("kind", ["BMP", "GIF", "TIFF", "PPM", "JPEG2000"])
def test_other_formats_are_refused(kind: str) -> None:
    """OpenCV would decode them; nobody promised that, and not every build does."""
    data = pil_file(photo(8, 9), kind)

    for field in (Image(), Image(codec="png"), Image(codec="png", channels=4), Mask()):
        with pytest.raises(CodecError):
            codec_for(field).decode(data)
    with pytest.raises(CodecError):
        picture_size(data)


def test_a_mask_as_jpeg_is_refused() -> None:
    with pytest.raises(CodecError):
        codec_for(Mask()).decode(jpeg(photo(8, 9), "Gray"))


def test_a_cmyk_jpeg_is_served_in_rgb() -> None:
    image = np.full((8, 9, 3), (200, 100, 50), np.uint8)

    found = codec_for(Image()).decode(pil_file(image, "JPEG", "CMYK", quality=95))

    np.testing.assert_allclose(found, image, atol=3)


# -- pictures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}),
    ],
    ids=str,
)
def test_the_size_is_read_from_the_header(kind: str, options: dict[str, Any]) -> None:
    for size in ((1, 1), (3, 200), (255, 256), (257, 5)):
        file = io.BytesIO()
        PIL.Image.new("RGB", size[::-1], (9, 99, 199)).save(file, kind, **options)
        data = record(file.getvalue())

        assert picture_size(data) == size
        assert picture_size(data.tobytes()) == size
        assert codec_for(Image()).decode(data).shape == (*size, 3)


def test_a_webp_header_says_how_it_is_encoded() -> None:
    data = pil_file(photo(8, 9), "WEBP").copy()
    data[12:16] = list(b"ABCD")

    with pytest.raises(CodecError):
        picture_size(data)


def test_any_of_the_three_is_read_whatever_the_field_encodes_to() -> None:
    image = np.full((8, 9, 3), (200, 100, 50), np.uint8)

    for codec in ("jpeg", "png", "webp"):
        for kind in ("JPEG", "PNG", "WEBP"):
            found = codec_for(Image(codec=codec)).decode(pil_file(image, kind))
            assert found.shape == image.shape
            np.testing.assert_allclose(found, image, atol=6)


def test_channels_are_the_fields() -> None:
    gray, rgb = photo(8, 9, 1), np.full((8, 9, 3), (200, 100, 50), np.uint8)
    rgba = np.dstack([rgb, np.full((8, 9), 128, np.uint8)])
    one, three, four = (codec_for(Image(codec="png", channels=n)) for n in (1, 3, 4))

    assert np.array_equal(three.decode(pil_file(gray, "PNG")), np.repeat(gray, 3, axis=2))
    assert np.array_equal(three.decode(pil_file(rgba, "PNG")), rgb)
    assert np.array_equal(four.decode(pil_file(rgba, "PNG")), rgba)
    assert np.array_equal(four.decode(pil_file(rgb, "PNG"))[:, :, 3], np.full((8, 9), 255))
    assert np.array_equal(four.decode(pil_file(gray, "PNG"))[:, :, :3], np.repeat(gray, 3, axis=2))
    assert one.decode(pil_file(rgb, "PNG")).shape == (8, 9, 1)
    assert four.decode(jpeg(photo(8, 9))).shape == (8, 9, 4)
    assert one.decode(jpeg(photo(8, 9))).shape == (8, 9, 1)
    assert three.decode(jpeg(photo(8, 9), "Gray")).shape == (8, 9, 3)


@pytest.mark.parametrize("mode", ["P", "RGB", "LA", "RGBA"])
def test_a_mask_of_colors_is_refused(mode: str) -> None:
    with pytest.raises(CodecError):
        codec_for(Mask()).decode(pil_file(photo(8, 9), "PNG", mode))


def test_depth_is_the_fields() -> None:
    shallow, deep = photo(8, 9, 1), photo(8, 9, 1).astype(np.uint16) * 257

    with pytest.raises(CodecError):
        codec_for(Image(codec="png", channels=1, dtype="uint16")).decode(pil_file(shallow, "PNG"))
    with pytest.raises(CodecError):
        codec_for(Mask()).decode(pil_file(deep, "PNG"))
    with pytest.raises(CodecError):
        codec_for(Image(codec="png", dtype="uint16")).decode(jpeg(photo(8, 9)))
    assert (
        codec_for(Image(codec="png", channels=1)).decode(pil_file(deep, "PNG")).dtype == np.uint8
    )


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_what_is_stored_is_served_whatever_exif_says(kind: str, channels: int) -> None:
    """The packer has turned it; turning it again would be wrong, and change its size."""
    exif = PIL.Image.Exif()
    image = np.full((8, 9, 3), 90, np.uint8)

    for exif[0x0112] in range(1, 9):
        found = codec_for(Image(channels=channels)).decode(pil_file(image, kind, exif=exif))
        assert found.shape == (8, 9, channels)


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_decoding_into_a_buffer_gives_the_same_pixels(subsampling: str) -> None:
    data = jpeg(photo(33, 47), subsampling)
    codec = PictureCodec(Image())
    nbytes = 33 * 47 * 3

    for spare in (0, 1, 999):
        out = np.full(nbytes + spare, 7, np.uint8)
        found = codec.decode(data, out=out)
        assert np.shares_memory(found, out)
        assert np.array_equal(found, codec.decode(data))
        assert out[nbytes:].tolist() == [7] * spare
    place = np.zeros((2, 33, 47, 3), np.uint8)
    codec.decode(data, out=place[1].reshape(-1))
    assert np.array_equal(place[1], codec.decode(data))
    assert not place[0].any()
    with pytest.raises(CodecError):
        codec.decode(data, out=np.empty(nbytes - 1, np.uint8))


@given(st.integers(1, 70), st.integers(1, 70), st.sampled_from(SUBSAMPLINGS))
def test_a_reduced_picture_has_its_sides_divided_and_rounded_up(
    height: int, width: int, subsampling: str
) -> None:
    data = jpeg(photo(height, width), subsampling)

    for reduction in (1, 2, 4, 8):
        found = PictureCodec(Image()).decode(data, reduction)
        assert found.shape == (-(-height // reduction), -(-width // reduction), 3)


def test_a_reduced_picture_is_an_average_of_pixels() -> None:
    image = cv2.GaussianBlur(photo(64, 96), (0, 0), 6)
    data = jpeg(image, "444", 98)

    for reduction in (2, 4, 8):
        found = PictureCodec(Image()).decode(data, reduction).astype(float)
        blocks = image.reshape(64 // reduction, reduction, 96 // reduction, reduction, 3)
        np.testing.assert_allclose(found, blocks.mean(axis=(1, 3)), atol=8)


def test_others_than_jpeg_are_not_reduced_or_cut() -> None:
    part = [0, 0, 8, 8]
    for name in ("png", "rgba png", "mask", "webp"):
        field, data = PICTURES[name]
        codec = PictureCodec(field)
        assert np.array_equal(codec.decode(data, 4), codec.decode(data))
        head = picture_head(data)
        assert cut_out(data, head, part) == (data, (0, 0, head.height, head.width), False)


# -- threads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PICTURES)
def test_one_codec_serves_all_threads(name: str) -> None:
    field, _ = PICTURES[name]
    codec = PictureCodec(field)
    channels = 0 if isinstance(field, Mask) else field.channels
    images = [photo(40 + i, 50, channels or 1, seed=i).astype(field.dtype) for i in range(6)]
    images = [image[:, :, 0] if channels == 0 else image for image in images]
    if channels == 4 and field.codec == "jpeg":
        images = [image[:, :, :3] for image in images]
    records = [record(codec.encode(image)) for image in images]
    expected = [codec.decode(r, 2).tobytes() for r in records]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda i: codec.decode(records[i % 6], 2), range(120)))
        again = list(threads.map(lambda i: codec.encode(images[i % 6]), range(24)))

    assert [array.tobytes() for array in found] == expected * 20
    assert [record(data).tobytes() for data in again] == [r.tobytes() for r in records] * 4


def test_the_limit_of_pixels_is_what_the_message_says() -> None:
    height, width = 1 << 14, MAX_PIXELS >> 14
    with pytest.raises(CodecError):
        picture_size(bomb_png(height, width + 1))
    assert picture_size(bomb_png(height, width)) == (height, width)


def test_jpeg_holds_one_or_three_channels() -> None:
    with pytest.raises(CodecError):
        encode_jpeg(photo(8, 8, 2))
