"""Every order is a pure function of (seed, epoch, position), with the shares it promises."""

import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.sampling import (
    Balanced,
    BlockShuffled,
    Lanes,
    Order,
    Sequential,
    Shuffled,
    Weighted,
)
from loaders.sampling.mixture import MixtureOrder

Int64s = npt.NDArray[np.int64]
Make = Callable[[int], Any]  # an order from its seed

WEIGHTS = np.array([0.0, 1.0, 5.0, 0.25, 0.0, 3.0, 2.5, 0.25])
LABELS = np.array(["cat", "dog", "cat", "bird", "cat", "cat", "dog", "cat"])
SHUFFLES: dict[str, Make] = {
    "shuffled": lambda seed: Shuffled(1000, seed),
    "shuffled_large": lambda seed: Shuffled(10**12, seed),
    "block": lambda seed: BlockShuffled(1003, seed, block_size=10, window=4),
    "block_large": lambda seed: BlockShuffled(10**12, seed, block_size=1000, window=100),
    "lanes": lambda seed: Lanes([40, 3, 200] * 10, seed, 4),
    "lanes_large": lambda seed: Lanes([10**9 + 7] * 1000, seed),
    "weighted": lambda seed: Weighted(WEIGHTS, 900, seed),
    "without_replacement": lambda seed: Weighted(np.tile(WEIGHTS, 200), 900, seed, False),
    "balanced": lambda seed: Balanced(LABELS, 1000, seed),
}
# At the positions 0, 1, 2, the middle and the last of epoch 3.
GOLDEN: dict[str, tuple[list[int], list[int] | None]] = {
    "shuffled": ([888, 412, 896, 496, 458], None),
    "shuffled_large": (
        [680298545326, 658571638860, 368841936848, 172900694372, 201058551133],
        None,
    ),
    "block": ([119, 239, 117, 193, 837], None),
    "block_large": ([521438603962, 158334616868, 959087537622, 294056829163, 531614124707], None),
    "lanes": ([806, 1636, 482, 2007, 495], None),
    "lanes_large": (
        [553991161879, 352373798135, 278549060867, 962233410030, 241402818244],
        None,
    ),
    "weighted": ([7, 2, 7, 2, 3], [7, 337, 15, 327, 8]),
    "without_replacement": ([1581, 725, 1595, 705, 805], None),
    "balanced": ([1, 7, 1, 4, 0], [110, 15, 114, 32, 25]),
}
each_shuffle = pytest.mark.parametrize("make", SHUFFLES.values(), ids=list(SHUFFLES))


def whole(order: Order, epoch: int = 0) -> Int64s:
    return order.at(epoch, np.arange(order.length))[0]


def draws_of(order: Order, epoch: int = 0) -> Int64s:
    draws = order.at(epoch, np.arange(order.length))[1]
    assert draws is not None
    return draws


# What holds for all of them


