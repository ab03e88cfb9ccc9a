"""Sizes of pictures, without decoding them: those that are served."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from loaders import RAMDataset, ShardDataset, concat
from loaders.augment import CenterCrop
from loaders.errors import ChecksumError, SampleError, SchemaError
from loaders.schema import Image, Label, Mask
from tests.codecs.test_codecs import photo, pil_file
from tests.packdata.packing import pack

NUM = 30
FIELDS: dict[str, Any] = {
    "image": Image(),
    "alpha": Image(channels=4, codec="webp"),
    "deep": Image(channels=1, codec="png", dtype="uint16"),
    "pixels": Image(codec="raw"),
    "planes": Image(codec="yuv420", size=(5, 7)),
    "dct": Image(codec="dct", size=(16, 24)),
    "fixed": Image(size=(6, 9)),
    "mask": Mask(),
    "raw_mask": Mask(codec="raw", dtype="int32"),
    "label": Label(),
}


def turned(pixels: np.ndarray, kind: str, orientation: int) -> bytes:
    """Return a file that says how it is to be turned."""
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Pillow.fromarray(pixels).save(file, kind, exif=exif)
    return file.getvalue()


def rows() -> list[dict[str, Any]]:
    found = []
    for i in range(NUM):
        pixels = photo(40 + i, 30 + 2 * (i % 9), seed=i)
        kind = ("JPEG", "PNG", "WEBP")[i % 3]
        image = turned(pixels, kind, 1 + i % 8) if i % 2 else bytes(pil_file(pixels, kind))
        found.append(
            {
                "image": image,
                "alpha": np.zeros((3 + i, 4, 4), np.uint8),
                "deep": np.zeros((2 + i, 5, 1), np.uint16),
                "pixels": pixels[: 9 + i],
                "planes": np.zeros((5, 7, 3), np.uint8),
                "dct": np.zeros((16, 24, 3), np.uint8),
                "fixed": np.zeros((6, 9, 3), np.uint8),
                "mask": np.zeros((4, 1 + i), np.uint8),
                "raw_mask": np.zeros((1 + i, 2), np.int32),
                "label": i,
            }
        )
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("sizes") / "a", FIELDS, rows())


def test_they_are_those_that_are_served(folder: Path) -> None:
    shards = ShardDataset(folder)
    some = shards.select([7, 0, 7, 11])
    views = {
        "shards": shards,
        "memory": RAMDataset(shards, progress=False),
        "view": some,
        "several": concat([some, shards]),
        "no field": shards.replace(fields=["label"]),
        "cropped": shards.replace(fields=["image"], augment=[CenterCrop(3)]),
        "none": shards.select([]),
    }
    samples = list(shards)
    for name in FIELDS:
        if name == "label":
            continue
        served = np.array([getattr(sample, name).shape[-2:] for sample in samples], np.int32)
        assert len(np.unique(served, axis=0)) > 1 or FIELDS[name].size is not None
        which = {
            "view": [7, 0, 7, 11],
            "several": [7, 0, 7, 11, *range(NUM)],
            "none": [],
        }
        for kind, dataset in views.items():
            sizes = dataset.sizes(name)
            assert sizes.dtype == np.int32
            assert sizes.tolist() == served[which.get(kind, range(NUM))].tolist(), (name, kind)
    assert shards.sizes().tolist() == shards.sizes("image").tolist()


def test_files_in_memory_are_as_they_are_served(tmp_path: Path) -> None:
    paths = []
    for i, kind in enumerate(["JPEG", "PNG", "WEBP"] * 3):
        paths.append(tmp_path / f"{i}")
        paths[-1].write_bytes(turned(photo(20, 31 + i, seed=i), kind, 6))
    dataset = RAMDataset.from_files(paths, progress=False)

    assert dataset.sizes().tolist() == [list(sample.image.shape[1:]) for sample in dataset]


def test_other_fields_have_none(folder: Path) -> None:
    dataset = ShardDataset(folder)
    for name in ("label", "sample_id", "imag"):
        with pytest.raises(SchemaError):
            dataset.sizes(name)


def test_a_bad_one_is_an_error_of_its_sample(tmp_path: Path) -> None:
    samples = [{"image": bytes(pil_file(photo(20, 30, seed=i), "PNG"))} for i in range(12)]
    dataset = ShardDataset(pack(tmp_path / "a", {"image": Image()}, samples))
    large = {"image": bytes(pil_file(photo(900, 900, seed=1), "JPEG"))}
    mixed = ShardDataset(pack(tmp_path / "b", {"image": Image()}, [*samples, large]))

    assert mixed.sizes()[-1].tolist() == [900, 900]
    with pytest.raises(SampleError) as caught:
        mixed.replace(max_picture_mb=1)[1:].sizes()
    assert caught.value.index == 11

    (record,) = dataset.view.records("image", np.array([5]))
    files = [path for path in (tmp_path / "a").iterdir() if record.tobytes() in path.read_bytes()]
    data = bytearray(files[0].read_bytes())
    data[data.index(record.tobytes()) + 19] ^= 1  # the last byte of its width
    files[0].write_bytes(data)
    with pytest.raises(ChecksumError):
        ShardDataset(tmp_path / "a").sizes()
    unchecked = ShardDataset(tmp_path / "a", check="never")
    assert unchecked.sizes()[4:6].tolist() == [[20, 30], [20, 31]]
