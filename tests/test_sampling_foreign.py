"""Crops and flips change from pass to pass, whoever draws the indices; and who cannot have it so is told."""

from __future__ import annotations

import pickle
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler

from loaders import DataLoader, ShardDataset, augment
from loaders.sampling import EpochSampler
from loaders.sampling.foreign import NumberedPasses
from tests.packdata.packing import pack_samples

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TorchLoader = torch.utils.data.DataLoader
NUM = 24
OPS = [augment.RandomResizedCrop(16), augment.RandomHorizontalFlip()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_samples(tmp_path_factory.mktemp("packed") / "a", NUM)


@pytest.fixture
def dataset(folder: Path) -> ShardDataset:
    return ShardDataset(folder, fields=["image", "sample_id"], augment=OPS)


def served(loader: Any) -> dict[int, list[torch.Tensor]]:
    """Return the pictures of a pass by sample, in the order in which they came."""
    found: dict[int, list[torch.Tensor]] = {}
    for batch in loader:
        for i, image in zip(batch[1].tolist(), batch[0], strict=True):
            found.setdefault(i, []).append(image)
    return found


def num_equal(a: dict[int, list[torch.Tensor]], b: dict[int, list[torch.Tensor]]) -> int:
    return sum(torch.equal(a[i][0], b[i][0]) for i in a.keys() & b.keys())


SAMPLERS: dict[str, Callable[[ShardDataset], dict[str, Any]]] = {
    "sampler": lambda d: {"batch_size": 5, "sampler": RandomSampler(d)},
    "weighted": lambda d: {"batch_size": 5, "sampler": WeightedRandomSampler([1.0] * NUM, 60)},
    "batches": lambda d: {"batch_sampler": BatchSampler(RandomSampler(d), 5, drop_last=False)},
    "generator": lambda d: {"batch_size": 5, "shuffle": True, "generator": torch.Generator()},
}
WAYS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2, "backend": "thread"},
    {"num_workers": 2, "backend": "subprocess", "persistent_workers": True},
    pytest.param(  # type: ignore[list-item]
        {"num_workers": 2, "backend": "process", "persistent_workers": True},
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SAMPLERS)
def test_each_pass_of_a_sampler_of_torch_is_another_epoch(
    dataset: ShardDataset, kind: str, way: dict[str, Any]
) -> None:
    loader = DataLoader(dataset, **SAMPLERS[kind](dataset), **way)

    passes = [served(loader) for _ in range(3)]

    assert num_equal(passes[0], passes[1]) <= 3
    assert num_equal(passes[1], passes[2]) <= 3


def test_it_is_the_same_epoch_as_under_a_sampler_of_ours(dataset: ShardDataset) -> None:
    ours = DataLoader(dataset, 5)
    theirs = DataLoader(dataset, 5, sampler=SequentialSampler(dataset))
    for _ in range(3):
        assert num_equal(served(ours), served(theirs)) == NUM


def test_repeats_within_a_pass_differ(dataset: ShardDataset) -> None:
    loader = DataLoader(dataset, 5, sampler=[3] * 8 + [-21] * 8)
    (images,) = served(loader).values()
    assert len({image.numpy().tobytes() for image in images}) > 8


def test_who_sets_the_epoch_chooses_it(dataset: ShardDataset) -> None:
    loader = DataLoader(dataset, 5, sampler=SequentialSampler(dataset))
    passes = [served(loader) for _ in range(3)]

    for epoch in (2, 1, 1):
        loader.set_epoch(epoch)
        assert num_equal(served(loader), passes[epoch]) == NUM
    assert num_equal(served(loader), passes[2]) == NUM  # and it goes on from there
    dataset.set_epoch(0)
    assert num_equal(served(loader), passes[0]) == NUM


def test_what_is_no_number_and_what_has_an_epoch_is_passed_on(dataset: ShardDataset) -> None:
    batch = next(iter(EpochSampler(NUM).batches(4)))
    own = next(iter(EpochSampler(NUM)))
    passes = NumberedPasses([batch, own, "x", [1, NUM], np.int64(2)], dataset)

    first, second, third, fourth, fifth = iter(passes)

    assert first is batch
    assert second is own
    assert third == "x"
    assert (fourth, [index.epoch for index in fourth]) == ([1, NUM], [0, 0])
    assert fifth == 2
    assert len(passes) == 5
    assert pickle.loads(pickle.dumps(fourth))[0].epoch == 0


# -- torch's own loader ----------------------------------------------------------------------------


def test_torchs_loader_is_warned_of_when_its_second_epoch_begins(dataset: ShardDataset) -> None:
    loader = TorchLoader(dataset, 5, shuffle=True)
    first = served(loader)

    with pytest.warns(
        UserWarning, match=r"drawn for epoch 0 each time.*EpochSampler\(len\(dataset\)\)"
    ):
        again = served(loader)
    served(loader)  # once

    assert num_equal(first, again) == NUM


def test_torchs_worker_processes_warn_at_once(dataset: ShardDataset) -> None:
    """Each sees a sample once: here as the error that the test run makes of warnings."""
    loader = TorchLoader(dataset, 5, shuffle=True, num_workers=2)

    with pytest.raises(UserWarning, match="drawn for epoch 0 each time"):
        served(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_loader_with_a_sampler_of_ours_is_right(
    dataset: ShardDataset, num_workers: int
) -> None:
    loader = TorchLoader(dataset, 5, sampler=EpochSampler(len(dataset)), num_workers=num_workers)
    ours = DataLoader(dataset, 5, shuffle=True)
    for _ in range(3):
        assert num_equal(served(loader), served(ours)) == NUM


@pytest.mark.parametrize(
    "changes", [{"augment": [augment.CenterCrop(16)]}, {"augment": None}, "told", "single"]
)
def test_nobody_is_warned_without_reason(dataset: ShardDataset, changes: Any) -> None:
    if changes == "told":
        dataset.set_epoch(0)
    elif changes != "single":
        dataset = dataset.replace(fields=["sample_id", "label"], **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            if changes == "single":
                list(dataset)
            else:
                list(TorchLoader(dataset, 8))
