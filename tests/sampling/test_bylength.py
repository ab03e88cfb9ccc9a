"""Batches of similar lengths: each sample once, alike within a step, resumable, for any ranks."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders import DataLoader, RAMDataset
from loaders.errors import StateError
from loaders.sampling import ByLength, EpochSampler

NUM, BATCH = 1003, 8
LENGTHS = np.random.default_rng(0).integers(1, 500, NUM)


def every(order: ByLength, epoch: int = 0) -> np.ndarray[Any, Any]:
    return order.at(epoch, np.arange(order.length))[0]


def padding(indices: np.ndarray[Any, Any]) -> float:
    """Return the share of padding in batches."""
    batches = LENGTHS[indices[: NUM // BATCH * BATCH]].reshape(-1, BATCH)
    return float(1 - batches.sum() / (batches.max(axis=1).sum() * BATCH))


@given(
    lengths=st.lists(st.integers(0, 9), max_size=60),
    batch_size=st.integers(1, 9),
    window=st.integers(1, 5),
    epoch=st.integers(0, 2**40),
)
def test_each_sample_comes_once(
    lengths: list[int], batch_size: int, window: int, epoch: int
) -> None:
    order = ByLength(np.array(lengths, np.int64), batch_size, seed=1, window=window)

    assert sorted(every(order, epoch).tolist()) == list(range(len(lengths)))
    assert order.length == len(lengths)


def test_batches_are_of_similar_lengths_and_in_an_order_by_chance() -> None:
    order = ByLength(LENGTHS, BATCH, seed=3)
    indices = every(order)

    assert padding(indices) < 0.05 < 0.3 < padding(np.arange(NUM))
    assert padding(every(ByLength(LENGTHS, BATCH, window=4))) > padding(indices)
    means = LENGTHS[indices[:1000]].reshape(-1, BATCH).mean(axis=1)
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.3  # neighbours tell nothing
    rest = indices[NUM // BATCH * BATCH :]
    assert len(rest) == NUM % BATCH


def test_epochs_and_seeds_are_other_orders_with_other_company() -> None:
    order = ByLength(LENGTHS, BATCH)
    company = [
        {frozenset(batch) for batch in every(each, epoch)[:1000].reshape(-1, BATCH).tolist()}
        for each, epoch in ((order, 0), (order, 1), (ByLength(LENGTHS, BATCH, seed=1), 0))
    ]

    assert all(len(one & other) < 3 for one, other in ((company[0], c) for c in company[1:]))
    assert np.array_equal(every(order), every(ByLength(LENGTHS, BATCH)))
    assert np.array_equal(every(pickle.loads(pickle.dumps(order)), 1), every(order, 1))


def test_golden_values() -> None:
    """The order is part of what a state promises: it must be the same in every release."""
    order = ByLength([5, 1, 4, 1, 5, 9, 2, 6, 5, 3], batch_size=3, seed=7, window=2)

    assert every(order, 0).tolist() == GOLDEN[0]
    assert every(order, 5).tolist() == GOLDEN[1]


GOLDEN = [[3, 6, 2, 1, 9, 7, 8, 4, 0, 5], [6, 9, 4, 1, 3, 2, 0, 7, 5, 8]]


def loader(num: int = 64, **settings: Any) -> DataLoader:
    data = RAMDataset.from_arrays(x=np.arange(num))
    given: dict[str, Any] = {"sampler": ByLength(LENGTHS[:num], 8), "batch_size": 4}
    return DataLoader(data, **given | settings)


def test_ranks_have_batches_alike_in_each_step() -> None:
    ranks = [list(loader(rank=rank, world_size=2)) for rank in range(2)]
    both = [[LENGTHS[batch.x.numpy()].mean() for batch in batches] for batches in ranks]

    assert sorted(int(i) for batches in ranks for b in batches for i in b.x) == list(range(64))
    assert np.abs(np.subtract(both[0], both[1])).mean() < 0.2 * LENGTHS.mean()


def test_it_resumes_in_the_middle_and_refuses_other_lengths() -> None:
    whole = [batch.x.tolist() for batch in loader()]
    first = loader()
    batches = iter(first)
    taken = [next(batches).x.tolist() for _ in range(5)]
    second = loader(num_workers=0)
    second.load_state_dict(first.state_dict())

    assert taken + [batch.x.tolist() for batch in second] == whole
    other = loader(sampler=ByLength(LENGTHS[:64][::-1].copy(), 8))
    with pytest.raises(StateError):
        other.load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("lengths", "batch_size"),
    [(["a"], 2), ([1, -1], 2), ([1, np.nan], 2), ([[1]], 2), ([1, 2], 0)],
)
def test_arguments_out_of_range_are_refused(lengths: Any, batch_size: int) -> None:
    with pytest.raises((ValueError, TypeError)):
        ByLength(lengths, batch_size)


# -- batches of so many tokens ------------------------------------------------------------------------


def drawn_lengths(num_samples: int) -> Any:
    return np.minimum(np.random.default_rng(0).lognormal(4, 1, num_samples), 900).astype(int)


@pytest.mark.parametrize(
    ("num_samples", "max_batch", "world_size"),
    [(0, None, 3), (1, None, 3), (7, None, 1), (7, 5, 3), (500, None, 3), (500, 5, 1)],
)
@pytest.mark.parametrize("pad", [True, False, "mark"])
def test_no_batch_has_more_tokens_and_each_sample_comes_once(
    num_samples: int, max_batch: int | None, world_size: int, pad: Any
) -> None:
    lengths = drawn_lengths(num_samples)
    order = ByLength(lengths, max_tokens=1000, max_batch=max_batch, seed=1)
    for epoch in range(2):
        seen: list[int] = []
        num_steps = []
        for rank in range(world_size):
            sampler = EpochSampler(order, rank=rank, world_size=world_size, pad=pad)
            sampler.set_epoch(epoch)
            batches = list(sampler.batches(1))
            num_steps.append(len(batches))
            assert len(sampler.batches(1)) == len(batches)
            for batch in batches:
                assert len(batch) * lengths[list(batch)].max() <= 1000
                assert len(batch) <= (max_batch or 1000)
                if batch.valid is None or batch.valid.all():
                    seen += batch

        assert sorted(set(seen)) == list(range(num_samples))
        assert pad is True or len(seen) == num_samples
        assert max(num_steps) - min(num_steps) <= (pad is False)


def test_little_of_them_is_padding_and_batches_change() -> None:
    lengths = drawn_lengths(20_000)
    sampler = EpochSampler(ByLength(lengths, max_tokens=4096))

    epochs = [[frozenset(batch) for batch in sampler.batches(1)] for _ in range(2)]

    padded = sum(len(batch) * lengths[list(batch)].max() for batch in epochs[0])
    assert padded < 1.06 * lengths.sum()
    assert len(epochs[0]) == len(epochs[1]) < 1.15 * lengths.sum() / 4096
    assert len(set(epochs[0]) & set(epochs[1])) < 0.1 * len(epochs[0])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_serves_and_resumes_them_on_any_world_size(num_workers: int) -> None:
    lengths = drawn_lengths(200)
    dataset = RAMDataset.from_arrays(x=np.arange(200))

    def loader(rank: int = 0, world_size: int = 1, **settings: Any) -> Any:
        order = ByLength(lengths, max_tokens=1000)
        return DataLoader(
            dataset,
            sampler=order,
            num_workers=num_workers,
            rank=rank,
            world_size=world_size,
            **settings,
        )

    whole, first = loader(), loader()
    epochs = [[batch.x.tolist() for batch in whole] for _ in range(2)]
    sampler = EpochSampler(ByLength(lengths, max_tokens=1000))
    assert epochs[0] == [list(batch) for batch in sampler.batches(1)]
    batches = iter(first)
    for _ in range(7):
        next(batches)
    state = first.state_dict()
    assert state["sampler"]["delivered"] == sum(map(len, epochs[0][:7]))

    alone, *ranks = loader(), loader(0, 2, pad=False), loader(1, 2, pad=False)
    for resumed in (alone, *ranks):
        resumed.load_state_dict(state)

    assert [[batch.x.tolist() for batch in alone] for _ in range(2)] == [epochs[0][7:], epochs[1]]
    served = [[batch.x.tolist() for batch in rank] for rank in ranks]
    assert (served[0], served[1]) == (epochs[0][7::2], epochs[0][8::2])


def test_the_batch_that_pads_a_resumed_epoch_is_whole() -> None:
    order = ByLength(drawn_lengths(200), max_tokens=1000)
    whole = [list(batch) for batch in EpochSampler(order).batches(1)]
    num_done = 7 - len(whole) % 2  # so that two ranks do not share the rest evenly
    first = EpochSampler(order)
    taken = iter(first.batches(1))
    for _ in range(num_done):
        next(taken)

    resumed = EpochSampler(order, rank=1, world_size=2, pad="mark")
    resumed.load_state_dict(first.state_dict())
    batches = [*resumed.batches(1)]

    assert [list(batch) for batch in batches] == [*whole[num_done + 1 :: 2], whole[0]]
    assert [bool(batch.valid.all()) for batch in batches] == [True] * (len(batches) - 1) + [False]


def test_of_a_batch_that_was_begun_sample_by_sample_the_rest_comes() -> None:
    order = ByLength(drawn_lengths(200), max_tokens=1000)
    first, resumed = (EpochSampler(order, rank=0, world_size=1) for _ in range(2))
    assert len(next(iter(resumed.batches(1)))) > 1
    taken = [next(iter(first))]

    resumed.load_state_dict(first.state_dict())

    batches = [list(batch) for batch in resumed.batches(1)]
    assert taken + [index for batch in batches for index in batch] == every(order).tolist()


def test_what_does_not_go_together_is_refused() -> None:
    settings: Any
    for settings in (
        {},
        {"batch_size": 2, "max_tokens": 9},
        {"batch_size": 2, "max_batch": 2},
        {"max_tokens": 0},
    ):
        with pytest.raises(ValueError):
            ByLength([1, 2], **settings)
    ByLength([1, 10], max_tokens=10)
    with pytest.raises(ValueError):
        ByLength([1, 12], max_tokens=10)
    dataset = RAMDataset.from_arrays(x=np.arange(2))
    order = ByLength([1, 2], max_tokens=9)
    for batch_size in (2, None):
        with pytest.raises(ValueError):
            len(DataLoader(dataset, batch_size, sampler=order))
