"""Serving ``dct`` and ``yuv420``: whole or in halves, full or smaller, the same images every way."""

import pickle
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import torch

from loaders import DataLoader, RAMDataset, ShardDataset, augment, concat
from loaders.buffers import Memory, Slots
from loaders.codecs import codec_for
from loaders.codecs.dct import DctCodec
from loaders.data.manifest import read_manifest
from loaders.device.decode import Coefficients
from loaders.errors import SampleError, SchemaError
from loaders.schema import Boxes, Field, Image, Label, Mask, Text
from tests.packdata.packing import pack
from tests.refusals import At

NUM, SIZE = 9, (40, 56)
IMAGES: dict[str, Image] = {
    "dct": Image(size=SIZE, codec="dct", quality=97),
    "zstd": Image(size=SIZE, codec="dct", compression="zstd", subsampling="444"),
    "gray": Image(size=SIZE, codec="dct", channels=1),
    "yuv420": Image(size=SIZE, codec="yuv420"),
}
CPU = torch.device("cpu")


def picture(i: int, channels: int = 3) -> npt.NDArray[np.uint8]:
    noise = np.random.default_rng(i).integers(0, 256, (*SIZE, channels), np.uint8)
    return np.asarray(cv2.GaussianBlur(noise, (0, 0), 1.2), np.uint8).reshape(noise.shape)


