"""``DataLoader``: indices in, batches out; wires sampler, threads, slots and device together and owns their shutdown.

It is a ``torch.utils.data.DataLoader``. Datasets of this project are read by threads of this
process (``backend="thread"``) or of one child (``"subprocess"``), straight into reusable slots;
everything else goes through torch's own worker processes (``"process"``).
"""

from __future__ import annotations

import warnings
import weakref
from dataclasses import fields, replace
from functools import cached_property, partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, Unpack, overload

import numpy.random  # noqa: F401  # torch seeds it in each worker process: imported here, once, and not there
import torch

from loaders.backends.gil import GilWatch
from loaders.backends.maker import Maker, group_bytes, num_in_flight
from loaders.backends.ordered import OrderedBatches
from loaders.backends.process import TorchBatches
from loaders.backends.threads import InlinePool, thread_pool
from loaders.buffers import Slots
from loaders.checks import Settled, did_you_mean, shown
from loaders.datasets.base import BatchDataset
from loaders.device.accelerator import accelerator_for, pins
from loaders.device.pinned import pinned_buffer
from loaders.dumping import register
from loaders.loading.agreement import check_ranks_agree, next_number
from loaders.loading.delivery import BatchT, Delivery, LoaderStats, Started
from loaders.loading.frameworks import check_no_mesh
from loaders.loading.options import LoaderOptions, check_alone
from loaders.loading.ordered import OrderedLoader
from loaders.loading.resume import ThirdParty, num_batches
from loaders.profiling import profile_from_environment
from loaders.sampling.cursor import Pass
from loaders.sampling.sampler import EpochSampler
from loaders.system.limits import local_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from loaders.backends.ordered import Pool
    from loaders.backends.subprocess import Child
    from loaders.device.accelerator import Accelerator
    from loaders.loading.options import AugmentOn, MoreArguments
    from loaders.loading.resume import ForeignPass
    from loaders.profiling import profile
    from loaders.remote.ahead import Ahead
    from loaders.sampling.order import Order

_NOT_PICKLED = frozenset(
    [
        "__orig_class__",  # of DataLoader[Batch](...), where Batch may be no type that pickles
        "_accelerator",
        "_child",
        "_delivery",
        "_finisher",
        "_gil",
        "_profile",
        "_served",
        "_slots",
        "_torch_loader",
    ]
)
_OPTIONS = frozenset(each.name for each in fields(LoaderOptions))
# What may change between epochs.
_CHANGEABLE = frozenset(
    [
        "collate_fn",
        "num_workers",
        "prefetch_factor",
        "device_prefetch",
        "timeout",
        "stall_warning_s",
        "worker_init_fn",
    ]
)


