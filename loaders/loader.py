"""``DataLoader``: indices in, batches out; wires sampler, threads, slots and device together and owns their shutdown.

It is a ``torch.utils.data.DataLoader``. Datasets of this project are read by threads of this
process (``backend="thread"``), straight into reusable slots; everything else goes through torch's
own worker processes (``backend="process"``).
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import IterableDataset

from loaders.backends.maker import Maker
from loaders.backends.ordered import OrderedBatches
from loaders.backends.threads import InlineBatches, ThreadPool
from loaders.buffers import Slots
from loaders.datasets.base import BatchDataset
from loaders.datasets.samples import collate
from loaders.delivery import Delivery, LoaderBatches, Position
from loaders.errors import StateError
from loaders.sampling.blocks import BlockShuffled
from loaders.sampling.order import Order, Sequential, Shuffled
from loaders.sampling.sampler import EpochSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Backend = Literal["auto", "thread", "process"]
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
            batches = LoaderBatches(self.sampler, batch_size, drop_last=drop_last, pad=pad)
            batches.seed = seed
            object.__setattr__(self, "batch_sampler", batches)
        self._slots = Slots()
        self._stats = LoaderStats()
        self._position: Position | None = None
        self._batches: Callable[[], Any] = lambda: None  # those being served, while they are

    # -- iteration ---------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        """Begin (or, after ``load_state_dict``, continue) an epoch."""
        self._position = self._begin()
        batches = super().__iter__() if self.backend == "process" else self._start()
        self._batches = weakref.ref(batches)
        if self._position is not None:
            self._own_sampler().start = 0  # of the next iteration, unless told otherwise
        return Delivery(self, batches, self._position)

    def _start(self) -> InlineBatches | OrderedBatches:
        maker, indices = self._maker(), iter(self._index_sampler)
        if not self.num_workers:
            return InlineBatches(maker, indices)
        return OrderedBatches(
            ThreadPool(maker),
            indices,
            prefetch_batches=self.prefetch_batches,
            group_size=maker.group_size,
            timeout_s=self.timeout,
            stall_warning_s=self.stall_warning_s,
        )

    def _maker(self) -> Maker:
        return Maker(
            self.dataset,
            self.collate_fn,
            self.batch_size,
            self.batch_sampler is not None,
            self.num_workers,
            self.pin_memory and torch.cuda.is_available(),
            self._slots,
        )

    def _begin(self) -> Position | None:
        batches = self.batch_sampler
        return (
            Position(batches.sampler.epoch, batches.plan())
            if isinstance(batches, LoaderBatches)
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
        self._stats.num_ready = getattr(self._batches(), "num_ready", 0)
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
        if not isinstance(self.batch_sampler, LoaderBatches):
            raise StateError(
                "only batches of ours can be resumed: leave out sampler, batch_sampler and generator"
            )
        return self.batch_sampler.sampler


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
    if backend == "auto" and (needs_process or not isinstance(dataset, BatchDataset)):
        return "process"
    return "thread"


def _choose_workers(num_workers: int | Literal["auto"], dataset: Any) -> int:
    if num_workers != "auto":
        return num_workers
    if not isinstance(dataset, BatchDataset):
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
