"""What a loader chooses where its arguments leave it open: order, backend, workers, and the device's share."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import Dataset, IterableDataset

from loaders.checks import one_of, real_number, shown, whole_number
from loaders.datasets.base import BatchDataset
from loaders.datasets.mixture import Mixture
from loaders.datasets.packed import PackedDataset
from loaders.datasets.reading.moving import moving_halves
from loaders.errors import LoadersError
from loaders.limits import cores_of_rank
from loaders.sampling.balanced import Balanced
from loaders.sampling.blocks import BlockShuffled
from loaders.sampling.bylength import ByLength
from loaders.sampling.lanes import Lanes
from loaders.sampling.order import Order, Sequential, Shuffled
from loaders.sampling.ranks import resolve_rank
from loaders.sampling.sampler import EpochBatches, EpochSampler
from loaders.sampling.weighted import Weighted
from loaders.tuning import read_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loaders.sampling.plan import Pad

Backend = Literal["auto", "thread", "subprocess", "process"]
AugmentOn = Literal["auto", "host", "device"]
Halves = tuple[Any, "Callable[[Any], Any] | None"]
_ONE_PER_SAMPLE = ((Balanced, "labels"), (Weighted, "weights"), (ByLength, "lengths"))
_SMALL_SAMPLE_BYTES, _TINY_SAMPLE_BYTES = 16 << 10, 512


# -- order -----------------------------------------------------------------------------------------


def has_own_order(
    dataset: Any, shuffle: Any, sampler: Any, batch_sampler: Any, generator: Any
) -> bool:
    """Tell whether samples follow an order of loaders: one was given, or nothing that says another."""
    if batch_sampler is not None or isinstance(dataset, IterableDataset):
        return False
    is_torchs = generator is not None and bool(shuffle)
    return isinstance(sampler, Order) or (sampler is None and not is_torchs)


def choose_order(
    dataset: Any, batch_size: int, shuffle: bool | str | None, sampler: Any, seed: int
) -> Order:
    """Return the order that the arguments ask for, or the dataset."""
    if shuffle not in (None, True, False, "block", "lanes"):
        raise ValueError(f"shuffle must be True, False, 'block' or 'lanes', got {shown(shuffle)}")
    if not hasattr(dataset, "__len__"):
        what = "give it __len__, or leave its order to a sampler"
        raise TypeError(f"dataset has no length, got {shown(dataset)}: {what}")
    if sampler is not None:
        if shuffle:
            raise ValueError(f"{type(sampler).__name__} is an order of its own: leave out shuffle")
        _check_size(sampler, len(dataset))
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
    if shuffle == "lanes":
        return Lanes(dataset, seed)
    return Shuffled(length, seed) if shuffle else Sequential(length)


def _check_size(order: Any, num_samples: int) -> None:
    """Refuse an order of more samples than there are, and weights, labels or lengths of fewer."""
    values = next(
        (getattr(order, name) for kind, name in _ONE_PER_SAMPLE if isinstance(order, kind)), None
    )
    is_whole = values is not None or isinstance(order, Lanes)
    num = order.length if isinstance(order, Lanes) else getattr(order, "n", 0)
    num = num if values is None else len(values)
    if num > num_samples or (is_whole and num < num_samples):
        what = f"sampler is for {num} samples, the dataset has {num_samples}"
        raise ValueError(f"{what}: make it of this dataset, as with dataset.column('label')")


def check_foreign_order(
    dataset: Any,
    shuffle: Any,
    ranks: tuple[int | None, int | None],
    sampler: Any,
    batch_sampler: Any,
) -> None:
    """Refuse what only an order of loaders can do, where another decides; and what is no order."""
    for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if isinstance(dataset, IterableDataset):
            break  # torch refuses any
        if given is not None and (isinstance(given, str) or not hasattr(given, "__iter__")):
            what = "an order such as Balanced(...), or yield indices"
            raise TypeError(f"{name} must be {what}, got {shown(given)}")
    if isinstance(shuffle, str):
        raise ValueError(
            f"shuffle={shuffle!r} is an order of loaders: leave out sampler, batch_sampler and generator"
        )
    is_torchs = sampler is None and batch_sampler is None
    if is_torchs and isinstance(dataset, BatchDataset) and dataset.order(0, 1) is not None:
        what = f"a {type(dataset).__name__} has an order of its own"
        raise ValueError(f"{what}: leave out generator; seed= chooses the order")
    if ranks != (None, None) and isinstance(dataset, IterableDataset):
        raise ValueError(
            "rank and world_size divide batches of map-style datasets: an IterableDataset divides itself"
        )
    _check_ranks(ranks, (sampler, getattr(batch_sampler, "sampler", None)))


def _check_ranks(ranks: tuple[int | None, int | None], samplers: Sequence[Any]) -> None:
    """Refuse ranks that have no effect: a sampler of loaders divides the samples by its own."""
    if ranks == (None, None):
        return
    own = next((sampler for sampler in samplers if isinstance(sampler, EpochSampler)), None)
    if own is None:
        raise ValueError(
            "rank and world_size divide batches of loaders' own orders: leave out sampler, batch_sampler and generator"
        )
    # Frameworks make loaders anew, of the sampler and of what it was made with.
    if any(
        given not in (None, theirs) for given, theirs in zip(ranks, own.given_ranks, strict=True)
    ):
        theirs = "rank={} and world_size={}".format(*own.given_ranks)
        raise ValueError(
            f"rank={ranks[0]} and world_size={ranks[1]}, but the sampler was made with {theirs}: give them to it"
        )


def choose_seed(seed: int | None, sampler: Any, batch_sampler: Any) -> int:
    """Return the seed: as was said, or that of a sampler or batch sampler of loaders."""
    if seed is not None:
        return whole_number("seed", seed)
    own = sampler if batch_sampler is None else batch_sampler
    return own.seed if isinstance(own, EpochSampler | EpochBatches) else 0


def choose_pad(
    pad: Pad | None, batch_size: int | None, sampler: Any, batch_sampler: Any, *, in_order: bool
) -> Pad:
    """Return how the tail is padded: as was said, or as a sampler of loaders says; refuse marks that have no place."""
    own = batch_sampler if isinstance(batch_sampler, EpochBatches) else sampler
    if pad is None:
        pad = own.pad if isinstance(own, EpochSampler | EpochBatches) else True
    if pad != "mark":
        return pad
    if batch_size is None and batch_sampler is None:
        raise ValueError(
            "pad='mark' marks the rows of batches: give batch_size, or pad=False for each sample once"
        )
    if not in_order:
        raise ValueError(
            "pad='mark' marks batches by their order, which in_order=False gives up: leave one of them out"
        )
    return pad


def check_marks(pad: Pad, *, is_ours: bool) -> None:
    """Refuse marks of what is never padded."""
    if pad == "mark" and not is_ours:
        raise ValueError(
            "pad='mark' marks batches of an order of loaders: leave out sampler, batch_sampler and generator, "
            "and give a dataset that has a length"
        )


def check_alone() -> None:
    """Refuse an order of torch's own where several processes train: each would load everything."""
    _, world_size = resolve_rank()
    if world_size > 1:
        raise LoadersError(
            f"generator= leaves the order to torch, and each of {world_size} processes would load all data: leave it "
            "out (seed= chooses an order), or say that it is meant: sampler=RandomSampler(dataset, generator=generator)"
        )


