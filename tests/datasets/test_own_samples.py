"""Subclasses with a ``__getitem__`` of their own: what it returns is what is served, by every way."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset, random_split

from loaders import DataLoader, JpegOnDevice, Mixture, RAMDataset, ShardDataset, augment, concat
from tests.packdata.packing import pack_samples

NUM = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_samples(tmp_path_factory.mktemp("packed") / "a", NUM)


class Floats(ShardDataset):
    """Says what a sample is."""

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return sample.image.float() / 255, int(sample.label) + 1000


class Pairs(Floats):
    """Says it of several, too."""

    def __getitems__(self, indices: Any) -> Any:
        return [(*self[i], len(indices)) for i in indices]


def floats(folder: Path, kind: type[ShardDataset] = Floats) -> Any:
    return kind(folder, augment=[augment.CenterCrop(16)])


WAYS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2, "backend": "thread"},
    pytest.param({"num_workers": 2, "backend": "subprocess"}, marks=pytest.mark.slow),  # type: ignore[list-item]
    {"num_workers": 2, "backend": "process"},
]


@pytest.mark.parametrize("way", WAYS)
def test_its_samples_are_what_a_loader_serves(folder: Path, way: dict[str, Any]) -> None:
    dataset = floats(folder)

    batches = list(DataLoader(dataset, 4, shuffle=True, **way))

    assert [images.dtype for images, _ in batches] == [torch.float32] * 3
    labels = torch.cat([labels for _, labels in batches])
    assert sorted(labels.tolist()) == sorted(dataset[i][1] for i in range(NUM))


@pytest.mark.parametrize("way", WAYS)
def test_those_it_returns_together_are_too(folder: Path, way: dict[str, Any]) -> None:
    loader = DataLoader(floats(folder, Pairs), 4, **way)

    assert [together.tolist() for *_, together in loader] == [[4] * 4] * 3


@pytest.mark.parametrize(
    "loader", [DataLoader, torch.utils.data.DataLoader], ids=["ours", "torchs"]
)
def test_views_of_it_serve_them(folder: Path, loader: Any) -> None:
    dataset = floats(folder)
    views: list[Any] = [
        dataset, Subset(dataset, range(NUM)), ConcatDataset([dataset]), dataset.select(range(NUM)),
        random_split(dataset, [NUM, 0])[0], dataset.split([1.0])[0], dataset.replace(fields=["image", "label"]),
    ]  # fmt: skip
    for view in views:
        images, labels = next(iter(loader(view, NUM)))
        assert images.dtype == torch.float32
        assert sorted(labels.tolist()) == sorted(dataset[i][1] for i in range(NUM))


def test_what_reads_stored_samples_refuses_it(folder: Path) -> None:
    dataset, plain = floats(folder), ShardDataset(folder, augment=[augment.CenterCrop(16)])
    for join in (
        lambda: concat([plain, dataset]),
        lambda: Mixture([plain, dataset]),
        lambda: JpegOnDevice(dataset),
    ):
        with pytest.raises(TypeError):
            join()
    with pytest.raises(ValueError):
        DataLoader(dataset, 4, augment_on="device", device="cpu")


def test_a_sum_with_what_cannot_be_read_together_is_torchs(folder: Path) -> None:
    plain = ShardDataset(folder)
    tensors = TensorDataset(torch.arange(3))

    for added in (floats(folder), tensors, Subset(tensors, [1])):
        joined = plain + added
        assert type(joined) is ConcatDataset
        assert len(joined) == NUM + len(added)
    assert type(plain + plain) is not ConcatDataset
    with pytest.raises(TypeError):
        plain + 1


@pytest.mark.parametrize("name", ["augment", "transform", "fields", "batching", "scale"])
def test_settings_stay_as_a_dataset_was_made(folder: Path, name: str) -> None:
    dataset = ShardDataset(folder)

    with pytest.raises(AttributeError):
        setattr(dataset, name, 2)

    assert len(dataset[0]) == len(dataset.fields)
    dataset.note = "of one's own"
    assert dataset.replace(augment=[augment.CenterCrop(8)])[0].image.shape == (3, 8, 8)


def test_classes_that_add_something_else_are_read_at_once() -> None:
    class Named(RAMDataset):
        title = "numbers"

    dataset = Named.from_arrays(x=np.zeros((64, 4), np.uint8))

    assert not dataset.has_own_samples
    assert DataLoader(dataset, 4)._maker().group_size > 1
