"""Small batches are made several at a time, in one gather; nobody shall see the difference."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, RAMDataset, concat
from loaders.buffers import FreshMemory
from loaders.data.store import Store
from loaders.sampling.batch import IndexBatch, SampleIndex

if TYPE_CHECKING:
    from collections.abc import Iterator


def dataset(num_samples: int = 100) -> RAMDataset:
    rng = np.random.default_rng(0)
    return RAMDataset.from_arrays(
        image=rng.integers(0, 256, (num_samples, 1, 4, 5), np.uint8),
        x=rng.random((num_samples, 3), np.float32),
        label=np.arange(num_samples),
    )


def assert_equal(one: Any, other: Any) -> None:
    assert len(one) == len(other)
    for batch, twin in zip(one, other, strict=True):
        assert batch._fields == twin._fields
        assert all(
            a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(batch, twin, strict=True)
        )


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_groups_hold_what_single_batches_hold(num_workers: int, drop_last: bool) -> None:
    view = concat([dataset(), dataset(57)]).select(np.arange(150)[::-1])
    settings: dict[str, Any] = {"shuffle": True, "drop_last": drop_last, "seed": 3}

    plain = DataLoader(view, 4, num_workers=0, **settings)

    assert_equal(list(DataLoader(view, 4, num_workers=num_workers, **settings)), list(plain))


def test_a_group_is_gathered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    num_rows: list[int] = []
    gather = Store.gather

    def counted(self: Store, field: str, rows: Any, out: Any) -> None:
        num_rows.append(len(rows))
        gather(self, field, rows, out)

    monkeypatch.setattr(Store, "gather", counted)
    data = dataset().replace(fields=["label"])

    groups = data.read_group([[1, 2], [3], []], FreshMemory())

    assert groups is not None
    assert [batch.label.tolist() for batch in groups] == [[1, 2], [3], []]
    assert num_rows == [3]


def test_indices_come_in_any_form() -> None:
    batches: list[Any] = [IndexBatch(np.array([5, 6])), [SampleIndex(7, epoch=3)], (8, -1)]

    groups = dataset().read_group(batches, FreshMemory())

    assert groups is not None
    assert [batch.label.tolist() for batch in groups] == [[5, 6], [7], [8, 99]]


def test_what_is_decoded_or_transformed_is_read_batch_by_batch() -> None:
    data = dataset().replace(transform=lambda sample: sample)

    assert data.read_group([[0], [1]], FreshMemory()) is None


def test_a_batch_of_a_wrong_index_fails_alone() -> None:
    batches = [[0, 1], [2, 100], [4, 5]]
    loader = iter(DataLoader(dataset(), batch_sampler=batches, num_workers=1))

    assert next(loader).label.tolist() == [0, 1]
    with pytest.raises(IndexError, match="there is no sample 100, only 100"):
        next(loader)
    assert next(loader).label.tolist() == [4, 5]


def test_changing_a_batch_leaves_its_neighbours_as_they_are() -> None:
    groups = dataset().read_group([[1, 2], [3]], FreshMemory())
    assert groups is not None
    first, second = groups

    first.x.fill_(-1)

    assert torch.equal(second.x, dataset()[3].x[None])


def test_a_foreign_sampler_is_asked_for_no_more_than_is_taken_where_there_are_no_workers() -> None:
    asked: list[int] = []

    class Watched(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            for i in range(100):
                asked.append(i)
                yield i

        def __len__(self) -> int:
            return 100

    loader = DataLoader(dataset(), 2, sampler=Watched(), num_workers=0)
    assert loader._maker().group_size > 1

    for number, batch in enumerate(loader, 1):
        assert batch.label.tolist() == asked[-2:]
        assert len(asked) == 2 * number


def test_batches_of_a_group_pickle_as_one() -> None:
    """Half of what handing small batches over takes would else be their many views."""
    groups = dataset().read_group([[1, 2], [3], []], FreshMemory())
    assert groups is not None
    single = dataset().read_group([[1, 2, 3]], FreshMemory())

    data = pickle.dumps(groups)

    assert_equal(list(pickle.loads(data)), list(groups))
    assert len(groups) == 3
    assert len(data) < len(pickle.dumps(single)) + 20


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16])
def test_indices_pickle_as_they_are_whatever_their_type(dtype: Any) -> None:
    rows = np.arange(20, dtype=dtype).reshape(4, 5)
    batch = IndexBatch(rows[:, 1], 3, rows[:, 2], rows[:, 0] > 9, seed=7)

    copy = pickle.loads(pickle.dumps(batch))

    assert list(copy) == list(batch) == [1, 6, 11, 16]
    assert (copy.epoch, copy.seed, copy.draws.tolist()) == (3, 7, [2, 7, 12, 17])
    assert copy.valid.tolist() == [False, False, True, True]
    assert copy.indices.flags.writeable
