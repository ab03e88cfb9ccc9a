"""What a loader is asked for: checked once, with what follows where it leaves something open."""

from __future__ import annotations

import os
import sys
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import torch
from torch.utils.data import Dataset, IterableDataset, default_convert

from loaders.checks import one_of, real_number, shown, whole_number
from loaders.datasets.base import BatchDataset, reads_batches
from loaders.datasets.mixture import Mixture
from loaders.datasets.packed import PackedDataset
from loaders.datasets.reading.halves import moving_halves
from loaders.datasets.reading.samples import collate, collate_dict
from loaders.datasets.views import unwrap
from loaders.device.accelerator import as_device, pins
from loaders.errors import LoadersError
from loaders.loading.frameworks import without_ignite
from loaders.loading.tuning import read_workers
from loaders.remote.url import URL
from loaders.sampling.bylength import ByLength
from loaders.sampling.locality import BlockShuffled, Lanes
from loaders.sampling.order import Order, Sequential, Shuffled
from loaders.sampling.ranks import resolve_rank
from loaders.sampling.sampler import EpochBatches, EpochSampler
from loaders.sampling.weighted import Balanced, Weighted
from loaders.system.limits import cores_of_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loaders.sampling.plan import Pad

Backend = Literal["auto", "thread", "subprocess", "process"]
AugmentOn = Literal["auto", "host", "device"]
Served = tuple[Any, "Callable[[Any], Any] | None"]
_ONE_PER_SAMPLE = ((Balanced, "labels"), (Weighted, "weights"), (ByLength, "lengths"))
_SMALL_SAMPLE_BYTES, _TINY_SAMPLE_BYTES = 16 << 10, 512
_AS_GIVEN = (  # of what torch's loader takes
    *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "timeout"),
    *("worker_init_fn", "multiprocessing_context", "generator", "pin_memory_device", "in_order"),
)
_OURS_AS_GIVEN = (
    *("device", "augment_on", "rank", "world_size", "as_dict", "device_prefetch"),
    "stall_warning_s",
)


class MoreArguments(TypedDict, total=False):
    """The arguments of a ``DataLoader`` behind its first ones, for type checkers."""

    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    backend: Backend
    device: torch.device | str | None
    device_prefetch: int
    augment_on: AugmentOn
    seed: int | None
    rank: int | None
    world_size: int | None
    pad: bool | Literal["mark"] | None
    stall_warning_s: float


