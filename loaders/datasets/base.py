"""What a loader's own threads need of a dataset: work on a whole batch, in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.datasets.readers import Memory
    from loaders.workers import Job


class BatchDataset(torch.utils.data.Dataset[Any]):
    """A map-style dataset that reads a batch at once, as a job that threads can share.

    Attributes:
        num_replaced: Samples that ``on_error="replace"`` replaced so far.
    """

    num_replaced: int = 0

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """Identifies the samples and their order; a resumed run must have the same."""
        raise NotImplementedError

    def job(self, indices: Sequence[int], memory: Memory, num_workers: int = 1) -> Job:
        """Return the work of reading a batch into memory that ``num_workers`` threads may share."""
        raise NotImplementedError

    @property
    def sample_nbytes(self) -> int | None:
        """Bytes of a sample whose fields are all copied as they are, else None."""
        return None
