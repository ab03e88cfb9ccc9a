"""The hash behind every random number: stable, uniform, and never the same for two addresses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.rng import _mix64_int, hash64, key64, mix64, uniform

# Literals: a change of any of them changes the order and augmentation of every dataset.
KEYS = [0, 16294208416658607535, 17996121457536601210, 15999695513772384452, 15999695513772384452]
MIXED = [0, 6238072747940578789, 2720858781877447050]
HASHED = [1003511949865203219, 12702282041365302772, 18437170623995818357]
UNIFORM = [[0.9798413679101445, 0.10586891218534489], [0.7103390880507803, 0.7119868328995645]]

WORDS = st.integers(0, 2**64 - 1)


def test_values_are_those_of_every_release() -> None:
    assert [key64(), key64(0), key64(0, 3), key64(-1), key64(2**64 - 1)] == KEYS
    assert mix64(np.array([0, 1, 2**63], np.uint64)).tolist() == MIXED
    assert hash64(key64(7, 1), np.arange(3), np.array([9])).tolist() == HASHED
    np.testing.assert_array_equal(uniform(5, np.arange(2), num=2), UNIFORM)


@given(st.lists(WORDS, min_size=1, unique=True))
def test_mixing_keeps_distinct_words_distinct(words: list[int]) -> None:
    mixed = mix64(np.array(words, np.uint64)).tolist()

    assert len(set(mixed)) == len(words)
    assert mixed == [_mix64_int(word) for word in words]  # the two spellings agree


@given(WORDS)
def test_mixing_can_be_undone(word: int) -> None:
    """Each step has an inverse, so the whole is a bijection."""
    mask = 2**64 - 1
    x = int(mix64(np.array([word], np.uint64))[0])

    x ^= (x >> 31) ^ (x >> 62)
    x = x * pow(0x94D049BB133111EB, -1, 2**64) & mask
    x ^= (x >> 27) ^ (x >> 54)
    x = x * pow(0xBF58476D1CE4E5B9, -1, 2**64) & mask
    x ^= (x >> 30) ^ (x >> 60)

    assert x == word


def test_no_two_addresses_of_a_million_share_a_hash() -> None:
    rows = np.arange(1000)

    hashes = hash64(key64(0), rows[:, None], rows[None, :])

    assert np.unique(hashes).size == 1_000_000


def test_keys_depend_on_every_word_and_on_their_order() -> None:
    keys = {key64(*words) for words in [(), (0,), (0, 0), (1, 2), (2, 1), (1,), (1, 2, 0)]}

    assert len(keys) == 7


def test_signed_and_unsigned_words_are_the_same_address() -> None:
    signed = hash64(1, np.array([-1, 5], np.int64))

    assert signed.tolist() == hash64(1, np.array([2**64 - 1, 5], np.uint64)).tolist()


@pytest.mark.parametrize("flipped_bit", [0, 1, 31, 32, 63])
def test_one_flipped_bit_flips_half_of_the_hash(flipped_bit: int) -> None:
    words = np.arange(20_000, dtype=np.uint64)

    changed = hash64(3, words) ^ hash64(3, words ^ np.uint64(1 << flipped_bit))

    bits = np.unpackbits(changed.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert np.abs(bits - 0.5).max() < 5 * 0.5 / np.sqrt(words.size)


def test_uniform_numbers_are_uniform_and_independent() -> None:
    numbers = uniform(key64(0, 1), np.arange(100_000), num=3)

    assert numbers.dtype == np.float64
    assert numbers.min() >= 0
    assert numbers.max() < 1
    cells = (numbers * 16).astype(int)
    for left, right in [(0, 1), (0, 2), (1, 2)]:  # columns of one row
        assert _chi_square_z(cells[:, left], cells[:, right]) < 4
    assert _chi_square_z(cells[:-1, 0], cells[1:, 0]) < 4  # rows that follow each other


def test_another_key_gives_unrelated_numbers() -> None:
    first, second = (uniform(key64(0, epoch), np.arange(100_000), num=1)[:, 0] for epoch in (0, 1))

    assert _chi_square_z((first * 16).astype(int), (second * 16).astype(int)) < 4


def _chi_square_z(rows: np.ndarray, columns: np.ndarray) -> float:
    """Pair counts against equal cells, in standard deviations of the statistic."""
    observed = np.bincount(rows * 16 + columns, minlength=256)
    expected = rows.size / 256
    return float(((((observed - expected) ** 2 / expected).sum()) - 255) / np.sqrt(2 * 255))