@dataclass(frozen=True, eq=False)
class LoaderOptions:
    """Validated ``DataLoader`` arguments. ``Subset`` and ``ConcatDataset`` over our datasets are unwrapped.

    The fields are the loader's signature; what a loader makes of one has a name of its own. An option that may change
    later is changed by ``dataclasses.replace``, which checks all of them again.
    """

    dataset: Any
    batch_size: int | None = 1
    shuffle: bool | Literal["block", "lanes"] | None = None
    sampler: Any = None  # indices, or an order of loaders
    batch_sampler: Iterable[Any] | None = None
    num_workers: int | Literal["auto"] = "auto"
    collate_fn: Callable[[Any], Any] | None = None
    pin_memory: bool = False
    drop_last: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    generator: torch.Generator | None = None
    _: KW_ONLY
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory_device: str = ""
    in_order: bool = True
    backend: Backend = "auto"
    device: torch.device | None = None  # of a name, too
    device_prefetch: int = 2
    augment_on: AugmentOn = "auto"
    seed: int | None = None
    rank: int | None = None
    world_size: int | None = None
    pad: Pad | None = None
    as_dict: bool = False
    stall_warning_s: float = 60.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", _checked_dataset(unwrap(self.dataset)))
        object.__setattr__(self, "batch_sampler", without_ignite(self.batch_sampler))
        # Frameworks that make a loader of their own from another one read ``collate_fn`` of it.
        object.__setattr__(self, "as_dict", self.as_dict or self.collate_fn is collate_dict)
        self._check_values()
        object.__setattr__(self, "device", None if self.device is None else as_device(self.device))
        if not self.has_own_order:
            _check_foreign_order(self)
        _ = self.chosen_backend, self.chosen_seed, self.chosen_workers  # refused now, not later

    def _check_values(self) -> None:
        for name in ("collate_fn", "worker_init_fn"):
            if (given := getattr(self, name)) is not None and not callable(given):
                raise TypeError(f"{name} must be a function, got {shown(given)}")
        if not isinstance(self.generator, torch.Generator | None):
            raise TypeError(f"generator must be a torch.Generator, got {shown(self.generator)}")
        for name in ("batch_size", "prefetch_factor"):
            if (number := getattr(self, name)) is not None:
                is_whole = hasattr(number, "__index__") and not isinstance(number, bool)
                if name == "batch_size" and not is_whole:  # torch's kind of error
                    raise ValueError(f"batch_size must be a whole number, got {shown(number)}")
                object.__setattr__(self, name, whole_number(name, number, at_least=1))
        ahead = whole_number("device_prefetch", self.device_prefetch, at_least=0)
        object.__setattr__(self, "device_prefetch", ahead)
        real_number("timeout", self.timeout, at_least=0)
        real_number("stall_warning_s", self.stall_warning_s, at_least=0)
        one_of("augment_on", self.augment_on, ("auto", "host", "device"))

    # -- order -------------------------------------------------------------------------------------

    @property
    def has_own_order(self) -> bool:
        """Whether samples follow an order of loaders: one was given, or nothing that says another."""
        if self.batch_sampler is not None or isinstance(self.dataset, IterableDataset):
            return False
        is_torchs = self.generator is not None and bool(self.shuffle)
        return isinstance(self.sampler, Order) or (self.sampler is None and not is_torchs)

    @property
    def uses_torch_sampler(self) -> bool:
        """Whether torch's own loader chooses the samples."""
        is_given = self.sampler is not None or self.batch_sampler is not None
        return not (self.has_own_order or is_given or isinstance(self.dataset, IterableDataset))

    def order(self) -> Order:
        """Return the order that the arguments ask for, or the dataset."""
        dataset, shuffle, sampler = self.dataset, self.shuffle, self.sampler
        if shuffle not in (None, True, False, "block", "lanes"):
            names = "True, False, 'block' or 'lanes'"
            raise ValueError(f"shuffle must be {names}, got {shown(shuffle)}")
        if not hasattr(dataset, "__len__"):
            what = "add __len__, or pass a sampler"
            raise TypeError(f"dataset has no length, got {shown(dataset)}: {what}")
        if sampler is None:
            return self._order_of_dataset() or self._order_of_shuffle()
        if shuffle:
            what = f"{type(sampler).__name__} is an order of its own"
            raise ValueError(f"{what}: leave out shuffle")
        _check_size(sampler, len(dataset))
        return sampler  # type: ignore[no-any-return]

    def _order_of_dataset(self) -> Order | None:
        dataset = self.dataset
        if not isinstance(dataset, BatchDataset):
            return None
        own = dataset.order(self.chosen_seed, self.batch_size or 1)
        if own is not None and self.shuffle not in (None, True):
            what = f"a {type(dataset).__name__} has an order of its own"
            raise ValueError(f"{what}: leave out shuffle, got {self.shuffle!r}")
        return own

    def _order_of_shuffle(self) -> Order:
        length, seed = len(self.dataset), self.chosen_seed
        if self.shuffle == "block":
            return BlockShuffled(length, seed)
        if self.shuffle == "lanes":
            return Lanes(self.dataset, seed)
        return Shuffled(length, seed) if self.shuffle else Sequential(length)

    def own_sampler(self) -> EpochSampler | None:
        """Return this rank's part of the order, if it is one of loaders."""
        if not self.has_own_order:
            return None
        return EpochSampler(
            self.order(),
            rank=self.rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
            pad=self.chosen_pad,
        )

    @property
    def chosen_seed(self) -> int:
        """The seed that was passed, else that of a sampler or batch sampler of loaders."""
        if self.seed is not None:
            return whole_number("seed", self.seed)
        return getattr(self._given, "seed", 0)

    @property
    def chosen_pad(self) -> Pad:
        """The padding that was passed, else that of a sampler or batch sampler of loaders."""
        if self.pad is not None:
            return self.pad
        return getattr(self._given, "pad", True)

    @property
    def _given(self) -> EpochSampler | EpochBatches | None:
        """The sampler or batch sampler of loaders that was passed."""
        given = self.sampler if self.batch_sampler is None else self.batch_sampler
        return given if isinstance(given, EpochSampler | EpochBatches) else None

    # -- who makes the batches ---------------------------------------------------------------------

    @cached_property
    def chosen_backend(self) -> str:
        """``"thread"``, ``"subprocess"`` or ``"process"``."""
        one_of("backend", self.backend, ("auto", "thread", "subprocess", "process"))
        if self.backend == "subprocess" and sys.platform != "linux":
            raise ValueError("backend='subprocess' needs Linux: backend='thread' works everywhere")
        names = ("worker_init_fn", "multiprocessing_context")  # which say nothing to threads
        needs_process = [name for name in names if getattr(self, name) is not None]
        if self.backend in ("thread", "subprocess"):
            if isinstance(self.dataset, IterableDataset):
                raise ValueError("threads cannot share an iterable dataset: leave backend='auto'")
            if needs_process:
                raise ValueError(
                    f"{needs_process[0]} is for worker processes: leave it out, or use backend='process'"
                )
            return self.backend
        is_ours = isinstance(self.dataset, BatchDataset)
        return "thread" if self.backend == "auto" and is_ours and not needs_process else "process"

    @cached_property
    def chosen_workers(self) -> int:
        """The number of workers: as passed, else as measured, else by the size of a sample."""
        num_workers, dataset = self.num_workers, self.dataset
        if num_workers != "auto":
            return whole_number("num_workers", num_workers, at_least=0)
        if not isinstance(dataset, BatchDataset):
            return 0
        cores = cores_of_rank()
        measured = read_workers(dataset, cores)
        if measured is not None:
            return measured
        nbytes = dataset.sample_nbytes
        if nbytes == 0:
            return 0  # nothing is copied on the host
        most = dataset.max_workers or cores
        if nbytes is not None and nbytes < _SMALL_SAMPLE_BYTES:
            # Copying small rows takes less than handing them over: more threads only compete.
            most = min(most, 1 if nbytes < _TINY_SAMPLE_BYTES else 2)
        return min(cores, most)

    @property
    def chosen_collate(self) -> Callable[[Any], Any]:
        """What joins samples: ours where nothing was passed, to dictionaries if these are asked for."""
        is_batched = self.batch_size is not None or self.batch_sampler is not None
        chosen = self.collate_fn or (collate if is_batched else default_convert)
        return collate_dict if self.as_dict and chosen is collate else chosen

    @property
    def tuple_collate(self) -> Callable[[Any], Any]:
        """What joins samples to named tuples, where ``chosen_collate`` makes dictionaries of these."""
        chosen = self.chosen_collate
        return collate if chosen is collate_dict else chosen

    def attributes(self) -> dict[str, Any]:
        """Return a loader's attributes, beside those that torch's loader has of what it was given."""
        return {name: getattr(self, name) for name in _OURS_AS_GIVEN} | {
            "backend": self.chosen_backend,
            "num_workers": self.chosen_workers,
            "collate_fn": self.chosen_collate,
            "seed": self.chosen_seed,
            "pad": self.chosen_pad,
        }

    def for_torch(self) -> dict[str, Any]:
        """Return what torch's own loader is made with, but for an order of loaders."""
        # Threads are lenient: num_workers=0 is for debugging, and shall not need other arguments removed.
        is_process = self.chosen_backend == "process"
        has_workers = self.chosen_workers > 0 or (is_process and self.num_workers != "auto")
        return {name: getattr(self, name) for name in _AS_GIVEN} | {
            "num_workers": self.chosen_workers,
            "collate_fn": self.chosen_collate,
            # Of processes torch page-locks batches; else each copy would wait for the one before.
            "pin_memory": self.pin_memory or (is_process and pins(self.device)),
            "prefetch_factor": self.prefetch_factor if has_workers else None,
            "persistent_workers": self.persistent_workers and has_workers,
        }

    # -- the device's share ------------------------------------------------------------------------

    def halves(self) -> Served:
        """Return the dataset to read, and what makes its batches whole on the device, if there is such work."""
        dataset = self.dataset
        is_own = self.chosen_backend != "process" and self.tuple_collate is collate
        if not (is_own and reads_batches(dataset)):
            if self.augment_on == "device":
                raise ValueError(
                    "augment_on='device' is for loaders' datasets, with no __getitem__ of their own, "
                    "without collate_fn and backend='process'"
                )
            return dataset, None  # whole, on the workers
        device = self.device or dataset.device or torch.device("cpu")
        read = (dataset.joined or dataset) if isinstance(dataset, Mixture) else dataset
        if isinstance(read, PackedDataset) and read.augment and read.device is None:
            if self.augment_on == "host":
                return dataset, None
            if self.augment_on == "device":
                return read.halves(device) or moving_halves(read)
        sources = read.sources if isinstance(read, Mixture) else ()
        if self.augment_on == "device" and any(getattr(s, "augment", ()) for s in sources):
            raise ValueError(
                "augment_on='device' needs a Mixture whose sources have equal settings"
            )
        if device.type == "cpu" and not dataset.finishes_late:
            return dataset, None
        return dataset.halves(device) or (dataset, None)