@pytest.mark.parametrize("name", SHUFFLES)
def test_orders_are_those_of_every_release(name: str) -> None:
    order = SHUFFLES[name](2026)
    indices, draws = order.at(3, np.array([0, 1, 2, order.length // 2, order.length - 1]))

    assert (indices.tolist(), None if draws is None else draws.tolist()) == GOLDEN[name]


@each_shuffle
def test_a_position_does_not_depend_on_what_else_is_asked(make: Make) -> None:
    order = make(1)
    positions = np.random.default_rng(0).integers(0, order.length, 300)
    together, draws = order.at(2, positions)

    in_between = order.at(5, positions)[0]
    assert np.array_equal(in_between, make(1).at(5, positions)[0])
    for place, position in enumerate(positions[:40]):
        index, draw = make(1).at(2, np.array([position]))
        assert index[0] == together[place]
        assert (None if draw is None else draw[0]) == (None if draws is None else draws[place])
    assert np.array_equal(order.at(2, positions[::-1])[0], together[::-1])


@each_shuffle
def test_epochs_and_seeds_differ(make: Make) -> None:
    positions = np.arange(200)
    orders = [make(0).at(epoch, positions)[0].tolist() for epoch in range(4)]
    orders += [make(seed).at(0, positions)[0].tolist() for seed in (1, 2, -1, 2**40)]

    assert len({tuple(order) for order in orders}) == len(orders)


@each_shuffle
def test_epochs_are_not_shifted_seeds(make: Make) -> None:
    """Epoch e of seed s must not be epoch e - 1 of seed s + 1, as with ``seed + epoch``."""
    assert not np.array_equal(make(3).at(4, np.arange(100))[0], make(4).at(3, np.arange(100))[0])


@each_shuffle
def test_a_pickled_order_is_the_same_order(make: Make) -> None:
    order = make(0)
    positions = np.arange(500)
    before = order.at(1, positions)[0]

    copy = pickle.loads(pickle.dumps(order))

    assert np.array_equal(copy.at(1, positions)[0], before)
    assert copy.describe() == order.describe()


def test_texts_of_a_table_are_the_same_order_as_other_texts() -> None:
    """pandas hands texts over as objects, whose bytes are addresses."""
    plain, objects = (Balanced(values, 20) for values in (LABELS, LABELS.astype(object)))

    assert objects.describe() == plain.describe()
    assert whole(objects).tolist() == whole(plain).tolist()
    for wrong in (["a", None], ["a", 1.5], [None, None]):
        with pytest.raises(TypeError):
            Balanced(np.array(wrong, object), 20)


def test_orders_do_not_print_their_arrays() -> None:
    labels = np.arange(6433) % 4

    shown = [
        repr(Balanced(labels, num_samples=30, seed=1)),
        repr(Weighted(labels + 0.5, num_samples=9)),
        repr(MixtureOrder([30, 20], [0.7, 0.3], stop=40)),
        repr(MixtureOrder(labels + 1, labels + 1)),
    ]

    assert shown == [
        "Balanced(6433 labels, num_samples=30, seed=1)",
        "Weighted(6433 weights, num_samples=9, seed=0, replacement=True)",
        "MixtureOrder(2 sizes, 2 weights, stop=40, seed=0, block_size=1)",
        "MixtureOrder(6433 sizes, 6433 weights, stop=first_exhausted, seed=0, block_size=1)",
    ]


def test_what_was_derived_is_not_pickled() -> None:
    order = Weighted(np.ones(1000), 1000)
    size = len(pickle.dumps(order))

    order.at(0, np.arange(10))
    order.describe()

    assert len(pickle.dumps(order)) == size


@each_shuffle
def test_no_positions_give_no_indices(make: Make) -> None:
    indices, draws = make(0).at(0, np.zeros(0, np.int64))

    assert indices.size == 0
    assert draws is None or draws.size == 0


@pytest.mark.parametrize("name", ["sequential", *SHUFFLES])
def test_positions_outside_the_epoch_are_refused(name: str) -> None:
    order = Sequential(5) if name == "sequential" else SHUFFLES[name](0)
    for wrong in (-1, order.length):
        with pytest.raises(ValueError):
            order.at(0, np.array([wrong]))


def test_orders_describe_themselves_in_primitives_and_tell_each_other_apart() -> None:
    orders: list[Order] = [
        Sequential(8),
        Sequential(9),
        Shuffled(8),
        Shuffled(8, 1),
        BlockShuffled(8),
        BlockShuffled(8, block_size=2),
        BlockShuffled(8, window=2),
        Weighted(WEIGHTS, 8),
        Weighted(WEIGHTS[::-1], 8),
        Weighted(WEIGHTS, 5),
        Weighted(WEIGHTS, 5, replacement=False),
        Balanced(LABELS, 8),
        Balanced(LABELS[::-1], 8),
    ]
    described = [json.dumps(order.describe()) for order in orders]

    assert len(set(described)) == len(orders)
    assert json.dumps(Shuffled(8, np.int64(1)).describe()) in described  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [Sequential(0), Shuffled(0), BlockShuffled(0)])
def test_an_empty_dataset_has_empty_epochs(order: Order) -> None:
    assert order.length == 0
    assert whole(order).size == 0


@pytest.mark.parametrize("kind", [Sequential, Shuffled, BlockShuffled])
def test_negative_sizes_are_refused(kind: Callable[[int], Order]) -> None:
    with pytest.raises(ValueError):
        kind(-1)


def test_sequential_is_the_dataset_as_it_lies() -> None:
    assert whole(Sequential(5), epoch=3).tolist() == [0, 1, 2, 3, 4]


# Blocks


@given(
    st.integers(1, 400),
    st.integers(1, 50),
    st.integers(1, 12),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_blocks_cover_every_sample_once(
    n: int, block_size: int, window: int, seed: int, epoch: int
) -> None:
    order = BlockShuffled(n, seed, block_size, window)

    assert sorted(whole(order, epoch).tolist()) == list(range(n))


def test_a_window_holds_whole_blocks_and_no_more_than_it_should() -> None:
    order = BlockShuffled(1003, seed=0, block_size=10, window=4)
    blocks = whole(order) // 10

    begin, num_windows = 0, 0
    while begin < 1003:
        members = set(blocks[begin : begin + 1].tolist())
        size = 40 if 100 not in blocks[begin : begin + 33] else 33  # block 100 has 3 samples
        size = min(size, 1003 - begin)
        members = set(blocks[begin : begin + size].tolist())
        assert len(members) == (4 if begin + size < 1003 else 1)
        assert size == np.isin(blocks, list(members)).sum()  # each block wholly in here
        begin, num_windows = begin + size, num_windows + 1
    assert num_windows == 26


def test_samples_of_a_block_stay_within_a_window_of_each_other() -> None:
    order = BlockShuffled(100_000, seed=3, block_size=100, window=8)
    positions = np.argsort(whole(order)).reshape(1000, 100)  # of each sample, by block

    reach = positions.max(axis=1) - positions.min(axis=1)
    assert reach.max() < 800
    assert reach.mean() > 700  # and they are spread over it


@pytest.mark.slow
def test_every_sample_of_blocks_is_equally_likely_everywhere() -> None:
    """Also where the last window has fewer blocks."""
    counts = position_counts(BlockShuffled(25, seed=0, block_size=5, window=2), num_epochs=6000)

    expected = 6000 / 25
    z = (((counts - expected) ** 2 / expected).sum() - 24 * 24) / np.sqrt(2 * 24 * 24)
    assert z < 4


def test_a_short_last_block_is_served_in_every_slot() -> None:
    """Slots 0 and 1 are the first window, 2 and 3 the second, 4 the third."""
    counts = position_counts(BlockShuffled(23, seed=0, block_size=5, window=2), num_epochs=1500)

    of_short_block = counts[:, 20:].sum(axis=1) / (3 * 1500)
    by_window = [of_short_block[:8].sum(), of_short_block[8:18].sum(), of_short_block[18:].sum()]
    np.testing.assert_allclose(by_window, [0.4, 0.4, 0.2], atol=0.04)
    np.testing.assert_allclose(counts[:18, :20] / 1500, 1 / 23, atol=0.025)


def position_counts(order: Order, num_epochs: int) -> Int64s:
    counts = np.zeros((order.length, order.length), np.int64)
    for epoch in range(num_epochs):
        counts[np.arange(order.length), whole(order, epoch)] += 1
    return counts


def test_a_window_of_all_blocks_mixes_everything() -> None:
    order = BlockShuffled(10_000, seed=0, block_size=10, window=1000)

    assert abs(np.corrcoef(np.arange(10_000), whole(order))[0, 1]) < 0.04
    assert np.abs(np.diff(whole(order) // 10)).mean() == pytest.approx(1000 / 3, rel=0.05)


@pytest.mark.parametrize("name", ["block_size", "window"])
def test_blocks_of_nothing_are_refused(name: str) -> None:
    with pytest.raises(ValueError):
        replace(BlockShuffled(10), **{name: 0})


# Weights


@pytest.mark.parametrize("num_samples", [1, 3, 8, 900])
def test_weighted_counts_stay_within_two_of_their_share(num_samples: int) -> None:
    shares = WEIGHTS / WEIGHTS.sum() * num_samples
    for epoch in range(50):
        counts = np.bincount(whole(Weighted(WEIGHTS, num_samples), epoch), minlength=8)
        assert np.abs(counts - shares).max() < 2
        assert not counts[WEIGHTS == 0].any()


@pytest.mark.slow
def test_weighted_shares_are_exact_on_average() -> None:
    order = Weighted(WEIGHTS, 5, seed=1)
    counts = np.array([np.bincount(whole(order, e), minlength=8) for e in range(8000)])

    error = np.abs(counts.mean(axis=0) - WEIGHTS / WEIGHTS.sum() * 5)
    assert (error <= 4 * counts.std(axis=0) / np.sqrt(len(counts))).all()


def test_weighted_positions_are_not_sorted_by_anything() -> None:
    order = Weighted(np.arange(1, 1001), 5000)
    indices = whole(order)

    assert abs(np.corrcoef(np.arange(5000), indices)[0, 1]) < 4 / np.sqrt(5000)


@pytest.mark.parametrize("epoch", [0, 1, 2])
@pytest.mark.parametrize(
    "order",
    [
        Weighted(WEIGHTS, 900),
        Weighted(np.random.default_rng(0).random(2000) ** 8, 3000, seed=4),
        Balanced(LABELS, 1000),
        Balanced([0] * 3 + [1] * 500 + [2], 700, seed=1),
    ],
)
def test_draws_number_the_repeats_of_each_index(order: Order, epoch: int) -> None:
    """Counted by hand: an index that comes k times has the draws 0, 1, ..., k - 1."""
    by_index: dict[int, list[int]] = {}
    for index, draw in zip(whole(order, epoch), draws_of(order, epoch), strict=True):
        by_index.setdefault(int(index), []).append(int(draw))

    assert max(map(len, by_index.values())) > 1
    for draws in by_index.values():
        assert sorted(draws) == list(range(len(draws)))


def test_equal_weights_and_as_many_draws_as_samples_give_each_once() -> None:
    for n in (1, 7, 1000, 12_345):
        assert sorted(whole(Weighted(np.full(n, 0.1), n)).tolist()) == list(range(n))


def test_weighted_does_not_fall_in_step_with_the_dataset() -> None:
    """Half of a dataset with alternating classes: a fixed grid would take one class only."""
    order = Weighted(np.ones(10_000), 5000)
    share = np.mean([(whole(order, epoch) % 2).mean() for epoch in range(4)])

    assert 0.48 < share < 0.52


def test_without_replacement_nothing_comes_twice() -> None:
    order = Weighted(np.tile(WEIGHTS, 200), 900, replacement=False)
    indices, draws = order.at(0, np.arange(900))

    assert np.unique(indices).size == 900
    assert draws is None
    assert (np.tile(WEIGHTS, 200)[indices] > 0).all()


def test_all_weights_above_zero_can_be_taken() -> None:
    order = Weighted(WEIGHTS, 6, replacement=False)

    assert sorted(whole(order).tolist()) == np.flatnonzero(WEIGHTS).tolist()


@pytest.mark.slow
def test_without_replacement_pairs_are_as_likely_as_drawn_one_after_the_other() -> None:
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    shares = weights / 10
    order = Weighted(weights, 2, replacement=False)
    pairs = Counter(tuple(sorted(whole(order, epoch).tolist())) for epoch in range(20_000))

    for (a, b), count in pairs.items():
        chance = shares[a] * shares[b] * (1 / (1 - shares[a]) + 1 / (1 - shares[b]))
        assert abs(count - chance * 20_000) < 4 * np.sqrt(chance * 20_000)
    assert len(pairs) == 6


def test_without_replacement_heavy_samples_do_not_come_first() -> None:
    weights = np.repeat([1.0, 50.0], 5000)
    chosen = whole(Weighted(weights, 6000, replacement=False))

    assert chosen[:3000].mean() == pytest.approx(chosen[3000:].mean(), rel=0.02)


@pytest.mark.parametrize(
    "weights",
    [[1.0, -0.5], [1.0, np.nan], [np.inf, 1.0], [0.0, 0.0], [], [1e308, 1e308], [[1.0, 2.0]]],
)
def test_weights_that_are_none_are_refused(weights: npt.ArrayLike) -> None:
    with pytest.raises(ValueError):
        Weighted(weights, 5)


def test_more_samples_than_weights_are_refused_without_replacement() -> None:
    with pytest.raises(ValueError):
        Weighted(WEIGHTS, 7, replacement=False)


def test_weights_are_copied() -> None:
    weights = np.ones(4)
    order = Weighted(weights, 100)

    weights[:] = [1, 0, 0, 0]

    assert np.bincount(whole(order)).tolist() == [25, 25, 25, 25]


# Classes


@pytest.mark.parametrize("num_samples", [0, 1, 2, 3, 10, 1000])
def test_classes_get_equal_quotas_in_each_epoch_and_over_all(num_samples: int) -> None:
    order = Balanced(LABELS, num_samples, seed=2)
    given = Counter({"bird": 0, "cat": 0, "dog": 0})
    for epoch in range(20):
        now = Counter({"bird": 0, "cat": 0, "dog": 0})
        now.update(LABELS[whole(order, epoch)].tolist())
        given.update(now)
        for counts in (now, given):
            assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("num_samples", [1, 5, 9, 30])
def test_samples_of_a_class_come_equally_often_in_each_epoch_and_over_all(
    num_samples: int,
) -> None:
    order = Balanced(LABELS, num_samples, seed=2)
    given = np.zeros(8, int)
    for epoch in range(30):
        now = np.bincount(whole(order, epoch), minlength=8)
        given += now
        for counts in (now, given):
            for label in np.unique(LABELS):
                assert np.ptp(counts[label == LABELS]) <= 1


def test_classes_are_mixed_within_the_epoch() -> None:
    labels = np.repeat(np.arange(10), 100)
    served = labels[whole(Balanced(labels, 10_000))]
    pairs = np.zeros((10, 10))
    np.add.at(pairs, (served[:-1:2], served[1::2]), 1)

    assert (((pairs - 50) ** 2 / 50).sum() - 99) / np.sqrt(2 * 99) < 4


def test_a_sorted_class_is_not_served_in_its_order() -> None:
    order = Balanced(np.zeros(10_000), 5000)
    first, second = whole(order, 0), whole(order, 1)

    assert not np.intersect1d(first, second).size  # the second epoch goes on
    assert 4700 < first.mean() < 5300
    assert abs(np.corrcoef(np.arange(5000), first)[0, 1]) < 0.06


def test_classes_come_equally_often_with_replacement_too() -> None:
    """As the docstring of ``Balanced`` says it: by weights."""
    labels = np.repeat([0, 1, 2], [900, 90, 10])
    order = Weighted(1 / np.bincount(labels)[labels], 600, seed=1)

    counts = [np.bincount(labels[whole(order, epoch)], minlength=3) for epoch in range(5)]
    assert all(np.abs(each - 200).max() <= 2 for each in counts)


def test_any_epoch_of_a_balanced_order_is_at_hand_at_once() -> None:
    order = Balanced(LABELS, 9)

    assert Counter(LABELS[whole(order, 10**9)].tolist()) == {"bird": 3, "cat": 3, "dog": 3}


@pytest.mark.parametrize("labels", [[], [[1], [2]]])
def test_labels_that_are_none_are_refused(labels: npt.ArrayLike) -> None:
    with pytest.raises(ValueError):
        Balanced(labels, 5)
