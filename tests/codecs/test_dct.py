"""``dct``: what is kept, at which quality, what a prefix gives, and that damage is an error."""

import os
import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import pyarrow as pa
import pytest
import simplejpeg
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.codecs import codec_for
from loaders.codecs.coefficients import quantization
from loaders.codecs.dct import DctCodec
from loaders.errors import CodecError, SchemaError
from loaders.schema import Array, Image, field_from_json
from tests.codecs import reference

PHOTOS = Path(os.environ.get("LOADERS_TEST_PHOTOS", Path(__file__).parents[1] / "data/photos"))
Pixels = npt.NDArray[np.uint8]


def dct(size: tuple[int, int], side: int = 8, **options: Any) -> DctCodec:
    return DctCodec(Image(size=size, codec="dct", **options), side)


def record(data: bytes) -> Pixels:
    return np.frombuffer(data, np.uint8)


def picture(height: int, width: int, channels: int = 3, seed: int = 0) -> Pixels:
    """Return an image with detail at every scale, edges and all."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (height, width, channels), np.uint8)
    coarse = cv2.GaussianBlur(noise, (0, 0), 3).reshape(noise.shape).astype(int)
    image: Pixels = np.clip((coarse - 128) * 6 + 128 + noise // 8, 0, 255).astype(np.uint8)
    return image


def photos(*, num: int | None = None) -> list[Pixels]:
    files = sorted(file for file in PHOTOS.rglob("*") if file.suffix in (".jpg", ".png"))
    found = [np.asarray(PIL.Image.open(file).convert("RGB")) for file in files[:num]]
    # Smaller: else a JPEG's own rounding is found again, which no other picture has.
    return [np.asarray(_halved(image), np.uint8) for image in found]


def _halved(image: Pixels) -> Any:
    return cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)


def psnr(one: Pixels, other: Pixels) -> float:
    error = np.mean((one.astype(float) - other) ** 2)
    return float(10 * np.log10(255**2 / error))


# -- quality -----------------------------------------------------------------------------------


@pytest.mark.parametrize("quality", [50, 90, 100])
@pytest.mark.parametrize("subsampling", ["420", "444"])
def test_quality_is_that_of_libjpeg_or_better(quality: int, subsampling: str) -> None:
    """On every photo; another folder of photos: LOADERS_TEST_PHOTOS=FOLDER."""
    for photo in photos():
        codec = dct(photo.shape[:2], quality=quality, subsampling=subsampling)
        jpeg = simplejpeg.encode_jpeg(photo, quality, "RGB", subsampling)

        ours = psnr(codec.decode(record(codec.encode(photo))), photo)

        assert ours >= psnr(simplejpeg.decode_jpeg(jpeg), photo)


@pytest.mark.parametrize("quality", [1, 10, 49, 50, 90, 100])
def test_tables_are_those_of_libjpeg(quality: int) -> None:
    """Read back from a JPEG file that libjpeg wrote at this quality."""
    data = simplejpeg.encode_jpeg(picture(16, 16), quality, "RGB", "420")
    zigzag = sorted(
        range(64), key=lambda i: (i // 8 + i % 8, (i // 8 if (i // 8 + i % 8) % 2 else i % 8))
    )
    at, written = 0, []
    while (at := data.find(b"\xff\xdb", at) + 1) > 0:
        table = np.zeros(64, int)
        table[zigzag] = list(data[at + 4 : at + 68])
        written.append(table.reshape(8, 8).tolist())

    assert written == [table.tolist() for table in quantization(quality)]


def test_records_are_small() -> None:
    """LZ4 within 1.6 times a JPEG's bytes on these small photos, zstd within 1.15; bands add under 5 %."""
    sizes: dict[str, int] = dict.fromkeys(("jpeg", "lz4", "zstd", "unbanded"), 0)
    for photo in photos(num=6):
        sizes["jpeg"] += len(simplejpeg.encode_jpeg(photo, 90, "RGB", "420"))
        codec = dct(photo.shape[:2], compression="zstd")
        packed = codec.encode(photo)
        sizes["zstd"] += len(packed)
        sizes["lz4"] += len(dct(photo.shape[:2]).encode(photo))
        low = codec.unpack(record(packed)).astype(np.int64).astype(np.int8).tobytes()
        sizes["unbanded"] += len(pa.Codec("lz4_raw", compression_level=12).compress(low))

    assert sizes["lz4"] <= 1.6 * sizes["jpeg"]
    assert sizes["zstd"] <= 1.15 * sizes["jpeg"]
    assert sizes["lz4"] <= 1.06 * sizes["unbanded"]  # which lacks header and escapes


