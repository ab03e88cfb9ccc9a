"""Crops with the foreground: around points of a label, the same for all fields, on the host and on a device."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, RAMDataset, ShardDataset, concat
from loaders.augment import RandomCrop, RandomFlip, RandomHorizontalFlip, Resize, Views
from loaders.datasets.reading.halves import moving_halves
from loaders.device.augment import BatchAugment
from loaders.errors import BatchError, SchemaError
from loaders.sampling.batch import IndexBatch
from loaders.schema import Array, Image, Label, Mask
from tests.packdata.packing import pack

NUM = 24
SIDE = 48


def spot(i: int, *shape: int) -> np.ndarray:
    """Return labels of one point, none for every sixth sample."""
    labels = np.zeros(shape, np.uint8)
    if i % 6:
        labels[tuple(np.random.default_rng(i).integers(0, shape))] = 1 + i % 3
    return labels


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields: dict[str, Any] = {
        "image": Image(codec="raw", size=(SIDE, SIDE)),
        "label": Mask(codec="png"),
        "mask": Mask(codec="raw", size=(SIDE, SIDE)),
        "half": Mask(codec="raw", size=(SIDE // 2, SIDE // 2)),
        "number": Label(),
    }
    rows = []
    for i in range(NUM):
        labels = spot(i, SIDE, SIDE)
        image = np.repeat(labels[:, :, None], 3, 2)
        half = labels.reshape(SIDE // 2, 2, SIDE // 2, 2).max((1, 3))
        rows.append({"image": image, "label": labels, "mask": labels, "half": half, "number": i})
    return pack(tmp_path_factory.mktemp("foreground") / "a", fields, rows)


def hits(values: Any) -> list[bool]:
    return [bool(value.any()) for value in values]


@pytest.mark.parametrize(
    "ops",
    [[], [RandomHorizontalFlip(1.0)], [RandomCrop(40, padding=2), RandomFlip()], [Resize(64)]],
)
def test_they_hold_a_point_of_the_label_as_often_as_asked(folder: Path, ops: Any) -> None:
    has_label = [i % 6 > 0 for i in range(NUM)]
    for source in ("label", "half"):
        crop = RandomCrop(9, foreground=source, p=1)
        dataset = ShardDataset(folder, fields=["image", "mask"], augment=[*ops, crop])
        (batch,) = DataLoader(dataset, NUM, num_workers=2)
        if not any(isinstance(op, RandomCrop) for op in ops):  # which may cut the point away
            assert hits(batch.image) == has_label
            assert source == "half" or len(ops) == 1 or hits(batch.mask) == has_label
        else:
            assert sum(hits(batch.mask)) > NUM / 2
        assert torch.equal(batch.image[:, 0] > 0, batch.image[:, 2] > 0)
    seldom = ShardDataset(
        folder, fields=["mask"], augment=[*ops, RandomCrop(9, foreground="label", p=0)]
    )
    (batch,) = DataLoader(seldom, NUM)
    assert sum(hits(batch.mask)) < NUM / 2
    plain = seldom.replace(augment=[*ops, RandomCrop(9)])
    assert torch.equal(next(iter(DataLoader(plain, NUM))).mask, batch.mask)


def test_draws_are_the_samples_own(folder: Path) -> None:
    """In any batch, store and number of workers, for each epoch anew, and on a device."""
    crop = RandomCrop(9, foreground="label", p=0.5)
    dataset = ShardDataset(
        folder, fields=["image", "mask", "number"], augment=[crop], check="always"
    )
    (whole,) = DataLoader(dataset, NUM, seed=3)
    often = DataLoader(dataset.replace(fields=["mask"]), NUM, seed=3)
    num_hit = sum(sum(hits(next(iter(often)).mask)) for _ in range(20))
    assert 0.35 < num_hit / (20 * sum(i % 6 > 0 for i in range(NUM))) < 0.65
    with_labels = dataset.replace(fields=["image", "mask", "number", "label"])
    for other in (
        dataset,
        RAMDataset(with_labels, progress=False),
        concat([dataset[:9], dataset[9:]]),
    ):
        for num_workers in (0, 2):
            loader = DataLoader(other, 5, shuffle=True, seed=3, num_workers=num_workers)
            for batch in loader:
                assert torch.equal(batch.image, whole.image[batch.number])
                assert torch.equal(batch.mask, whole.mask[batch.number])
    loader = DataLoader(dataset, NUM, seed=3)
    first, second = (next(iter(loader)).mask for _ in range(2))
    assert not torch.equal(first, second)
    half, finish = moving_halves(dataset)
    read = finish(half.__getitems__(range(NUM)).batch)
    assert torch.equal(read.image, torch.stack([sample.image for sample in dataset]))
    assert torch.equal(read.mask, torch.stack([sample.mask for sample in dataset]))


def test_repeats_within_an_epoch_are_drawn_anew(folder: Path) -> None:
    crop = RandomCrop(9, foreground="label", p=0.5)
    dataset = ShardDataset(folder, fields=["mask"], augment=[crop])
    for i in (1, 2, 3):
        repeats = IndexBatch(np.full(64, i), 0, np.arange(64), None, 3)

        (masks,) = dataset.__getitems__(repeats).batch

        assert 0.25 < np.mean(hits(masks)) < 0.75


def test_volumes_and_frames_of_a_clip_are_cropped_as_one(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "volume": Array(dtype="uint8", dims=(1, 12, None, 14), spatial=3),
        "labels": Array(dtype="uint8", dims=(12, None, 14), spatial=3),
    }
    rows = [{"volume": (v := spot(i, 12, 13 + i, 14))[None], "labels": v} for i in range(8)]
    crop = RandomCrop((3, 4, 5), foreground="labels", p=1)
    dataset = ShardDataset(pack(tmp_path / "a", fields, rows), augment=[RandomFlip(), crop])
    for batch in DataLoader(dataset, 4, num_workers=2):
        assert torch.equal(batch.volume[:, 0], batch.labels)
    assert hits(sample.labels for sample in dataset) == [i % 6 > 0 for i in range(8)]
    views = dataset.replace(augment=[Views(one=[crop], two=[RandomCrop(4)])])
    assert hits(sample.volume_one for sample in views) == [i % 6 > 0 for i in range(8)]

    frame = np.arange(20 * 30, dtype=np.int16).reshape(20, 30)
    clips = [{"clip": np.broadcast_to(frame, (3, n, 20, 30))} for n in (4, 6)]
    kinds = {"clip": Array(dtype="int16", dims=(3, None, 20, 30), spatial=2)}
    for sample in ShardDataset(
        pack(tmp_path / "b", kinds, clips), augment=[RandomCrop(8), RandomFlip()]
    ):
        assert sample.clip.shape[2:] == (8, 8)
        assert (sample.clip == sample.clip[0, 0]).all()


def test_wrong_use_is_an_error(folder: Path) -> None:
    for name in ("number", "image", "nothing"):
        with pytest.raises(SchemaError):
            ShardDataset(folder, augment=[RandomCrop(9, foreground=name)])
    with pytest.raises(TypeError):
        RandomCrop(9, foreground=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        RandomCrop(9, foreground="label", p=1.5)
    images = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
    with pytest.raises(BatchError):
        BatchAugment([RandomCrop(9, foreground="label")])(images, indices=[0])


def test_images_that_a_device_finishes_are_cropped_alike(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"label": Mask(), "image": Image(codec="dct", size=(SIDE, SIDE))}
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (6, SIDE, SIDE, 3), np.uint8)
    rows = [{"label": spot(i, SIDE, SIDE), "image": image} for i, image in enumerate(images)]
    crop = RandomCrop(9, foreground="label", p=0.7)
    dataset = ShardDataset(pack(tmp_path / "a", fields, rows), fields=["image"], augment=[crop])
    halves = dataset.halves(torch.device("cpu"))
    assert halves is not None

    read = halves[1](halves[0].__getitems__(range(6)).batch)

    assert torch.equal(read.image, torch.stack([sample.image for sample in dataset]))