def pack_images(folder: Path, name: str, format: str = "parquet") -> Path:
    fields: dict[str, Field] = {"image": IMAGES[name], "label": Label(), "key": Text()}
    samples = [
        {"image": picture(i, IMAGES[name].channels), "label": i, "key": str(i)} for i in range(NUM)
    ]
    return pack(folder, fields, samples, format=format, defaults=["image", "label"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root, formats = tmp_path_factory.mktemp("packed"), ["lmdb", "parquet", "parquet", "lmdb"]
    return {
        name: pack_images(root / name, name, format)
        for name, format in zip(IMAGES, formats, strict=True)
    }


def decoded(name: str, i: int, side: int = 8) -> torch.Tensor:
    """Return what the codec itself makes of a record, channels first."""
    codec: Any = codec_for(IMAGES[name])
    record = np.frombuffer(codec.encode(picture(i, IMAGES[name].channels)), np.uint8)
    if isinstance(codec, DctCodec):
        codec = DctCodec(IMAGES[name], side)
    return torch.from_numpy(codec.decode(record)).permute(2, 0, 1)


def whole(dataset: Any, indices: list[int]) -> Any:
    """Make a batch as a loader does for the CPU."""
    return dataset.__getitems__(indices).batch


def in_halves(dataset: Any, indices: list[int], memory: Any = None, num_workers: int = 1) -> Any:
    """Make a batch as a loader does for a device."""
    half, finisher = dataset.halves(CPU)
    job = half.job(indices, memory or Memory(), num_workers)
    for part in reversed(range(job.num_parts)):  # in any order
        job.run(part)
    return finisher(job.finish().batch)


# -- the same images -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IMAGES)
def test_a_sample_is_what_the_codec_makes_of_it(folders: dict[str, Path], name: str) -> None:
    dataset = ShardDataset(folders[name])

    for i in (0, 5, NUM - 1):
        assert torch.equal(dataset[i].image, decoded(name, i))
        assert dataset[i].image.dtype == torch.uint8
        assert dataset[i].label == i


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("num_workers", [1, 3])
def test_two_halves_are_the_whole(folders: dict[str, Path], name: str, num_workers: int) -> None:
    """In any order, with repeats, by any number of threads, in slots that were used before."""
    dataset, slots = ShardDataset(folders[name]), Slots()
    indices = [3, 8, 0, 3, 7, 1] * 12
    images = torch.stack([dataset[i].image for i in range(NUM)])

    for _ in range(2):
        batch = in_halves(dataset, indices, slots, num_workers)
        assert torch.equal(batch.image, images[indices])
        assert batch.label.tolist() == indices


def test_the_host_half_of_dct_is_bytes(folders: dict[str, Path]) -> None:
    """One for each coefficient, and what these lack, sorted by place."""
    halves: Any = ShardDataset(folders["dct"]).halves(CPU)
    job = halves[0].job([1, 2], Memory())
    job.run(0)

    half = job.finish().batch[0].image

    assert isinstance(half, Coefficients)
    assert half.planes.shape == (2, 5 * 7 * 64 + 2 * 3 * 4 * 64)
    assert half.planes.dtype == torch.uint8
    assert len(half.positions) > 0
    assert (half.positions.diff() > 0).all()


@pytest.mark.parametrize("name", ["dct", "yuv420"])
def test_a_loader_serves_whole_images_on_the_cpu(folders: dict[str, Path], name: str) -> None:
    """With and without threads, for "cpu" and for no device."""
    dataset = ShardDataset(folders[name])
    wanted = torch.stack([decoded(name, i) for i in range(NUM)])

    for options in ({}, {"num_workers": 0}, {"device": "cpu", "num_workers": 2}):
        batches = list(DataLoader(dataset, batch_size=4, **options))
        assert torch.equal(torch.cat([batch.image for batch in batches]), wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", IMAGES)
def test_a_loader_finishes_on_the_gpu(folders: dict[str, Path], name: str) -> None:
    dataset = ShardDataset(folders[name])

    for batch in DataLoader(dataset, batch_size=4, device="cuda", num_workers=2):
        for image, label in zip(batch.image, batch.label.tolist(), strict=True):
            assert image.is_cuda
            assert (image.cpu().int() - decoded(name, label).int()).abs().max() <= 1


@pytest.mark.parametrize("name", ["dct", "yuv420"])
@pytest.mark.parametrize("decode", [False, True])
def test_memory_serves_the_same(folders: dict[str, Path], name: str, decode: bool) -> None:
    dataset = RAMDataset(folders[name], decode=decode, progress=False)

    assert torch.equal(dataset[4].image, decoded(name, 4))
    assert (dataset.halves(CPU) is None) == decode
    if not decode:
        assert torch.equal(in_halves(dataset, [4, 2]).image[0], decoded(name, 4))


@pytest.mark.parametrize("name", ["dct", "yuv420"])
def test_crops_are_those_of_the_whole_image(folders: dict[str, Path], name: str) -> None:
    """On the host, after both halves; several views leave a device no work."""
    views = augment.Views(
        a=[augment.CenterCrop(24)], b=[augment.RandomResizedCrop(16), augment.RandomVerticalFlip()]
    )
    dataset = ShardDataset(folders[name], augment=[views])

    batch = whole(dataset, [2, 6])

    assert torch.equal(batch.image_a[1], decoded(name, 6)[:, 8:32, 16:40])
    assert batch.image_b.shape == (2, 3, 16, 16)
    assert dataset.halves(CPU) is None
    assert dataset.replace(augment=[]).halves(CPU) is not None


@pytest.mark.parametrize("name", IMAGES)
def test_a_device_does_the_crops_that_the_host_would(folders: dict[str, Path], name: str) -> None:
    """The same boxes and flips, replaced samples and all; resampled pixels within a step or two."""
    exact = [augment.RandomCrop(24), augment.RandomHorizontalFlip()]
    resampling = [augment.RandomResizedCrop(20, scale=(0.5, 1)), augment.RandomVerticalFlip()]
    for ops, tolerance in ((exact, 0), (resampling, 2)):
        dataset = ShardDataset(folders[name], augment=ops)
        indices = [3, 1, 8, 3, 0] * 3

        served = whole(dataset, indices).image.int()

        halves = in_halves(dataset, indices, num_workers=2).image.int()
        assert (halves - served).abs().max() <= tolerance


def test_masks_follow_what_a_device_crops(tmp_path: Path) -> None:
    """They are cropped on the host, by the same draws."""
    fields: dict[str, Field] = {"image": IMAGES["yuv420"], "mask": Mask(size=SIZE)}
    mask = np.arange(SIZE[0] * SIZE[1], dtype=np.int64).reshape(SIZE).astype(np.uint8)
    pack(tmp_path / "a", fields, [{"image": picture(i), "mask": mask} for i in range(4)])
    dataset = ShardDataset(tmp_path / "a", augment=[augment.RandomCrop(16)])

    served = whole(dataset, [2, 0, 1])
    halves = in_halves(dataset, [2, 0, 1])

    assert torch.equal(served.mask, halves.mask)
    assert torch.equal(served.image, halves.image)


def test_masks_and_boxes_follow_the_crop(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"image": IMAGES["dct"], "mask": Mask(size=SIZE), "boxes": Boxes()}
    mask = np.arange(SIZE[0] * SIZE[1], dtype=np.int64).reshape(SIZE).astype(np.uint8)
    sample = {"image": picture(0), "mask": mask, "boxes": np.array([[20, 10, 30, 20]])}
    pack(tmp_path / "a", fields, [sample])
    dataset = ShardDataset(tmp_path / "a", augment=[augment.CenterCrop(24)])

    served = dataset[0]

    assert torch.equal(served.image, decoded("dct", 0)[:, 8:32, 16:40])
    assert np.array_equal(served.mask, mask[8:32, 16:40])
    assert served.boxes.tolist() == [[4, 2, 14, 12]]


def test_datasets_pickle_and_join(folders: dict[str, Path]) -> None:
    dataset = ShardDataset(folders["dct"], scale=1 / 2)
    both = concat([dataset, dataset])

    for other in (pickle.loads(pickle.dumps(dataset)), both, dataset.select([4, 3])):
        i = 4 if len(other) > 2 else 0
        assert torch.equal(other[i].image, decoded("dct", 4, 4))
        assert torch.equal(in_halves(other, [i]).image[0], decoded("dct", 4, 4))


def test_encoded_images_are_no_column(folders: dict[str, Path]) -> None:
    for name in ("dct", "yuv420"):
        with pytest.raises(SchemaError):
            ShardDataset(folders[name]).column("image")


# -- smaller ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dct", "zstd", "gray"])
@pytest.mark.parametrize("side", [4, 2, 1])
def test_a_scale_serves_smaller_images(folders: dict[str, Path], name: str, side: int) -> None:
    """Every way: mapped, in memory, in halves, as a view, decoded once."""
    scale, wanted = side / 8, decoded(name, 5, side)
    dataset = ShardDataset(folders[name], scale=scale)

    assert wanted.shape[1:] == (-(-40 * side // 8), -(-56 * side // 8))
    assert torch.equal(dataset[5].image, wanted)
    assert torch.equal(in_halves(dataset, [5, 1]).image[0], wanted)
    assert torch.equal(ShardDataset(folders[name]).replace(scale=scale)[5].image, wanted)
    assert torch.equal(dataset.replace(scale=1)[5].image, decoded(name, 5))
    for decode in (False, True):
        kept = RAMDataset(folders[name], scale=scale, decode=decode, progress=False)
        assert torch.equal(kept[5].image, wanted)


@pytest.mark.skipif(sys.platform != "linux", reason="memfd is of Linux")
def test_each_scale_has_a_shared_copy_of_its_own(folders: dict[str, Path]) -> None:
    both = [
        RAMDataset(folders["dct"], scale=scale, decode=True, shared=True, progress=False)
        for scale in (1, 1 / 2)
    ]

    wide, half = (dataset[5].image for dataset in both)
    assert torch.equal(wide, decoded("dct", 5))
    assert wide.shape != half.shape


def test_crops_act_on_the_smaller_image(folders: dict[str, Path]) -> None:
    dataset = ShardDataset(folders["dct"], scale=1 / 2, augment=[augment.CenterCrop(12)])

    assert torch.equal(dataset[5].image, decoded("dct", 5, 4)[:, 4:16, 8:20])


@pytest.mark.parametrize("scale", [0.3, 2, 0, -1])
def test_other_scales_are_refused(folders: dict[str, Path], scale: float) -> None:
    with pytest.raises(ValueError):
        ShardDataset(folders["dct"], scale=scale)


@pytest.mark.parametrize(
    ("name", "field"), [("image", Image()), ("mask", Mask()), ("boxes", Boxes())]
)
def test_a_scale_is_for_dct(tmp_path: Path, name: str, field: Field) -> None:
    """What would no longer fit the smaller images is refused, unless it is left out."""
    values = {"image": picture(0), "mask": picture(0)[:, :, 0], "boxes": np.zeros((0, 4))}
    fields = {name: field, "other": IMAGES["dct"]}
    pack(tmp_path / "a", fields, [{name: values[name], "other": picture(1)}])

    with pytest.raises(SchemaError):
        ShardDataset(tmp_path / "a", scale=1 / 2)
    assert ShardDataset(tmp_path / "a", scale=1 / 2, fields=["other"])[0].other.shape == (
        3,
        20,
        28,
    )


# -- damage ----------------------------------------------------------------------------------------


def damage(folder: Path, row: int) -> None:
    """Flip a bit of how many escapes a record has, in the first shard."""
    info = read_manifest(folder).shards[0]
    codec = DctCodec(IMAGES["dct"])
    record = codec.encode(picture(row))
    path = folder / info.file
    data = bytearray(path.read_bytes())
    data[data.index(record) + 10] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("scale", [1, 1 / 2, 1 / 8])
def test_damage_is_named(tmp_path: Path, scale: float) -> None:
    """In the header, whatever the scale; whole and in halves."""
    folder = pack_images(tmp_path / "a", "dct", "lmdb")
    damage(folder, 2)
    dataset = ShardDataset(folder, scale=scale)

    with pytest.raises(SampleError, check=At("a/shard-00000.lmdb", row=2, index=2, key="2")):
        dataset[2]
    with pytest.raises(SampleError, check=At("a/shard-00000.lmdb", row=2, index=2, key="2")):
        in_halves(dataset, [2])


def test_bad_samples_are_replaced_in_either_half(tmp_path: Path) -> None:
    """By the same ones, and their neighbours' values beyond int8 are not added twice."""
    folder = pack_images(tmp_path / "a", "dct")
    damage(folder, 2)
    ops = [augment.RandomCrop(16)]
    dataset = ShardDataset(folder, scale=1 / 2, check="never", on_error="replace", augment=ops)
    indices = [1, 2, 3, 0]

    served = whole(dataset, indices).image
    halves = in_halves(dataset, indices).image

    assert torch.equal(served, halves)
    assert dataset.num_replaced == 2


def test_values_beyond_int8_are_added_once(tmp_path: Path) -> None:
    """Also where another field of the batch is bad, so that all of it is read again, one by one."""
    fields: dict[str, Field] = {"image": IMAGES["dct"], "other": IMAGES["dct"]}
    samples = [{"image": picture(9 + i), "other": picture(i)} for i in range(4)]
    folder = pack(tmp_path / "a", fields, samples, format="parquet")
    damage(folder, 2)
    dataset = ShardDataset(folder, scale=1 / 2, check="never", on_error="replace")

    served, halves = whole(dataset, [1, 2, 3, 0]), in_halves(dataset, [1, 2, 3, 0])

    assert torch.equal(served.image, halves.image)
    assert torch.equal(served.other, halves.other)
    assert torch.equal(halves.image[0], decoded("dct", 10, 4))
