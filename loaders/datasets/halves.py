"""The host's half of a batch, whatever a device makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.datasets.base import SamplesOf, index_array
from loaders.datasets.reading.job import BatchJob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.datasets.packed import PackedDataset
    from loaders.datasets.reading.readplan import ReadPlan
    from loaders.datasets.reading.request import Memory
    from loaders.datasets.reading.samples import SplitBatches


class HostHalf(SamplesOf["PackedDataset"]):
    """The samples of a dataset, in batches that a device finishes.

    Args:
        dataset: Whose samples.
        plan: How they are read instead.
    """

    def __init__(self, dataset: PackedDataset, plan: ReadPlan) -> None:
        super().__init__(dataset)
        self.plan = plan

    def job(self, indices: Sequence[int], memory: Memory, num_workers: int = 1) -> BatchJob:
        """Return the work of reading a batch."""
        return BatchJob(self.plan, self.dataset.request(indices, num_workers), memory)

    def read_group(self, batches: Sequence[Sequence[int]], memory: Memory) -> SplitBatches | None:
        """Return several batches, gathered at once, if all fields are only copied; they share memory."""
        return read_group(self.dataset, self.plan, batches, memory)

    @property
    def sample_nbytes(self) -> int | None:
        """Bytes of a sample whose fields are all copied as they are, else None."""
        return self.plan.sample_nbytes


def read_group(
    dataset: PackedDataset, plan: ReadPlan, batches: Sequence[Any], memory: Memory
) -> SplitBatches | None:
    """Return several batches, gathered at once; None where a plan reads them one by one."""
    if not plan.sample_nbytes:
        return None
    request = dataset.request(np.concatenate([index_array(batch) for batch in batches]))
    return plan.read_together(request, [len(batch) for batch in batches], memory)