# -- what is kept ------------------------------------------------------------------------------

SETTINGS = [
    ((16, 16), 3, "420"), ((8, 8), 3, "444"), ((9, 17), 3, "420"), ((15, 8), 3, "444"), ((1, 1), 3, "420"),
    ((3, 2), 3, "420"), ((33, 5), 1, "420"), ((24, 40), 1, "444"),
]  # fmt: skip


@pytest.mark.parametrize(("size", "channels", "subsampling"), SETTINGS)
def test_pixels_are_those_of_the_reference(
    size: tuple[int, int], channels: int, subsampling: str
) -> None:
    """Rounded to the nearest, at every scale, edges of any size; the reference reads the record itself."""
    options: Any = {"channels": channels, "subsampling": subsampling, "quality": 85}
    packed = dct(size, **options).encode(picture(*size, channels))
    halved = subsampling == "420" and channels == 3

    for side in (8, 4, 2, 1):
        wanted = reference.decode(packed, size, channels, halved=halved, side=side)
        served = dct(size, side, **options).decode(record(packed))

        assert served.shape == wanted.shape == (*(-(-n * side // 8) for n in size), channels)
        assert np.abs(served - wanted).max() <= 0.501


@settings(max_examples=25)
@given(
    st.dictionaries(
        st.integers(0, 320 * 320 - 1), st.sampled_from([1, -1, 127, -128, 128, -129, 2047, -2048])
    ),
    st.sampled_from(["lz4", "zstd"]),
)
def test_every_coefficient_is_kept(values: dict[int, int], compression: str) -> None:
    """Also beyond int8, wherever they are and however far apart."""
    codec = dct((320, 320), channels=1, compression=compression)
    coefficients = np.zeros((64, 1600), np.int64)
    coefficients.reshape(-1)[list(values)] = list(values.values())

    kept = codec.unpack(record(codec.pack(coefficients)))

    assert np.array_equal(kept, coefficients)


def test_hard_edges_survive() -> None:
    """Black beside white, at the best quality: values far beyond int8."""
    board = np.kron(np.indices((8, 8)).sum(0) % 2, np.ones((4, 4))).astype(np.uint8) * 255
    image = np.repeat(board[:, :, None], 3, axis=2)
    codec = dct((32, 32), quality=100, subsampling="444")

    packed = record(codec.encode(image))

    assert np.abs(codec.unpack(packed)).max() > 500
    assert np.abs(codec.decode(packed).astype(int) - image).max() <= 2


GOLDEN = bytes.fromhex(
    "dc01014d0a0009000200000007000000140000003d00000052000000d0c80706d23ac5176a97bb8a53e8b069a4a89f780200"
    "017e010060d11b900f0e1ff003ea00f20002f9b4aafbfcfe050600ff0000fdf20b0200ff0001fcfef2fbfc01fcff00000000"
    "ff0700ff00ff01ff000100b1010000fff9fefcfd01fc01100000300012000b0003070060fe00000000002002000100710707"
    "fdfe00ffff0c0011fc060017ff0600170106000918002201fe09000512000f0100170348001cff60000f2400001f0024000f"
    "17010d001dff1e001e00c6000e96000e2400500000000000"
)


def test_golden_record() -> None:
    """A record of layout 1, once and for all."""
    codec = dct((10, 9), quality=77)

    image = codec.decode(record(GOLDEN))

    assert image.shape == (10, 9, 3)
    assert image[[0, 4, 9], [0, 4, 8]].tolist() == [[0, 0, 32], [179, 77, 132], [255, 201, 248]]


def test_encoding_does_not_depend_on_the_machine() -> None:
    """The same coefficients whatever order a library sums in: whole numbers all the way."""
    image = picture(48, 40)
    codec = dct((48, 40))

    turned = codec.unpack(record(codec.encode(np.asfortranarray(image))))

    assert np.array_equal(turned, codec.unpack(record(codec.encode(image))))


# -- what is refused ---------------------------------------------------------------------------


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(CodecError):
        dct((16, 24)).encode(picture(16, 23))


@pytest.mark.parametrize(
    "value", [np.zeros((8, 8, 3), np.float32), np.zeros((8, 8), np.uint8), "x", [[1], [2, 3]]]
)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(CodecError):
        dct((8, 8)).encode(value)


@pytest.mark.parametrize(
    "field",
    [
        Image(codec="dct"),
        Image(codec="dct", size=(8, 8), channels=4),
        Image(codec="dct", size=(8, 8), dtype="uint16"),
        Array(codec="dct", dims=(8, 8)),
    ],
)
def test_fields_that_it_cannot_store(field: Any) -> None:
    with pytest.raises(CodecError):
        codec_for(field)


@pytest.mark.parametrize(
    "options",
    [
        {"codec": "dct", "quality": 0},
        {"codec": "dct", "quality": 101},
        {"codec": "dct", "quality": True},
        {"codec": "dct", "quality": "90"},
        {"codec": "dct", "subsampling": "422"},
        {"codec": "dct", "compression": []},
        {"codec": "jpeg", "quality": 90},
        {"codec": "raw", "compression": "lz4"},
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        Image(size=(8, 8), **options)


def test_options_are_in_the_schema_of_dct_alone() -> None:
    """What was packed before reads and hashes as it did."""
    field = Image(codec="dct", size=(8, 8), quality=75, compression="zstd")

    assert field_from_json(field.to_json()) == field
    assert field.to_json()["subsampling"] == "420"
    assert set(Image().to_json()) == {"kind", "codec", "channels", "size", "dtype"}


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_damage_is_an_error(compression: str) -> None:
    """Every byte flipped, the end cut anywhere, bytes behind it."""
    codec = dct((16, 16), compression=compression, quality=100)
    packed = codec.encode(picture(16, 16))
    assert struct.unpack_from("<I", packed, 8)[0] > 0

    for at in range(len(packed)):
        flipped = bytearray(packed)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(CodecError):
            codec.decode(record(bytes(flipped)))
        with pytest.raises(CodecError):
            codec.decode(record(packed[:at]))
    with pytest.raises(CodecError):
        codec.decode(record(packed + b"\0"))


@given(st.data())
def test_serving_damaged_records_raises_or_returns(data: st.DataObject) -> None:
    """Without the checks, as behind those of a shard: wrong pixels at worst, an error of ours at best."""
    compression = data.draw(st.sampled_from(["lz4", "zstd"]))
    codec = dct((24, 16), compression=compression)
    damaged = bytearray(codec.encode(picture(24, 16)))
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    out = np.zeros((1, codec.row_nbytes()), np.uint8)

    try:
        positions, _ = codec.fill([record(bytes(damaged[:cut]))], out)
    except CodecError:
        return
    assert ((positions >= 0) & (positions < out.size)).all()


def check_anew(packed: bytearray) -> bytes:
    """Make the check of the header right again."""
    escapes = bytes(packed[48 : 48 + 3 * struct.unpack_from("<I", packed, 8)[0]])
    check = xxhash.xxh3_64_intdigest(bytes(packed[:44]) + escapes) & 0xFFFFFFFF
    struct.pack_into("<I", packed, 44, check)
    return bytes(packed)


@pytest.mark.parametrize("behind", [[], [(0, 0)]], ids=["last", "last but one"])
@pytest.mark.parametrize("side", [8, 1])
def test_a_record_that_reaches_into_the_next_is_refused(
    side: int, behind: list[tuple[int, int]]
) -> None:
    """Its escapes end where they must, but the end itself is the next image's first coefficient."""
    codec = dct((16, 16), side, channels=1)
    good = codec.pack(np.zeros((64, 4), np.int64))
    entries = [(64 * 4, 1), *behind]
    bad = bytearray(good[:48] + b"".join(struct.pack("<Hb", *e) for e in entries) + good[51:])
    struct.pack_into("<I", bad, 8, len(entries))
    records = [record(check_anew(bad)), record(good)]

    with pytest.raises(CodecError):
        codec.decode(records[0])
    for some in (records, records[:1], records[::-1]):
        with pytest.raises(CodecError):
            codec.fill(some, np.zeros((len(some), codec.row_nbytes(side)), np.uint8))


def test_a_record_of_a_later_layout_is_refused() -> None:
    """Whole as it may be: its own check is right."""
    later = bytearray(dct((16, 16)).encode(picture(16, 16)))
    later[1] = 2
    check_anew(later)

    with pytest.raises(CodecError):
        dct((16, 16)).decode(record(bytes(later)))


def test_a_record_of_other_settings_is_refused() -> None:
    packed = record(dct((16, 16), quality=80).encode(picture(16, 16)))

    for options in ({"quality": 81}, {"quality": 80, "compression": "zstd"}):
        with pytest.raises(CodecError):
            dct((16, 16), **options).decode(packed)
    with pytest.raises(CodecError):
        dct((64, 64), quality=80).decode(packed)
