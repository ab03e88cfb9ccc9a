"""From the indices of a batch to the batch: what every backend does, wherever it does it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from loaders.buffers import Slots
from loaders.datasets.base import BatchDataset
from loaders.datasets.job import CallJob, OneSample
from loaders.datasets.samples import collate

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.workers import Job

_GROUP_BYTES = 4 << 20  # hand smaller batches over several at a time
_MAX_GROUP = 8


@dataclass(slots=True)
class Maker:
    """Makes batches of a dataset.

    Attributes:
        dataset: Any map-style dataset.
        collate: Joins samples to a batch.
        batch_size: Samples of a batch, or None where a batch sampler or single samples decide.
        has_batches: False where each index stands for a sample that is handed over alone.
        num_workers: How many threads share the work on a batch.
        pin: Put batches into page-locked memory.
        slots: Where batches go.
    """

    dataset: Any
    collate: Callable[[Any], Any]
    batch_size: int | None
    has_batches: bool
    num_workers: int
    pin: bool = False
    slots: Slots = field(default_factory=Slots)

    def job(self, indices: Any) -> BatchOf:
        """Return the work of making one batch."""
        return BatchOf(self, self._read(indices))

    def _read(self, indices: Any) -> Job:
        if not self.has_batches:
            return OneSample(self.dataset, indices)
        if isinstance(self.dataset, BatchDataset):
            return self.dataset.job(indices, self.slots, max(1, self.num_workers))
        return CallJob(self.dataset, indices)

    def make(self, indices: Any) -> Any:
        """Make one batch on this thread."""
        job = self.job(indices)
        for part in range(job.num_parts):
            job.run(part)
        return job.finish()

    @property
    def group_size(self) -> int:
        """How many batches to hand over at once: handing over costs tens of microseconds, whatever the size."""
        if not isinstance(self.dataset, BatchDataset) or self.batch_size is None:
            return 1
        nbytes = self.dataset.sample_nbytes
        if nbytes is None or self.collate is not collate:
            return 1
        return max(1, min(_MAX_GROUP, _GROUP_BYTES // max(1, nbytes * self.batch_size)))


@dataclass(slots=True)
class Raised:
    """What stands where a batch would have come: its error."""

    error: Exception


class BatchOf:
    """One batch: read, collated, pinned."""

    def __init__(self, maker: Maker, read: Job) -> None:
        self._collate, self._pin, self._read = maker.collate, maker.pin, read
        self.num_parts = read.num_parts
        self.run, self.describe = read.run, read.describe

    def finish(self) -> Any:
        """Return the batch."""
        batch = self._collate(self._read.finish())
        return torch.utils.data._utils.pin_memory.pin_memory(batch) if self._pin else batch


class Group:
    """Small batches that one thread makes from first to last, and that are handed over together."""

    num_parts = 1

    def __init__(self, maker: Maker, batches: list[Any]) -> None:
        self._maker, self._batches = maker, batches
        self._made: list[Any] = []

    def run(self, part: int) -> None:
        """Make them all; one that fails does not take the others with it."""
        for batch in self._batches:
            try:
                self._made.append(self._maker.make(batch))
            except Exception as error:
                self._made.append(Raised(error))

    def finish(self) -> list[Any]:
        """Return them in order."""
        return self._made

    def describe(self, part: int) -> str:
        """Say what is being made."""
        return f"making {len(self._batches)} small batches"
