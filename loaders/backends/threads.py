"""Batches made in this process: on the trainer's own thread, or on worker threads in the same order."""

from __future__ import annotations

import logging
import threading
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

import cv2
import torch

from loaders.backends.maker import Failed, Group
from loaders.workers import Job, Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loaders.backends.maker import Maker

logger = logging.getLogger(__name__)


class InlineBatches:
    """The batches of one epoch, made on the trainer's own thread: the plain path, which threads must equal."""

    num_ready = 0

    def __init__(self, maker: Maker, indices: Iterator[Any]) -> None:
        cv2.setNumThreads(1)
        self._maker, self._indices = maker, indices

    def __iter__(self) -> InlineBatches:
        return self

    def __next__(self) -> Any:
        return self._maker.make(next(self._indices))

    def close(self) -> None:
        """Nothing runs."""


class ThreadBatches:
    """The batches of one epoch, made by threads.

    Args:
        maker: Makes them; its ``num_workers`` is the number of threads.
        indices: The indices of each batch.
        prefetch_batches: Jobs in flight, of all threads together.
        timeout_s: RuntimeError after so long without a batch; 0 waits.
        stall_warning_s: Log what every thread is doing after so long; 0 does not.
    """

    def __init__(
        self,
        maker: Maker,
        indices: Iterator[Any],
        *,
        prefetch_batches: int,
        timeout_s: float = 0,
        stall_warning_s: float = 0,
    ) -> None:
        self._maker, self._indices = maker, indices
        self._prefetch_batches = prefetch_batches
        self._timeout_s, self._stall_warning_s = timeout_s, stall_warning_s
        self._group = maker.group_size
        self._ready: list[Any] = []
        self._workers = _start_workers(maker.num_workers)

    def __iter__(self) -> ThreadBatches:
        return self

    def __next__(self) -> Any:
        if not self._ready:
            self._fill()
            if not len(self._workers):
                self.close()
                raise StopIteration
            self._ready = self._take()
            self._fill()
        return self._ready.pop()

    @property
    def num_ready(self) -> int:
        """Jobs that are done and wait to be taken."""
        return self._workers.num_ready

    def _fill(self) -> None:
        """Keep as many jobs in flight as asked for, whatever the number of threads."""
        while len(self._workers) < self._prefetch_batches:
            batches: list[Any] = []
            failed: Exception | None = None
            try:
                for batch in islice(self._indices, self._group):
                    batches.append(batch)  # noqa: PERF402  # keep those before an error
            except Exception as error:  # whatever it is: it comes after the batches before it
                self._indices, failed = iter(()), error
            if batches:
                self._workers.put(self._job(batches))
            if failed is not None:
                self._workers.put(Failed(failed))
            if not batches:
                return

    def _job(self, batches: list[Any]) -> Job:
        return self._maker.job(batches[0]) if self._group == 1 else Group(self._maker, batches)

    def _take(self) -> list[Any]:
        patience = self._timeout_s or self._stall_warning_s or None
        began = time.monotonic()
        while True:
            try:
                made = self._workers.take(timeout_s=patience)
                return [made] if self._group == 1 else made[::-1]
            except TimeoutError as error:
                if self._timeout_s:
                    raise RuntimeError(
                        f"DataLoader timed out after {self._timeout_s} seconds: {error}"
                    ) from None
                logger.warning("no batch for %.0f s: %s", time.monotonic() - began, error)

    def describe(self) -> str:
        """Say what each thread is doing and for how long."""
        return self._workers.describe()

    def close(self) -> None:
        """End the threads."""
        self._workers.close()


def _start_workers(num_workers: int) -> Workers:
    """Start threads that each use one core, and leave the caller's own setting as it was."""
    cv2.setNumThreads(1)
    num_threads = torch.get_num_threads()
    barrier = threading.Barrier(num_workers + 1)

    def prepare() -> None:
        torch.set_num_threads(1)  # of this thread; and of threads to come, which is undone below
        torch.get_num_threads()  # makes it last: a thread's first operation else takes the count of all
        barrier.wait(timeout=60)

    workers = Workers(num_workers, prepare=prepare)
    barrier.wait(timeout=60)
    torch.set_num_threads(num_threads)
    return workers
