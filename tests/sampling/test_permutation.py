"""The keyed permutation: a bijection for every size, uniform as far as statistics can see."""

from collections import Counter
from itertools import pairwise, permutations
from math import factorial

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.rng import GAMMA, key64
from loaders.sampling.permutation import TABLE_MAX, permute

Int64s = npt.NDArray[np.int64]
KEYS = st.integers(0, 2**64 - 1)
LARGE = st.integers(TABLE_MAX + 1, 2**63 - 1)
AROUND_TABLE_MAX = [TABLE_MAX + offset for offset in (-2, -1, 0, 1, 2, 3)]
# Even and odd powers of two and their neighbours, primes, round numbers.
SIZES = [*AROUND_TABLE_MAX, 70_000, 99_991, *(2**17 + d for d in (-1, 0, 1)), 2**18 + 1, 10**6]

# At the positions 0, 1, 2, the middle and the last.
GOLDEN = [
    (1, [0, 0, 0, 0, 0]),
    (2, [0, 1, 1, 1, 1]),
    (10, [7, 9, 1, 2, 3]),
    (1000, [733, 965, 600, 753, 251]),
    (65536, [1298, 58115, 44562, 49121, 47565]),
    (65537, [58895, 4855, 33046, 16824, 32168]),
    (1000000, [386294, 437577, 161260, 561171, 422820]),
    (4294967295, [3219875141, 2541047701, 3702054123, 1182956433, 787066448]),
    (4294967297, [1057126066, 342755159, 1283254594, 4008234295, 948407170]),
    (1000000000000, [13558183932, 242935886292, 840914370195, 231837531729, 207275065200]),
    (
        4611686018427387904,
        [
            1259963808598300773,
            2485504682609964536,
            3803372681901821043,
            4037668922068281901,
            753489321843250511,
        ],
    ),
    (
        9223372036854775807,
        [
            6180682354510592073,
            5318601438053805474,
            1562222306602223028,
            6376182989739848874,
            10598453577757680,
        ],
    ),
]


def shuffle(n: int, key: int) -> Int64s:
    return permute(np.arange(n), n, key)


# Bijection


def test_every_size_up_to_2000_is_permuted() -> None:
    for n in range(2001):
        assert np.array_equal(np.sort(shuffle(n, key=n)), np.arange(n)), n


@pytest.mark.parametrize("n", SIZES)
def test_sizes_on_both_sides_of_each_rule_are_permuted(n: int) -> None:
    assert np.array_equal(np.bincount(shuffle(n, key=5), minlength=n), np.ones(n))


@given(LARGE, KEYS, st.data())
def test_large_ranges_match_the_plain_network_and_its_inverse(
    n: int, key: int, data: st.DataObject
) -> None:
    """What has an inverse is a bijection; the plain network below is Python integers only."""
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=8))

    elements = permute(np.array(positions), n, key).tolist()

    assert elements == [plain_network(position, n, key) for position in positions]
    assert positions == [plain_network(element, n, key, inverse=True) for element in elements]


@pytest.mark.parametrize("n", [10**8, 2**32 + 15, 10**12, 2**62, 2**63 - 1])
def test_no_two_of_many_positions_hold_the_same_element(n: int) -> None:
    begin = np.random.default_rng(0).integers(0, n - 100_000)
    elements = permute(np.arange(begin, begin + 100_000), n, key=1)

    assert np.unique(elements).size == 100_000
    assert elements.min() >= 0
    assert elements.max() < n


def plain_network(number: int, n: int, key: int, *, inverse: bool = False) -> int:
    low_bits = (n - 1).bit_length() // 2
    columns, rows = 1 << low_bits, -(-n >> low_bits)
    keys = [key64(key, each) for each in range(6)]
    while True:
        row, column = divmod(number, columns)
        for each in reversed(range(6)) if inverse else range(6):
            sign = -1 if inverse else 1
            if each % 2 == 0:
                row = (row + sign * plain_hash(column, keys[each], rows)) % rows
            else:
                column = (column + sign * plain_hash(row, keys[each], columns)) % columns
        number = row * columns + column
        if number < n:
            return number


def plain_hash(half: int, key: int, limit: int) -> int:
    mixed = (half * GAMMA + key) % 2**64
    mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 % 2**64
    return (mixed >> 32) * limit >> 32


# The same in every release, however it is asked for


