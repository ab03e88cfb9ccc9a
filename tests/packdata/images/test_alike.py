"""JPEGs that cannot be kept keep their tables and sampling, in real files."""

import io
import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import PIL.ImageOps
import pytest
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from loaders.codecs import codec_for
from loaders.schema import Image
from packdata.images.pictures import decode_picture
from packdata.images.plan import plan_images
from packdata.images.stored import encode_alike, stored_picture

SAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}


def photo(height: int = 48, width: int = 80) -> npt.NDArray[np.uint8]:
    small = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)


def jpeg(
    image: npt.NDArray[np.uint8] | PIL.Image.Image, orientation: int = 1, **options: Any
) -> bytes:
    exif, file = PIL.Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    plain = image if isinstance(image, PIL.Image.Image) else PIL.Image.fromarray(image)
    plain.save(file, "JPEG", exif=exif, **options)
    return file.getvalue()


def opened(data: bytes) -> JpegImageFile:
    image = PIL.Image.open(io.BytesIO(data))
    assert isinstance(image, JpegImageFile)
    return image


def tables(data: bytes) -> list[list[list[int]]]:
    return [np.reshape(table, (8, 8)).tolist() for table in opened(data).quantization.values()]


def shown(data: bytes) -> npt.NDArray[Any]:
    return np.asarray(PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data))).convert("RGB"))


def psnr(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    return float(10 * np.log10(255**2 / max(1e-9, np.mean((one.astype(float) - other) ** 2))))


def record_of(folder: Path, data: bytes, **options: Any) -> bytes:
    (folder / "source").mkdir()
    (folder / "source/a.jpg").write_bytes(data)
    ((_, recipe),) = plan_images(folder / "source", **options).splits
    (item,) = recipe.items()
    return recipe.encode(item)[0]["image"]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("orientation", [2, 3, 5, 6, 7, 8])
def test_a_turned_picture_keeps_tables_and_sampling(
    tmp_path: Path, sampling: str, orientation: int
) -> None:
    data = jpeg(photo(), orientation, quality=70, subsampling=sampling)

    record = record_of(tmp_path, data)

    is_transposed = orientation > 4
    expected = [np.transpose(table).tolist() if is_transposed else table for table in tables(data)]
    assert tables(record) == expected
    # Pillow writes no 4:4:0, which 4:2:2 becomes on its side: then chroma is as fine as luma.
    wanted = 0 if sampling == "4:2:2" and is_transposed else SAMPLINGS[sampling]
    assert get_sampling(opened(record)) == wanted
    least = 50 if sampling == "4:4:4" else 36  # chroma is interpolated, then averaged
    assert psnr(shown(record), shown(data)) > least


def test_a_picture_of_its_size_keeps_tables_beside_sizes(tmp_path: Path) -> None:
    data = jpeg(photo(), 6, quality=97, subsampling="4:4:4")

    record = record_of(tmp_path, data, sizes=[64])

    assert [np.transpose(table).tolist() for table in tables(data)] == tables(record)


@pytest.mark.parametrize("quality", [60, 99])
def test_cmyk_keeps_its_tables(tmp_path: Path, quality: int) -> None:
    data = jpeg(PIL.Image.fromarray(photo()).convert("CMYK"), quality=quality)

    record = record_of(tmp_path, data)

    assert tables(record)[0] == tables(data)[0]
    assert get_sampling(opened(record)) == 0
    assert psnr(shown(record), shown(data)) > (45 if quality == 99 else 30)


def test_gray_keeps_its_table(tmp_path: Path) -> None:
    data = jpeg(PIL.Image.fromarray(photo()).convert("L"), 6, quality=60)

    record = record_of(tmp_path, data, gray=True)

    assert [np.transpose(table).tolist() for table in tables(data)] == tables(record)
    assert opened(record).mode == "L"
    assert psnr(shown(record), shown(data)) > 50


def test_a_file_given_to_a_writer_keeps_its_tables() -> None:
    data = jpeg(photo(), 3, quality=75, subsampling="4:4:4")

    field = Image(codec="jpeg")
    record, size = stored_picture(data, field, codec_for(field, quality=20))

    assert (tables(record), size) == (tables(data), (48, 80))


def test_what_is_encoded_has_an_index_of_segments() -> None:
    large = photo(960, 1280)
    data = jpeg(large, 3, quality=75)

    picture = decode_picture(data)
    record = encode_alike(picture)

    assert struct.unpack_from(">H", record, record.index(b"SEGMENTS") - 4) == (0xFFE9,)
