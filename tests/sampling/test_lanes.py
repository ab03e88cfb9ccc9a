"""Lanes: each sample once, every node its own part of the shards, the same in every epoch, from anywhere on."""

import pickle
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.rng import key64
from loaders.sampling import BlockShuffled, EpochSampler, Lanes, Plan, audit
from loaders.sampling.permutation import SORTED_MAX, TABLE_MAX, Permutations, permute

Int64s = npt.NDArray[np.int64]
SIZES = st.lists(st.integers(0, 40), max_size=12)
LANES = st.sampled_from([1, 2, 3, 4, 8, 64])


def whole(order: Any, epoch: int = 0) -> Int64s:
    return order.at(epoch, np.arange(order.length))[0]  # type: ignore[no-any-return]


def plan_of(
    order: Lanes, batch_size: int, rank: int = 0, world_size: int = 1, **rest: Any
) -> Plan:
    return Plan(order.length, batch_size, rank, world_size, num_lanes=order.num_lanes, **rest)


def served(order: Lanes, plan: Plan, epoch: int = 0) -> Int64s:
    positions = [plan.positions(step)[0] for step in range(plan.num_remaining_steps)]
    return order.at(epoch, np.concatenate([np.zeros(0, np.int64), *positions]))[0]


def shards_of(order: Lanes, indices: Int64s) -> Int64s:
    return np.searchsorted(np.cumsum(order.shards), indices, "right")


# -- one epoch -------------------------------------------------------------------------------------


