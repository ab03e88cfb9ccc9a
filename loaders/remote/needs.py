"""Which shards a loader will read, and when: what the fetcher orders downloads and evictions by.

An epoch is cut into stretches of samples; for each it is known which shards its samples lie in.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from loaders.remote.wire import File

    Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class Needs:
    """The shards that one loader will read."""

    files: list[File]  # all that it may read
    starts: list[int]  # where stretches begin, in samples from where the loader began, ascending
    reads: list[Int64s]  # the numbers of the files that are read in each stretch

    @classmethod
    def of(cls, files: list[File], stretches: Iterable[tuple[int, Int64s]]) -> Needs:
        """Make it of where each stretch begins, and which files are read there."""
        needs = cls(files, [], [])
        for start, read in stretches:
            needs.starts.append(start)
            needs.reads.append(np.unique(read))
        return needs

    def stretch(self, position: int) -> int:
        """Return the number of the stretch of a position."""
        return max(0, bisect_right(self.starts, position) - 1)

    def upcoming(self, position: int = 0) -> list[int]:
        """Return the numbers of the files that will be read after so many samples, the next one first."""
        which, at = np.unique(_joined(self.reads[self.stretch(position) :]), return_index=True)
        upcoming: list[int] = which[np.argsort(at, kind="stable")].tolist()
        return upcoming

    def least_bytes(self) -> int:
        """Return the bytes of the files of two neighbouring stretches, where they are most.

        A cache below that cannot hold what is read, and what is read next.
        """
        sizes = np.array([file.size for file in self.files], np.int64)
        pairs = zip(self.reads, [*self.reads[1:], _joined([])], strict=False)
        return max((int(sizes[np.union1d(*pair)].sum()) for pair in pairs), default=0)

    def epoch_bytes(self, budget: int) -> int:
        """Return how many bytes would be downloaded for all of it, from an empty cache of this size."""
        return downloads(_joined(self.reads).tolist(), [file.size for file in self.files], budget)


def _joined(reads: list[Int64s]) -> Int64s:
    return np.concatenate([np.zeros(0, np.int64), *reads])


def downloads(reads: list[int], sizes: list[int], budget: int) -> int:
    """Return the bytes that are downloaded if what is needed last is evicted (Belady).

    Args:
        reads: The file of each read, in order.
        sizes: The size of each file, in bytes.
        budget: What the cache holds, in bytes.

    Example:
        >>> downloads([0, 1, 2, 0, 1, 2], [1, 1, 1], 2)
        4
    """
    never = len(reads)
    following, seen = [never] * len(reads), dict[int, int]()
    for at in range(len(reads) - 1, -1, -1):
        following[at] = seen.get(reads[at], never)
        seen[reads[at]] = at
    held, used, total = dict[int, int](), 0, 0  # by file: when it is read next
    last = list[tuple[int, int]]()  # the same, what is read last first; some are outdated
    for at, file in enumerate(reads):
        if file not in held:
            total += sizes[file]
            used += sizes[file]
            while used > budget and last:
                when, other = heappop(last)
                if held.get(other) == -when:
                    used -= sizes[other]
                    del held[other]
        held[file] = following[at]
        heappush(last, (-following[at], file))
    return total
