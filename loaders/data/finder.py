"""Which shard a sample lies in, for many samples at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Indices = npt.NDArray[np.int64]

_MAX_BUCKETS = 1 << 16


@dataclass(frozen=True, slots=True)
class Rows:
    """Samples of a store by number, and the shards they lie in."""

    indices: Indices  # ``(N,)`` int64: their numbers in the store
    shards: Indices  # ``(N,)`` int64: of each the number of its shard

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, part: slice | npt.NDArray[np.bool_] | Indices) -> Rows:
        return Rows(self.indices[part], self.shards[part])

    def pieces(self, size: int) -> Iterator[slice | Indices]:
        """Yield positions, no more than so many at a time, and of one shard each: a cache may hold few of them."""
        order = np.argsort(self.shards, kind="stable")
        ends = [*(np.flatnonzero(np.diff(self.shards[order])) + 1).tolist(), len(order)]
        for start, end in zip([0, *ends], ends, strict=False):
            for first in range(start, end, size):
                part = order[first : min(first + size, end)]
                low, high = int(part[0]), int(part[-1]) + 1
                yield slice(low, high) if high - low == len(part) else part


class ShardFinder:
    """Finds shards by a table of equal stretches of samples, of which each spans two shards at most.

    That takes an eighth of the time of a binary search (4,096 samples in 23 shards: 17 us instead of 145). Where one
    shard is so small that the table would become large, a binary search it is.
    """

    def __init__(self, ends: Indices) -> None:
        self._ends = ends
        sizes = np.diff(ends, prepend=0)[:-1]  # the last may be smaller: no other follows it
        smallest = int(sizes.min()) if len(sizes) else 0
        self._shift = max(0, smallest.bit_length() - 1)
        num_buckets = (int(ends[-1]) >> self._shift) + 1 if len(ends) else 0
        self._first: Indices | None = None
        if smallest and num_buckets <= _MAX_BUCKETS:
            starts = np.arange(num_buckets, dtype=np.int64) << self._shift
            self._first = np.searchsorted(ends, starts, "right").astype(np.int64)

    def __call__(self, indices: Indices) -> Indices:
        """Return the shard number of each sample; the numbers must be in range."""
        if len(self._ends) == 1:
            return np.zeros(len(indices), np.int64)
        if self._first is None:
            return np.searchsorted(self._ends, indices, "right")
        shards = self._first.take(indices >> self._shift)
        shards += indices >= self._ends.take(shards)
        return shards
