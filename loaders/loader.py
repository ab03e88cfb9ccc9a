"""``DataLoader``: indices in, batches out; wires sampler, threads, slots and device together and owns their shutdown.

It is a ``torch.utils.data.DataLoader``. Datasets of this project are read by threads of this
process (``backend="thread"``), straight into reusable slots; everything else goes through torch's
own worker processes (``backend="process"``).
"""

from __future__ import annotations

import os
import warnings
import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy.random  # noqa: F401  # torch seeds it in each worker process: imported here, once, and not there
import torch
from torch.utils.data import IterableDataset

from loaders.backends.auto import AutoPool, can_fork
from loaders.backends.maker import Maker
from loaders.backends.ordered import OrderedBatches
from loaders.backends.subprocess import ChildPool
from loaders.backends.threads import InlineBatches, ThreadPool
from loaders.buffers import Slots
from loaders.datasets.base import BatchDataset
from loaders.datasets.moving import MovingHalf
from loaders.datasets.packed import PackedDataset
from loaders.datasets.samples import collate, collate_dict
from loaders.datasets.views import as_ours
from loaders.delivery import Delivery, LoaderBatches, Position
from loaders.device.accelerator import accelerator_for, pins
from loaders.device.pinned import pinned_buffer
from loaders.device.ranks import shared_device
from loaders.errors import StateError
from loaders.live import register
from loaders.profiling import profile_from_environment
from loaders.sampling.blocks import BlockShuffled
from loaders.sampling.order import Order, Sequential, Shuffled
from loaders.sampling.sampler import EpochSampler
from loaders.tuning import read_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loaders.backends.ordered import Pool
    from loaders.device.accelerator import Accelerator

Backend = Literal["auto", "thread", "subprocess", "process"]
_SMALL_SAMPLE_BYTES = 16 << 10
_STATE_VERSION = 1
_NOT_PICKLED = frozenset(
    ["_accelerator", "_batches", "_delivery", "_iterator", "_served", "_slots", "finisher"]
)


