"""Ranks share an epoch as promised: on any world size, cut anew from anywhere."""

import pickle
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.sampling import (
    AuditReport,
    IndexBatch,
    Pad,
    Plan,
    SampleIndex,
    Sequential,
    Shuffled,
    Weighted,
    audit,
    audit_plans,
    index_batches,
)

WORLD_SIZES = [1, 2, 3, 8]
PADS: list[Pad] = [True, False, "mark"]
# Nothing, fewer than ranks, fewer than a batch, a full batch more or less, several batches.
LENGTHS = [0, 1, 2, 5, 7, 8, 9, 16, 23, 24, 25, 100, 101]


def plans_of(world_size: int, **arguments: Any) -> list[Plan]:
    return [Plan(rank=rank, world_size=world_size, **arguments) for rank in range(world_size)]


def delivered(plan: Plan, *, real: bool = True) -> list[int]:
    positions: list[int] = []
    for step in range(plan.num_remaining_steps):
        rows, valid = plan.positions(step)
        positions += rows[valid if real and valid is not None else slice(None)].tolist()
    return positions


# One epoch over all ranks


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("pad", [False, "mark"])
def test_without_padding_each_position_is_on_exactly_one_rank(world_size: int, pad: Pad) -> None:
    for length, batch_size in product(LENGTHS, [1, 3, 4]):
        plans = plans_of(world_size, length=length, batch_size=batch_size, pad=pad)

        together = [position for plan in plans for position in delivered(plan)]
        assert sorted(together) == list(range(length))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("pad", [True, "mark"])