@given(SIZES, LANES, st.integers(1, 4), st.integers(0, 5), st.integers(0, 3), st.data())
def test_each_sample_comes_once_wherever_one_asks(
    sizes: list[int], num_lanes: int, window: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    order = Lanes(sizes, seed, num_lanes, window)

    indices = whole(order, epoch)

    assert sorted(indices.tolist()) == list(range(sum(sizes)))
    if len(indices):
        some = np.array(
            data.draw(st.lists(st.integers(0, len(indices) - 1), max_size=20)), np.int64
        )
        assert np.array_equal(order.at(epoch, some)[0], indices[some])


@given(SIZES, LANES, st.integers(0, 5))
def test_after_n_samples_lane_c_has_given_a_share_of_n_and_c_alone(
    sizes: list[int], num_lanes: int, seed: int
) -> None:
    order = Lanes(sizes, seed, num_lanes)
    lane_of_sample = np.empty(order.length, np.int64)
    for lane, first, size in zip(*order.deal, strict=True):
        lane_of_sample[first : first + size] = lane

    lanes = lane_of_sample[whole(order)]

    for n in range(order.length + 1):
        given_ = np.bincount(lanes[:n], minlength=num_lanes)
        assert given_.tolist() == [(n + lane) // num_lanes for lane in range(num_lanes)]


def test_the_deal_does_not_change_and_the_order_does() -> None:
    order, again = Lanes([50] * 16, 1, 4), Lanes([50] * 16, 1, 4)
    epochs = [whole(order, epoch) for epoch in range(3)]

    assert np.array_equal(whole(again, 2), epochs[2])
    for lane in range(4):
        members = [set(epoch[3 - lane :: 4].tolist()) for epoch in epochs]
        assert members[0] == members[1] == members[2]
        assert len({tuple(epoch[3 - lane :: 4]) for epoch in epochs}) == 3
    assert set(whole(Lanes([50] * 16, 2, 4))[3::4]) != set(epochs[0][3::4])


def test_a_lane_reads_a_window_of_shards_at_a_time() -> None:
    order = Lanes([100] * 32, num_lanes=4, window=2)
    for lane in range(4):
        shards = shards_of(order, whole(order)[lane::4])
        assert [len(set(shards[i : i + 200])) for i in range(0, 800, 200)] == [2] * 4


def test_the_number_of_lanes_leaves_each_some_shards_of_those_that_are_not_empty() -> None:
    nums = [Lanes([3] * num).num_lanes for num in (0, 1, 7, 8, 15, 16, 100, 255, 256, 9999)]

    assert nums == [1, 1, 1, 2, 2, 4, 16, 32, 64, 64]
    assert Lanes([3, 0] * 8).num_lanes == 2


# -- nodes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_lanes", "num_nodes", "ranks_per_node"), [(4, 2, 2), (64, 8, 1), (16, 16, 1)]
)
def test_nodes_that_divide_the_lanes_read_their_share_and_the_same_in_every_epoch(
    num_lanes: int, num_nodes: int, ranks_per_node: int
) -> None:
    sizes = np.random.default_rng(0).integers(20, 60, 160)
    order = Lanes(sizes, 7, num_lanes)
    world_size, batch_size = num_nodes * ranks_per_node, 2 * num_lanes
    read: list[set[int]] = [set() for _ in range(num_nodes)]
    for epoch, rank in product(range(2), range(world_size)):
        start = 0 if epoch else 37  # also from the middle of a global batch of another world
        plan = plan_of(
            order, batch_size // world_size or 1, rank, world_size, drop_last=True, start=start
        )
        read[rank // ranks_per_node] |= set(served(order, plan, epoch).tolist())

    counts = [len(samples) for samples in read]
    assert sum(counts) == len(set.union(*read))  # no sample on two nodes, over all epochs
    assert max(counts) <= -(-order.length // num_nodes) + num_lanes
    shards = [set(shards_of(order, np.array(sorted(samples))).tolist()) for samples in read]
    assert sum(map(len, shards)) <= len(sizes) + num_nodes  # a shard at a border is on two


@given(SIZES, LANES, st.integers(1, 6), st.sampled_from([True, False, "mark"]), st.integers(0, 40))
def test_a_global_batch_is_the_same_on_every_world_size(
    sizes: list[int], num_lanes: int, batch_size: int, pad: Any, start: int
) -> None:
    order = Lanes(sizes, num_lanes=num_lanes)
    start = min(start, order.length)

    def batches(world_size: int) -> list[list[int]]:
        plans = [
            plan_of(order, 12 // world_size * batch_size, rank, world_size, start=start, pad=False)
            for rank in range(world_size)
        ]
        num = plans[0].num_remaining_steps
        steps = [[p for p in plans if step < p.num_remaining_steps] for step in range(num)]
        return [
            order.at(1, np.concatenate([p.positions(step)[0] for p in some]))[0].tolist()
            for step, some in enumerate(steps)
        ]

    one = batches(1)
    assert [batches(world_size) for world_size in (2, 3, 4)] == [one] * 3
    report = audit(
        order.length, batch_size=batch_size, world_size=3, pad=pad, start=start, order=order
    )
    assert report.ok, str(report)


def test_a_global_batch_lies_lane_by_lane_padding_included() -> None:
    order = Lanes([7] * 5, num_lanes=4)
    for world_size, batch_size, start in product((1, 2, 3, 5), (1, 3, 4, 8), range(9)):
        plans = [
            plan_of(order, batch_size, rank, world_size, start=start) for rank in range(world_size)
        ]
        for step in range(plans[0].num_remaining_steps):
            positions = np.concatenate([plan.positions(step)[0] for plan in plans])
            lanes = 3 - positions % 4
            assert (np.diff(lanes) >= 0).all()
            if step < plans[0].num_full_steps:
                begin = start + step * batch_size * world_size
                assert sorted(positions) == list(range(begin, begin + batch_size * world_size))


def test_an_epoch_goes_on_at_every_position_on_any_number_of_ranks() -> None:
    order = Lanes([5, 9, 1, 7, 3], num_lanes=2)
    for stop, world_size, batch_size in product(range(order.length + 1), (1, 3), (1, 5)):
        first = served(order, plan_of(order, 1), 4)[:stop]
        rest = [
            served(order, plan_of(order, batch_size, rank, world_size, start=stop, pad=False), 4)
            for rank in range(world_size)
        ]
        assert sorted([*first, *np.concatenate(rest)]) == list(range(order.length))


def test_a_sampler_of_lanes_is_cut_by_lanes() -> None:
    order = Lanes([10] * 8, num_lanes=4)

    parts = [
        [list(batch) for batch in EpochSampler(order, rank=rank, world_size=2).batches(4)]
        for rank in range(2)
    ]

    lanes = [{3 - i % 4 for i in np.flatnonzero(np.isin(whole(order), part))} for part in parts]
    assert lanes == [{0, 1}, {2, 3}]


# -- nodes -----------------------------------------------------------------------------------------


def test_a_node_reads_what_its_ranks_read_together() -> None:
    order = Lanes([30] * 40, num_lanes=4)
    ranks = [plan_of(order, 4, rank=rank, world_size=8, start=16) for rank in range(4, 8)]

    node = ranks[1].of_node(4)

    assert (node.rank, node.world_size, node.batch_size) == (1, 2, 16)
    for step in range(node.num_remaining_steps):
        together = np.concatenate([plan.positions(step)[0] for plan in ranks])
        assert node.positions(step)[0].tolist() == together.tolist()
    needed = order.at(2, node.full_steps(0, node.num_full_steps).ravel())[0]
    assert len(np.unique(shards_of(order, needed))) <= 21
    with pytest.raises(ValueError):
        ranks[0].of_node(3)


# -- what it is made of ----------------------------------------------------------------------------


def test_samples_that_do_not_lie_shard_by_shard_are_dealt_all_the_same() -> None:
    members = np.random.default_rng(0).permutation(30)
    plain, mixed = Lanes([10, 12, 8], 3, 2), Lanes([10, 12, 8], 3, 2, members=members)

    assert np.array_equal(whole(mixed, 1), members[whole(plain, 1)])
    assert mixed.describe() != plain.describe()
    copy = pickle.loads(pickle.dumps(mixed))
    assert copy.describe() == mixed.describe()
    assert np.array_equal(whole(copy, 1), whole(mixed, 1))


@pytest.mark.parametrize(
    ("given_", "error"),
    [
        ({"shards": [3, -1]}, ValueError),
        ({"shards": [2.5]}, ValueError),
        ({"shards": [[1, 2]]}, ValueError),
        ({"shards": 5}, TypeError),
        ({"shards": object()}, TypeError),
        ({"shards": [3], "num_lanes": 0}, ValueError),
        ({"shards": [3], "num_lanes": 1 << 16}, ValueError),
        ({"shards": [3], "window": 0}, ValueError),
        ({"shards": [3], "seed": 1.5}, TypeError),
        ({"shards": [3], "members": [0, 1]}, ValueError),
    ],
)
def test_what_makes_no_lanes_is_refused(given_: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Lanes(**given_)


# -- quality ---------------------------------------------------------------------------------------


def test_every_sample_is_as_likely_at_every_turn_of_its_lane() -> None:
    num_cells, counts = 20, np.zeros((20, 20))
    order = Lanes([250] * 40, 5, 2)
    for epoch in range(40):
        for lane in range(2):
            places = np.sort(whole(order, 0)[lane::2])
            found = np.searchsorted(places, whole(order, epoch)[lane::2])
            cells = np.arange(len(found)) * num_cells // len(found)
            np.add.at(counts, (cells, found * num_cells // len(found)), 1)

    # Shards are moved whole, so a cell of 250 samples is one throw: 80 throws of 20 shards each.
    deviation = (counts / 250 - 4).std()
    assert deviation < 3 * np.sqrt(4)


def test_neighbours_come_from_as_many_shards_as_in_blocks() -> None:
    """Lanes mix num_lanes * window shards, blocks the parts of 64 blocks: both far from a sorted dataset."""
    n, size = 64 * 1000, 1000
    lanes, blocks = Lanes([size] * (n // size), 1), BlockShuffled(n, 1)

    distinct = {
        type(order).__name__: np.mean(
            [len(np.unique(batch // size)) for batch in whole(order).reshape(-1, 256)]
        )
        for order in (lanes, blocks)
    }

    assert distinct["Lanes"] >= 30  # of 16 lanes with windows of two shards
    assert distinct["BlockShuffled"] >= 30


# -- permutations of many windows ------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 700), min_size=1, max_size=6),
    st.integers(0, 2**64 - 1),
)
def test_many_ranges_are_permuted_each_on_its_own(sizes: list[int], key: int) -> None:
    keys = np.array([key64(key, number) for number in range(len(sizes))], np.uint64)
    many = Permutations(np.array(sizes), keys)
    which = np.repeat(np.arange(len(sizes)), sizes)
    positions = np.concatenate([np.arange(size) for size in sizes])

    mixed = np.random.default_rng(0).permutation(len(which))
    found = np.empty_like(positions)
    found[mixed] = many.at(which[mixed], positions[mixed])

    for number, size in enumerate(sizes):
        assert sorted(found[which == number]) == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 7, SORTED_MAX, TABLE_MAX + 1, 10**6, 2**52])
def test_small_and_large_ranges_are_permuted_as_alone(size: int) -> None:
    keys = np.array([1, 2**63 + 5], np.uint64)
    positions = np.random.default_rng(0).integers(0, size, 500)
    which = np.arange(500) % 2

    found = Permutations(np.array([size, size]), keys).at(which, positions)

    for number in range(2):
        alone = permute(positions[which == number], size, int(keys[number]))
        assert np.array_equal(found[which == number], alone)


@pytest.mark.parametrize("size", [SORTED_MAX + 1, 300, 1000, 5000])
def test_networks_of_some_hundred_elements_are_uniform(size: int) -> None:
    """Those that ``permute`` sorts: places, and what stands beside what."""
    num_cells, num = 16, 400_000 // size
    keys = np.array([key64(9, number) for number in range(num)], np.uint64)
    which = np.repeat(np.arange(num), size)
    orders = Permutations(np.full(num, size), keys).at(which, np.tile(np.arange(size), num))
    orders = orders.reshape(num, size)
    cells = np.arange(size) * num_cells // size

    places = np.zeros((num_cells, num_cells))
    np.add.at(places, (np.tile(cells, num), cells[orders.ravel()]), 1)
    expected = np.outer(np.bincount(cells), np.bincount(cells)) * (num / size)
    chi = ((places - expected) ** 2 / expected).sum()
    # Every row and column of a permutation is full: less varies than in independent throws.
    df = (num_cells - 1) ** 2
    assert abs(chi - df) / np.sqrt(2 * df) < 3.5

    for digit in (cells, np.arange(size) % num_cells):
        pairs = np.zeros((num_cells, num_cells))
        np.add.at(pairs, (digit[orders[:, :-1:2].ravel()], digit[orders[:, 1::2].ravel()]), 1)
        sizes = np.bincount(digit)
        chances = (np.outer(sizes, sizes) - np.diag(sizes)) / (size * (size - 1))
        wanted = chances * pairs.sum()
        z = (((pairs - wanted) ** 2 / wanted).sum() - pairs.size + 1) / np.sqrt(2 * pairs.size)
        assert abs(z) < 3.5


def test_replacing_a_plans_place_keeps_its_lanes() -> None:
    plan = plan_of(Lanes([9] * 8, num_lanes=2), 4, 1, 2)

    assert replace(plan, start=3).num_lanes == 2