# -- what was given --------------------------------------------------------------------------------


def checked_dataset(dataset: Any) -> Any:
    """Return a dataset; TypeError where it is none."""
    if isinstance(dataset, str | os.PathLike):
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


def check_kinds(collate_fn: Any, worker_init_fn: Any, generator: Any) -> None:
    """Refuse what cannot be called, and what is no generator of torch's."""
    for name, given in (("collate_fn", collate_fn), ("worker_init_fn", worker_init_fn)):
        if given is not None:
            called(name, given)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator, got {shown(generator)}")


def called(name: str, value: Any) -> Any:
    """Return a function; TypeError where it is none."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, got {shown(value)}")
    return value


def checked_timeout(timeout: Any) -> float:
    """Return a timeout; what is none is refused in torch's words."""
    real_number("timeout", timeout)
    if not timeout >= 0:
        raise ValueError(f"timeout option should be non-negative, got {timeout}")
    return timeout  # type: ignore[no-any-return]


def checked_batch_size(batch_size: Any) -> int:
    """Return a batch size; ValueError, as torch's, where it is none."""
    try:
        return whole_number("batch_size", batch_size, at_least=1)
    except TypeError as error:
        raise ValueError(str(error)) from None  # as torch does


# -- who makes the batches -------------------------------------------------------------------------


def choose_backend(backend: Backend, dataset: Any, process_only: dict[str, Any]) -> str:
    """Return ``"thread"``, ``"subprocess"`` or ``"process"``.

    Args:
        backend: What was asked for.
        dataset: What is read.
        process_only: Arguments that mean something to worker processes alone; None where not given.
    """
    one_of("backend", backend, ("auto", "thread", "subprocess", "process"))
    if backend == "subprocess" and sys.platform != "linux":
        raise ValueError("backend='subprocess' needs Linux: backend='thread' works everywhere")
    needs_process = [name for name, value in process_only.items() if value is not None]
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


def choose_workers(num_workers: int | Literal["auto"], dataset: Any) -> int:
    """Return how many workers to have: what was measured, else what the samples cost."""
    if isinstance(num_workers, str) and num_workers != "auto":
        raise ValueError(f"num_workers must be 'auto' or a number from 0, got {num_workers!r}")
    if num_workers != "auto":
        num_workers = whole_number("num_workers", num_workers)
        if num_workers < 0:
            raise ValueError(f"num_workers option should be non-negative, got {num_workers}")
        return num_workers
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


# -- the device's share ----------------------------------------------------------------------------


def choose_halves(
    dataset: BatchDataset, device: torch.device | None, augment_on: AugmentOn
) -> Halves:
    """Return the dataset to read, and what makes its batches whole on the device, if there is such work."""
    device = device or dataset.device or torch.device("cpu")
    read = (dataset.joined or dataset) if isinstance(dataset, Mixture) else dataset
    if isinstance(read, PackedDataset) and read.augment and read.device is None:
        if augment_on == "host":
            return dataset, None
        if augment_on == "device":
            return read.halves(device) or moving_halves(read)
    if augment_on == "device" and isinstance(read, Mixture) and read.is_augmented:
        raise ValueError(
            "augment_on='device' is for a Mixture whose sources have equal settings: they are read as one"
        )
    if device.type == "cpu" and not dataset.finishes_late:
        return dataset, None
    return dataset.halves(device) or (dataset, None)
