"""Several datasets, read one by one: each reads its samples of a batch, which are put together in order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders.datasets.base import BatchDataset, from_start, index_array
from loaders.datasets.reading.job import BatchJob
from loaders.datasets.reading.request import Reader, ReadPlan, Request, SourcePart
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
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from loaders.buffers import Memory
    from loaders.data.store import Store

    Int64s = npt.NDArray[np.int64]


class Sources(BatchDataset):
    """The samples of several datasets, one after the other, whatever these are."""

    def __init__(self, sources: Sequence[BatchDataset]) -> None:
        self.sources, self.device = sources, sources[0].device
        self._begins = np.cumsum([0, *map(len, sources)])
        self.plan = ReadPlan(None, (SourcesReader(sources),))

    def __len__(self) -> int:
        return int(self._begins[-1])

    @property
    def fingerprint(self) -> str:
        return " ".join(source.fingerprint for source in self.sources)

    @property
    def stores(self) -> tuple[Store, ...]:
        return tuple(store for source in self.sources for store in source.stores)

    def shards_read(self, indices: Int64s) -> tuple[Int64s, ...]:
        numbers = self._sources_of(indices)
        found: tuple[Int64s, ...] = ()
        for number, source in enumerate(self.sources):
            found += source.shards_read(indices[numbers == number] - self._begins[number])
        return found

    def _sources_of(self, indices: Int64s) -> Int64s:
        return np.searchsorted(self._begins, indices, "right") - 1

    def request(self, indices: Any, num_workers: int = 1) -> Request:
        array = from_start(index_array(indices), len(self), "sample")
        if isinstance(indices, IndexBatch):
            seed, epoch, draws = indices.seed, indices.epoch, indices.draws
        else:
            seed, epoch, draws = self._drawing_of(indices)
        numbers, parts = self._sources_of(array), []
        present = np.unique(numbers) if len(numbers) else np.zeros(1, np.int64)
        for number in present.tolist():
            rows, begin = np.flatnonzero(numbers == number), int(self._begins[number])
            drawn = None if draws is None else draws[rows]
            own = IndexBatch(array[rows] - begin, epoch, drawn, None, seed)
            request = self.sources[number].request(own, num_workers)
            parts.append(SourcePart(replace(request, first=begin), rows))
        return Request(self.plan, array, num_workers=num_workers, parts=parts)

    @property
    def is_random(self) -> bool:
        return any(source.is_random for source in self.sources)

    @property
    def may_draw(self) -> bool:
        return any(source.may_draw for source in self.sources)

    @property
    def num_replaced(self) -> int:  # type: ignore[override]  # counted by the sources
        return sum(source.num_replaced for source in self.sources)


class SourcesReader(Reader):
    """Reads the samples of each source by its own plan; a batch has them source after source."""

    names = ()
    prefetched_field = None
    what = "samples of a mixture"

    def __init__(self, sources: Sequence[BatchDataset]) -> None:
        self._sources = sources

    @property
    def min_rows(self) -> int:
        return min(source.plan.min_rows for source in self._sources)

    @property
    def nbytes(self) -> int | None:
        sizes = [source.sample_nbytes for source in self._sources]
        known = [size for size in sizes if size is not None]
        return max(known) if len(known) == len(sizes) else None

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        """Return a list of jobs, which is filled when the request is known."""
        return [[], memory]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        """Have each source read its share of a range of rows."""
        with request.lock:
            if not values[0]:
                values[0] += [(part, _job(part, values[1])) for part in request.parts]
        for job, begin, end in _within(values[0], first, last):
            job.read(begin, end)

    def finish(self, values: list[Any]) -> list[Any]:
        """Return the samples: a batch, or a list of them where a dataset has a transform."""
        parts, read = [part for part, _ in values[0]], [job.finish() for _, job in values[0]]
        return [_Interleaving(parts, values[1]).samples(read)]


def _job(part: SourcePart, memory: Memory) -> BatchJob:
    job = BatchJob(part.request, memory)
    job.needs_prefetch = False  # that was done for all sources
    return job


def _within(
    jobs: Sequence[tuple[SourcePart, BatchJob]], first: int, last: int
) -> Iterator[tuple[BatchJob, int, int]]:
    """Yield the jobs that a range of rows belongs to, and their shares of it."""
    start = 0
    for part, job in jobs:
        end = start + len(part.rows)
        if (start < last and first < end) or first == last:
            yield job, max(first, start) - start, min(last, end) - start
        start = end


class _Interleaving:
    """Puts together what several sources have read of a batch."""

    def __init__(self, parts: Sequence[SourcePart], memory: Memory) -> None:
        self._rows = [part.rows for part in parts]
        self._memory = memory

    def samples(self, read: list[Any]) -> Any:
        """Return the batch; as a list of samples where a dataset has a transform."""
        if not all(isinstance(samples, SampleBatch) for samples in read):
            return self._samples(read)
        batches = [samples.batch for samples in read]
        if len(read) == 1:  # then the samples are in order
            return read[0]
        columns = {
            name: self._column(name, [getattr(batch, name) for batch in batches])
            for name in batches[0]._fields
        }
        whole = batch_type(batches[0]._fields)._make(columns.values())
        return SampleBatch(whole, sum(map(len, self._rows)))

    def _samples(self, read: list[Any]) -> TransformedSamples:
        whole = self._in_order([list(samples) for samples in read])
        forms = next(samples.forms for samples in read if isinstance(samples, TransformedSamples))
        return TransformedSamples(whole, forms)

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
        whole = self._empty(name, shape, first)
        into = _as_bytes(whole)
        for rows, part in zip(self._rows, parts, strict=True):
            values = _as_bytes(part.permute(axes))
            if first.device.type == "cpu":  # where torch takes ten times as long
                into.numpy()[rows] = values.numpy()
            else:
                into.index_copy_(0, torch.from_numpy(rows).to(first.device), values)
        return whole.permute(np.argsort(axes).tolist())

    def _empty(self, name: str, shape: list[int], like: torch.Tensor) -> torch.Tensor:
        if like.device.type != "cpu":
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        nbytes = int(np.prod(shape)) * like.element_size()
        flat = torch.from_numpy(self._memory.take(f"{name} together", nbytes))
        return flat.view(like.dtype).view(shape)

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
