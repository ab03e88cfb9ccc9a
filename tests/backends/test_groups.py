"""Small batches are made several at a time, in one gather; nobody shall see the difference."""

import io
import pickle
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, RAMDataset, concat
from loaders.backends.maker import Maker
from loaders.data.store import Store
from loaders.datasets.reading.samples import collate
from loaders.sampling.batch import IndexBatch, SampleIndex


def dataset(num_samples: int = 100) -> RAMDataset:
    rng = np.random.default_rng(0)
    return RAMDataset.from_arrays(
        image=rng.integers(0, 256, (num_samples, 1, 4, 5), np.uint8),
        x=rng.random((num_samples, 3), np.float32),
        label=np.arange(num_samples),
    )


def group(data: RAMDataset, batches: list[Any]) -> Any:
    return Maker(data, collate, 2, True, 1).make_group(batches)


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

    groups = group(data, [[1, 2], [3], []])

    assert [batch.label.tolist() for batch in groups] == [[1, 2], [3], []]
    assert num_rows == [3]


def test_indices_come_in_any_form() -> None:
    batches: list[Any] = [IndexBatch(np.array([5, 6])), [SampleIndex(7, epoch=3)], (8, -1)]

    groups = group(dataset(), batches)

    assert [batch.label.tolist() for batch in groups] == [[5, 6], [7], [8, 99]]


def test_what_is_decoded_or_transformed_is_read_batch_by_batch() -> None:
    data = dataset().replace(transform=lambda sample: sample)

    assert group(data, [[0], [1]]) is None


def test_a_batch_of_a_wrong_index_fails_alone() -> None:
    batches = [[0, 1], [2, 100], [4, 5]]
    loader = iter(DataLoader(dataset(), batch_sampler=batches, num_workers=1))

    assert next(loader).label.tolist() == [0, 1]
    with pytest.raises(IndexError):
        next(loader)
    assert next(loader).label.tolist() == [4, 5]


def test_changing_a_batch_leaves_its_neighbours_as_they_are() -> None:
    first, second = group(dataset(), [[1, 2], [3]])

    first.x.fill_(-1)

    assert torch.equal(second.x, dataset()[3].x[None])


BACKENDS = [
    {"num_workers": 0},
    {"num_workers": 2},
    pytest.param({"num_workers": 2, "backend": "subprocess"}, marks=pytest.mark.slow),
]


def columns_of(num_samples: int = 4096) -> RAMDataset:
    """Return samples with an image, whose axes are turned, a row below 32 KB a batch, and one above."""
    rng = np.random.default_rng(0)
    return RAMDataset.from_arrays(
        image=rng.integers(0, 256, (num_samples, 3, 4, 5), np.uint8),
        small=rng.random((num_samples, 3), np.float32),
        large=rng.random((num_samples, 600), np.float32),
        label=np.arange(num_samples),
    )


@pytest.mark.parametrize("settings", BACKENDS)
def test_a_batch_is_saved_and_resized_without_its_neighbours(settings: dict[str, Any]) -> None:
    loader = DataLoader(columns_of(512), 16, seed=1, shuffle=True, **settings)
    plain = [[value.clone() for value in batch] for batch in loader]

    loader.set_epoch(0)
    for batch, expected in zip(loader, plain, strict=True):
        for value, twin in zip(batch, expected, strict=True):
            assert torch.equal(value, twin)
            assert value.stride() == twin.stride()
            assert value.untyped_storage().nbytes() == value.nbytes
            assert value.storage_offset() == 0
            file = io.BytesIO()
            torch.save(value, file)
            assert len(file.getvalue()) < value.nbytes + 2048
            value.resize_(value.numel() // 2).fill_(0)
            with suppress(
                RuntimeError
            ):  # torch's words for what lies in memory that others allocated
                value.resize_(twin.shape).fill_(0)


@pytest.mark.parametrize("settings", BACKENDS)
def test_batches_that_are_kept_hold_little_more_than_themselves(settings: dict[str, Any]) -> None:
    """Of those that are made together one would hold all."""
    loader = DataLoader(columns_of(32_768), 16, **settings)

    kept, most = [], 0
    for number, batch in enumerate(loader):
        if number % 32 == 0:
            kept.append(batch)
            most = max(most, loader.stats().slot_bytes)

    kept_bytes = sum(value.nbytes for batch in kept for value in batch)
    group_bytes = 64 * 16 * (60 + 12 + 2400 + 8)
    assert most < kept_bytes + 16 * group_bytes
    for number, batch in enumerate(kept):
        assert batch.label.tolist() == list(range(512 * number, 512 * number + 16))


def test_samples_of_a_batch_have_storages_of_their_own() -> None:
    samples = columns_of(64).__getitems__([5, 6, 7])
    first, second = samples[0], samples[1]

    assert [value.untyped_storage().nbytes() for value in first] == [60, 12, 2400, 8]
    first.image.resize_(10).fill_(0)
    assert torch.equal(second.image, columns_of(64)[6].image)


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
    groups = group(dataset(), [[1, 2], [3], []])
    single = group(dataset(), [[1, 2, 3]])

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
