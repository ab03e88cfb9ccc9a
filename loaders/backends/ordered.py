"""Batches in the order of their indices, kept a few ahead, from a pool that makes them elsewhere."""

from __future__ import annotations

import logging
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from loaders.backends.maker import Raised

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)


class Pool(Protocol):
    """Makes groups of batches, and hands them over in the order they were asked for."""

    def __len__(self) -> int:
        """Groups that were put in and not yet taken out."""

    @property
    def num_ready(self) -> int:
        """Groups that could be taken without waiting."""

    def put(self, group: list[Any]) -> None:
        """Begin a group of batches, given the indices of each."""

    def take(self, timeout_s: float | None) -> list[Any]:
        """Return the oldest group, or raise its error; TimeoutError if it is not done in time."""

    def describe(self) -> str:
        """Say what each worker is doing and for how long."""

    def close(self) -> None:
        """End the workers."""


class OrderedBatches:
    """The batches of one epoch.

    Args:
        pool: Makes them.
        indices: The indices of each batch.
        prefetch_batches: Groups in flight, whatever the number of workers.
        group_size: Batches that are handed over at once.
        timeout_s: RuntimeError after so long without a batch; 0 waits.
        stall_warning_s: Log what every worker is doing after so long; 0 does not.

    An error of a batch, or of the indices, is raised where the batch would have come; the batches
    behind it can still be had.
    """

    def __init__(
        self,
        pool: Pool,
        indices: Iterator[Any],
        *,
        prefetch_batches: int,
        group_size: int = 1,
        timeout_s: float = 0,
        stall_warning_s: float = 0,
    ) -> None:
        self._pool, self._indices = pool, indices
        self._prefetch_batches, self._group_size = prefetch_batches, group_size
        self._timeout_s, self._stall_warning_s = timeout_s, stall_warning_s
        self._ready: list[Any] = []
        self._failed: Exception | None = None

    def __iter__(self) -> OrderedBatches:
        return self

    def __next__(self) -> Any:
        if not self._ready:
            self._fill()
            if not len(self._pool):
                self._end()
            self._ready = self._take()[::-1]
            self._fill()
        batch = self._ready.pop()
        if isinstance(batch, Raised):
            raise batch.error
        return batch

    def _end(self) -> None:
        self.close()
        failed, self._failed = self._failed, None
        raise StopIteration if failed is None else failed

    @property
    def num_ready(self) -> int:
        """Groups of batches that are done and wait to be taken."""
        return self._pool.num_ready

    def _fill(self) -> None:
        """Keep as many groups in flight as asked for."""
        while len(self._pool) < self._prefetch_batches:
            group: list[Any] = []
            try:
                for batch in islice(self._indices, self._group_size):
                    group.append(batch)  # noqa: PERF402  # keep those before an error
            except Exception as error:  # whatever it is: it comes after the batches before it
                self._indices, self._failed = iter(()), error
            if not group:
                return
            self._pool.put(group)

    def _take(self) -> list[Any]:
        patience = self._timeout_s or self._stall_warning_s or None
        began = time.monotonic()
        while True:
            try:
                return self._pool.take(patience)
            except TimeoutError as error:
                if self._timeout_s:
                    raise RuntimeError(
                        f"DataLoader timed out after {self._timeout_s} seconds: {error}"
                    ) from None
                logger.warning("no batch for %.0f s: %s", time.monotonic() - began, error)

    def describe(self) -> str:
        """Say what each worker is doing and for how long."""
        return self._pool.describe()

    def close(self) -> None:
        """End the workers."""
        self._pool.close()