class DataLoader(Settled, OrderedLoader[BatchT]):
    """Serve batches of a dataset, in an order that depends on the seed and the epoch alone.

    Takes what ``torch.utils.data.DataLoader`` takes; what differs or is new:

    Args:
        dataset: Any map-style or iterable dataset. Torch's ``Subset`` and ``ConcatDataset`` of our
            ``loaders`` datasets become views.
        batch_size: Samples per batch and rank.
        shuffle: True: a new order each epoch, a keyed permutation that is computed, never stored. ``"block"``:
            blocks of neighbours, mixed within a window, for disks that dislike random reads. ``"lanes"``: whole
            shards, dealt once into lanes, of which each node reads its own (``loaders.sampling.Lanes``), for remote
            data.
        sampler: Any sampler; ours (``loaders.sampling``) are sliced by rank and can be resumed.
        num_workers: Threads (or processes, see ``backend``). ``"auto"``: for our datasets what
            ``python -m loaders.bench recommend`` measured, else the cores that this process may use, divided by
            ``LOCAL_WORLD_SIZE`` where ranks share them; 0 for others.
        persistent_workers: Keep worker processes from epoch to epoch; later changes of the dataset do not
            reach them. (The child of ``backend="subprocess"`` always stays, and follows the dataset at each epoch.)
        pin_memory: Hand batches over in torch's page-locked memory, for copies that you make. ``device`` does not
            need it: its batches are made in page-locked slots, and held until their copy is done.
        prefetch_factor: How many batches are made ahead: by all threads together (default 2); or by each process.
            Threads make small batches in groups of up to 64 batches or 8 MiB (16 MiB in a child process); it then
            counts groups (default: one for each thread and two more).
        backend: ``"thread"``; ``"subprocess"``: the same threads in one child process, a fresh interpreter, for a
            training step of many small operations, which would wait for the GIL;
            ``"process"``: torch's own workers; ``"auto"``: threads for our datasets, torch's workers for others.
        device: Where batches are handed over, e.g. ``"cuda"``: copied from page-locked slots on a
            stream of their own, for use on the current stream; None leaves them in host memory.
        device_prefetch: How many batches may be copied ahead of being asked for; ``stats()`` has
            their bytes. (Those of torch's processes are copied when asked for, as torch does not tell which are ready.)
        augment_on: Where crops, resizes and flips are carried out; what is drawn is the same. ``"auto"``: on the
            device for codecs that are finished there (``dct``, ``yuv420``), else on the host;
            ``"device"``: there also for pixels (``raw``) of one size, within one step of uint8.
        seed: For the order and for augmentation; a ``loaders`` sampler has its own for the order. Default:
            that of such a sampler, else 0.
        rank: This process among all that train; default: from ``torch.distributed``.
        world_size: How many train; default: from ``torch.distributed``.
        pad: At the end of an epoch without ``drop_last``: True wraps around so that all ranks
            have equal steps, False serves each sample exactly once, ``"mark"`` wraps and tells
            real rows by ``batch.valid``, or ``batch["valid"]`` with ``as_dict`` (frameworks that rebuild named
            tuples lose ``.valid``). Default: that of a ``loaders`` sampler, else True.
        as_dict: Hand over ``{field: values}`` instead of named tuples.
        stall_warning_s: Log what every worker thread is doing when a batch takes longer than this; a child process
            writes that to stderr (not without workers, nor by torch's processes).

    Iterating begins the current epoch anew, or where ``load_state_dict`` says; a full pass
    advances the epoch. Under a sampler of torch each pass begins the next one, as torch shuffles each time.

    OpenCV's own threads are switched off for the whole process when threads are first used:
    workers are the threads.

    Assigned later, ``num_workers``, ``collate_fn``, ``prefetch_factor``, ``device_prefetch``, ``timeout``,
    ``stall_warning_s`` and ``worker_init_fn`` count from the next iteration on; any other option is refused.

    Raises:
        TypeError: An argument is unknown or of another type, or ``dataset`` is no dataset.
        ValueError: An argument is out of range, or contradicts another one or the dataset.
        LoadersError: At ``iter``: ranks made their loaders differently, or would get the same data.
        BatchError, SampleError, ShardError: At ``next``: what cannot be read, with its place.
    """

    _settled = _OPTIONS - _CHANGEABLE
    device: torch.device | None
    device_prefetch: int
    augment_on: AugmentOn
    as_dict: bool
    stall_warning_s: float
    _num_restarts = 0
    _profile: profile | None = None  # while one is on
    _has_drawn = False  # the seed of workers that persist
    _num_replaced = 0  # by copies of the dataset in child processes
    _delivery: weakref.ref[Delivery[Any]] | None = None

    @overload
    def __init__(
        self,
        dataset: BatchDataset[BatchT],
        batch_size: int | None = 1,
        shuffle: bool | Literal["block", "lanes"] | None = None,
        sampler: Iterable[Any] | Order | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = "auto",
        collate_fn: None = None,
        *,
        as_dict: Literal[False] = False,
        **more: Unpack[MoreArguments],
    ) -> None: ...
    @overload
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | Literal["block", "lanes"] | None = None,
        sampler: Iterable[Any] | Order | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = "auto",
        collate_fn: Callable[[Any], BatchT] | None = None,
        *,
        as_dict: bool = False,
        **more: Unpack[MoreArguments],
    ) -> None: ...
    def __init__(self, *given: Any, **options: Any) -> None:
        for name in options.keys() - _OPTIONS:
            raise TypeError(f"DataLoader has no argument {name!r}{did_you_mean(name, _OPTIONS)}")
        self._follow(LoaderOptions(*given, **options))
        sampler = self._options.own_sampler()
        order = {} if sampler is None else {"sampler": sampler, "shuffle": None}
        super().__init__(**self._options.for_torch() | order)
        self._number_steps()
        self._is_accelerate_prepared = self._steps is not None  # divided by rank already
        has_marks = self._steps is not None and self._singles is None and self.in_order
        if self.pad == "mark" and not has_marks:
            raise ValueError(
                "pad='mark' marks rows of batches in an order of loaders: set batch_size, and leave out sampler, "
                "batch_sampler, generator and in_order=False"
            )
        self._others = ThirdParty(self) if self._steps is None else None
        is_counted = self._steps is not None and self._steps.sampler.given_ranks == (None, None)
        # Until it was compared with other ranks'.
        self._number = next_number() if is_counted else 0
        self._stats = LoaderStats()
        self._make_parts()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; an option counts from the next iteration on, or is a ValueError."""
        if name in _CHANGEABLE and self._is_made(name):
            given = {"num_workers": self.num_workers, name: value}  # what "auto" chose stays
            self._follow(replace(self._options, **given), {name: value})
        else:
            super().__setattr__(name, value)

    def _follow(self, options: LoaderOptions, given: Mapping[str, Any] | None = None) -> None:
        """Use these options from the next iteration on; ValueError, and nothing is changed, if they are invalid."""
        self._served, self._finisher = options.halves()
        self._options = options
        # Not properties: frameworks make loaders anew of ``vars``.
        vars(self).update({**(given or {}), **options.attributes()})
        for name in ("_accelerator", "_torch_loader"):
            vars(self).pop(name, None)

    def _is_made(self, name: str) -> bool:
        return "_child" in vars(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings and the position; buffers, workers and a device's handles are made anew."""
        return {name: value for name, value in vars(self).items() if name not in _NOT_PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._follow(self._options)
        self._make_parts()

    def _make_parts(self) -> None:
        """Make what is neither pickled nor made of options alone: counters, buffers, and the child process to be."""
        self._num_before = getattr(self._served, "num_replaced", 0)  # by other loaders
        # Page-locked only where we copy: a copy of the user's may still read a slot whose batch was dropped.
        self._slots = Slots(pinned_buffer if pins(self.device) else None)
        self._child: Child | None = None
        self._gil = GilWatch()

    # -- iteration ---------------------------------------------------------------------------------

    def __iter__(self) -> Delivery[BatchT]:  # type: ignore[override]
        """Begin (or, after ``load_state_dict``, continue) an epoch."""
        profile_from_environment(self)
        return self._epoch() if self._profile is None else self._profile.timed(self._epoch)

    def close(self) -> None:
        """End the iteration that is under way, and its threads or child process.

        The next ``iter`` begins the epoch anew.
        """
        self._end("this iteration ended with loader.close(): begin a new one")
        if self._child is not None:
            self._child.end()
            self._child = None

    @property
    def _under_way(self) -> Delivery[Any] | None:
        """The iteration that began last, while it is kept."""
        return None if self._delivery is None else self._delivery()

    def _end(self, why: str) -> None:
        if (delivery := self._under_way) is not None:
            delivery.close(why)

    def _epoch(self) -> Delivery[BatchT]:
        self._end(
            "the loader is iterated anew, which ended this iteration: use a loader for each of two"
        )
        delivery: Delivery[BatchT] = Delivery(
            self._start,
            self._stats,
            self.__len__,
            # Made before the workers, which page-lock memory for its device.
            accelerator=self._accelerator,
            ahead=self.device_prefetch,
            name=type(self.dataset).__name__,
        )
        self._delivery = weakref.ref(delivery)
        register(delivery)
        return delivery

    def _start(self) -> Started:
        """Begin a pass, and start workers on its batches."""
        current = self._begin()
        ahead = self._ahead_of(current)
        batches: OrderedBatches | TorchBatches
        if self.backend == "process":
            num = None if current.plan is None else current.plan.num_remaining_steps
            batches = TorchBatches(iter(self._torch_loader), self.num_workers, num)
        else:
            batches = self._start_own()
        for each in ahead:
            each.start()  # after torch has forked its workers
        finish = partial(_finished, self._finisher, self._options.as_dict)
        return Started(current, batches, finish, partial(_close_all, ahead))

    @cached_property
    def _accelerator(self) -> Accelerator | None:
        device = self.device
        if self._finisher is not None:  # where its samples lie: "cuda" may be another one by now
            device = self._served.device or device
        return None if device is None else accelerator_for(device)

    @cached_property
    def _torch_loader(self) -> torch.utils.data.DataLoader[Any]:
        """Torch's own loader, over the indices of this one: it fetches in worker processes, or here."""
        options = self._options.for_torch()
        if not self.num_workers:
            options |= {"prefetch_factor": None, "persistent_workers": False, "timeout": 0}
        if self._others is None or not self._others.is_iterable:
            indices = self._index_source()
            order: dict[str, Any] = {"batch_size": None, "sampler": indices, "batch_sampler": None}
            if self.batch_sampler is not None:
                order = {"batch_size": 1, "sampler": None, "batch_sampler": indices}
            options |= order | {"shuffle": None, "drop_last": False}
        return torch.utils.data.DataLoader(**options)

    def _start_own(self) -> OrderedBatches:
        if (self.generator is not None or self._steps is None) and not self._has_drawn:
            # Torch draws its workers' seed here: without this, later orders of samplers would differ from torch's.
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            self._has_drawn = self.persistent_workers
        maker = self._maker()
        self._gil.begin(self._accelerator)
        # A third-party sampler is asked for one batch at a time, as its answers may depend on the steps in between;
        # with workers, for as many as are handed over at once.
        is_together = maker.is_together and (self.num_workers > 0 or self._steps is not None)
        is_planned = is_together or self._steps is not None
        in_flight = self._options.prefetch_factor or num_in_flight(
            self.num_workers, is_together=is_together
        )
        chunk_size = maker.chunk_size if is_planned else 1
        return OrderedBatches(
            self._pool(maker),
            self._indices(chunk_size),
            prefetch_batches=in_flight if self.num_workers else 0,
            chunk_size=chunk_size,
            is_together=is_together,
            timeout_s=self.timeout,
            stall_warning_s=self.stall_warning_s,
            watch=self._gil if self.num_workers and self.backend == "thread" else None,
        )

    def _pool(self, maker: Maker) -> Pool:
        if not self.num_workers:
            return InlinePool(maker)
        if self.backend == "thread":
            return thread_pool(maker)
        from loaders.backends.subprocess import child_pool  # which loads on Linux alone

        pool = child_pool(self._child, maker, self._set_to, self._count_replaced, self.timeout)
        self._child = pool.child
        return pool

    def _maker(self) -> Maker:
        return Maker(
            self._served,
            self._options.tuple_collate,
            None if self._makes_batches else self.batch_size,
            has_batches=self.batch_sampler is not None,
            num_workers=self.num_workers,
            pin=pins(self.device) or (self.pin_memory and torch.cuda.is_available()),
            locks_slots=pins(self.device),
            slots=self._slots,
            group_bytes=min([group_bytes(self.backend), *_shares_of_caches(self.dataset)]),
            watched=None if self._profile is None else self._profile.watched,
        )

    def _count_replaced(self, num: int) -> None:
        self._num_replaced += num

    def _begin(self) -> Pass | ForeignPass:
        steps = self._steps
        if steps is None:
            assert self._others is not None
            if self._options.uses_torch_sampler:
                check_alone()
            return self._others.begin(num_batches(self))
        if steps.sampler.given_ranks == (None, None):
            check_no_mesh()
            if self._number:
                check_ranks_agree(self._number, steps, self.dataset)
                self._number = 0
        self._check_length(steps.sampler)
        plan = steps.sampler.go_on(steps.plan)
        if plan.drop_last and not plan.num_steps:
            what = f"{plan.length} samples, batch_size={plan.batch_size}, world_size={plan.world_size}"
            remedy = "use a smaller batch_size, or drop drop_last=True"
            warnings.warn(f"drop_last=True leaves no batch ({what}): {remedy}", stacklevel=3)
        self._note_restart(steps.sampler)
        return steps.sampler.begin(plan)

    def _ahead_of(self, current: Pass | ForeignPass) -> list[Ahead]:
        """Return what tells fetchers of a pass in our order, not started yet; nothing where no data lie at a URL."""
        steps = self._steps
        if steps is None or not isinstance(current, Pass) or not _is_remote(self.dataset):
            return []
        from loaders.loading.fetching import tell_ahead

        return tell_ahead(self.dataset, steps.sampler.order, current, self._maker().group_size)

    def _note_restart(self, sampler: EpochSampler) -> None:
        """Warn, once, of a shuffled epoch that is left early and begun anew twice: torch would shuffle again."""
        active = sampler.cursor.active
        if not sampler.shuffle or active is None or not active.num_steps:
            return
        self._num_restarts += 1
        if self._num_restarts == 2:
            what = f"epoch {sampler.epoch} was left early, and begins anew with the same batches"
            remedy = (
                "loader.set_epoch(n) selects another, and forever() runs on from batch to batch"
            )
            warnings.warn(f"{what}: {remedy}", stacklevel=4)

    def check_worker_number_rationality(self) -> None:
        """Warn of more worker processes than cores; threads are cheap, and cannot freeze a machine."""
        if self.backend == "process":
            super().check_worker_number_rationality()

    def __len__(self) -> int:
        """Return the steps of an epoch, for this rank."""
        if self._steps is not None:
            return len(self._steps)
        if self._others is not None and self._others.is_iterable:
            return len(self._torch_loader)  # which warns of more samples than that
        return super().__len__()

    def stats(self) -> LoaderStats:
        """Return the counters as they are now."""
        here = getattr(self._served, "num_replaced", 0) - self._num_before
        delivery, remote = self._under_way, None
        if _is_remote(self.dataset):
            from loaders.loading.fetching import remote_counts

            remote = remote_counts(self.dataset)
        return replace(
            self._stats,
            slot_bytes=self._slots.nbytes
            + (0 if self._child is None else self._child.slots.nbytes),
            num_ready=0 if delivery is None else delivery.num_ready,
            num_replaced=here + self._num_replaced,
            backend=self.backend if self.num_workers else "inline",
            gil_share=self._gil.lost_share,
            device_bytes=0 if delivery is None else delivery.device_bytes,
            remote=remote,
        )

    def __repr__(self) -> str:
        """Show what is served, and how."""
        sampler = getattr(self, "sampler", None)
        order = sampler.order if isinstance(sampler, EpochSampler) else sampler
        settings = {
            "batch_size": self.batch_size,
            "order": None if order is None else type(order).__name__,
            "num_workers": self.num_workers,
            "backend": self.backend,
            "device": None if self.device is None else str(self.device),
        }
        listed = [f"{name}={value!r}" for name, value in settings.items() if value is not None]
        return f"{type(self).__name__}({', '.join([shown(self.dataset), *listed])})"


# Frameworks read it to make a loader anew.
DataLoader.__init__.__signature__ = signature(LoaderOptions.__init__)  # type: ignore[attr-defined]


def _is_remote(dataset: Any) -> TypeGuard[BatchDataset[Any]]:
    """Tell whether some of a dataset lies at a URL."""
    return isinstance(dataset, BatchDataset) and any(s.is_remote for s in dataset.stores)


def _shares_of_caches(dataset: Any) -> list[int]:
    """Return how many bytes a group may have of each cache in use: shards of several groups are mapped by each rank."""
    stores = dataset.stores if _is_remote(dataset) else ()
    origins = (origin for s in stores if not s.is_all_open for origin in s.remotes)
    return [origin.budget() // (8 * local_ranks()) for origin in origins]


def _finished(finisher: Callable[[Any], Any] | None, as_dict: bool, batch: Any) -> Any:
    """Bring a batch into the form that was asked for."""
    if finisher is not None:
        batch = finisher(batch)
    return batch._asdict() if as_dict and hasattr(batch, "_asdict") else batch


def _close_all(ahead: list[Ahead]) -> None:
    while ahead:
        ahead.pop().close()
