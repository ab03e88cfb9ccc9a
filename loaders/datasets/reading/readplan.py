"""What stands between a dataset and its jobs: where the samples are, and how they become a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from loaders.buffers import SMALL_BYTES
from loaders.datasets.reading.samples import SplitBatches
from loaders.datasets.replaced import BadSamples
from loaders.errors import LoadersError, SampleError, ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt
    import torch

    from loaders.data.finder import Rows
    from loaders.data.view import View
    from loaders.datasets.reading.request import Memory, Reader, Request
    from loaders.datasets.reading.samples import Form
    from loaders.datasets.reading.transforming import Transforming

    Indices = npt.NDArray[np.int64]
ALL_ROWS = 1 << 30  # ``min_rows`` of what one thread reads


@dataclass(frozen=True)
class ReadPlan:
    """How the samples of a view become batches. It never changes; what it counts is beside it.

    Attributes:
        view: The samples, where they are of packed columns: one that cannot be read is named, or replaced.
        readers: Of each field; or one that returns samples. Without a view the first says what it reads.
        forms: By the names of a sample, how arrays of varying length are joined that a transform made.
        transforming: The user's function of samples.
        is_replacing: Whether another sample stands for one that cannot be read; else it is an error.
        part_ends: The sample behind the last one of each part, where samples are replaced by those of their own.
        bad: The samples that were replaced.
        unfinished: Makes of a batch, and the request it came of, what a device finishes; None leaves the batch.
        fields: Names of the fields that are read of the view.
    """

    view: View | None
    readers: tuple[Reader, ...]
    forms: Mapping[str, Form] = field(default_factory=dict)
    transforming: Transforming | None = None
    is_replacing: bool = False
    part_ends: Indices | None = None
    bad: BadSamples = field(default_factory=BadSamples)
    unfinished: Callable[[Any, Request], Any] | None = None
    fields: tuple[str, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the values of a batch."""
        return tuple(name for reader in self.readers for name in reader.names)

    @cached_property
    def returns_samples(self) -> bool:
        """Whether the reader returns samples, and not the values of fields."""
        return bool(self.readers) and not self.names

    @cached_property
    def sample_nbytes(self) -> int | None:
        """Bytes of a sample whose fields are all copied as they are, else None."""
        copied = [_copied_nbytes(reader) for reader in self.readers]
        known = [nbytes for nbytes in copied if nbytes is not None]
        return None if len(known) < len(copied) or self.transforming is not None else sum(known)

    # -- sharing the work --------------------------------------------------------------------------

    def part_rows(self, num_samples: int, num_workers: int) -> int:
        """Return how many samples are worth a part of a batch."""
        if num_workers == 1:
            return num_samples
        share = -(-num_samples // num_workers)
        half = -(-share // 2)
        # To begin a part holds the GIL as long as two JPEGs do, which matters where many threads want it.
        is_large = half >= num_workers // 2
        # Copying takes each worker equally long. Decoding does not: of two parts a worker, the last ones end close
        # together, and the next batch is already begun.
        return max(self.min_rows, half if self.sample_nbytes is None and is_large else share)

    @cached_property
    def min_rows(self) -> int:
        """How many samples are worth a thread."""
        return min((reader.min_rows for reader in self.readers), default=ALL_ROWS)

    @cached_property
    def most_read_last(self) -> list[int]:
        """By reader: up to how many rows are read at once when a batch is done, and not in the parts of its threads."""
        copied = map(_copied_nbytes, self.readers)
        return [SMALL_BYTES // nbytes if nbytes else 0 for nbytes in copied]

    def read_together(
        self, request: Request, sizes: list[int], memory: Memory
    ) -> SplitBatches | None:
        """Return several batches, gathered at once, if all fields are only copied; they share memory."""
        # None are copied where the device gathers.
        if not self.sample_nbytes or self.unfinished is not None:
            return None
        tensors: list[torch.Tensor] = []
        self.prefetch(request)
        for reader in self.readers:
            tensors += read_all(reader, request, memory)
        return SplitBatches(self.names, tensors, sizes)

    # -- storage -----------------------------------------------------------------------------------

    @cached_property
    def _prefetched(self) -> list[str]:
        named = (reader.prefetched_field for reader in self.readers)
        return [name for name in named if name is not None]

    def needs_prefetch(self, request: Request) -> bool:
        """Return True if some of the samples were not prefetched yet."""
        if self.view is None:
            return any(part.request.plan.needs_prefetch(part.request) for part in request.parts)
        store, rows = self.view.store, request.rows
        return any(store.needs_prefetch(name, rows) for name in self._prefetched)

    def prefetch(self, request: Request) -> None:
        """Have storage read the samples, without waiting for them."""
        for part in request.parts:
            with suppress(
                Exception
            ):  # reading it raises it: the others are prefetched nevertheless
                part.request.plan.prefetch(part.request)
        if self.view is not None:
            for name in self._prefetched:
                self.view.store.prefetch(name, request.rows)

    def is_settled(self, request: Request) -> bool:
        """Return True if the samples stay in memory and are verified: reading them does not wait."""
        if self.view is None:
            return False
        store, rows = self.view.store, request.rows
        return all(store.is_settled(name, rows) for name in self.fields)

    @property
    def _samples(self) -> View:
        assert self.view is not None
        return self.view

    def rows_of(self, indices: Indices) -> Rows:
        """Find samples in the store."""
        return self._samples.rows(indices)

    # -- errors ------------------------------------------------------------------------------------

    def sample_error(self, index: int, what: str | LoadersError) -> SampleError:
        """Return the error of a sample that cannot be served, with its place and key."""
        path, row = self._samples.place(index)
        told = what.beside(path, row) if isinstance(what, ShardError) else str(what)
        error = SampleError(told, index, path, row, self._samples.key(index))
        error.__cause__ = what if isinstance(what, LoadersError) else None
        return error

    def count_replaced(self, error: SampleError) -> None:
        """Count a sample that was replaced; too many are an error."""
        self.bad.note(error, len(self._samples))

    def part_with(self, index: int) -> tuple[int, int]:
        """Return the first sample, and the number of samples, that may stand for another one."""
        if self.part_ends is None:
            return 0, len(self._samples)
        part = int(np.searchsorted(self.part_ends, index, "right"))
        first = int(self.part_ends[part - 1]) if part else 0
        return first, int(self.part_ends[part]) - first


def _copied_nbytes(reader: Reader) -> int | None:
    """Return the bytes of each row that a reader copies as it is; None if it decodes."""
    return getattr(reader, "nbytes", None)


def read_all(reader: Reader, request: Request, memory: Memory) -> list[Any]:
    """Return the values of a field of all samples."""
    values = reader.begin(len(request), memory)
    reader.read(values, request, 0, len(request))
    return reader.finish(values)


class SamplesReader(ABC):
    """Reads whole samples instead of the values of a field, by one call on one thread."""

    names: ClassVar[tuple[str, ...]] = ()
    min_rows: ClassVar[int] = ALL_ROWS
    prefetched_field: ClassVar[None] = None

    @abstractmethod
    def make(self, request: Request, memory: Memory) -> Any:
        """Return the samples."""

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        """Keep the memory."""
        return [None, memory]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        """Make the samples."""
        values[0] = self.make(request, values[1])

    def finish(self, values: list[Any]) -> list[Any]:
        """Return the samples, and keep none: the traceback of an error among them may hold the job."""
        made, values[0] = values[0], None
        return [made]

    @abstractmethod
    def describe(self, values: Any, request: Request, first: int, last: int) -> str:
        """Say what is made."""
