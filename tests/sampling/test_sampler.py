"""The samplers as PyTorch and its frameworks meet them."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from loaders.errors import LoadersError, StateError
from loaders.sampling import (
    Balanced,
    BlockShuffled,
    EpochSampler,
    MixtureOrder,
    Order,
    Pad,
    SampleIndex,
    Sequential,
    Shuffled,
    Weighted,
    audit,
    check_state,
    resolve_rank,
)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def samplers_of(world_size: int, order: Order | int, **arguments: Any) -> list[EpochSampler]:
    return [
        EpochSampler(order, rank=rank, world_size=world_size, **arguments)
        for rank in range(world_size)
    ]


def take(iterator: Iterator[Any], num: int) -> list[Any]:
    return [next(iterator) for _ in range(num)]


# One at a time


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("pad", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_ranks_get_as_much_as_from_torchs_sampler(
    world_size: int, pad: Pad, drop_last: bool
) -> None:
    for n in (1, 3, 8, 25):
        ours = samplers_of(world_size, n, shuffle=False, drop_last=drop_last, pad=pad)
        parts = [list(sampler) for sampler in ours]

        assert [len(part) for part in parts] == [len(sampler) for sampler in ours]
        together = sorted(index for part in parts for index in part)
        if pad or drop_last:
            theirs: list[DistributedSampler[int]] = [
                DistributedSampler(range(n), world_size, rank, False, drop_last=drop_last)  # type: ignore[arg-type]
                for rank in range(world_size)
            ]
            assert len(ours[0]) == n // world_size if drop_last else len(theirs[0])
            if n >= world_size:
                assert parts == [list(sampler) for sampler in theirs]
                assert ours[0].total_size == theirs[0].total_size
        else:
            assert together == list(range(n))
            assert ours[0].total_size == n


def test_indices_know_epoch_and_draw() -> None:
    sampler = EpochSampler(Weighted([1.0, 3.0], 400, seed=2), rank=1, world_size=2)
    sampler.set_epoch(7)

    indices = list(sampler)

    assert {index.epoch for index in indices} == {7}
    expected, draws = sampler.order.at(7, np.arange(1, 400, 2))
    assert draws is not None
    assert [(int(index), index.draw) for index in indices] == list(
        zip(expected.tolist(), draws.tolist(), strict=True)
    )


def test_it_has_what_users_of_distributed_samplers_read() -> None:
    sampler = EpochSampler(Shuffled(10, seed=3), rank=1, world_size=4, drop_last=True)

    assert isinstance(sampler, DistributedSampler)
    read = (sampler.num_replicas, sampler.rank, sampler.epoch, sampler.seed, sampler.shuffle)
    assert read == (4, 1, 0, 3, True)
    assert (sampler.drop_last, sampler.num_samples, sampler.total_size) == (True, 2, 8)
    assert len(sampler.dataset) == 10
    assert not EpochSampler(10, shuffle=False).shuffle


def test_a_number_of_samples_is_an_order() -> None:
    assert EpochSampler(10).order == Shuffled(10, 0)
    assert EpochSampler(np.int64(10), seed=3).order == Shuffled(10, 3)
    assert EpochSampler(10, shuffle=False).order == Sequential(10)
    with pytest.raises(ValueError):
        EpochSampler(Shuffled(10), seed=1)


# Epochs


def test_a_full_pass_advances_the_epoch() -> None:
    sampler = EpochSampler(100)
    passes = [list(sampler) for _ in range(3)]

    assert sampler.epoch == 3
    assert passes[0] != passes[1]
    assert [{index.epoch for index in each} for each in passes] == [{0}, {1}, {2}]


def test_an_epoch_that_was_taken_whole_begins_anew_when_it_is_chosen() -> None:
    sampler = EpochSampler(4)
    first = [i for _, i in zip(range(4), sampler, strict=False)]

    sampler.set_epoch(0)

    assert list(sampler) == first
    assert sampler.epoch == 1


def test_set_epoch_selects_the_order_as_in_torch() -> None:
    """The usual loop sets each epoch; that the pass before has advanced it changes nothing."""
    sampler, reference = EpochSampler(100), Shuffled(100)
    for epoch in (0, 1, 2, 0, 9):
        sampler.set_epoch(epoch)
        assert list(sampler) == reference.at(epoch, np.arange(100))[0].tolist()


def test_setting_the_current_epoch_keeps_the_position() -> None:
    sampler = EpochSampler(100)
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 4, "delivered": 90})

    sampler.set_epoch(4)
    assert len(list(sampler)) == 10

    sampler.load_state_dict({**sampler.state_dict(), "epoch": 4, "delivered": 90})
    sampler.set_epoch(5)
    assert len(list(sampler)) == 100


def test_after_break_the_next_pass_starts_the_epoch_anew() -> None:
    sampler = EpochSampler(100)
    first = take(iter(sampler), 30)

    second = list(sampler)

    assert second[:30] == first
    assert len(second) == 100


def test_a_resumed_position_is_used_once() -> None:
    sampler = EpochSampler(100)
    sampler.load_state_dict({**sampler.state_dict(), "delivered": 90})
    take(iter(sampler), 3)

    assert sampler.state_dict()["delivered"] == 93
    assert len(list(sampler)) == 100


def test_an_iterator_left_behind_does_not_disturb() -> None:
    sampler = EpochSampler(10)
    stale = iter(sampler)
    take(stale, 3)
    sampler.set_epoch(5)

    assert len(list(stale)) == 7

    assert (sampler.epoch, sampler.state_dict()["delivered"]) == (5, 0)


# State


ORDERS: list[Order] = [
    Sequential(101),
    Shuffled(101, seed=5),
    BlockShuffled(101, seed=5, block_size=4, window=3),
    Weighted(np.arange(60), 101, seed=5),
    Balanced(np.arange(101) % 7, 101, seed=5),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("num_taken", [0, 1, 37, 101])
def test_a_sampler_goes_on_exactly_where_its_state_was_taken(order: Order, num_taken: int) -> None:
    sampler = EpochSampler(order)
    sampler.set_epoch(3)
    rest = iter(sampler)
    take(rest, num_taken)
    state = json.loads(json.dumps(sampler.state_dict()))

    resumed = EpochSampler(order)
    resumed.load_state_dict(state)

    assert resumed.state_dict() == state
    assert (resumed.epoch, state["delivered"]) == ((4, 0) if num_taken == 101 else (3, num_taken))
    assert num_taken == 101 or [vars(index) | {"i": index} for index in resumed] == [
        vars(index) | {"i": index} for index in rest
    ]
    assert list(rest) == []
    assert resumed.epoch == 4
    assert list(resumed) == list(sampler)  # and so do the epochs after it


def test_no_step_of_before_a_state_was_loaded_is_left_out_of_the_next_one() -> None:
    sampler = EpochSampler(10)
    take(iter(sampler), 4)
    sampler.load_state_dict(sampler.state_dict())

    with pytest.raises(StateError):
        sampler.state_dict(pending=1)
    take(iter(sampler), 2)
    assert sampler.state_dict(pending=2)["delivered"] == 4
    with pytest.raises(StateError):
        sampler.state_dict(pending=3)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_states_load_on_another_world_size(world_size: int, batch_size: int) -> None:
    order = Shuffled(101, seed=1)
    before = samplers_of(4, order)
    seen: list[int] = []
    for sampler in before:
        for batch in take(iter(sampler.batches(3)), 5):
            seen += batch
    states = [sampler.state_dict() for sampler in before]
    assert all(state == states[0] for state in states)

    after = samplers_of(world_size, order, pad=False)
    for sampler in after:
        sampler.load_state_dict(states[0])
        for batch in sampler.batches(batch_size):
            seen += batch

    assert sorted(seen) == list(range(101))


def test_len_is_that_of_a_full_epoch_also_after_a_resume() -> None:
    sampler = EpochSampler(100)
    sampler.load_state_dict({**sampler.state_dict(), "delivered": 90})

    assert (len(sampler), len(sampler.batches(8))) == (100, 13)
    assert len(list(sampler.batches(8))) == 2


def test_state_is_counted_over_all_ranks() -> None:
    sampler = samplers_of(4, 100)[2]
    batches = iter(sampler.batches(5))
    for num_batches in range(1, 6):
        next(batches)
        assert sampler.state_dict()["delivered"] == num_batches * 20 % 100
    assert list(batches) == []
    assert sampler.state_dict()["delivered"] == 0
    assert sampler.state_dict()["epoch"] == 1


@pytest.mark.parametrize("delivered", [8, 10])
def test_a_state_that_leaves_no_step_of_its_epoch_goes_on_with_the_next(delivered: int) -> None:
    """As states of other batch sizes do, and those of earlier releases."""
    sampler, fresh = (EpochSampler(10, drop_last=True) for _ in range(2))
    state = sampler.state_dict() | {"delivered": delivered}
    fresh.set_epoch(1)
    expected = list(fresh.batches(4))

    sampler.load_state_dict(state)
    assert list(map(list, sampler.batches(4))) == list(map(list, expected))
    assert sampler.epoch == 2

    sampler.load_state_dict(state)
    sampler.set_epoch(0)
    assert list(sampler.batches(4)) == []
    assert sampler.epoch == 1


@pytest.mark.parametrize("other", [each for each in ORDERS if each != ORDERS[1]])
def test_a_state_of_another_kind_is_refused(other: Order) -> None:
    state = EpochSampler(other).state_dict()

    with pytest.raises(StateError):
        EpochSampler(ORDERS[1]).load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        {"length": 102},
        {"length": 102, "seed": 6},
        {"version": 2},
        {"version": None},
        {"delivered": 102},
        {"delivered": "1"},
        {"epoch": -1},
        {"epoch": None},
    ],
    ids=str,
)
def test_damaged_states_are_refused_and_change_nothing(change: dict[str, Any]) -> None:
    sampler = EpochSampler(ORDERS[1])
    before = sampler.state_dict()

    with pytest.raises(StateError):
        sampler.load_state_dict({**before, "epoch": 3, **change})

    assert sampler.state_dict() == before
    sampler.load_state_dict({**before, "epoch": 3})
    with pytest.raises(StateError):
        check_state({}, sampler.order)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Weighted([1.0, 2.0], 8), Weighted([1.0, 3.0], 8)),
        (Balanced([0, 1, 1], 8), Balanced([0, 0, 1], 8)),
    ],
)
def test_weights_and_labels_are_part_of_an_epochs_state(one: Order, other: Order) -> None:
    """Another epoch may have others: a state between two epochs loads."""
    sampler = EpochSampler(one)
    batches = iter(sampler.batches(4))
    take(batches, 1)
    middle = sampler.state_dict()
    take(batches, 1)
    last = sampler.state_dict()
    list(batches)

    with pytest.raises(StateError):
        EpochSampler(other).load_state_dict(middle)
    resumed, fresh = EpochSampler(other), EpochSampler(other)
    for state in (sampler.state_dict(), last):  # it has no more, and does not say so yet
        resumed.load_state_dict(state)
        fresh.set_epoch(1)
        assert (state["epoch"], state["delivered"]) == (1, 0)
        assert list(resumed) == list(fresh)


def test_resuming_inside_a_huge_epoch_asks_for_the_rest_only() -> None:
    sampler = EpochSampler(10**12, rank=3, world_size=8)
    sampler.load_state_dict({**sampler.state_dict(), "delivered": 10**11 + 5})

    batch = next(iter(sampler.batches(4)))

    expected = Shuffled(10**12).at(0, np.arange(10**11 + 5 + 12, 10**11 + 5 + 16))[0]
    assert list(batch) == expected.tolist()


def test_a_pickled_sampler_goes_on() -> None:
    sampler = EpochSampler(20, seed=1)
    sampler.load_state_dict({**sampler.state_dict(), "delivered": 15})

    copy = pickle.loads(pickle.dumps(sampler))

    assert copy.state_dict() == sampler.state_dict()
    assert list(copy) == list(sampler)


# Batches, and torch's own DataLoader


def test_batches_take_what_is_not_given_from_the_sampler() -> None:
    sampler = EpochSampler(9, drop_last=True, pad="mark")

    assert [len(batch) for batch in sampler.batches(4)] == [4, 4]
    assert [len(batch) for batch in sampler.batches(4, drop_last=False)] == [4, 4, 1]
    assert all(batch.valid is not None for batch in sampler.batches(4))
    assert all(batch.valid is None for batch in sampler.batches(4, pad=True))
    batches = sampler.batches(4)
    assert (batches.sampler, batches.batch_size, batches.drop_last) == (sampler, 4, True)


def test_batches_carry_epoch_and_seed_for_augmentation() -> None:
    sampler = EpochSampler(9, seed=6)
    sampler.set_epoch(2)

    batches = list(sampler.batches(4))

    assert {(batch.epoch, batch.seed) for batch in batches} == {(2, 6)}
    assert batches[0][1:].seed == 6


class Echo(Dataset[tuple[int, int, int]]):
    """Gives back the index, its epoch and its draw."""

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        assert isinstance(index, SampleIndex)
        return index, index.epoch, index.draw


class EchoBatch(Dataset[tuple[int, int]]):
    """Fetches whole batches, as our datasets do."""

    def __getitems__(self, indices: Any) -> list[tuple[int, int]]:
        return [(index, indices.epoch) for index in indices]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_loader_over_the_sampler_delivers_epoch_and_draw(num_workers: int) -> None:
    sampler = EpochSampler(Weighted([1.0, 3.0], 40, seed=2))
    loader = DataLoader(Echo(), batch_size=8, sampler=sampler, num_workers=num_workers)

    for epoch in range(2):
        rows = torch.stack([torch.cat(column) for column in zip(*loader, strict=True)]).T.tolist()
        indices, draws = sampler.order.at(epoch, np.arange(40))
        assert draws is not None
        assert rows == [[i, epoch, d] for i, d in zip(indices, draws, strict=True)]
    assert len(loader) == 5


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_loader_over_the_batches_delivers_and_resumes(num_workers: int) -> None:
    """torch makes two iterators of a batch sampler and uses one: the position must survive it."""
    sampler = EpochSampler(40)
    sampler.load_state_dict({**sampler.state_dict(), "delivered": 16})
    loader = DataLoader(EchoBatch(), batch_sampler=sampler.batches(8), num_workers=num_workers)

    first, second = list(loader), list(loader)

    assert [len(indices) for indices, _ in first] == [8, 8, 8]
    expected = Shuffled(40).at(0, np.arange(16, 40))[0].tolist()
    assert torch.cat([indices for indices, _ in first]).tolist() == expected
    assert len(second) == len(loader) == 5
    assert {int(epoch[0]) for _, epoch in second} == {1}


# Ranks


def test_without_a_launcher_there_is_one_rank() -> None:
    assert resolve_rank() == (0, 1)
    assert resolve_rank(world_size=1) == (0, 1)
    assert resolve_rank(rank=2, world_size=3) == (2, 3)


@pytest.mark.parametrize(
    "ask",
    [
        len,
        iter,
        lambda sampler: sampler.rank,
        lambda sampler: len(sampler.batches(2)),
        lambda sampler: iter(sampler.batches(2)),
    ],
    ids=["len", "iter", "rank", "len of batches", "iter of batches"],
)
def test_a_launcher_without_a_rank_is_an_error(
    ask: Callable[[EpochSampler], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    sampler = EpochSampler(10)

    with pytest.raises(LoadersError):
        ask(sampler)


def test_given_ranks_need_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")

    assert len(EpochSampler(10, rank=1, world_size=4)) == 3
    assert len(EpochSampler(10, world_size=1)) == 10  # everything, on purpose


@pytest.mark.parametrize("value", ["1", "", "many"])
def test_a_launcher_of_one_process_is_none(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", value)

    assert resolve_rank() == (0, 1)


@pytest.mark.parametrize(("rank", "world_size"), [(4, 4), (-1, 4), (0, 0)])
def test_ranks_out_of_range_are_refused(rank: int, world_size: int) -> None:
    with pytest.raises(ValueError):
        resolve_rank(rank, world_size)


RANK_PROGRAM = """
import sys, datetime, json
import torch.distributed as dist
from loaders.errors import LoadersError
from loaders.sampling import EpochSampler, resolve_rank

