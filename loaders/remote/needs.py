"""Which shards a loader will read, and when: what the fetcher orders downloads and evictions by.

An epoch is cut into stretches of samples; for each it is known which shards its samples lie in.
"""

from __future__ import annotations

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
    """The shards that one loader will read.

    Attributes:
        files: All that it may read.
        starts: ``(K,)`` int64: where stretches begin, in samples from where the loader began, ascending.
        which: ``(K,)`` int64: for each start the number of a file that is read there; a stretch of several files has
            its start several times.
    """

    files: list[File]
    starts: Int64s
    which: Int64s

    @classmethod
    def of(cls, files: list[File], stretches: Iterable[tuple[int, Int64s]]) -> Needs:
        """Make it of where each stretch begins, and which files are read there."""
        pairs = [(start, np.unique(files_of)) for start, files_of in stretches]
        starts = [np.full(len(found), start, np.int64) for start, found in pairs]
        which = [found.astype(np.int64) for _, found in pairs]
        none = np.zeros(0, np.int64)
        return cls(files, np.concatenate([none, *starts]), np.concatenate([none, *which]))

    def stretch(self, position: int) -> int:
        """Return where in ``starts`` the stretch of a position begins."""
        last = max(0, int(np.searchsorted(self.starts, position, "right")) - 1)
        return int(np.searchsorted(self.starts[:last], self.starts[last])) if last else 0

    def upcoming(self, position: int = 0) -> list[int]:
        """Return the numbers of the files that will be read after so many samples, the next one first."""
        which, at = np.unique(self.which[self.stretch(position) :], return_index=True)
        upcoming: list[int] = which[np.argsort(at, kind="stable")].tolist()
        return upcoming

    def least_bytes(self) -> int:
        """Return the bytes of the files of two neighbouring stretches, where they are most.

        A cache below that cannot hold what is read, and what is read next.
        """
        sizes = np.array([file.size for file in self.files], np.int64)
        starts, first = np.unique(self.starts, return_index=True)
        ends = np.append(first[1:], len(self.which))
        most = 0
        for n in range(len(starts)):
            last = ends[min(n + 1, len(starts) - 1)]
            most = max(most, int(sizes[np.unique(self.which[first[n] : last])].sum()))
        return most

    def epoch_bytes(self, budget: int) -> int:
        """Return how many bytes would be downloaded for all of it, from an empty cache of this size."""
        return downloads(self.which.tolist(), [file.size for file in self.files], budget)


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
    last = list[
        tuple[int, int]
    ]()  # the same, what is read last first; with entries that are outdated
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
