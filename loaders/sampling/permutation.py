"""A keyed permutation: any place of a shuffled range in O(1), nothing stored.

Above ``TABLE_MAX`` elements a Feistel network over pairs (row, column) does it: a number is cut
into ``low_bits`` of column and the rest as row, rows and columns are in turn shifted by a hash of
the other half, and results beyond the range go through again (cycle walking). Columns number a
power of two and rows only as many as are needed, so less than one column's worth of numbers lies
beyond the range: no size is slower than its neighbours. At or below ``TABLE_MAX`` the halves would
be too short to be uniform, so the permutation is a sort by hash, kept for the last few keys.

Source:
    Luby, Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", SIAM
    Journal on Computing 17, 1988. Black, Rogaway, "Ciphers with arbitrary finite domains", CT-RSA
    2002 (halves of any size, cycle walking).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.rng import GAMMA, hash64, key64

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

TABLE_MAX = 1 << 16
SORTED_MAX = 256  # elements of one of many permutations that are sorted anew each time
_TILE = 1 << 14  # 128 KiB of numbers: with four tiles of scratch it stays in the cache of one core
# With four rounds, distances between elements a row apart repeat more often than by chance
# (tests/sampling/test_permutation.py sees it); with five nothing there shows. One to spare.
_NUM_ROUNDS = 6
_FIRST, _SECOND, _HALF = np.uint64(GAMMA), np.uint64(0xD6E8FEB86659FD93), np.uint64(32)


def permute(positions: npt.NDArray[np.int64], n: int, key: int) -> npt.NDArray[np.int64]:
    """Say which element of ``range(n)`` stands at each position of the order that ``key`` selects.

    Over all positions every element comes exactly once. The result depends on nothing but the
    arguments, and is the same in every release.

    Args:
        positions: Any shape, each in ``[0, n)``.
        n: Number of elements, below 2**63.
        key: Any integer of 64 bits; neighbouring keys give unrelated orders.

    Raises:
        ValueError: ``n`` or a position is out of range.

    Example:
        >>> permute(np.arange(5), 5, key=1).tolist()
        [1, 2, 0, 4, 3]
    """
    n, key = int(n), int(key)
    check_positions(positions, n)
    if n <= TABLE_MAX:
        return _table(n, key)[positions]
    values = positions.astype(np.uint64).ravel()
    _network(n, key).apply(values)
    return values.view(np.int64).reshape(positions.shape)


class Permutations:
    """Many keyed permutations, of ranges below 2**53, that are evaluated together: of the windows of an order.

    Up to ``SORTED_MAX`` elements one is that of ``permute``; above, it is the Feistel network at once: tables of many
    ranges would be much to make before the first position of each is known.
    """

    def __init__(self, sizes: Int64s, keys: npt.NDArray[np.uint64]) -> None:
        self._sizes, self._keys = sizes, keys
        self._is_small = sizes <= SORTED_MAX
        low_bits = np.frexp(np.maximum(sizes - 1, 0).astype(np.float64))[1] // 2
        rows = -(-sizes >> low_bits)
        limits = np.where(self._is_small, rows << low_bits, sizes)  # small: not to be walked to
        rounds = tuple(hash64(0, keys, np.array(number)) for number in range(_NUM_ROUNDS))
        limits, low_bits, rows = (a.astype(np.uint64) for a in (limits, low_bits, rows))
        self._networks = _Feistel(limits, low_bits, rows, rounds)

    def at(self, which: Int64s, positions: Int64s) -> Int64s:
        """Say which element stands at each position of the permutation of that number, both ``(N,)``."""
        values = positions.astype(np.uint64)
        self._networks.apply(values, which)
        elements: Int64s = values.view(np.int64)
        small = np.flatnonzero(self._is_small[which])
        elements[small] = self._by_sorting(which[small], positions[small])
        return elements

    def _by_sorting(self, which: Int64s, positions: Int64s) -> Int64s:
        present, where = distinct(which)
        sizes = self._sizes[present]
        begins = np.cumsum(sizes) - sizes
        numbers = np.repeat(np.arange(len(present), dtype=np.uint64), sizes)
        elements = np.arange(len(numbers), dtype=np.uint64) - np.repeat(begins, sizes).astype(
            np.uint64
        )
        hashes = hash64(hash64(0, self._keys[present])[numbers], elements)
        # Of each number the range, 32 bits of hash, and the element, which is what is left of it when all are sorted.
        numbers <<= np.uint64(40)
        numbers |= hashes >> _HALF << np.uint64(8) | elements
        numbers.sort()
        found: Int64s = (numbers[begins[where] + positions] & np.uint64(255)).view(np.int64)
        return found


def spans(begins: Int64s, counts: Int64s) -> Int64s:
    """Return numbers in a row, so many from each begin on, one row behind the other."""
    ends = np.cumsum(counts)
    return np.repeat(begins - (ends - counts), counts) + np.arange(int(counts.sum()))


def distinct(numbers: Int64s) -> tuple[Int64s, Int64s]:
    """Return the distinct ones of some numbers, ascending, and where each is among them."""
    if not numbers.size:
        return numbers, numbers
    low, high = int(numbers.min()), int(numbers.max())
    if high - low > 2 * len(numbers):
        return np.unique(numbers, return_inverse=True)
    above, is_present = numbers - low, np.zeros(high - low + 1, bool)
    is_present[above] = True
    return np.flatnonzero(is_present) + low, (np.cumsum(is_present) - 1)[above]


def groups(numbers: Int64s) -> Iterator[tuple[int, Int64s | slice]]:
    """Yield each distinct number, and where it stands."""
    found, where = distinct(numbers)
    if len(found) < 2:
        yield from ((number, slice(None)) for number in found.tolist())
        return
    narrow = where.astype(np.uint16) if len(found) < 1 << 16 else where  # sorted in one go
    ends = np.cumsum(np.bincount(where))
    rows = np.split(np.argsort(narrow, kind="stable"), ends[:-1])
    yield from zip(found.tolist(), rows, strict=True)


def check_positions(positions: npt.NDArray[np.int64], n: int) -> None:
    """Refuse positions outside ``[0, n)``, and an ``n`` that int64 cannot number."""
    if not 0 <= n < 1 << 63:
        raise ValueError(f"n must be in [0, 2**63), got {n}")
    if positions.size and not (positions.min() >= 0 and positions.max() < n):
        raise ValueError(
            f"positions must be in [0, {n}), got {positions.min()} to {positions.max()}"
        )


@lru_cache(maxsize=8)
def _table(n: int, key: int) -> npt.NDArray[np.int64]:
    # The hashes are distinct, so every sorting algorithm gives this order.
    return np.argsort(hash64(key64(key), np.arange(n))).astype(np.int64, copy=False)


@lru_cache(maxsize=64)
def _network(n: int, key: int) -> _Feistel:
    low_bits = (n - 1).bit_length() // 2
    rows = -(-n >> low_bits)
    keys = tuple(np.uint64(key64(key, number)) for number in range(_NUM_ROUNDS))
    return _Feistel(np.uint64(n), np.uint64(low_bits), np.uint64(rows), keys)


@dataclass(frozen=True, slots=True)
class _Feistel:
    """One permutation of ``range(n)``, or several in arrays; all arithmetic is on uint64 and exact."""

    n: Any  # np.uint64, or an array of them, as the rest
    low_bits: Any
    rows: Any
    keys: tuple[Any, ...]

    def take(self, which: Int64s) -> _Feistel:
        """Return the permutation of each of some values, where the fields are arrays."""
        keys = tuple(key[which] for key in self.keys)
        return _Feistel(self.n[which], self.low_bits[which], self.rows[which], keys)

    def apply(self, values: npt.NDArray[np.uint64], which: Int64s | None = None) -> None:
        """Replace each value by its image, in place; ``which``: by that of one of several permutations."""
        for begin in range(0, values.size, _TILE):
            tile = slice(begin, begin + _TILE)
            (self if which is None else self.take(which[tile]))._encrypt(values[tile])
        limits = self.n if which is None else self.n[which]
        outside = np.flatnonzero(values >= limits)
        while outside.size:
            again = values[outside]
            own = self if which is None else self.take(which[outside])
            own._encrypt(again)
            values[outside] = again
            outside = outside[again >= own.n]

    def _encrypt(self, values: npt.NDArray[np.uint64]) -> None:
        columns = np.uint64(1) << self.low_bits
        row, column = values >> self.low_bits, values & (columns - np.uint64(1))
        shift, scratch = np.empty_like(values), np.empty_like(values)
        for number, key in enumerate(self.keys):
            if number % 2 == 0:
                _shift_of(column, key, self.rows, shift, scratch)
                _add_modulo(row, shift, self.rows, scratch)
            else:
                _shift_of(row, key, columns, shift, scratch)
                _add_modulo(column, shift, columns, scratch)
        np.left_shift(row, self.low_bits, out=values)
        np.bitwise_or(values, column, out=values)


def _shift_of(
    half: npt.NDArray[np.uint64],
    key: Any,
    limit: Any,
    out: npt.NDArray[np.uint64],
    scratch: npt.NDArray[np.uint64],
) -> None:
    """Hash each half to ``[0, limit)``: 32 good bits times ``limit``, without a division."""
    np.multiply(half, _FIRST, out=out)
    np.add(out, key, out=out)
    np.right_shift(out, _HALF, out=scratch)
    np.bitwise_xor(out, scratch, out=out)
    np.multiply(out, _SECOND, out=out)
    np.right_shift(out, _HALF, out=out)
    np.multiply(out, limit, out=out)
    np.right_shift(out, _HALF, out=out)


def _add_modulo(
    half: npt.NDArray[np.uint64],
    shift: npt.NDArray[np.uint64],
    limit: Any,
    scratch: npt.NDArray[np.uint64],
) -> None:
    """Add in ``Z_limit``: below ``limit`` the subtraction wraps around, and the sum is smaller."""
    np.add(half, shift, out=half)
    np.subtract(half, limit, out=scratch)
    np.minimum(half, scratch, out=half)
