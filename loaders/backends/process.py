"""Torch's own iterator, with worker processes or without: its batches are counted, and nothing else changes."""

from __future__ import annotations

import traceback
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from loaders.sampling.batch import reading

if TYPE_CHECKING:
    from collections.abc import Iterator

_EARLY = (
    "a worker raised StopIteration, in the dataset, its transform or collate_fn, or another iteration took over the "
    "worker processes that persist"
)
# Of the wait for a worker, not of a batch, nor of a handler of signals: it has ended, unless torch's wait has.
_OF_WORKERS, _TIMEOUT = (RuntimeError, ConnectionError, EOFError), "timed out"


class TorchBatches:
    """Wraps torch's iterator for one epoch.

    ``num_taken`` counts batches that were returned, or whose error was raised. With a worker process
    that ends they end (``is_lost``): torch would go on with those of other workers, as if they followed.
    """

    is_ready = False
    num_ready = 0

    def __init__(
        self,
        batches: Iterator[Any],
        num_workers: int,
        num_batches: int | None,  # of the epoch: an earlier end is an error; None: unknown
    ) -> None:
        self._iterator, self._num_workers, self._num_batches = batches, num_workers, num_batches
        self.num_taken, self.is_lost = 0, False

    def __iter__(self) -> TorchBatches:
        return self

    def __next__(self) -> Any:
        try:
            # Without workers the index sampler enters the context of each batch: it ends with the batch.
            with nullcontext() if self._num_workers else reading(None):
                batch = next(self._iterator)
        except StopIteration as error:
            if self._num_batches is None or self.num_taken >= self._num_batches:
                raise
            self.num_taken += 1
            what = f"the epoch ended after {self.num_taken - 1} of {self._num_batches} batches"
            raise RuntimeError(f"{what}: {_EARLY}") from error
        except BaseException as error:
            is_of_batch = not self._num_workers or _is_of_batch(error)
            self.num_taken += is_of_batch
            if not is_of_batch and isinstance(error, _OF_WORKERS) and _TIMEOUT not in str(error):
                self.is_lost = True
                self.close()
            if self._num_workers:
                # Torch keeps the error in a frame of its traceback, and with it the iterator and its workers.
                traceback.clear_frames(error.__traceback__)
            raise
        self.num_taken += 1
        return batch

    def describe(self) -> str:
        """Say who makes the batches."""
        if self._num_workers:
            return f"batches come from {self._num_workers} worker processes of torch"
        return "batches are made when they are asked for"

    def close(self) -> None:
        """Let go of torch's iterator, which ends its workers then, unless they persist."""
        self._iterator, self._num_batches = iter(()), None


def _is_of_batch(error: BaseException) -> bool:
    """Return True if a worker raised the error (torch calls ``reraise`` then): a timeout or a signal costs no batch."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_name == "reraise" for frame, _ in frames)
