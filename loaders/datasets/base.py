"""What a loader's own threads need of a dataset: work on a whole batch, in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loaders.datasets.readers import Memory
    from loaders.sampling.order import Order
    from loaders.workers import Job


class BatchDataset(torch.utils.data.Dataset[Any]):
    """A map-style dataset that reads a batch at once, as a job that threads can share.

    Attributes:
        num_replaced: Samples that ``on_error="replace"`` replaced so far.
        device: Where the samples lie already; None is the host's memory.
        finishes_late: True where batches stay in the host half until they are handed over, also on
            the host: what waits is smaller then, and what is handed over is still in the cache.
        max_group: Small batches that are handed over at once, at most.
    """

    num_replaced: int = 0
    device: torch.device | None = None
    finishes_late: bool = False
    max_group: int = 8

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """Identifies the samples and their order; a resumed run must have the same."""
        raise NotImplementedError

    def job(self, indices: Sequence[int], memory: Memory, num_workers: int = 1) -> Job:
        """Return the work of reading a batch into memory that ``num_workers`` threads may share."""
        raise NotImplementedError

    def order(self, seed: int, batch_size: int) -> Order | None:
        """Return the order in which the samples want to be served; None: as the loader is told."""
        return None

    def finisher(self, device: torch.device) -> Callable[[Any], Any] | None:
        """Return what turns batches of ``host_half()``, moved to a device, into whole ones; None: nothing does.

        It is called with one batch at a time, on the trainer's thread and the device's current stream.
        """
        return None

    def host_half(self) -> Self:
        """Return the same samples, in batches that hold what is cheapest to move: ``finisher`` does the rest."""
        return self

    def read_group(self, batches: Sequence[Sequence[int]], memory: Memory) -> list[Any] | None:
        """Return several small batches, read at once; None where one by one is as good.

        They may share memory, which then returns to its pool when the last of them is dropped.
        """
        return None

    @property
    def sample_nbytes(self) -> int | None:
        """Bytes of a sample whose fields are all copied as they are, else None."""
        return None
