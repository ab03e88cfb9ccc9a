"""Several datasets, read one by one: each reads its samples of a batch, which are put together in order."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from loaders.datasets.base import BatchDataset, from_start
from loaders.datasets.reading.job import BatchJob
from loaders.datasets.reading.request import ReadPlan
from loaders.datasets.reading.samples import (
    Padded,
    Ragged,
    SampleBatch,
    TransformedSamples,
    batch_type,
    in_form,
    item,
)
from loaders.errors import BatchError
from loaders.sampling.batch import IndexBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from loaders.buffers import Memory
    from loaders.data.store import Store
    from loaders.datasets.base import Collate

    Int64s = npt.NDArray[np.int64]


class Sources(BatchDataset):
    """The samples of several datasets, one after the other, whatever these are."""

    plan = ReadPlan(None, ())  # each source has its own

    def __init__(self, sources: Sequence[BatchDataset]) -> None:
        self.sources, self.device = sources, sources[0].device
        self._begins = np.cumsum([0, *map(len, sources)])

    def __len__(self) -> int:
        return int(self._begins[-1])

    @property
    def fingerprint(self) -> str:
        return " ".join(source.fingerprint for source in self.sources)

    @property
    def stores(self) -> tuple[Store, ...]:
        return tuple(store for source in self.sources for store in source.stores)

    @property
    def sample_nbytes(self) -> int | None:
        sizes: list[Any] = [source.sample_nbytes for source in self.sources]
        return None if None in sizes else max(sizes)

    def shards_read(self, indices: Int64s) -> tuple[Int64s, ...]:
        numbers = self._sources_of(indices)
        found: tuple[Int64s, ...] = ()
        for number, source in enumerate(self.sources):
            found += source.shards_read(indices[numbers == number] - self._begins[number])
        return found

    def _sources_of(self, indices: Int64s) -> Int64s:
        return np.searchsorted(self._begins, indices, "right") - 1

    def request(self, indices: Any, num_workers: int = 1) -> NoReturn:
        raise TypeError("each source has a request of its own: see job()")

    def job(
        self, indices: Any, memory: Memory, num_workers: int = 1, collate: Collate | None = None
    ) -> SourcesJob:
        batch = self.as_batch(indices)
        array = from_start(batch.indices, len(self), "sample")
        numbers, jobs, places = self._sources_of(array), [], []
        present = np.unique(numbers) if len(numbers) else np.zeros(1, np.int64)
        for number in present.tolist():
            rows, begin = np.flatnonzero(numbers == number), int(self._begins[number])
            draws = None if batch.draws is None else batch.draws[rows]
            own = IndexBatch(array[rows] - begin, batch.epoch, draws, None, batch.seed)
            # To begin a part holds the GIL: together they have as many as a batch of one dataset.
            share = -(-num_workers * len(rows) // max(1, len(array)))
            request = self.sources[number].request(own, max(1, share))
            jobs.append(BatchJob(replace(request, first=begin), memory))
            places.append(rows)
        return SourcesJob(jobs, places, memory, collate)

    @property
    def is_random(self) -> bool:
        return any(source.is_random for source in self.sources)

    @property
    def may_draw(self) -> bool:
        return any(source.may_draw for source in self.sources)

    @property
    def num_replaced(self) -> int:  # type: ignore[override]  # counted by the sources
        return sum(source.num_replaced for source in self.sources)


class SourcesJob:
    """The jobs of several sources, whose samples are put together in the order of the batch."""

    def __init__(
        self,
        jobs: Sequence[BatchJob],  # one a source
        rows: Sequence[Int64s],  # where in the batch the samples of each go
        memory: Memory,
        collate: Collate | None,
    ) -> None:
        self._jobs, self._rows, self._memory, self._collate = jobs, rows, memory, collate
        self._is_read = False
        self.num_parts = sum(job.num_parts for job in jobs)

    @property
    def needs_prefetch(self) -> bool:
        return any(job.needs_prefetch for job in self._jobs)

    def prefetch(self) -> None:
        """Have storage read the samples of all sources, without waiting for them; once."""
        for job in self._jobs:
            with suppress(Exception):  # reading raises it: the others are prefetched nevertheless
                job.prefetch()

    def run(self, part: int) -> None:
        self.prefetch()
        job, own = self._find(part)
        job.run(own)

    def _find(self, part: int) -> tuple[BatchJob, int]:
        """Return the job that a part belongs to, and its number there."""
        for job in self._jobs:
            if part < job.num_parts:
                return job, part
            part -= job.num_parts
        raise IndexError(f"there is no part {part}")

    def finish(self) -> Any:
        """Return the batch, or what is collated of it; a list of samples where a dataset has a transform."""
        samples = self._together([job.finish() for job in self._jobs])
        self._is_read = True
        return samples if self._collate is None else self._collate(samples)

    def describe(self, part: int) -> str:
        job, own = self._find(part)
        what = job.describe(own)
        return f"collating what came from {what}" if self._is_read else what

    def _together(self, read: list[Any]) -> Any:
        if not all(isinstance(samples, SampleBatch) for samples in read):
            of_transforms = (each for each in read if isinstance(each, TransformedSamples))
            return TransformedSamples(
                self._in_order([*map(list, read)]), next(of_transforms).forms
            )
        batches = [samples.batch for samples in read]
        if len(read) == 1:  # then the samples are in order
            return read[0]
        columns = {
            name: self._column(name, [getattr(batch, name) for batch in batches])
            for name in batches[0]._fields
        }
        whole = batch_type(batches[0]._fields)._make(columns.values())
        return SampleBatch(whole, sum(map(len, self._rows)))

    def _in_order(self, lists: list[list[Any]]) -> list[Any]:
        whole: list[Any] = [None] * sum(map(len, self._rows))
        for rows, values in zip(self._rows, lists, strict=True):
            for row, value in zip(rows.tolist(), values, strict=True):
                whole[row] = value
        return whole

    def _column(self, name: str, parts: list[Any]) -> Any:
        """Put the values of one field together, in the form that they have."""
        if all(isinstance(part, torch.Tensor) for part in parts):
            return self._tensor(name, parts)
        each = [
            [item(part, i) for i in range(len(rows))]
            for part, rows in zip(parts, self._rows, strict=True)
        ]
        values = self._in_order(each)
        forms = {part.form for part in parts if isinstance(part, Padded | Ragged)}
        is_joined = all(isinstance(part, Padded | Ragged) for part in parts)
        if is_joined and len({(form.kind, form.axis) for form in forms}) == 1:
            return in_form(values, parts[0].form, name)
        return values

    def _tensor(self, name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        """Copy rows to their places in one tensor, whose axes lie in memory as those of the parts."""
        self._check_alike(name, parts)
        first, num_rows = parts[0], sum(map(len, self._rows))
        axes = [0, *sorted(range(1, first.dim()), key=lambda axis: -first.stride()[axis])]
        shape = [num_rows, *(first.shape[axis] for axis in axes[1:])]
        if first.device.type == "cpu":
            nbytes = int(np.prod(shape)) * first.element_size()
            flat = torch.from_numpy(self._memory.take(f"{name} together", nbytes))
            whole = flat.view(first.dtype).view(shape)
        else:
            whole = torch.empty(shape, dtype=first.dtype, device=first.device)
        into = _as_bytes(whole)
        for rows, part in zip(self._rows, parts, strict=True):
            values = _as_bytes(part.permute(axes))
            if first.device.type == "cpu":  # where torch takes ten times as long
                into.numpy()[rows] = values.numpy()
            else:
                into.index_copy_(0, torch.from_numpy(rows).to(first.device), values)
        return whole.permute(np.argsort(axes).tolist())

    def _check_alike(self, name: str, parts: list[torch.Tensor]) -> None:
        for part, rows in zip(parts, self._rows, strict=True):
            if not part.dim() or len(part) != len(rows):
                raise BatchError(
                    f"field {name!r} has no row per sample, so batches of several sources cannot "
                    "have it: use Mixture(batch_from='one'), whose batches are of one source each"
                )
        kinds = [(tuple(part.shape[1:]), part.dtype) for part in parts]
        if len(set(kinds)) > 1:
            raise BatchError(
                f"samples of one batch differ in field {name!r}: {', '.join(map(str, kinds))}. "
                "Augment them to one size, or use Mixture(batch_from='one')"
            )


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of numbers of any kind: neither numpy nor ``index_copy_`` knows all of torch's."""
    return tensor.unsqueeze(-1).view(torch.uint8)