sampler = EpochSampler(10, shuffle=False, pad=False)
try:
    len(sampler)
    raise SystemExit("the launcher's WORLD_SIZE was not noticed")
except LoadersError:
    pass
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]),
                        world_size=2, timeout=datetime.timedelta(seconds=60))
found = [resolve_rank(), resolve_rank(world_size=1), list(sampler), sampler.num_replicas]
try:
    resolve_rank(rank=2)
    raise SystemExit("rank 2 of 2 was accepted")
except ValueError:
    pass
dist.destroy_process_group()
print(json.dumps([*found, list(sampler)]))
"""


@pytest.mark.slow
def test_ranks_come_from_torch_distributed(tmp_path: Path) -> None:
    """A sampler made before the process group finds its rank, and keeps it when the group ends."""
    environment = {**os.environ, "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK_PROGRAM, str(rank), str(tmp_path / "store")],
            env=environment,
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()

    for rank, (output, errors) in enumerate(outputs):
        assert processes[rank].returncode == 0, errors
        part = list(range(rank, 10, 2))
        assert json.loads(output) == [[rank, 2], [0, 1], part, 2, part]


@pytest.mark.parametrize("is_by_block", [False, True])
def test_numbers_of_numpy_are_kept_as_ints(is_by_block: bool) -> None:
    numbers: Any = np.array([10, 2, 0])
    n, two, rank = numbers
    order: Order = BlockShuffled(n, 0, two, two) if is_by_block else Shuffled(n)
    sampler = EpochSampler(order, rank=rank, world_size=two)
    iterator = iter(sampler)

    next(iterator)
    state = json.loads(json.dumps(sampler.state_dict()))
    rest = list(iterator)
    sampler.load_state_dict(state)

    assert list(sampler) == rest


def test_samples_as_they_lie_have_a_seed_for_augmentation() -> None:
    sampler = EpochSampler(4, shuffle=False, seed=3)

    assert (sampler.seed, next(iter(sampler)).seed) == (3, 3)
    with pytest.raises(TypeError):
        EpochSampler(4, shuffle=False, seed="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("pad", [True, False, "mark"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_length_is_what_is_yielded_where_blocks_stay_together(pad: Pad, rank: int) -> None:
    order = MixtureOrder([40, 40], [1, 1], block_size=4)
    sampler = EpochSampler(order, rank=rank, world_size=3, pad=pad)

    assert len(list(sampler)) == len(sampler)
    assert sampler.epoch == 1


@pytest.mark.parametrize("num_samples", [12, 13])
def test_counts_of_numpy_go_into_no_state(num_samples: int) -> None:
    """A state is primitives: what computed ``num_samples`` may have been numpy."""
    labels = np.arange(40) % 3
    for order in (
        Balanced(labels, np.int64(num_samples)),  # type: ignore[arg-type]
        Weighted(np.ones(40), np.int64(num_samples)),  # type: ignore[arg-type]
    ):
        sampler = EpochSampler(order, rank=0, world_size=1)
        take(iter(sampler.batches(5)), 2)

        state = json.loads(json.dumps(sampler.state_dict()))

        assert (state["delivered"], state["length"]) == (10, num_samples)
        sampler.load_state_dict(state)


@pytest.mark.parametrize("pad", [True, False, "mark"])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 6])
@pytest.mark.parametrize("world_size", [1, 3])
def test_no_step_is_larger_than_a_batch_where_batches_cut_blocks(
    pad: Pad, batch_size: int, world_size: int
) -> None:
    """Blocks of a mixture stay together where batches are made of whole ones, and nowhere else."""
    order = MixtureOrder([9, 7], [0.5, 0.5], stop=16, block_size=4)

    for sampler in samplers_of(world_size, order, pad=pad):
        sizes = [len(batch) for batch in sampler.batches(batch_size)]

        assert max(sizes) <= batch_size
        assert pad is not True or world_size > 1 or sum(sizes) == 16
    assert audit(16, batch_size=batch_size, world_size=world_size, pad=pad, order=order).ok


def test_ranks_that_leave_an_epoch_at_the_same_step_begin_the_same_one() -> None:
    """One of them has no more steps, and cannot take that for the end: the others are not done."""
    samplers = samplers_of(2, 5, pad=False)
    for sampler in samplers:
        current = sampler.begin(sampler.plan())
        current.count(2)

    for sampler in samplers:
        sampler.go_on(sampler.plan)

    assert [sampler.epoch for sampler in samplers] == [0, 0]


def test_the_current_epoch_keeps_its_position_behind_its_last_step_too() -> None:
    """Chosen again in its loop, it ends as if it had not been; chosen behind it, it begins anew."""
    sampler = EpochSampler(3, rank=0, world_size=1)
    current = sampler.begin(sampler.plan())
    current.count(3)
    sampler.set_epoch(0)

    assert sampler.state_dict()["delivered"] == 3
    sampler.go_on(sampler.plan)
    assert sampler.epoch == 0
    current.end()
    assert sampler.epoch == 1
