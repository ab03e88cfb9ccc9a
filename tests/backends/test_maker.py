from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, RAMDataset
from loaders.backends.maker import Group, Maker, Raised
from loaders.datasets.reading.samples import collate


def small() -> RAMDataset:
    return RAMDataset.from_arrays(x=torch.arange(40))


def maker(dataset: Any = None, **changed: Any) -> Maker:
    usual: dict[str, Any] = {
        "collate": collate,
        "batch_size": 2,
        "has_batches": True,
        "num_workers": 2,
    }
    return Maker(dataset or small(), **usual | changed)


def made_of(work: Maker, batches: list[list[int]]) -> Any:
    job = Group(work, batches)
    job.run(0)
    return job.finish()


def test_what_a_child_gets_has_nothing_of_this_process() -> None:
    """Nothing there can be page-locked for the parent, and slots are its own."""
    ours = maker(pin=True)

    theirs = ours.for_child()

    assert not theirs.pin
    assert theirs.slots is not ours.slots
    assert (theirs.dataset, theirs.batch_size) == (ours.dataset, ours.batch_size)


def test_small_batches_that_nothing_of_the_users_touches_are_handed_over_in_groups() -> None:
    large = RAMDataset.from_arrays(x=np.zeros((2, 5 << 20), np.uint8))

    assert 1 < maker().group_size <= 64
    assert maker(collate=lambda samples: samples).group_size == 1  # it may take any time
    assert maker(small().replace(transform=lambda sample: sample)).group_size == 1
    assert maker(list(range(9))).group_size == 1
    assert maker(batch_size=None).group_size == 1
    assert maker(large).group_size == 1


@pytest.mark.parametrize("nbytes", [1 << 20, 5 << 20])
def test_groups_between_processes_are_larger(nbytes: int) -> None:
    """There handing over costs several times as much."""
    data = RAMDataset.from_arrays(x=np.zeros((2, nbytes), np.uint8))

    sizes = [
        DataLoader(data, 1, num_workers=1, backend=backend)._maker().group_size
        for backend in ("thread", "auto", "subprocess")
    ]

    assert sizes == [max(1, (8 << 20) // nbytes)] * 2 + [(16 << 20) // nbytes]


def test_large_batches_are_asked_for_several_at_once_of_few_samples_more() -> None:
    large = RAMDataset.from_arrays(x=np.zeros((2, 5 << 20), np.uint8))
    sizes = [maker(large, batch_size=n).chunk_size for n in (2, 128, 256, 1024, 1 << 20)]

    assert sizes == [8, 8, 4, 1, 1]
    assert maker(large, batch_size=None).chunk_size == 1
    assert maker(list(range(9))).chunk_size == 1
    assert maker().chunk_size == maker().group_size


def test_a_batch_is_made_of_all_its_parts() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (16, 1 << 20), np.uint8)
    work = maker(RAMDataset.from_arrays(x=rows), num_workers=4)
    indices = list(range(15, -1, -1))
    assert work.job(indices).num_parts > 1

    assert np.array_equal(work.make(indices).x.numpy(), rows[::-1])


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_each_bad_batch_of_a_group_has_its_own_error_and_its_neighbours_none(bad: int) -> None:
    batches = [[0, 1], [2, 3], [4, 5]]
    batches[bad] = [6, 99]
    made = list(made_of(maker(), batches))

    assert [isinstance(batch, Raised) for batch in made] == [i == bad for i in range(3)]
    assert isinstance(made[bad].error, IndexError)
    assert "99" in str(made[bad].error)
    assert [b.x.tolist() for i, b in enumerate(made) if i != bad] == [
        b for i, b in enumerate(batches) if i != bad
    ]


def test_a_group_that_cannot_be_read_at_once_is_read_batch_by_batch() -> None:
    work = maker(small().replace(transform=lambda sample: sample))

    assert work.make_group([[0, 1], [2, 3]]) is None
    assert [batch.x.tolist() for batch in made_of(work, [[0, 1], [2, 3]])] == [[0, 1], [2, 3]]


def test_a_group_says_which_of_its_batches_is_being_made() -> None:
    seen: list[str] = []

    def watched(samples: Any) -> Any:
        seen.append(job.describe(0))
        return samples

    work = Maker(small().replace(transform=lambda sample: sample), watched, 2, True, 1)
    job = Group(work, [[0, 1], [2, 3]])
    before = job.describe(0)

    job.run(0)

    assert before.startswith("making batch 1 of 2 small ones: reading and decoding 2 samples")
    assert [text.split(":")[0] for text in seen] == [
        f"making batch {n} of 2 small ones" for n in (1, 2)
    ]


class Locks:
    def pin_memory(self) -> str:
        return "locked"


def test_a_batch_of_a_type_of_the_users_locks_itself() -> None:
    work = replace(Maker([1], len, 1, True, 1), pin=True)

    assert work.pinned(Locks()) == "locked"
    assert work.pinned({"text": ["a"]}) == {"text": ["a"]}
