"""From the indices of a batch to the batch: what every backend does, wherever it does it.

Consecutive batches are a chunk, which is planned together: looking up many samples costs about as much as a few.
Planned between two batches, each would meet cold caches: copying or decoding a batch displaces the planner's code.
Small batches of a chunk are made and handed over together as well, as a hand-over takes tens of microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders.buffers import Memory, Slots
from loaders.datasets.base import index_array, reads_batches
from loaders.datasets.reading.job import BatchJob
from loaders.datasets.reading.request import ReadPlan, Request, SamplesReader
from loaders.datasets.reading.samples import SplitBatches, collate
from loaders.device.nested import map_tensors
from loaders.device.pinned import pinned
from loaders.errors import LoadersError
from loaders.sampling.batch import IndexBatch, is_several, reading
from loaders.workers import complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from loaders.datasets.base import BatchDataset
    from loaders.workers import Job

    Made = list[Any] | SplitBatches  # the batches of a group

_GROUP_BYTES = 8 << 20  # hand smaller batches over several at a time
_GROUP_BYTES_BETWEEN_PROCESSES = 16 << 20  # where handing over costs several times as much
_MAX_GROUP = 64
# Groups of which the trainer may keep batches; if there are more, each batch gets memory of its own.
MAX_KEPT = 4
_PLANNED_SAMPLES = 1024  # beside so many, the fixed cost of planning is small
_MAX_PLANNED = 8
_FIRST_TOGETHER = 4  # batches: the first one should not wait for many others


def group_bytes(backend: str) -> int:
    """Return how many bytes of small batches a backend hands over at once."""
    return _GROUP_BYTES_BETWEEN_PROCESSES if backend == "subprocess" else _GROUP_BYTES


@dataclass(slots=True)
class Maker:
    """Makes batches of a dataset."""

    dataset: Any  # any map-style dataset
    collate: Callable[[Any], Any]  # joins samples to a batch
    # Samples of a batch, or None where a batch sampler or single samples decide.
    batch_size: int | None
    has_batches: bool  # False where each index stands for a sample that is handed over alone
    num_workers: int  # how many threads share the work on a batch
    # Hand batches over in page-locked memory: that of slots, or torch's, which torch reuses only after the copies
    # that it started are done.
    pin: bool = False
    # Page-lock slots: for a loader that copies to a device, and holds each batch meanwhile.
    locks_slots: bool = False
    slots: Slots = field(default_factory=Slots)  # where batches go
    group_bytes: int = _GROUP_BYTES  # of small batches, to hand over at once
    # While a profile is on: returns a job that does the same, with its parts timed.
    watched: Callable[[Job], Job] | None = None
    # How many batches fit: handing over costs tens of microseconds or hundreds, whatever the size.
    group_size: int = field(init=False)
    # How many batches to plan at once: those that are handed over together, or some more.
    chunk_size: int = field(init=False)
    _batched: BatchDataset | None = field(init=False)  # the dataset, if it reads whole batches
    _call: ReadPlan = field(init=False)  # how its samples are read, if it does not

    def for_child(self) -> Maker:
        """Return a copy without what belongs to this process."""
        return replace(self, pin=False, locks_slots=False, slots=Slots(), watched=None)

    @property
    def num_replaced(self) -> int:
        """Samples that the dataset replaced."""
        return getattr(self.dataset, "num_replaced", 0)

    def job(self, indices: Any) -> Any:
        """Return the work of making a batch of indices, or of what ``plan`` returned; it ends with a list of it."""
        if self._batched is None:
            return BatchJob(Request(self._call, [indices]), self.slots, self._collated)
        return self._batched.job(indices, self.slots, max(1, self.num_workers), self._collated)

    def _collated(self, samples: Any) -> list[Any]:
        return [self.pinned(self.collate(samples))]

    def plan(self, batches: Sequence[Any]) -> Sequence[Any]:
        """Plan several batches together; return for each what ``job`` takes: its indices, if any batch is faulty."""
        # Without a view, nothing is found once for several.
        if self._batched is None or self._batched.plan.view is None or not is_several(batches):
            return batches
        try:
            request = self._batched.request(batches.joined, max(1, self.num_workers))
            return request.split(len(batches))
        except (IndexError, LoadersError, OSError):  # of one of them: it is raised in its turn
            return batches

    def make(self, indices: Any) -> Any:
        """Make one batch on this thread."""
        return complete(self.job(indices))[0]

    def make_group(self, batches: Sequence[Any]) -> Made | None:
        """Make several batches on this thread at once; None if they are to be made one by one.

        They share memory, which returns to its pool when the last of them is dropped.
        """
        dataset = self._batched
        # Nothing is copied where a device gathers.
        if dataset is None or not dataset.sample_nbytes or dataset.plan.unfinished is not None:
            return None
        indices, sizes = _joined(batches)
        batch = complete(dataset.job(indices, self.slots)).batch
        most = num_in_flight(self.num_workers, is_together=True) + MAX_KEPT
        made = SplitBatches(batch, sizes, is_copied=self.slots.num_leased > most)
        return list(map(self.pinned, made)) if self.pin else made

    def pinned(self, batch: Any) -> Any:
        """Return a batch in page-locked memory, if that is asked for: as it is where it lies in such a slot."""
        if not self.pin:
            return batch
        if hasattr(batch, "pin_memory") and not isinstance(batch, torch.Tensor):
            return batch.pin_memory()  # a type of the user's locks what it has
        return map_tensors(batch, pinned)

    def __post_init__(self) -> None:
        is_batched = self.has_batches and reads_batches(self.dataset)
        self._batched = self.dataset if is_batched else None
        self._call = ReadPlan(None, (CallReader(self.dataset, not self.has_batches),))
        self.group_size = self._group_size()
        num = 1
        if self._batched is not None:
            num = _PLANNED_SAMPLES // (self.batch_size or _PLANNED_SAMPLES)
        self.chunk_size = self.group_size if self.is_together else max(1, min(_MAX_PLANNED, num))

    @property
    def is_together(self) -> bool:
        """Whether the batches of a chunk are made and handed over at once."""
        return self.group_size > 1

    def _group_size(self) -> int:
        if self._batched is None or self.batch_size is None:
            return 1
        nbytes = self._batched.sample_nbytes
        if nbytes is None or self.collate is not collate:
            return 1
        return max(1, min(_MAX_GROUP, self.group_bytes // max(1, nbytes * self.batch_size)))


def _joined(batches: Sequence[Any]) -> tuple[Any, list[int]]:
    """Return the indices of several batches of an epoch end to end, and how many each has."""
    if is_several(batches):
        return batches.joined, [batches.indices.shape[1]] * len(batches)
    arrays = [index_array(batch) for batch in batches]
    indices, sizes = np.concatenate(arrays), list(map(len, arrays))
    if not all(isinstance(batch, IndexBatch) for batch in batches):
        return indices, sizes
    none = (np.zeros(size, np.int64) for size in sizes)
    draws = [n if b.draws is None else b.draws for b, n in zip(batches, none, strict=True)]
    first = batches[0]
    return IndexBatch(indices, first.epoch, np.concatenate(draws), None, first.seed), sizes


def num_in_flight(num_workers: int, *, is_together: bool) -> int:
    """Return how many batches to make ahead: two for all workers together; of chunks, one for each worker and two more.

    With one more only, the workers of a child process idle until its owner has taken a chunk and asks for the next.
    """
    return num_workers + 2 if is_together else 2


@dataclass(slots=True)
class Raised:
    """The error of a batch, in its place among the others."""

    error: BaseException


class Group:
    """The work of making small batches that are handed over together, on one thread."""

    num_parts = 1
    needs_prefetch = False

    def __init__(
        self,
        maker: Maker,
        batches: Sequence[Any],
        made: Made | None = None,  # what comes of them, if that is known: errors, say
    ) -> None:
        self._maker, self._batches, self._made = maker, batches, made
        self._at = 0  # how many were begun one by one

    def prefetch(self) -> None:
        """Do nothing: storage is asked as they are read."""

    def run(self, part: int) -> None:
        """Make them all; one that fails does not take the others with it."""
        try:
            self._made = self._made or self._maker.make_group(self._batches)
        except Exception:  # of one of them, or of more: one by one says which
            self._made = None
        if self._made is None:
            self._made = [self._one(batch) for batch in self._batches]

    def finish(self) -> Made:
        """Return them, and keep none: the traceback of an error among them may hold the job."""
        made, self._made = self._made, None
        assert made is not None
        return made

    def _one(self, batch: Any) -> Any:
        self._at += 1
        try:
            return self._maker.make(batch)
        except Exception as error:
            return Raised(error)

    def describe(self, part: int) -> str:
        at = max(self._at, 1)
        what = self._maker.job(self._batches[at - 1]).describe(0)
        return f"making batch {at} of {len(self._batches)} small ones: {what}"


@dataclass(frozen=True)
class CallReader(SamplesReader):
    """Samples of any map-style dataset: ``dataset[i]`` for each index of a batch, or for a single one."""

    dataset: Any  # a request's ``indices`` have one item: what the sampler gave
    is_single: bool  # it is one index, where there are no batches (``batch_size=None``)

    @property
    def what(self) -> str:  # type: ignore[override]
        return f"batch of {type(self.dataset).__name__}"

    def make(self, request: Request, memory: Memory) -> Any:
        """Return the samples, for a collate function to join, or the single one."""
        (indices,) = request.indices
        with reading(indices):
            if self.is_single:
                return self.dataset[indices]
            numbers, fetch = list(indices), getattr(self.dataset, "__getitems__", None)
            return fetch(numbers) if fetch else [self.dataset[i] for i in numbers]


class Chunk:
    """1 to 64 consecutive batches; one thread at a time asks for their jobs.

    With ``is_together`` all are made and handed over at once, in one turn; else each has a turn.
    """

    def __init__(self, batches: Sequence[Any], *, is_together: bool = False) -> None:
        self.batches, self.is_together = batches, is_together
        self._planned: Sequence[Any] | None = None

    @property
    def num_turns(self) -> int:
        """How often something of it is handed over."""
        return 1 if self.is_together else len(self.batches)

    def job(self, turn: int, maker: Maker) -> Job:
        """Return the work of making what is handed over in a turn."""
        job: Job
        if self.is_together:
            job = Group(maker, self.batches)
        else:
            if self._planned is None:
                self._planned = maker.plan(self.batches) if len(self.batches) > 1 else self.batches
            job = maker.job(self._planned[turn])
        return job if maker.watched is None else maker.watched(job)


def chunks(batches: Iterator[Any], size: int, *, is_together: bool = False) -> Iterator[Chunk]:
    """Cut indices into chunks of up to ``size`` batches; the first chunks are smaller.

    Indices come batch by batch, or many in one ``IndexBatch``. An error of theirs comes after the batches before it.
    """
    num = min(size, _FIRST_TOGETHER) if is_together else 1
    steps: Sequence[Any] = ()  # that came, and were not taken
    is_over = False
    failed: Exception | None = None
    while not is_over and failed is None:
        taken: list[Any] = []
        try:
            # By next(), not by a loop: some iterators begin anew whenever iter() is called on them.
            while len(taken) < num and not steps:
                batch = next(batches)
                if is_several(batch):
                    steps = batch
                else:
                    taken.append(batch)
        except StopIteration:
            is_over = True
        except Exception as error:
            failed = error
        if taken:
            yield Chunk(taken, is_together=is_together)
        elif steps:
            yield Chunk(steps[:num], is_together=is_together)
            steps = steps[num:]
        num = min(2 * num, size)
    try:
        if failed is not None:
            raise failed
    finally:
        del failed  # its traceback holds this frame: the two would keep the loader alive
