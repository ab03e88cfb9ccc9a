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
from typing import TYPE_CHECKING

import numpy as np

from loaders.rng import GAMMA, hash64, key64

if TYPE_CHECKING:
    import numpy.typing as npt

TABLE_MAX = 1 << 16
_TILE = 1 << 14  # 128 KiB of numbers: with four tiles of scratch it stays in the cache of one core
# With four rounds, distances between elements a row apart repeat more often than by chance
# (tests/test_sampling_permutation.py sees it); with five nothing there shows. One to spare.
_NUM_ROUNDS = 6
_LOW = np.uint64(TABLE_MAX - 1)
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
    return order_of(hash64(key64(key), np.arange(n)))


def order_of(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return what ``np.argsort`` does for up to 65,536 distinct hashes, in half the time.

    Numbers are sorted faster than their places: each place takes the low 16 bits of its hash. Where
    two hashes differ in nothing else, it is ``np.argsort`` after all.
    """
    numbers = (hashes & ~_LOW) | np.arange(len(hashes), dtype=np.uint64)
    numbers.sort()
    high = numbers & ~_LOW
    if (high[1:] == high[:-1]).any():
        return np.argsort(hashes).astype(np.int64, copy=False)
    return (numbers & _LOW).view(np.int64)


@lru_cache(maxsize=64)
def _network(n: int, key: int) -> _Feistel:
    low_bits = (n - 1).bit_length() // 2
    rows = -(-n >> low_bits)
    keys = tuple(np.uint64(key64(key, number)) for number in range(_NUM_ROUNDS))
    return _Feistel(np.uint64(n), np.uint64(low_bits), np.uint64(rows), keys)


@dataclass(frozen=True, slots=True)
class _Feistel:
    """One permutation of ``range(n)``; all arithmetic is on uint64 and exact."""

    n: np.uint64
    low_bits: np.uint64
    rows: np.uint64
    keys: tuple[np.uint64, ...]

    def apply(self, values: npt.NDArray[np.uint64]) -> None:
        """Replace each value by its image, in place."""
        for begin in range(0, values.size, _TILE):
            self._apply_tile(values[begin : begin + _TILE])

    def _apply_tile(self, values: npt.NDArray[np.uint64]) -> None:
        self._encrypt(values)
        outside = np.flatnonzero(values >= self.n)
        while outside.size:
            again = values[outside]
            self._encrypt(again)
            values[outside] = again
            outside = outside[again >= self.n]

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
    key: np.uint64,
    limit: np.uint64,
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
    limit: np.uint64,
    scratch: npt.NDArray[np.uint64],
) -> None:
    """Add in ``Z_limit``: below ``limit`` the subtraction wraps around, and the sum is smaller."""
    np.add(half, shift, out=half)
    np.subtract(half, limit, out=scratch)
    np.minimum(half, scratch, out=half)
