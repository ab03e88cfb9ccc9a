"""Batches in the order of their indices, kept a few ahead, from a pool that makes them elsewhere."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

from loaders.backends.maker import Chunk, Raised, chunks
from loaders.workers import Late

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loaders.backends.gil import GilWatch
    from loaders.backends.maker import Made

logger = logging.getLogger(__name__)


class Pool(Protocol):
    """Makes batches, and hands them over in the order they were asked for: one, or those of a chunk together."""

    def __len__(self) -> int:
        """How many turns were begun and not taken yet."""

    @property
    def num_ready(self) -> int:
        """How many turns could be taken without waiting."""

    @property
    def is_ready(self) -> bool:
        """Whether the oldest turn could be taken without waiting."""

    def put(self, chunk: Chunk, turn: int) -> None:
        """Begin a turn of a chunk."""

    def take(self, timeout_s: float | None) -> Made:
        """Return the batches that were put in first, or raise their error; ``Late`` if they are not done in time."""

    def describe(self) -> str:
        """Say what each worker is doing, also from a signal handler or another thread, while the pool is in use."""

    def close(self) -> None:
        """End the workers."""


class OrderedBatches:
    """The batches of one epoch.

    An error of a batch, or of the indices, is raised where the batch would have come; the batches
    behind it can still be had. ``num_taken`` counts batches that were returned, or whose error was raised.
    """

    is_lost = False  # as torch's are, of a worker that ended

    def __init__(
        self,
        pool: Pool,
        indices: Iterator[Any],  # of each batch
        *,
        # Batches, or chunks of small ones, in flight beside what is handed over, whatever the number of workers;
        # 0 makes each when it is asked for.
        prefetch_batches: int,
        chunk_size: int = 1,  # batches of a chunk, at most; the first chunks are smaller
        is_together: bool = False,  # whether those of a chunk are handed over at once
        timeout_s: float = 0,  # RuntimeError, as torch's, after so long without a batch; 0 waits
        stall_warning_s: float = 0,  # log what workers are doing after so long; 0 does not
        watch: GilWatch | None = None,  # notes when training steps begin and end
    ) -> None:
        self._pool, self._prefetch_batches = pool, prefetch_batches
        self._is_together = is_together
        self._chunks: Iterator[Chunk] = chunks(indices, chunk_size, is_together=is_together)
        self._chunk, self._turn = Chunk([]), 0  # which is to be begun next
        self._timeout_s, self._stall_warning_s = timeout_s, stall_warning_s
        self._watch = watch
        self._ready: list[Any] = []
        self._failed: Exception | None = None
        self.num_taken = 0

    def __iter__(self) -> OrderedBatches:
        return self

    def __next__(self) -> Any:
        if not self._ready:
            if self._watch is not None:
                self._watch.enter(self._pool)
            if not len(self._pool) and self._failed is None:
                # Small batches are made with the GIL held: more chunks would delay the first.
                self._fill(1 if self._is_together else max(1, self._prefetch_batches))
            if not len(self._pool):
                self._end()
            self._ready = [*self._take()][::-1]
            self._fill(self._prefetch_batches)
            if self._watch is not None:
                self._watch.leave(self._pool)
        batch = self._ready.pop()
        self.num_taken += 1
        if not isinstance(batch, Raised):
            return batch
        try:
            raise _not_the_end(batch.error)
        finally:
            del batch  # its traceback holds this frame: the two would keep the loader alive

    def _end(self) -> None:
        self.close()
        failed, self._failed = self._failed, None
        if failed is None:
            raise StopIteration
        try:
            raise failed
        finally:
            del failed  # as above

    @property
    def num_ready(self) -> int:
        """Batches, or chunks of small ones, that are done and wait to be taken."""
        return self._pool.num_ready

    def _fill(self, num: int) -> None:
        """Keep so many batches, or chunks of small ones, in flight."""
        try:
            for _ in range(num - len(self._pool)):
                if self._turn == self._chunk.num_turns:
                    self._chunk, self._turn = next(self._chunks), 0
                self._pool.put(self._chunk, self._turn)
                self._turn += 1
        except StopIteration:
            return
        except Exception as error:  # of any kind: after the batches before it, and the last
            self._chunk, self._turn, self._chunks = Chunk([]), 0, iter(())
            self._failed = error

    def _take(self) -> Made:
        patience = self._timeout_s or self._stall_warning_s or None
        began, num_before = time.monotonic(), len(self._pool)
        while True:
            try:
                return self._pool.take(patience)
            except BaseException as error:
                if len(self._pool) < num_before:  # a job raised it
                    self.num_taken += 1
                    raise _not_the_end(error)  # noqa: B904  # which has its cause
                if not isinstance(error, Late):  # the wait was interrupted
                    raise
                late = str(error)  # logs would keep the error, and this iterator with it
            if self._timeout_s:
                what = f"DataLoader timed out after {self._timeout_s} seconds: {late}"
                raise RuntimeError(what)
            logger.warning("no batch for %.0f s: %s", time.monotonic() - began, late)

    @property
    def is_ready(self) -> bool:
        """Whether the next batch could be had without waiting for it."""
        return bool(self._ready) or self._pool.is_ready

    def describe(self) -> str:
        """Say what each worker is doing, also while the trainer's thread waits for the pool."""
        return self._pool.describe()

    def close(self) -> None:
        """End the workers."""
        self._pool.close()


def _not_the_end(error: BaseException) -> BaseException:
    """Return another error in place of a ``StopIteration``, which a loop takes for the end of the epoch."""
    if not isinstance(error, StopIteration):
        return error
    what = "the dataset, its transform or collate_fn raised StopIteration: next() of an iterator at its end, say"
    other = RuntimeError(what)
    other.__cause__ = error
    return other