@dataclass(slots=True)
class LoaderStats:
    """Counters of a loader since it was made.

    Attributes:
        num_batches: Batches handed to the trainer.
        wait_s: Seconds that the trainer waited for them.
        num_replaced: Samples that ``on_error="replace"`` replaced; with ``backend="process"`` the workers
            log them, but count for themselves.
        num_ready: Batches (or groups of small ones) that are ready now.
        slot_bytes: Memory of all batch slots; page-locked where batches go to a device.
        device_bytes: Device memory of the batches that were copied ahead and not handed over yet.
    """

    num_batches: int = 0
    wait_s: float = 0.0
    num_replaced: int = 0
    num_ready: int = 0
    slot_bytes: int = 0
    device_bytes: int = 0


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Serve batches of a dataset, in an order that depends on the seed and the epoch alone.

    Takes what ``torch.utils.data.DataLoader`` takes; what differs or is new:

    Args:
        dataset: Any map-style or iterable dataset. Torch's ``Subset`` and ``ConcatDataset`` of our
            datasets become views of ours.
        batch_size: Samples per batch and rank.
        shuffle: True: a new order each epoch, a keyed permutation that is computed, never stored. ``"block"``:
            blocks of neighbours, mixed within a window, for disks that dislike random reads.
        sampler: Any sampler; ours (``loaders.sampling``) are sliced by rank and can be resumed.
        num_workers: Threads (or processes, see ``backend``). ``"auto"``: for our datasets what
            ``python -m loaders.bench recommend`` measured, else the cores that this process may use; 0 for others.
        prefetch_factor: Batches in flight: with threads, of all of them together (default 2);
            with processes, of each.
        backend: ``"thread"``; ``"subprocess"``: the same threads in one child process, for a
            training step of many small operations, which would wait for the interpreter;
            ``"process"``: torch's own workers; ``"auto"``: threads for our datasets, and a child
            process from when such a step is seen.
        device: Where batches are handed over, e.g. ``"cuda"``: copied from page-locked slots on a
            stream of their own, for use on the current stream; None leaves them in host memory.
        device_prefetch: How many batches may be copied ahead of being asked for; ``stats()`` has
            their bytes.
        augment_on: Where crops, resizes and flips are carried out; they are drawn alike. ``"auto"``: on the
            device for codecs that are finished there (``dct``, ``yuv420``), else on the host;
            ``"device"``: there also for pixels (``raw``) of one size, within one step of uint8.
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
        device_prefetch: int = 2,
        augment_on: Literal["auto", "host", "device"] = "auto",
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        pad: bool | Literal["mark"] = True,
        as_dict: bool = False,
        stall_warning_s: float = 60.0,
    ) -> None:
        dataset = as_ours(dataset)
        if isinstance(dataset, str | os.PathLike):
            raise TypeError(
                f"dataset must be a dataset, got {dataset!r}: is it ShardDataset({str(dataset)!r})?"
            )
        process_only = {
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "persistent_workers": persistent_workers or None,
        }
        self._may_fork = backend == "auto" and getattr(dataset, "device", None) is None
        self.backend = _choose_backend(backend, dataset, process_only)
        self.device = None if device is None else torch.device(device)
        self.device_prefetch = _checked_prefetch(device_prefetch)
        if augment_on not in ("auto", "host", "device"):
            raise ValueError(f"augment_on must be 'auto', 'host' or 'device', got {augment_on!r}")
        self.augment_on = augment_on
        if pins(self.device) and self.backend == "process":
            pin_memory = True  # else each copy would wait for the one before
        self.seed, self.rank, self.world_size, self.pad = seed, rank, world_size, pad
        self.as_dict, self.stall_warning_s = as_dict, stall_warning_s
        self.prefetch_batches = prefetch_factor or 2
        # Threads are lenient: num_workers=0 is for debugging, and shall not need other arguments removed.
        is_strict = self.backend == "process" and num_workers != "auto"
        num_workers = _choose_workers(num_workers, dataset)
        ours = (
            batch_sampler is None
            and batch_size is not None
            and not isinstance(dataset, IterableDataset)
        )
        if ours and ((sampler is None and generator is None) or isinstance(sampler, Order)):
            order = _choose_order(dataset, batch_size or 1, shuffle, sampler, seed)
            sampler = EpochSampler(
                order, rank=rank, world_size=world_size, drop_last=drop_last, pad=pad
            )
            shuffle = None
        elif shuffle == "block":
            raise ValueError(
                "shuffle='block' is an order of ours: leave out sampler, batch_sampler and generator"
            )
        elif (rank, world_size) != (None, None) and not _is_divided(sampler, batch_sampler):
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
            prefetch_factor=prefetch_factor if num_workers or is_strict else None,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if ours and isinstance(self.sampler, EpochSampler):
            assert batch_size is not None
            batches = LoaderBatches(self.sampler, batch_size, drop_last=drop_last, pad=pad)
            batches.seed = seed
            object.__setattr__(self, "batch_sampler", batches)
        self._collate = self.collate_fn
        if collate_fn is collate_dict or (as_dict and self.collate_fn is collate):
            # Frameworks that make a loader of their own from this one read collate_fn, not as_dict.
            self.as_dict, self.collate_fn, self._collate = True, collate_dict, collate
        # accelerate leaves a loader alone that is divided by rank already, and keeps its state with its own.
        self._is_accelerate_prepared = isinstance(self.batch_sampler, LoaderBatches)
        self.use_stateful_dataloader = self._is_accelerate_prepared
        self._served, self.finisher = self._halves()
        self._pins = pins(self.device) or (pin_memory and torch.cuda.is_available())
        self._slots = Slots(pinned_buffer if self._pins else None)
        self._stats = LoaderStats()
        self._num_replaced = 0  # by copies of the dataset in child processes
        self._position: Position | None = None
        self._forget_batches()

    def _forget_batches(self) -> None:
        self._batches: Callable[[], Any] = _nobody  # those being served, while they are
        self._delivery: Callable[[], Any] = _nobody

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings and the position; buffers, workers and a device's handles are made anew."""
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._iterator = None
        self._served, self.finisher = self._halves()
        self._slots = Slots(pinned_buffer if self._pins else None)
        self._forget_batches()

    def _halves(self) -> tuple[Any, Callable[[Any], Any] | None]:
        """Return the dataset to read, and what makes its batches whole on the device, if there is such work."""
        dataset: Any = self.dataset
        device = self.device
        is_ours = isinstance(dataset, BatchDataset) and self._collate is collate
        if device is None and is_ours:
            device = dataset.device
        if not is_ours or self.backend == "process":
            if self.augment_on == "device":
                raise ValueError(
                    "augment_on='device' is for datasets of ours, without collate_fn and backend='process'"
                )
            return dataset, None  # whole, on the workers
        device = torch.device("cpu") if device is None else device
        if isinstance(dataset, PackedDataset) and dataset.augment and dataset.device is None:
            finisher = dataset.finisher(device)
            if self.augment_on == "host" or (self.augment_on == "device" and finisher is None):
                return self._augmented_on(dataset)
            if self.augment_on == "device":
                return dataset.host_half(), finisher
        if device.type == "cpu" and not dataset.finishes_late:
            return dataset, None
        finisher = dataset.finisher(device)
        return (dataset if finisher is None else dataset.host_half()), finisher

    def _augmented_on(self, dataset: PackedDataset) -> tuple[Any, Callable[[Any], Any] | None]:
        if self.augment_on == "host":
            return dataset, None
        half = MovingHalf(dataset)
        return half, half.finish

    # -- iteration ---------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        """Begin (or, after ``load_state_dict``, continue) an epoch."""
        if profile_from_environment(self) is not None:
            return iter(self)  # anew, under the clock
        self._position = self._begin()
        accelerator = self._accelerator  # before the workers, who page-lock memory for its device
        batches = super().__iter__() if self.backend == "process" else self._start()
        self._batches = weakref.ref(batches)
        delivery = Delivery(self, batches, self._position, accelerator)
        self._delivery = weakref.ref(delivery)
        register(delivery)
        return delivery

    @cached_property
    def _accelerator(self) -> Accelerator | None:
        device = (
            self.device
            if self.device is not None or self.finisher is None
            else self._served.device
        )
        if device is None:
            return None
        accelerator = accelerator_for(device)
        if accelerator.is_ahead and device.type == "cuda":
            warning = shared_device(accelerator.device, torch.cuda.device_count(), os.environ)
            if warning:
                warnings.warn(warning, stacklevel=3)
        return accelerator

    def _start(self) -> InlineBatches | OrderedBatches:
        if self.generator is not None:
            # As torch, who draws its workers' seed from it: or later orders would not be the same.
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        maker, indices = self._maker(), iter(self._index_sampler)
        if not self.num_workers:
            return InlineBatches(maker, indices)
        return OrderedBatches(
            self._pool(maker),
            indices,
            prefetch_batches=self.prefetch_batches,
            group_size=maker.group_size,
            timeout_s=self.timeout,
            stall_warning_s=self.stall_warning_s,
        )

    def _pool(self, maker: Maker) -> Pool:
        if self.backend == "subprocess":
            return ChildPool(maker, self.multiprocessing_context)
        if self._may_fork and can_fork():
            return AutoPool(maker, self._changed_over)
        return ThreadPool(maker)

    def _changed_over(self) -> None:
        self.backend = "subprocess"  # for the next epochs, too

    def _maker(self) -> Maker:
        return Maker(
            self._served,
            self._collate,
            self.batch_size,
            self.batch_sampler is not None,
            self.num_workers,
            self._pins,
            self._slots,
            self._count_replaced,
        )

    def _count_replaced(self, num: int) -> None:
        self._num_replaced += num

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
        for part in (self.sampler, self.dataset, self._served):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        if self._position is not None and self._position.epoch != epoch:
            self._position = None

    def stats(self) -> LoaderStats:
        """Return the counters as they are now."""
        batches = self._batches()
        self._stats.slot_bytes = self._slots.nbytes + getattr(batches, "slot_bytes", 0)
        self._stats.num_ready = getattr(batches, "num_ready", 0)
        here = getattr(self._served, "num_replaced", 0)
        self._stats.num_replaced = here + self._num_replaced
        self._stats.device_bytes = getattr(self._delivery(), "device_bytes", 0)
        return self._stats

    # -- resume ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position: what was delivered, not what was prefetched. Primitives only, the same on every rank."""
        own = self._own_sampler()
        if not self.in_order:
            raise StateError(
                "in_order=False hands batches over in an order that no state can tell"
            )
        sampler = own.state_dict()
        if self._position is not None and self._position.epoch == own.epoch:
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


