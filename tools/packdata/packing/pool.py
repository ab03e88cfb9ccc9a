"""Ordered work on threads: what goes in first comes out first, and only so much is in between.

1. Normal: ``put`` hands an item over and returns the results that are ready and next in order;
   ``drain`` yields the rest. Items travel in chunks that grow until one takes a few milliseconds,
   so that tiny items cost little each.
2. Failure: an exception of the function comes out where the item's result would have, of ``put``
   or ``drain``.
3. Early close: ``close`` (or leaving ``with``) drops what has not begun, waits for what runs, and
   may be called twice.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from loaders.system.opencv import use_no_ipp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_CHUNK_S = 0.02
_MAX_CHUNK = 256
# Chunks in flight, which smooth out items of unequal cost. Where one item in a hundred takes fifty times as long, 64
# keep eight workers busy for 94 % of the time, 16 for 71 %, 4 for 39 %.
_CHUNKS_PER_WORKER = 64
_MAX_RESULT_BYTES = 256 << 20


class OrderedPool(Generic[ItemT, ResultT]):
    """Threads that apply a function to items, with results in the items' order.

    Args:
        function: Runs on the threads.
        num_workers: How many threads; 0 for none: ``put`` does the work, and one result is held at a time.
        size_of: Bytes that a result, or its item, holds: bounds the memory of what is in flight.
            Runs on the threads.
        max_bytes: That bound, about.
    """

    def __init__(
        self,
        function: Callable[[ItemT], ResultT],
        num_workers: int,
        size_of: Callable[[ResultT], int] = lambda _: 0,
        max_bytes: int = _MAX_RESULT_BYTES,
    ) -> None:
        self._function, self._size_of, self._max_bytes = function, size_of, max_bytes
        # One that never begins, where there is no work for it.
        self._threads = ThreadPoolExecutor(max(1, num_workers), "packdata", initializer=use_no_ipp)
        self._pending: deque[Future[tuple[list[ResultT], BaseException | None, float, int]]] = (
            deque()
        )
        self._chunk: list[ItemT] = []
        self._chunk_size = 1
        self._least, self._most = num_workers + 1, num_workers * _CHUNKS_PER_WORKER
        self._max_chunks = self._least  # in flight
        self._mean_bytes = 0.0  # of a result

    def put(self, item: ItemT) -> Iterable[ResultT]:
        """Hand an item over; return what is next in order, which waits if too much is in flight."""
        if not self._most:
            return (self._function(item),)
        self._chunk.append(item)
        if len(self._chunk) < self._chunk_size:
            return ()
        self._submit()
        return self._ready()

    def _ready(self) -> Iterator[ResultT]:
        pending = self._pending
        while pending and (pending[0].done() or len(pending) >= self._max_chunks):
            yield from self._next_results()

    def drain(self) -> Iterator[ResultT]:
        """Yield the results of all items that are still in flight."""
        if self._chunk:
            self._submit()
        while self._pending:
            yield from self._next_results()

    def map(self, items: Iterable[ItemT]) -> Iterator[ResultT]:
        """Hand items over one after the other; yield the result of each, in their order."""
        for item in items:
            yield from self.put(item)
        yield from self.drain()

    def _submit(self) -> None:
        self._pending.append(self._threads.submit(self._run, self._chunk))
        self._chunk = []

    def _run(self, chunk: list[ItemT]) -> tuple[list[ResultT], BaseException | None, float, int]:
        """Return results, those from before an error, the error, the seconds and bytes; runs on the threads."""
        began, results, failed = time.perf_counter(), list[ResultT](), None
        try:
            for item in chunk:
                results.append(self._function(item))
        except BaseException as error:
            failed = error
        return results, failed, time.perf_counter() - began, sum(map(self._size_of, results))

    def _next_results(self) -> Iterator[ResultT]:
        results, error, seconds, nbytes = self._pending.popleft().result()
        yield from results
        if error is not None:
            raise error
        num = len(results)
        self._mean_bytes += (nbytes / num - self._mean_bytes) * min(1, num / 16)
        mean = max(self._mean_bytes, nbytes / num, 1.0)
        wanted = num * _CHUNK_S / max(seconds, 1e-6)
        affordable = self._max_bytes / self._least / mean
        self._chunk_size = max(1, int(min(wanted, affordable, 2 * self._chunk_size, _MAX_CHUNK)))
        num_chunks = int(self._max_bytes / (mean * self._chunk_size))
        self._max_chunks = max(self._least, min(self._most, num_chunks))

    def close(self) -> None:
        """Drop what has not begun and wait for what runs."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._pending.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
