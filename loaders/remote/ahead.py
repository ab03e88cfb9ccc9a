"""Which shards will be read, and when: sent to the fetcher, which downloads and evicts in that order.

1. A thread sends the shards that will be read, in order, when the reader comes to another stretch of them, and at least
   once a second; no batch waits for it. It starts after the reader's worker processes: a lock that a
   thread holds during a fork is never released in the child.
2. It ends with its reader. When the connection closes, the fetcher drops the order.
3. If the fetcher dies, the order is sent to the next one, also while the reader stands still. Without an answer, files
   are fetched on demand.
"""

from __future__ import annotations

import threading
import time
import weakref
from bisect import bisect_right
from contextlib import closing
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from loaders.errors import LoadersError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from loaders.remote.origin import Origin
    from loaders.remote.wire import File

    Int64s = npt.NDArray[np.int64]
    Position = tuple[int, bool]

_LEAST_S, _MOST_S = 0.01, 0.1  # between two looks at the position: few where it goes slowly
_AGAIN_S = 1.0


class Needs:
    """The shards that one loader will read, by stretches of samples.

    ``stretches``: where each begins, in samples from where the loader began, and the numbers of the files read there.
    """

    def __init__(self, files: list[File], stretches: Iterable[tuple[int, Int64s]]) -> None:
        self.files = files  # all that it may read
        pairs = [(start, np.unique(read)) for start, read in stretches]
        self.starts, self.reads = [start for start, _ in pairs], [read for _, read in pairs]

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
    """Return the bytes that are downloaded if what is needed last is evicted (Belady), given the file of each read.

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


class Ahead:
    """Sends the fetcher what one reader will read, from ``start`` on."""

    def __init__(
        self,
        origin: Origin,
        make_needs: Callable[[], Needs],  # what will be read; called on the thread
        position: Callable[[], Position],  # how many samples the reader has had; has it ended?
    ) -> None:
        self._ended = threading.Event()
        args = self._ended, origin, make_needs, position  # not self: that would keep it alive
        self._thread = threading.Thread(target=_send, args=args, name="loaders-ahead", daemon=True)
        weakref.finalize(self, self._ended.set)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, and let the fetcher forget."""
        self._ended.set()
        # The thread itself may collect its dead reader.
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join(2)


def _send(
    ended: threading.Event,
    origin: Origin,
    make_needs: Callable[[], Needs],
    position: Callable[[], Position],
) -> None:
    """Send the order, and again to each fetcher that follows a dead one."""
    needs: Needs | None = None
    while not ended.is_set():
        try:
            needs = needs or make_needs()
            with closing(origin.connect()) as connection:
                files: list[File] | None = needs.files  # sent once
                last, sent_at, pause_s = -1, 0.0, _LEAST_S
                while not ended.is_set():
                    at, is_over = position()
                    pause_s = min(2 * pause_s, _MOST_S)
                    is_new = (stretch := needs.stretch(at)) != last
                    if is_new or time.monotonic() - sent_at > _AGAIN_S:
                        upcoming = needs.upcoming(at) if is_new else None
                        origin.limit_maps(connection.ask("order", files=files, upcoming=upcoming))
                        files, last, sent_at = None, stretch, time.monotonic()
                        pause_s = _LEAST_S if is_new else pause_s
                    if is_over:
                        ended.set()
                    ended.wait(pause_s)
        except (OSError, LoadersError):  # a reader that waits for a file gets the error
            ended.wait(_AGAIN_S)