def _checked_prefetch(device_prefetch: int) -> int:
    if device_prefetch < 0:
        raise ValueError(f"device_prefetch must be at least 0, got {device_prefetch}")
    return device_prefetch


def _nobody() -> None:
    """Stand for a weak reference to nothing."""


def _is_divided(sampler: Any, batch_sampler: Any) -> bool:
    """Tell whether a sampler of ours divides the samples by rank already; frameworks wrap it."""
    return any(
        isinstance(s, EpochSampler) for s in (sampler, getattr(batch_sampler, "sampler", None))
    )


def _choose_order(
    dataset: Any, batch_size: int, shuffle: bool | str | None, sampler: Any, seed: int
) -> Order:
    """Return the order that the arguments ask for, or the dataset."""
    if isinstance(shuffle, str) and shuffle != "block":
        raise ValueError(f"shuffle must be True, False or 'block', got {shuffle!r}")
    if sampler is not None:
        if shuffle:
            raise ValueError(f"{type(sampler).__name__} is an order of its own: leave out shuffle")
        return sampler  # type: ignore[no-any-return]
    own = dataset.order(seed, batch_size) if isinstance(dataset, BatchDataset) else None
    if own is not None:
        if shuffle not in (None, True):
            what = f"a {type(dataset).__name__} has an order of its own"
            raise ValueError(f"{what}: leave out shuffle, got {shuffle!r}")
        return own
    length = len(dataset)
    if shuffle == "block":
        return BlockShuffled(length, seed)
    return Shuffled(length, seed) if shuffle else Sequential(length)


