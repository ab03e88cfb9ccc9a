"""``DataLoader``: indices in, batches out; wires sampler, threads, slots and device together and owns their shutdown.

It is a ``torch.utils.data.DataLoader``. Datasets of this project are read by threads of this
process (``backend="thread"``), straight into reusable slots; everything else goes through torch's
own worker processes (``backend="process"``).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import cv2
import torch
from torch.utils.data import IterableDataset

from loaders.buffers import Slots
from loaders.datasets.job import CallJob, OneSample
from loaders.datasets.packed import PackedDataset
from loaders.datasets.samples import collate
from loaders.errors import BatchError, StateError
from loaders.sampling.batch import IndexBatch, index_batches
from loaders.sampling.blocks import BlockShuffled
from loaders.sampling.order import Order, Sequential, Shuffled
from loaders.sampling.sampler import EpochBatches, EpochSampler
from loaders.workers import Job, Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from loaders.sampling.plan import Plan

logger = logging.getLogger(__name__)
Backend = Literal["auto", "thread", "process"]
_GROUP_BYTES = 4 << 20  # hand smaller batches over several at a time
_MAX_GROUP = 8
_SMALL_SAMPLE_BYTES = 16 << 10
_STATE_VERSION = 1


@dataclass(slots=True)
class LoaderStats:
    """Counters of a loader since it was made.

    Attributes:
        num_batches: Batches handed to the trainer.
        wait_s: Seconds that the trainer waited for them.
        num_replaced: Samples that ``on_error="replace"`` replaced.
        num_ready: Batches (or groups of small ones) that are ready now.
        slot_bytes: Memory of all batch slots.
    """

    num_batches: int = 0
    wait_s: float = 0.0
    num_replaced: int = 0
    num_ready: int = 0
    slot_bytes: int = 0


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Serve batches of a dataset, in an order that depends on the seed and the epoch alone.

    Takes what ``torch.utils.data.DataLoader`` takes; what differs or is new:

    Args:
        dataset: Any map-style or iterable dataset.
        batch_size: Samples per batch and rank.
        shuffle: True: a new order each epoch, a keyed permutation that is computed, never stored. ``"block"``:
            blocks of neighbours, mixed within a window, for disks that dislike random reads.
        sampler: Any sampler; ours (``loaders.sampling``) are sliced by rank and can be resumed.
        num_workers: Threads (or processes, see ``backend``). ``"auto"``: the cores that this
            process may use for our datasets, 0 for others.
        prefetch_factor: Batches in flight: with threads, of all of them together (default 2);
            with processes, of each.
        backend: ``"thread"``, ``"process"`` (torch's own workers), or ``"auto"``: threads for our
            datasets.
        device: Where batches are handed over, e.g. ``"cuda"``; None leaves them in host memory.
        seed: For the order and for augmentation.
        rank: This process among all that train; default: from ``torch.distributed``.
        world_size: How many train; default: from ``torch.distributed``.
        pad: At the end of an epoch without ``drop_last``: True wraps around so that all ranks
            have equal steps, False serves each sample exactly once, ``"mark"`` wraps and tells
            real rows by ``batch.valid``.
        as_dict: Hand over ``{field: values}`` instead of named tuples.
        stall_warning_s: Log what every worker is doing when a batch takes longer than this.

    Iterating begins the current epoch anew, or where ``load_state_dict`` says; a full pass
    advances the epoch.

    OpenCV's own threads are switched off for the whole process when threads are first used:
    workers are the threads.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | Literal["block"] | None = None,
        sampler: Iterable[Any] | Order | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = "auto",
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        backend: Backend = "auto",
        device: torch.device | str | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        pad: bool | Literal["mark"] = True,
        as_dict: bool = False,
        stall_warning_s: float = 60.0,
    ) -> None:
        process_only = {
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "persistent_workers": persistent_workers or None,
        }
        self.backend = _choose_backend(backend, dataset, process_only)
        self.device = None if device is None else torch.device(device)
        self.seed, self.rank, self.world_size, self.pad = seed, rank, world_size, pad
        self.as_dict, self.stall_warning_s = as_dict, stall_warning_s
        self.prefetch_batches = prefetch_factor or 2
        num_workers = _choose_workers(num_workers, dataset)
        ours = (
            batch_sampler is None
            and batch_size is not None
            and not isinstance(dataset, IterableDataset)
        )
        if ours and ((sampler is None and generator is None) or isinstance(sampler, Order)):
            order = _choose_order(len(dataset), shuffle, sampler, seed)
            sampler = EpochSampler(order, rank=rank, world_size=world_size, drop_last=drop_last)
            shuffle = None
        elif shuffle == "block":
            raise ValueError(
                "shuffle='block' is an order of ours: leave out sampler, batch_sampler and generator"
            )
        elif not isinstance(sampler, EpochSampler) and (rank, world_size) != (None, None):
            raise ValueError(
                "rank and world_size divide batches of ours: leave out sampler, batch_sampler and generator"
            )
        super().__init__(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,  # type: ignore[arg-type]  # an Order was replaced above
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn
            or (collate if batch_size is not None or batch_sampler is not None else None),
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if ours and isinstance(self.sampler, EpochSampler):
            assert batch_size is not None
            batches = _LoaderBatches(self.sampler, batch_size, drop_last=drop_last, pad=pad)
            batches.seed = seed
            object.__setattr__(self, "batch_sampler", batches)
        self._slots = Slots()
        self._stats = LoaderStats()
        self._position: _Position | None = None

    # -- iteration ---------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        """Begin (or, after ``load_state_dict``, continue) an epoch."""
        self._position = self._begin()
        batches = super().__iter__() if self.backend == "process" else self._batches()
        if self._position is not None:
            self._own_sampler().start = 0  # of the next iteration, unless told otherwise
        return _Delivery(self, batches, self._position)

    def _batches(self) -> Iterator[Any]:
        return _ThreadBatches(self) if self.num_workers else _InlineBatches(self)

    def _begin(self) -> _Position | None:
        batches = self.batch_sampler
        return (
            _Position(batches.sampler.epoch, batches.plan())
            if isinstance(batches, _LoaderBatches)
            else None
        )

    def check_worker_number_rationality(self) -> None:
        """Warn of more worker processes than cores; threads are cheap, and cannot freeze a machine."""
        if self.backend == "process":
            super().check_worker_number_rationality()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration serves; the current one keeps its position."""
        for part in (self.sampler, self.dataset):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        if self._position is not None and self._position.epoch != epoch:
            self._position = None

    def stats(self) -> LoaderStats:
        """Return the counters as they are now."""
        self._stats.slot_bytes = self._slots.nbytes
        self._stats.num_replaced = getattr(self.dataset, "num_replaced", 0)
        return self._stats

    # -- resume ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position: what was delivered, not what was prefetched. Primitives only, the same on every rank."""
        sampler = self._own_sampler().state_dict()
        if self._position is not None:
            sampler |= self._position.state_dict()
        return {
            "version": _STATE_VERSION,
            "dataset": getattr(self.dataset, "fingerprint", None),
            "sampler": sampler,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state at the next ``iter``; any world size, batch size and number of workers may do so.

        Raises:
            StateError: It is of another dataset, or another order of it.
        """
        fingerprint = getattr(self.dataset, "fingerprint", None)
        if state.get("version") != _STATE_VERSION:
            raise StateError(
                f"the state has version {state.get('version')!r}, this release reads {_STATE_VERSION}"
            )
        if state.get("dataset") != fingerprint:
            raise StateError(
                f"the state belongs to dataset {state.get('dataset')}, this one is {fingerprint}: "
                "it was packed, selected or split differently"
            )
        self._own_sampler().load_state_dict(state["sampler"])
        self._position = None

    def _own_sampler(self) -> EpochSampler:
        if not isinstance(self.batch_sampler, _LoaderBatches):
            raise StateError(
                "only batches of ours can be resumed: leave out sampler, batch_sampler and generator"
            )
        return self.batch_sampler.sampler


class _LoaderBatches(EpochBatches):
    """Batches for a loader, which itself counts what was delivered: prefetching takes more than that."""

    seed = 0

    def __iter__(self) -> Iterator[IndexBatch]:  # type: ignore[override]  # sequences, not lists
        return index_batches(self.sampler.order, self.plan(), self.sampler.epoch, self.seed)


@dataclass(slots=True)
class _Position:
    """How far the trainer has come in an epoch."""

    epoch: int
    plan: Plan
    num_steps: int = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "delivered": self.plan.delivered(self.num_steps)}

    def valid(self) -> torch.Tensor | None:
        """Tell which rows of the next batch are real, if that was asked for."""
        if self.plan.pad != "mark":
            return None
        valid = self.plan.positions(self.num_steps)[1]
        return None if valid is None else torch.from_numpy(valid)


class _Delivery:
    """Hands batches to the trainer in the form it wants, and counts what was handed over."""

    def __init__(
        self, loader: DataLoader, batches: Iterator[Any], position: _Position | None
    ) -> None:
        self._loader, self._batches, self._position = loader, batches, position

    def __iter__(self) -> _Delivery:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        stats = self._loader._stats
        began = time.perf_counter()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._end()
            raise
        stats.wait_s += time.perf_counter() - began
        stats.num_batches += 1
        valid = None
        if self._position is not None:
            valid = self._position.valid()
            self._position.num_steps += 1
        return self._finish(batch, valid)

    def _end(self) -> None:
        """A full pass advances the epoch, unless someone chose another one or began anew meanwhile."""
        loader, position = self._loader, self._position
        if position is not None and loader._position is position:
            loader._own_sampler().set_epoch(position.epoch + 1)
            loader._position = None

    def _finish(self, batch: Any, valid: torch.Tensor | None) -> Any:
        if self._loader.as_dict and hasattr(batch, "_asdict"):
            batch = batch._asdict()
        if self._loader.device is not None:
            batch = _to_device(batch, self._loader.device)
            valid = _to_device(valid, self._loader.device)
        return batch if valid is None else _marked(batch, valid)

    def close(self) -> None:
        """End the workers now; otherwise they end when this iterator is dropped."""
        if hasattr(self._batches, "close"):
            self._batches.close()


def _to_device(value: Any, device: torch.device) -> Any:
    """Move every tensor of a batch; lists, named tuples and mappings keep their form."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_to_device(v, device) for v in value))
    if isinstance(value, dict):
        return {name: _to_device(v, device) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_to_device(v, device) for v in value)
    return value


def _marked(batch: Any, valid: torch.Tensor) -> Any:
    """Tell real rows from padding: ``batch.valid``, or ``batch["valid"]`` in a mapping."""
    if isinstance(batch, dict):
        return batch | {"valid": valid}
    try:
        batch.valid = valid
    except AttributeError as error:
        what = f"pad='mark' has no place for its marks in a {type(batch).__name__}"
        raise BatchError(f"{what}: let collate_fn return a dict") from error
    return batch


class _InlineBatches:
    """The batches of one epoch, made on the trainer's own thread: the plain path, which threads must equal."""

    def __init__(self, loader: DataLoader) -> None:
        cv2.setNumThreads(1)
        self._loader, self._indices = loader, iter(loader._index_sampler)

    def __iter__(self) -> _InlineBatches:
        return self

    def __next__(self) -> Any:
        return _make(self._loader, next(self._indices))


class _ThreadBatches:
    """The batches of one epoch, made by threads."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._indices = iter(loader._index_sampler)
        self._group = _group_size(loader)
        self._ready: list[Any] = []
        self._workers = _start_workers(loader.num_workers)

    def __iter__(self) -> _ThreadBatches:
        return self

    def __next__(self) -> Any:
        if not self._ready:
            self._fill()
            if not len(self._workers):
                self.close()
                raise StopIteration
            self._ready = self._take()
            self._fill()
            self._loader._stats.num_ready = self._workers.num_ready
        return self._ready.pop()

    def _fill(self) -> None:
        """Keep as many jobs in flight as asked for, whatever the number of threads."""
        while len(self._workers) < self._loader.prefetch_batches:
            batches: list[Any] = []
            failed: Exception | None = None
            try:
                for batch in islice(self._indices, self._group):
                    batches.append(batch)  # noqa: PERF402  # keep those before an error
            except Exception as error:  # whatever it is: it comes after the batches before it
                self._indices, failed = iter(()), error
            if batches:
                self._workers.put(self._job(batches))
            if failed is not None:
                self._workers.put(_Failed(failed))
            if not batches:
                return

    def _job(self, batches: list[Any]) -> Job:
        return (
            _BatchOf(self._loader, batches[0])
            if self._group == 1
            else _Group(self._loader, batches)
        )

    def _take(self) -> list[Any]:
        loader = self._loader
        patience = loader.timeout or loader.stall_warning_s or None
        began = time.monotonic()
        while True:
            try:
                made = self._workers.take(timeout_s=patience)
                return [made] if self._group == 1 else made[::-1]
            except TimeoutError as error:
                if loader.timeout:
                    raise RuntimeError(
                        f"DataLoader timed out after {loader.timeout} seconds: {error}"
                    ) from None
                logger.warning("no batch for %.0f s: %s", time.monotonic() - began, error)

    def close(self) -> None:
        """End the threads."""
        self._workers.close()


class _BatchOf:
    """One batch: read, collated, pinned."""

    def __init__(self, loader: DataLoader, indices: Any) -> None:
        dataset = loader.dataset
        self._collate = loader.collate_fn
        self._pin = loader.pin_memory and torch.cuda.is_available()
        self._job: Job
        if loader.batch_sampler is None:
            self._job = OneSample(dataset, indices)
        elif isinstance(dataset, PackedDataset):
            self._job = dataset.job(indices, loader._slots, max(1, loader.num_workers))
        else:
            self._job = CallJob(dataset, indices)
        self.num_parts = self._job.num_parts
        self.run, self.describe = self._job.run, self._job.describe

    def finish(self) -> Any:
        batch = self._collate(self._job.finish())
        return torch.utils.data._utils.pin_memory.pin_memory(batch) if self._pin else batch


class _Failed:
    """A batch whose indices could not be had: the error waits for its turn."""

    num_parts = 1

    def __init__(self, error: Exception) -> None:
        self._error = error

    def run(self, part: int) -> None:
        raise self._error

    def finish(self) -> None:
        """Never called."""

    def describe(self, part: int) -> str:
        return "raising an error of the sampler"


class _Group:
    """Small batches that one thread makes from first to last, and that are handed over together."""

    num_parts = 1

    def __init__(self, loader: DataLoader, batches: list[Any]) -> None:
        self._loader, self._batches = loader, batches
        self._made: list[Any] = []

    def run(self, part: int) -> None:
        self._made = [_make(self._loader, batch) for batch in self._batches]

    def finish(self) -> list[Any]:
        return self._made

    def describe(self, part: int) -> str:
        return f"making {len(self._batches)} small batches"


def _make(loader: DataLoader, indices: Any) -> Any:
    """Make one batch on this thread."""
    job = _BatchOf(loader, indices)
    for part in range(job.num_parts):
        job.run(part)
    return job.finish()


def _group_size(loader: DataLoader) -> int:
    """Return how many batches to hand over at once: handing over costs tens of microseconds, whatever the size."""
    if not isinstance(loader.dataset, PackedDataset) or loader.batch_size is None:
        return 1
    nbytes = loader.dataset.sample_nbytes
    if nbytes is None or loader.collate_fn is not collate:
        return 1
    return max(1, min(_MAX_GROUP, _GROUP_BYTES // max(1, nbytes * loader.batch_size)))


def _start_workers(num_workers: int) -> Workers:
    """Start threads that each use one core, and leave the caller's own setting as it was."""
    cv2.setNumThreads(1)
    num_threads = torch.get_num_threads()
    barrier = threading.Barrier(num_workers + 1)

    def prepare() -> None:
        torch.set_num_threads(1)  # of this thread; and of threads to come, which is undone below
        torch.get_num_threads()  # makes it last: a thread's first operation else takes the count of all
        barrier.wait(timeout=60)

    workers = Workers(num_workers, prepare=prepare)
    barrier.wait(timeout=60)
    torch.set_num_threads(num_threads)
    return workers


def _choose_order(length: int, shuffle: bool | str | None, sampler: Any, seed: int) -> Order:
    """Return the order that the arguments ask for."""
    if sampler is not None:
        if shuffle:
            raise ValueError(f"{type(sampler).__name__} is an order of its own: leave out shuffle")
        return sampler  # type: ignore[no-any-return]
    if shuffle == "block":
        return BlockShuffled(length, seed)
    return Shuffled(length, seed) if shuffle else Sequential(length)


def _choose_backend(backend: Backend, dataset: Any, process_only: dict[str, Any]) -> str:
    if backend not in ("auto", "thread", "process"):
        raise ValueError(f"backend must be 'auto', 'thread' or 'process', got {backend!r}")
    if backend == "process" or isinstance(dataset, IterableDataset):
        if backend == "thread":
            raise ValueError(
                "an iterable dataset cannot be shared by threads: leave backend='auto'"
            )
        return "process"
    needs_process = [name for name, value in process_only.items() if value is not None]
    if backend == "thread" and needs_process:
        raise ValueError(
            f"{needs_process[0]} is for worker processes: leave it out, or use backend='process'"
        )
    if backend == "auto" and (needs_process or not isinstance(dataset, PackedDataset)):
        return "process"
    return "thread"


def _choose_workers(num_workers: int | Literal["auto"], dataset: Any) -> int:
    if num_workers != "auto":
        return num_workers
    if not isinstance(dataset, PackedDataset):
        return 0
    nbytes = dataset.sample_nbytes
    if nbytes is not None and nbytes < _SMALL_SAMPLE_BYTES:
        return 1  # copying small rows takes less than handing them over: more threads only compete
    return usable_cores()


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
