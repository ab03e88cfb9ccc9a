"""Batches of torch's own loader, whose workers are processes, behind what our backends offer."""

from __future__ import annotations

import traceback
from typing import Any

from loaders.backends.ordered import TimedOut


class ProcessBatches:
    """The batches of one epoch, fetched by an iterator of torch: in its worker processes, or here if it has none.

    Attributes:
        is_ready: False: torch does not tell.
        num_ready: 0, as above.
        slot_bytes: 0: its batches lie in memory of their own.
    """

    is_ready = False
    num_ready = slot_bytes = 0

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> ProcessBatches:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            # Torch keeps the error in a frame of its traceback, and by that its iterator. Workers of one
            # that the garbage collector finds end ten seconds later.
            traceback.clear_frames(error.__traceback__)
            if str(error).startswith("DataLoader timed out"):
                raise TimedOut(str(error)) from None
            raise

    @property
    def _workers(self) -> list[Any]:
        workers: list[Any] = getattr(self._batches, "_workers", [])
        return workers

    def describe_aside(self) -> str:
        """Say which workers are alive."""
        states = [
            f"worker process {worker.pid} {'runs' if worker.is_alive() else 'ended'}"
            for worker in self._workers
        ]
        return "; ".join(states) or "batches are made when they are asked for"

    def close(self) -> None:
        """End the workers now, unless they persist."""
        if self._workers and not self._batches._persistent_workers:
            self._batches._shutdown_workers()