def _choose_backend(backend: Backend, dataset: Any, process_only: dict[str, Any]) -> str:
    if backend not in ("auto", "thread", "subprocess", "process"):
        raise ValueError(
            f"backend must be 'auto', 'thread', 'subprocess' or 'process', got {backend!r}"
        )
    needs_process = [name for name, value in process_only.items() if value is not None]
    if backend == "subprocess" and needs_process == ["multiprocessing_context"]:
        needs_process = []
    if backend in ("thread", "subprocess"):
        if isinstance(dataset, IterableDataset):
            raise ValueError(
                "an iterable dataset cannot be shared by threads: leave backend='auto'"
            )
        if needs_process:
            raise ValueError(
                f"{needs_process[0]} is for worker processes: leave it out, or use backend='process'"
            )
        return backend
    is_ours = isinstance(dataset, BatchDataset)
    return "process" if backend == "process" or needs_process or not is_ours else "thread"


def _choose_workers(num_workers: int | Literal["auto"], dataset: Any) -> int:
    if num_workers != "auto":
        return num_workers
    if not isinstance(dataset, BatchDataset):
        return 0
    measured = read_workers(dataset, usable_cores())
    if measured is not None:
        return measured
    nbytes = dataset.sample_nbytes
    if nbytes == 0:
        return 0  # nothing is copied on the host
    if nbytes is not None and nbytes < _SMALL_SAMPLE_BYTES:
        return 1  # copying small rows takes less than handing them over: more threads only compete
    return usable_cores()


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
