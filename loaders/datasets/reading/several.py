"""Any number of pictures a sample: read as one sequence of pictures, with the draw of its sample for each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders.buffers import Memory
from loaders.codecs.several import split_files
from loaders.datasets.reading.objects import ListReader
from loaders.datasets.reading.request import Request
from loaders.datasets.reading.samples import Form, with_own_storage

if TYPE_CHECKING:
    from loaders.data.store import Store
    from loaders.datasets.reading.pictures import PictureReader
    from loaders.datasets.reading.request import UInt8Array


@dataclass(frozen=True, slots=True)
class ImagesReader(ListReader):
    """Pictures of samples: of each a list, or a tensor where all leave with one size."""

    store: Store  # where the records lie
    name: str  # of the field
    pictures: PictureReader  # reads single pictures from their places
    batching: Form
    min_rows = 1

    @property
    def names(self) -> tuple[str, ...]:
        return self.pictures.names

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        records = request.records(self.store.records, self.name, first, last)
        samples = [split_files(record) for record in records]
        counts = [len(files) for files in samples]
        files = [file for sample in samples for file in sample]
        views = self._decoded(files, _of_pictures(request, first, last, counts))
        ends = list(accumulate(counts, initial=0))
        for value, pictures in zip(values, views, strict=True):
            for row, start, end in zip(range(first, last), ends, ends[1:], strict=False):
                part = pictures[start:end]
                value[row] = with_own_storage(part) if isinstance(part, torch.Tensor) else part

    def _decoded(self, files: list[UInt8Array], request: Request) -> list[Any]:
        """Return all pictures of each view."""
        if not files:
            return [self._none(size) for size in self.pictures.sizes]
        # All at once; their numbers are those of samples.
        reader = replace(self.pictures, read_records=lambda name, rows: files, known=None)
        values = reader.begin(len(files), Memory())
        reader.read(values, request, 0, len(files))
        return reader.finish(values)

    def _none(self, size: tuple[int, int] | None) -> Any:
        if size is None:
            return []
        field = replace(self.pictures.field, size=size)
        return torch.from_numpy(np.empty((0, *(n or 0 for n in field.shape)), field.dtype))


def _of_pictures(request: Request, first: int, last: int, counts: list[int]) -> Request:
    """Return a request with a row for each picture, which draws as its sample does."""
    samples = np.repeat(np.arange(first, last), counts)
    return Request(
        request.plan,
        request.indices[samples],
        request.rows[samples],
        request.epoch,
        None if request.draws is None else request.draws[samples],
        request.seed,
        request.num_workers,
        first=request.first,
    )