def _check_size(order: Any, num_samples: int) -> None:
    """Refuse an order of more samples than there are, and weights, labels or lengths of fewer."""
    each = [len(getattr(order, name)) for kind, name in _ONE_PER_SAMPLE if isinstance(order, kind)]
    exact = [order.length] if isinstance(order, Lanes) else each
    num = exact[0] if exact else getattr(order, "n", 0)
    if num > num_samples or (exact and num < num_samples):
        what = f"sampler is for {num} samples, the dataset has {num_samples}"
        raise ValueError(f"{what}: make it of this dataset, as with dataset.column('label')")


def _check_foreign_order(options: LoaderOptions) -> None:
    """Refuse what only an order of loaders can do, where another decides; and what is no order."""
    dataset, sampler, batch_sampler = options.dataset, options.sampler, options.batch_sampler
    for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if given is not None and (isinstance(given, str) or not hasattr(given, "__iter__")):
            what = "an order such as Balanced(...), or yield indices"
            raise TypeError(f"{name} must be {what}, got {shown(given)}")
    if (
        options.uses_torch_sampler
        and isinstance(dataset, BatchDataset)
        and dataset.order(0, 1) is not None
    ):
        what = f"a {type(dataset).__name__} has an order of its own"
        raise ValueError(f"{what}: leave out generator; seed= chooses the order")
    # A sampler of loaders divides the samples by its own ranks, of which frameworks make loaders anew.
    samplers = sampler, getattr(batch_sampler, "sampler", None)
    own = (each.given_ranks for each in samplers if isinstance(each, EpochSampler))
    rank, world_size = next(own, (None, None))
    is_asked = {
        "shuffle": isinstance(options.shuffle, str),
        "rank": options.rank not in (None, rank),
        "world_size": options.world_size not in (None, world_size),
    }
    for name, is_beyond in is_asked.items():
        if is_beyond:
            value = getattr(options, name)
            raise ValueError(
                f"{name}={value!r} is for orders of loaders, and cannot be combined with sampler, batch_sampler, "
                "generator or an IterableDataset: leave it out, or pass it to a sampler of loaders"
            )


