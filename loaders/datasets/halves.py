"""The host's half of a batch, whatever a device makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.datasets.base import BatchDataset, SamplesOf

if TYPE_CHECKING:
    from loaders.datasets.reading.request import ReadPlan, Request


class HostHalf(SamplesOf[BatchDataset[Any]]):
    """The samples of a dataset, in batches that a device finishes."""

    def __init__(self, dataset: BatchDataset[Any], plan: ReadPlan) -> None:
        super().__init__(dataset)
        self.plan = plan

    @property
    def sample_nbytes(self) -> int | None:
        return self.plan.sample_nbytes

    def request(self, indices: Any, num_workers: int = 1) -> Request:
        request = self.dataset.request(indices, num_workers)
        request.plan = self.plan
        return request
