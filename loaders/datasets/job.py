"""One batch as a job: parts that any thread can run, and the batch at the end."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.datasets.samples import SampleBatch, batch_type, item, sample_type
from loaders.errors import LoadersError, SampleError
from loaders.rng import hash64, key64

if TYPE_CHECKING:
    from loaders.datasets.packed import PackedDataset
    from loaders.datasets.readers import Memory, Request

logger = logging.getLogger(__name__)
_MAX_REPLACEMENTS = 32


class BatchJob:
    """Reads the samples of a request into memory.

    Args:
        dataset: Whose samples.
        request: Which of them.
        memory: Where the batch goes.
        num_workers: How many threads may share the work.
    """

    def __init__(
        self, dataset: PackedDataset, request: Request, memory: Memory, num_workers: int = 1
    ) -> None:
        self.dataset = dataset
        self.request = request
        n = len(request)
        self._memory = memory
        self._values: list[list[Any]] | None = None
        self._lock = threading.Lock()
        # Two parts a worker: the last ones of a batch then end close together, and the
        # next batch is already begun.
        self._part_rows = (
            n if num_workers < 2 else max(dataset.min_rows, -(-n // (2 * num_workers)))
        )
        self.num_parts = max(1, -(-n // max(1, self._part_rows)))
        self._transformed: list[Any] = [None] * n if dataset.transform is not None else []

    def run(self, part: int) -> None:
        """Read one range of samples; bad ones are replaced if the dataset says so."""
        first = part * self._part_rows
        last = min(first + self._part_rows, len(self.request))
        for _ in range(_MAX_REPLACEMENTS):
            try:
                self._read(first, last)
            except LoadersError:
                position, error = self._blame(first, last)
                if self.dataset.on_error == "raise":
                    raise error from error.__cause__
                self._replace(position, error)
            else:
                break
        else:
            raise SampleError(
                "its replacements were bad too", int(self.request.indices[first]), "", first, None
            )
        if self.dataset.transform is not None:
            self._transform(first, last)

    def _begin(self) -> list[list[Any]]:
        """Take memory when the work begins: by then an earlier batch may have given its own back."""
        if self._values is not None:
            return self._values
        with self._lock:
            if self._values is None:
                n = len(self.request)
                self._values = [reader.begin(n, self._memory) for reader in self.dataset.readers]
            return self._values

    def _read(self, first: int, last: int) -> None:
        for reader, values in zip(self.dataset.readers, self._begin(), strict=True):
            reader.read(values, self.request, first, last)

    def _blame(self, first: int, last: int) -> tuple[int, SampleError]:
        """Find the sample that cannot be read, and say what is wrong with it."""
        for i in range(first, last):
            try:
                self._read(i, i + 1)
            except LoadersError as cause:
                error = self.dataset.sample_error(int(self.request.indices[i]), str(cause))
                error.__cause__ = cause
                return i, error
        raise RuntimeError("reading failed for a range of samples and for none of them alone")

    def _replace(self, position: int, error: SampleError) -> None:
        """Put another sample in its place: the same one in every run."""
        self.dataset.count_replaced(error)
        request = self.request
        draw = 0 if request.draws is None else int(request.draws[position])
        key = key64(request.seed, request.epoch, draw, 0x5EED)
        index = int(
            hash64(key, request.indices[position : position + 1])[0] % np.uint64(len(self.dataset))
        )
        indices = request.indices.copy()
        indices[position] = index
        self.request = replace(request, indices=indices, rows=self.dataset.rows_of(indices))

    def _transform(self, first: int, last: int) -> None:
        batch = self._batch()
        for i in range(first, last):
            sample = sample_type(batch._fields)(*(item(values, i) for values in batch))
            try:
                self._transformed[i] = self.dataset.apply_transform(sample)
            except Exception as error:
                error.add_note(
                    str(
                        self.dataset.sample_error(int(self.request.indices[i]), "in its transform")
                    )
                )
                raise

    def _batch(self) -> Any:
        parts: list[Any] = []
        for reader, values in zip(self.dataset.readers, self._begin(), strict=True):
            parts += reader.finish(values)
        return batch_type(self.dataset.names)._make(parts)

    def finish(self) -> SampleBatch | list[Any]:
        """Return the batch; transformed samples as a list, for a collate function to join."""
        if self.dataset.transform is not None:
            return self._transformed
        return SampleBatch(self._batch(), len(self.request))

    def describe(self, part: int) -> str:
        """Say which samples a part reads."""
        first = part * self._part_rows
        last = min(first + self._part_rows, len(self.request)) - 1
        path, row = self.dataset.place(int(self.request.indices[first]))
        return f"reading and decoding {last - first + 1} samples from {path}, row {row} on"


class CallJob:
    """A batch of any map-style dataset: ``dataset[i]`` for each index, on one thread."""

    num_parts = 1

    def __init__(self, dataset: Any, indices: Any) -> None:
        self.dataset, self.indices = dataset, indices
        self._samples: Any = None

    def run(self, part: int) -> None:
        """Fetch the samples."""
        fetch = getattr(self.dataset, "__getitems__", None)
        self._samples = (
            fetch(list(self.indices)) if fetch else [self.dataset[i] for i in self.indices]
        )

    def finish(self) -> Any:
        """Return the samples, for a collate function to join."""
        return self._samples

    def describe(self, part: int) -> str:
        """Say which samples are fetched."""
        return f"fetching {len(self.indices)} samples of {type(self.dataset).__name__}"