@pytest.mark.parametrize(("n", "expected"), GOLDEN)
def test_orders_are_those_of_every_release(n: int, expected: list[int]) -> None:
    positions = np.array([0, min(1, n - 1), min(2, n - 1), n // 2, n - 1])

    assert permute(positions, n, key64(2026, n)).tolist() == expected


@pytest.mark.parametrize("n", [1000, 200_000, 10**12])
def test_a_position_does_not_depend_on_what_it_is_asked_with(n: int) -> None:
    positions = np.random.default_rng(0).integers(0, n, 40_000)
    together = permute(positions, n, key=3)

    assert np.array_equal(permute(positions[::-1], n, key=3), together[::-1])
    assert np.array_equal(permute(positions.reshape(4, -1), n, key=3), together.reshape(4, -1))
    alone = [int(permute(positions[each : each + 1], n, key=3)[0]) for each in range(50)]
    assert alone == together[:50].tolist()


def test_the_caller_may_write_into_the_result() -> None:
    for n in (10, 10**6):
        shuffle(n, key=0)[:] = 0
        assert shuffle(n, key=0).any()


@pytest.mark.parametrize("n", [-1, 2**63])
def test_sizes_that_int64_cannot_number_are_refused(n: int) -> None:
    with pytest.raises(ValueError):
        permute(np.arange(1), n, key=0)


@pytest.mark.parametrize("n", [10, 10**6])
@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_positions_outside_the_range_are_refused(n: int, wrong: int) -> None:
    with pytest.raises(ValueError):
        permute(np.array([0, wrong]), n, key=0)


# Uniformity. Keys are fixed, so each of these passes always or never; limits are in standard
# deviations, chosen so that a right implementation has less than about 1 chance in 1000.


@pytest.mark.parametrize("n", [2, 3, 4, 5, pytest.param(6, marks=pytest.mark.slow)])
def test_all_orders_of_a_few_elements_are_equally_likely(n: int) -> None:
    num_orders = factorial(n)
    counts = Counter(tuple(shuffle(n, key64(0, key)).tolist()) for key in range(30 * num_orders))

    observed = np.array([counts[order] for order in permutations(range(n))])
    assert chi_square_z(observed, np.full(num_orders, 30.0), num_orders - 1) < 3.5


@pytest.mark.parametrize("n", [100, 70_000, pytest.param(10**6, marks=pytest.mark.slow)])
def test_every_element_is_equally_likely_everywhere(n: int) -> None:
    num_cells = 50
    counts = np.zeros((num_cells, num_cells))
    for key in range(max(5, 200_000 // n)):
        cells = np.arange(n) * num_cells // n
        np.add.at(counts, (cells, cells[shuffle(n, key64(1, key))]), 1)

    assert independence_z(counts) < 3.5


@pytest.mark.parametrize("n", [100, 70_000, pytest.param(10**6, marks=pytest.mark.slow)])
def test_neighbours_in_the_order_are_not_related(n: int) -> None:
    num_cells = 25
    orders = [shuffle(n, key64(2, key)) for key in range(max(5, 200_000 // n))]

    for cell_of in (
        np.arange(n) * num_cells // n,
        np.arange(n) % num_cells,
    ):  # high and low digits
        counts = np.zeros((num_cells, num_cells))
        for order in orders:
            np.add.at(counts, (cell_of[order[:-1:2]], cell_of[order[1::2]]), 1)  # disjoint pairs
        sizes = np.bincount(cell_of)
        chances = (np.outer(sizes, sizes) - np.diag(sizes)) / (
            n * (n - 1)
        )  # never one with itself
        assert chi_square_z(counts, chances * counts.sum(), counts.size - 1) < 3.5


@pytest.mark.parametrize("n", [TABLE_MAX + 1, 100_000])
def test_distances_between_elements_repeat_no_more_often_than_by_chance(n: int) -> None:
    """Also a row of the Feistel network apart, where four rounds still show."""
    columns = 1 << (n - 1).bit_length() // 2
    orders = [shuffle(n, key64(3, key)) for key in range(20)]

    for apart in (1, 2, columns, 3 * columns):
        scores = []
        for order in orders:
            counts = np.bincount((order[apart:] - order[:-apart]) % n, minlength=n)[1:]
            expected = np.full(n - 1, (n - apart) / (n - 1))
            scores.append(chi_square_z(counts, expected, n - 1))
        assert abs(np.mean(scores)) * np.sqrt(len(scores)) < 3.5, apart


@pytest.mark.parametrize("n", [1000, 70_000, 10**6])
def test_other_keys_give_unrelated_orders(n: int) -> None:
    """Keys that differ in one bit, as seeds and epochs do before they are hashed."""
    orders = [shuffle(n, key) for key in (0, 1, 2, 3)]
    for first, second in pairwise(orders):
        correlation = np.corrcoef(first, second)[0, 1]
        assert abs(correlation) * np.sqrt(n) < 4
        assert np.count_nonzero(first == second) < 8  # Poisson with mean 1
        assert np.count_nonzero(np.diff(first) == np.diff(second)) < 8


def chi_square_z(
    observed: npt.NDArray[np.integer | np.floating], expected: npt.NDArray[np.floating], df: int
) -> float:
    return float((((observed - expected) ** 2 / expected).sum() - df) / np.sqrt(2 * df))


def independence_z(counts: npt.NDArray[np.float64]) -> float:
    expected = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / counts.sum()
    return chi_square_z(counts, expected, (counts.shape[0] - 1) * (counts.shape[1] - 1))