def test_padded_ranks_have_equal_steps_of_equal_size(world_size: int, pad: Pad) -> None:
    for length, batch_size in product(LENGTHS, [1, 3, 4]):
        plans = plans_of(world_size, length=length, batch_size=batch_size, pad=pad)

        sizes = {
            tuple(len(plan.positions(step)[0]) for step in range(plan.num_steps)) for plan in plans
        }
        assert len(sizes) == 1
        together = [position for plan in plans for position in delivered(plan, real=False)]
        padding = -(length % (batch_size * world_size)) % world_size
        # As torch does: what is missing comes from the begin of the epoch, in its order.
        wrapped = [position % length for position in range(length + padding)] if length else []
        assert sorted(together) == sorted(wrapped)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_plan_tells_what_of_its_last_step_comes_before_padding(
    world_size: int, pad: Pad, drop_last: bool
) -> None:
    """The last batches of all ranks, joined and cut there, are the samples that are left."""
    for length, batch_size, start in product(LENGTHS, [1, 3, 4], [0, 1]):
        rest: dict[str, Any] = {"pad": pad, "drop_last": drop_last, "start": min(start, length)}
        plans = plans_of(world_size, length=length, batch_size=batch_size, **rest)
        last = max(plan.num_remaining_steps for plan in plans) - 1
        if last < 0:
            continue

        rows = [list(p.positions(last)[0]) for p in plans if last < p.num_remaining_steps]
        joined = [row for part in rows for row in part]
        num = plans[0].num_before_padding or len(joined)
        done = rest["start"] + last * plans[0].global_batch_size
        assert joined[:num] == list(range(done, done + num))
        assert drop_last or done + num == length


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("pad", PADS)
def test_dropping_the_tail_leaves_full_steps_only(world_size: int, pad: Pad) -> None:
    for length, batch_size in product(LENGTHS, [1, 3, 4]):
        plans = plans_of(world_size, length=length, batch_size=batch_size, drop_last=True, pad=pad)

        num_steps = length // (batch_size * world_size)
        assert {plan.num_steps for plan in plans} == {num_steps}
        together = [position for plan in plans for position in delivered(plan)]
        assert sorted(together) == list(range(num_steps * batch_size * world_size))
        assert all(
            len(plan.positions(step)[0]) == batch_size
            for plan in plans
            for step in range(num_steps)
        )


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_uneven_ranks_differ_by_one_row_and_at_most_one_step(world_size: int) -> None:
    for length in LENGTHS:
        plans = plans_of(world_size, length=length, batch_size=4, pad=False)

        num_rows = [plan.num_samples for plan in plans]
        assert num_rows == [len(delivered(plan)) for plan in plans]
        assert num_rows == sorted(num_rows, reverse=True)
        assert num_rows[0] - num_rows[-1] <= 1
        assert plans[0].num_steps - plans[-1].num_steps <= 1
        # No rank gets an empty batch instead of no step.
        assert all(
            len(plan.positions(step)[0]) for plan in plans for step in range(plan.num_steps)
        )


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_global_batch_is_the_same_positions_on_every_world_size(world_size: int) -> None:
    plans = plans_of(world_size, length=1000, batch_size=24 // world_size)

    for step in range(1000 // 24):
        rows = np.concatenate([plan.positions(step)[0] for plan in plans])
        assert rows.tolist() == list(range(step * 24, (step + 1) * 24))


def test_marked_rows_are_the_padding() -> None:
    plans = plans_of(4, length=9, batch_size=2, pad="mark")

    last = [plan.positions(1) for plan in plans]

    assert [rows.tolist() for rows, _ in last] == [[8], [0], [1], [2]]
    assert [valid.tolist() for _, valid in last if valid is not None] == [
        [True],
        [False],
        [False],
        [False],
    ]
    full = plans[0].positions(0)[1]
    assert full is not None
    assert full.all()


def test_padding_goes_round_as_often_as_it_must() -> None:
    rows = [plan.positions(0)[0].tolist() for plan in plans_of(8, length=3, batch_size=4)]

    assert rows == [[0], [1], [2], [0], [1], [2], [0], [1]]


# The rest of an epoch


@given(
    st.integers(0, 200),
    st.integers(1, 9),
    st.integers(1, 5),
    st.sampled_from([False, "mark"]),
    st.data(),
)
def test_a_rest_on_another_world_size_is_the_same_samples(
    length: int, world_size: int, batch_size: int, pad: Pad, data: st.DataObject
) -> None:
    """Two interruptions at arbitrary steps, each time another number of ranks."""
    start, seen = 0, []
    for _ in range(2):
        shape = {
            "world_size": data.draw(st.integers(1, 4)),
            "batch_size": data.draw(st.integers(1, 4)),
        }
        plans = plans_of(length=length, start=start, **shape)
        num_steps = data.draw(st.integers(0, plans[0].num_full_steps))
        for plan, step in product(plans, range(num_steps)):
            seen += plan.positions(step)[0].tolist()
        start = plans[0].delivered(num_steps)
        assert start == len(seen)

    for plan in plans_of(world_size, length=length, batch_size=batch_size, pad=pad, start=start):
        seen += delivered(plan)
    assert sorted(seen) == list(range(length))


def test_a_rest_on_the_same_shape_is_the_same_batches() -> None:
    for drop_last, pad, rank in product([True, False], PADS, range(3)):
        plan = Plan(50, 4, rank, 3, drop_last, pad)
        rest = Plan(50, 4, rank, 3, drop_last, pad, start=plan.delivered(2))

        assert rest.num_steps == plan.num_steps  # of the full epoch
        assert rest.num_remaining_steps == plan.num_remaining_steps - 2
        for step in range(rest.num_remaining_steps):
            for ours, theirs in zip(rest.positions(step), plan.positions(step + 2), strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_nothing_is_left_after_the_last_step() -> None:
    plan = Plan(50, 4, 1, 3)

    assert plan.delivered(plan.num_steps) == 50
    assert Plan(50, 4, 1, 3, start=50).num_remaining_steps == 0


def test_positions_of_huge_epochs_do_not_overflow() -> None:
    plan = Plan(2**62, 256, rank=1023, world_size=1024, start=2**61 + 3)

    rows, _ = plan.positions(plan.num_full_steps - 1)
    assert rows[-1] < 2**62
    assert rows[0] == 2**61 + 3 + (plan.num_full_steps - 1) * 256 * 1024 + 1023 * 256


@pytest.mark.parametrize(
    "arguments",
    [
        {"length": -1},
        {"batch_size": 0},
        {"world_size": 0},
        {"rank": 8, "world_size": 8},
        {"rank": -1},
        {"start": 11},
        {"pad": "wrap"},
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    Plan(length=10, batch_size=2)
    with pytest.raises(ValueError):
        Plan(**{"length": 10, "batch_size": 2, **arguments})


@pytest.mark.parametrize("step", [-1, 3])
def test_steps_that_are_none_are_refused(step: int) -> None:
    with pytest.raises(IndexError):
        Plan(5, 2).positions(step)


# Batches


@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("batch_size", [1, 7, 100_000])
@pytest.mark.parametrize(
    "order", [Shuffled(250_001, seed=1), Weighted([1.0, 0.0, 3.0], 1000), Sequential(0)]
)
def test_batches_are_the_steps_one_by_one(order: Any, batch_size: int, pad: Pad) -> None:
    """Evaluated in chunks or alone: the same."""
    if batch_size == 1 and order.length > 1000:
        order = Shuffled(999, seed=1)
    plan = Plan(order.length, batch_size, 1, 2, pad=pad, start=min(10, order.length))

    batches = list(index_batches(order, plan, epoch=3))

    assert len(batches) == plan.num_remaining_steps
    for step in {*range(min(50, len(batches))), *range(max(0, len(batches) - 50), len(batches))}:
        positions, valid = plan.positions(step)
        indices, draws = order.at(3, positions)
        assert batches[step].epoch == 3
        np.testing.assert_array_equal(batches[step].indices, indices)
        np.testing.assert_array_equal(batches[step].draws, draws)
        np.testing.assert_array_equal(batches[step].valid, valid)


@pytest.mark.parametrize("batch_size", [3, 1024, 5000, 1 << 16, 1 << 17])
def test_steps_that_are_taken_a_multiple_at_a_time_are_the_same(batch_size: int) -> None:
    plan = Plan(1_000_003, batch_size, pad=False)

    apart, together = list(plan.chunks()), list(plan.chunks(10))

    one, other = (np.concatenate([rows.ravel() for rows, _ in x]) for x in (apart, together))
    assert np.array_equal(one, other)
    sizes = [len(rows) for rows, _ in together]
    assert all(size % 10 == 0 or size < 10 for size in sizes[:-2])  # the last two are the rest
    assert max(rows.size for rows, _ in together) <= max(1 << 16, batch_size)


def test_the_order_is_asked_seldom_and_never_for_more_than_a_chunk() -> None:
    class Counting(Sequential):
        sizes: ClassVar[list[int]] = []

        def at(self, epoch: int, positions: Any) -> Any:
            self.sizes.append(positions.size)
            return super().at(epoch, positions)

    order = Counting(1_000_000)
    assert sum(map(len, index_batches(order, Plan(1_000_000, 256), 0))) == 1_000_000

    assert len(order.sizes) < 30
    assert max(order.sizes) == 1 << 16
    assert order.sizes[0] == 1024  # takes hardly longer than the first batch alone


def test_an_index_batch_is_a_sequence_of_ints() -> None:
    batch = IndexBatch(np.array([4, 2, 4]), 5, np.array([0, 0, 1]), np.array([True, True, False]))

    assert list(batch) == [4, 2, 4]
    assert all(isinstance(index, int) for index in (*batch, batch[0]))
    assert (len(batch), batch[-1], 2 in batch, batch.index(2)) == (3, 4, True, 1)
    part = batch[1:]
    assert isinstance(part, IndexBatch)
    assert part.draws is not None
    assert part.valid is not None
    assert (list(part), part.epoch, part.draws.tolist(), part.valid.tolist()) == (
        [2, 4],
        5,
        [0, 1],
        [True, False],
    )
    assert IndexBatch(np.array([1, 2]))[:1].draws is None


def test_batches_and_indices_pickle() -> None:
    batch = IndexBatch(np.array([4, 2]), 5, np.array([0, 1]), None, seed=9)

    copy = pickle.loads(pickle.dumps(batch))
    index = pickle.loads(pickle.dumps(SampleIndex(7, epoch=2, draw=1)))

    assert (list(copy), copy.epoch, copy.draws.tolist()) == ([4, 2], 5, [0, 1])
    assert (copy.valid, copy.seed) == (None, 9)
    assert (index, index.epoch, index.draw, type(index)) == (7, 2, 1, SampleIndex)


def test_a_sample_index_is_an_int() -> None:
    index = SampleIndex(7, epoch=2, draw=1)

    assert [10, 20][SampleIndex(1)] == 20
    assert index == 7
    assert hash(index) == hash(7)
    assert type(index + 1) is int
    assert (SampleIndex(3).epoch, SampleIndex(3).draw) == (0, 0)


# Audit


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_plan_passes_the_audit(world_size: int, pad: Pad, drop_last: bool) -> None:
    for length, batch_size in product(LENGTHS, [1, 3, 4]):
        for start in {0, length // 3, length}:
            report = audit(
                length,
                batch_size=batch_size,
                world_size=world_size,
                drop_last=drop_last,
                pad=pad,
                start=start,
            )
            assert report.ok, str(report)


def test_the_audit_says_what_is_delivered() -> None:
    report = audit(10, batch_size=2, world_size=4, pad=True, order=Shuffled(10))

    assert report.steps == (2, 2, 2, 2)
    assert (report.num_missed, report.num_repeated, report.ok) == (0, 2, True)
    assert audit(10, batch_size=2, world_size=4, drop_last=True).num_missed == 2


def broken(kind: str) -> AuditReport:
    plans = plans_of(3, length=30, batch_size=4, pad=False)
    if kind == "a rank twice":
        plans[2] = plans[1]
    if kind == "another batch size":
        plans[1] = Plan(30, 3, 1, 3, pad=False)
    if kind == "another start":
        plans[0] = Plan(30, 4, 0, 3, pad=False, start=12)
    if kind == "another world size":
        plans = [Plan(30, 4, rank, 3, pad=False) for rank in range(2)]
    if kind == "padded":
        plans[2] = Plan(29, 4, 2, 3, pad=True)
    return audit_plans(plans)


@pytest.mark.parametrize(
    "kind",
    ["a rank twice", "another batch size", "another start", "another world size", "padded"],
)
def test_the_audit_finds_plans_that_do_not_fit_together(kind: str) -> None:
    report = broken(kind)

    assert not report.ok
    assert str(report).startswith("FAILED: 30 positions")


def test_the_audit_names_the_first_positions() -> None:
    plans = plans_of(3, length=30, batch_size=4)
    plans[2] = plans[1]

    text = str(audit_plans(plans))

    assert "delivered less often than promised, the first is 8" in text
    assert "delivered more often than promised, the first is 4" in text


def test_the_audit_counts_repeats_within_one_step() -> None:
    class Stuck(Plan):
        def full_steps(self, first: int, num: int) -> Any:
            return np.zeros((num, self.batch_size), np.int64)

    report = audit_plans([Stuck(8, 2)])

    assert (report.num_missed, report.num_repeated) == (7, 1)
    assert "1 positions delivered more often than promised, the first is 0" in str(report)


def test_the_audit_finds_ranks_with_too_few_steps() -> None:
    plans = [Plan(30, 4, 0, 3, drop_last=True), *plans_of(3, length=30, batch_size=4)[1:]]

    assert "rank 0 has 2 steps, rank 1 has 3" in str(audit_plans(plans))


def test_the_audit_finds_orders_that_repeat() -> None:
    class Stuck(Sequential):
        def at(self, epoch: int, positions: Any) -> Any:
            return positions // 2 * 2, None

    assert audit(9, order=Sequential(9)).ok
    assert audit(900, order=Weighted([1.0, 2.0], 900)).ok  # repeats, but with other draws
    report = audit(9, order=Stuck(9))
    assert "4 positions hold the same index and draw as another, the first is 1" in str(report)
    assert "the order has 8 positions, not 9" in str(audit(9, order=Sequential(8)))