def check_alone() -> None:
    """Refuse an order of torch's own where several processes train: each would load everything."""
    _, world_size = resolve_rank()
    if world_size > 1:
        raise LoadersError(
            f"generator= leaves the order to torch, and each of {world_size} processes would load all data: leave it "
            "out (seed= chooses the order), or, to have that, pass sampler=RandomSampler(dataset, generator=generator)"
        )


# -- what was given --------------------------------------------------------------------------------


def _checked_dataset(dataset: Any) -> Any:
    """Return a dataset; TypeError where it is none."""
    if isinstance(dataset, str | os.PathLike | URL):
        raise TypeError(
            f"dataset must be a dataset, got {dataset!r}: is it ShardDataset({str(dataset)!r})?"
        )
    if isinstance(dataset, list | tuple) and any(isinstance(d, Dataset) for d in dataset):
        what = f"dataset must be one dataset, got {len(dataset)}"
        raise TypeError(f"{what}: join them with loaders.concat, or loaders.Mixture for shares")
    is_read = isinstance(dataset, IterableDataset) or hasattr(dataset, "__getitem__")
    if isinstance(dataset, type) or not is_read:
        what = "have __len__ and __getitem__, or be an IterableDataset"
        raise TypeError(f"dataset must {what}, got {shown(dataset)}")
    return dataset
