"""A batch as a job: parts that any thread can run, and the batch at the end."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.datasets.reading.samples import (
    LIST,
    SampleBatch,
    TransformedSamples,
    batch_type,
    sample_of,
)
from loaders.errors import CacheError, LoadersError, RemoteError
from loaders.rng import hash64, key64
from loaders.workers import begin_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.buffers import Memory
    from loaders.datasets.reading.request import Request
    from loaders.datasets.reading.transforming import Transforming

_MAX_REPLACEMENTS = 32


class BatchJob:
    """Reads the samples of a request into memory; ``collate`` (None: nothing) says what is made of them at the end."""

    def __init__(
        self, request: Request, memory: Memory, collate: Callable[[Any], Any] | None = None
    ) -> None:
        plan = self.plan = request.plan
        self.request, self._memory, self._collate = request, memory, collate
        self._is_read = False
        n = len(request)
        self._values: list[list[Any]] | None = None
        self._lock = threading.Lock()
        self._part_rows = plan.part_rows(n, request.num_workers)
        self.num_parts = max(1, -(-n // max(1, self._part_rows)))
        self._transformed: list[Any] = [None] * n if plan.transforming is not None else []
        self._equal = [name for name, form in plan.forms.items() if form.kind == "equal"]
        self._made: set[str] = set()  # of these, what the transform did not leave as it was
        # By its first row: the sample of a part that is being transformed.
        self._at: dict[int, int] = {}
        self._num_replaced: dict[int, int] = {}  # by position: how often its sample was
        self.needs_prefetch = plan.needs_prefetch(request)

    def prefetch(self) -> None:
        """Have storage read the samples, without waiting for them; once."""
        if self.needs_prefetch:
            self.needs_prefetch = False
            self.plan.prefetch(self.request)

    def run(self, part: int) -> None:
        """Read one range of samples, on any thread; bad ones are replaced if the dataset says so."""
        first, last = self._rows(part)
        try:
            self.prefetch()
            self._read(first, last)
        except LoadersError:  # of one of them, or of more: one by one says which
            if self.plan.view is None:
                raise
            for position in range(first, last):
                self._read_one(position)
        if self.plan.transforming is not None:
            with self.plan.transforming.process_kept():
                self._transform(self.plan.transforming, first, last)

    def _rows(self, part: int) -> tuple[int, int]:
        first = part * self._part_rows
        return first, min(first + self._part_rows, len(self.request))

    def _begin(self) -> list[list[Any]]:
        """Take memory when the work begins: by then an earlier batch may have given its own back."""
        if self._values is not None:
            return self._values
        with self._lock:
            if self._values is None:
                n = len(self.request)
                self._values = [reader.begin(n, self._memory) for reader in self.plan.readers]
            return self._values

    def _read(self, first: int, last: int) -> None:
        for reader, values in zip(self.plan.readers, self._begin(), strict=True):
            reader.read(values, self.request, first, last)

    def _read_one(self, position: int) -> None:
        """Read a sample, or say what is wrong with it, or read another in its place."""
        index = -1
        for attempt in range(self._num_replaced.get(position, 0), _MAX_REPLACEMENTS):
            try:
                return self._read(position, position + 1)
            except LoadersError as cause:
                index = int(self.request.indices[position])
                # No name for the error: its traceback holds this frame, and the two would keep the loader alive.
                # A store that does not answer has no bad samples.
                if not self.plan.is_replacing or isinstance(cause, RemoteError | CacheError):
                    raise self.plan.samples.sample_error(index, cause) from cause
                others = self.plan.bad.others(index, len(self.plan.samples))
                self.plan.bad.note(self.plan.samples.sample_error(index, cause), others)
            with self._lock:  # other threads replace samples of the same request
                self._replace(position, attempt, others)
        raise self.plan.samples.sample_error(
            index, "it was chosen to replace a bad sample, and is bad too"
        )

    def _replace(self, position: int, attempt: int, others: range) -> None:
        """Replace a sample by one of ``others``: the same one in every run, and another at each attempt."""
        request = self.request
        draw = 0 if request.draws is None else int(request.draws[position])
        key = key64(request.seed, request.epoch, draw, attempt, 0x5EED)
        number = hash64(key, request.numbers[position : position + 1])[0]
        indices = request.indices.copy()
        indices[position] = others[int(number % np.uint64(len(others)))]
        rows = self.plan.samples.rows(indices)
        self.request = replace(request, indices=indices, rows=rows, whole=None)
        self._num_replaced[position] = attempt + 1

    def _transform(self, transform: Transforming, first: int, last: int) -> None:
        batch = self._batch()  # other threads may still be reading its other rows
        request, rows = self.request, slice(first, last)
        numbers, draws = request.numbers[rows], request.draws_of(rows)
        seeds = transform.seeds(request.seed, request.epoch, numbers, draws)
        for i, seed in enumerate(seeds, first):
            self._at[first] = i
            begin_step()
            sample = sample_of(batch, i)
            try:
                made = self._transformed[i] = transform(sample, seed)
            except Exception as error:
                index = int(self.request.indices[i])
                error.add_note(str(self.plan.samples.sample_error(index, "in its transform")))
                raise
            for name in self._equal:
                if getattr(made, name, None) is not getattr(sample, name):
                    self._made.add(name)
        self._at.pop(first, None)  # a part of no samples has none
        begin_step()

    def _batch(self) -> Any:
        parts: list[Any] = []
        for reader, values in zip(self.plan.readers, self._begin(), strict=True):
            parts += reader.finish(values)
        return parts[0] if self.plan.returns_samples else batch_type(self.plan.names)._make(parts)

    def finish(self) -> Any:
        """Return the batch."""
        samples = self._samples()
        if self._collate is None:
            return samples
        self._is_read = True
        return self._collate(samples)

    def _samples(self) -> Any:
        """Return what was read; transformed samples as a list, for a collate function to join."""
        if self.plan.transforming is not None:
            as_stored = {name: LIST for name in self._equal if name not in self._made}
            return TransformedSamples(self._transformed, {**self.plan.forms, **as_stored})
        batch = self._batch()
        if self.plan.returns_samples:
            return batch
        if self.plan.unfinished is not None:
            batch = self.plan.unfinished(batch, self.request)
        return SampleBatch(batch, len(self.request))

    def describe(self, part: int) -> str:
        """Say what a part is doing, and with which samples."""
        what = self._describe_rows(*self._rows(part))
        return f"collating what came from {what}" if self._is_read else what

    def _describe_rows(self, first: int, last: int) -> str:
        if self.plan.view is None:
            return f"reading {last - first} {self.plan.readers[0].what}"
        position = self._at.get(first)
        if position is not None:
            return f"transforming {self._place(position)}"
        what = f"reading and decoding {last - first} samples from {self._place(first)} on"
        return "; ".join([what, *self.plan.view.store.waits()])

    def _place(self, position: int) -> str:
        # No key: it is read, and a report never waits for a stalled disk.
        path, row = self.plan.samples.place(int(self.request.indices[position]))
        return f"{path}, row {row}"
