"""Ordered work on threads: what goes in first comes out first, and only so much is in between.

1. Normal: ``put`` hands an item over and returns the results that are ready and next in order;
   ``drain`` yields the rest. Items travel in chunks that grow until one takes a few milliseconds,
   so that tiny items cost little each.
2. Large results: a chunk ends with the one that brings it to a thread's share of the memory, and goes on once there
   is room, or once all before it is taken.
3. Failure: an exception of the function comes out where the item's result would have, of ``put``
   or ``drain``.
4. Early close: ``close`` (or leaving ``with``) drops what has not begun, waits for what runs, and
   may be called twice.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Condition
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

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
MAX_RESULT_BYTES = 256 << 20
_WAIT_S = 1  # for room, between two looks whether the interpreter shuts down


class _Part(NamedTuple):
    """What a thread has made of a chunk, in how long, and where the rest of the chunk will be."""

    results: list[Any]
    error: BaseException | None  # behind them
    seconds: float
    nbytes: int
    rest: Future[_Part] | None


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
        max_bytes: int = MAX_RESULT_BYTES,
    ) -> None:
        self._function, self._size_of, self._max_bytes = function, size_of, max_bytes
        # One that never begins, where there is no work for it.
        self._threads = ThreadPoolExecutor(max(1, num_workers), "packdata", initializer=use_no_ipp)
        self._pending: deque[Future[_Part]] = deque()  # of chunks, in order
        self._room, self._held, self._is_closed = Condition(), 0, False
        self._chunk: deque[ItemT] = deque()
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
        part: Future[_Part] = Future()
        self._pending.append(part)
        self._threads.submit(self._run, self._chunk, part)
        self._chunk = deque()

    def _run(self, chunk: deque[ItemT], part: Future[_Part] | None) -> None:
        """Make the results of a chunk, part by part; runs on the threads."""
        while part is not None and not self._is_closed:
            with self._room:
                while not self._room.wait_for(partial(self._has_room, part), _WAIT_S):
                    try:
                        self._threads.submit(int)
                    except RuntimeError:  # the interpreter shuts down, and the pool was not closed
                        self._is_closed = True
            part = self._make(chunk, part)

    def _has_room(self, part: Future[_Part]) -> bool:
        is_next = bool(self._pending) and self._pending[0] is part
        return self._held < self._max_bytes or is_next or self._is_closed

    def _make(self, chunk: deque[ItemT], part: Future[_Part]) -> Future[_Part] | None:
        """Make results until the chunk ends, or has its share of the memory; return what waits for the rest."""
        began, results, nbytes, failed = time.perf_counter(), list[ResultT](), 0, None
        try:
            while chunk and nbytes < self._max_bytes / self._least:
                results.append(self._function(chunk.popleft()))
                nbytes += self._size_of(results[-1])
        except BaseException as error:
            failed = error
            chunk.clear()
        rest: Future[_Part] | None = Future() if chunk else None
        with self._room:
            self._held += nbytes
        part.set_result(_Part(results, failed, time.perf_counter() - began, nbytes, rest))
        return rest

    def _next_results(self) -> Iterator[ResultT]:
        results, error, seconds, nbytes, rest = self._pending[0].result()
        with self._room:
            self._pending.popleft()
            if rest is not None:
                self._pending.appendleft(rest)
        yield from results
        with self._room:
            self._held -= nbytes
            self._room.notify_all()
        if error is not None:
            raise error
        num = len(results)
        self._mean_bytes += (nbytes / num - self._mean_bytes) * min(1, num / 16)
        mean = max(self._mean_bytes, nbytes / num, 1.0)
        wanted = num * _CHUNK_S / max(seconds, 1e-6)
        self._chunk_size = max(1, int(min(wanted, 2 * self._chunk_size, _MAX_CHUNK)))
        num_chunks = int(self._max_bytes / (mean * self._chunk_size))
        self._max_chunks = max(self._least, min(self._most, num_chunks))

    def close(self) -> None:
        """Drop what has not begun and wait for what runs."""
        with self._room:
            self._is_closed = True
            self._room.notify_all()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._pending.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
