"""What a configuration will need in memory, before it runs: batches in flight times their bytes, and the rest."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders.backends.maker import Maker, group_bytes, num_in_flight
from loaders.bench.measure import batch_nbytes
from loaders.bench.processes import memory
from loaders.bench.report import in_bytes
from loaders.bench.targets import ImageFiles, is_map_style
from loaders.codecs.heads import picture_size
from loaders.datasets.base import BatchDataset
from loaders.datasets.memory.loading import plan_columns
from loaders.datasets.packed import PackedDataset
from loaders.datasets.reading.samples import collate
from loaders.datasets.tokens.windows import TokenWindows
from loaders.device.nested import tensors_of
from loaders.errors import LoadersError
from loaders.schema import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loaders.bench.measure import Config
    from loaders.bench.targets import Target

_FLOAT_BYTES, _INT64_BYTES = 4, 8
_LOOKED_AT_BYTES = 64 << 20
_PROCESS_BYTES = 20 << 20  # a forked worker's own pages: heap that is written to, torch's state
_HELD = 2  # batches that the trainer holds: the one in use, and the next before it lets go of it
_SCRATCH_BYTES = 4 << 20  # of a thread: what it decodes into, its stack, its heap arena


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes on one node.

    Attributes:
        batch_bytes: Of one batch.
        batches: Batches that exist at one time, per rank.
        slots_bytes: Of all of them, per rank.
        pinned_bytes: Of copies in page-locked memory, per rank; 0 without a device.
        workers_bytes: What threads or processes need beside batches, per rank.
        cache_bytes: What is held in RAM, per copy.
        cache_copies: Copies of it on the node.
        ranks: Ranks on the node.
    """

    batch_bytes: int
    batches: int
    slots_bytes: int
    pinned_bytes: int
    workers_bytes: int
    cache_bytes: int
    cache_copies: int
    ranks: int

    @property
    def rank_bytes(self) -> int:
        """What one rank adds, without a cache."""
        return self.slots_bytes + self.pinned_bytes + self.workers_bytes

    @property
    def node_bytes(self) -> int:
        """What the node needs."""
        return self.ranks * self.rank_bytes + self.cache_copies * self.cache_bytes


def plan(
    sample_bytes: float,
    config: Config,
    *,
    group_size: int = 1,
    pinned: bool = False,
    cache_bytes: int = 0,
    shared: bool = False,
    ranks: int = 1,
    rank_samples: int | None = None,
) -> Plan:
    """Return what a configuration will need.

    Args:
        sample_bytes: Of one sample in a batch, see ``sample_bytes_of``.
        config: The loader's settings.
        group_size: Batches that are handed over together.
        pinned: Batches pass through page-locked memory.
        cache_bytes: Of a ``RAMDataset``.
        shared: One copy of it per node, instead of one per rank.
        ranks: Training processes on the node.
        rank_samples: Samples that a rank has in an epoch: no more exist at one time. None: any number.
    """
    batch_size, most = config.batch_size, math.inf
    if rank_samples is not None:
        batch_size, most = min(batch_size, rank_samples), -(-rank_samples // batch_size)
    batch_bytes = int(sample_bytes * batch_size)
    ahead = in_flight(config, group_size)
    batches = int(min(ahead * group_size + _HELD, most))
    pinned_batches = int(min((ahead + 1) * group_size, most)) if pinned else 0
    per_worker = _process_bytes() if config.backend == "process" else _SCRATCH_BYTES
    return Plan(
        batch_bytes=batch_bytes,
        batches=batches,
        slots_bytes=batches * batch_bytes,
        pinned_bytes=pinned_batches * batch_bytes,
        workers_bytes=config.num_workers * per_worker,
        cache_bytes=cache_bytes,
        cache_copies=1 if shared else ranks,
        ranks=ranks,
    )


def _process_bytes() -> int:
    """Return what a worker process needs: little of a fork; else (Python 3.14) what this one has, imports and all."""
    methods = multiprocessing.get_all_start_methods()
    is_fork = (multiprocessing.get_start_method(allow_none=True) or methods[0]) == "fork"
    return _PROCESS_BYTES if is_fork else memory([os.getpid()]).own_bytes


def in_flight(config: Config, group_size: int = 1) -> int:
    """Return how many batches (or groups of small ones) are under way: of threads in all, of processes for each."""
    if not config.num_workers:
        return 0
    if config.backend == "process":
        return (config.prefetch or 2) * config.num_workers
    return config.prefetch or num_in_flight(config.num_workers, is_together=group_size > 1)


def rank_samples_of(dataset: Any, ranks: int = 1) -> int | None:
    """Return how many samples a rank has in an epoch; None of a stream."""
    return -(-len(dataset) // ranks) if is_map_style(dataset) else None


def group_size_of(dataset: Any, config: Config) -> int:
    """Return how many batches the loader hands over at once."""
    if config.backend == "process" or not isinstance(dataset, BatchDataset):
        return 1
    nbytes = group_bytes(config.backend)
    return Maker(dataset, collate, config.batch_size, True, 1, group_bytes=nbytes).group_size


def sample_bytes_of(dataset: Any, *, as_trained: bool = False, count: int = 8) -> float:
    """Return the bytes of a sample in a batch.

    Samples are made one by one, at most ``count``, and no more once they had 64 MB together: of volumes, one.

    Args:
        dataset: Any dataset.
        as_trained: What training makes of it: float32 for uint8, and int64 for masks.
        count: Samples to look at.
    """
    sizes: list[float] = []
    for sample in _some_samples(dataset, count):
        sizes.append(_trained_nbytes(dataset, sample) if as_trained else _nbytes(sample))
        if sum(sizes) > _LOOKED_AT_BYTES:
            break
    if not sizes:
        raise LoadersError("the stream has no samples")
    return sum(sizes) / len(sizes)


def _some_samples(dataset: Any, count: int) -> Iterator[Any]:
    """Yield batches of one sample."""
    if not is_map_style(dataset):
        yield from (collate([sample]) for sample in itertools.islice(dataset, count))
        return
    fetch = getattr(dataset, "__getitems__", None)
    for index in _spread(len(dataset), count):
        with warnings.catch_warnings():  # a second look is no second epoch
            warnings.filterwarnings("ignore", "crops and flips are drawn")
            yield collate(fetch([index]) if fetch else [dataset[index]])


def _nbytes(batch: Any) -> int:
    return batch_nbytes(batch) + text_nbytes(batch)


def _trained_nbytes(dataset: Any, batch: Any) -> int:
    """Return the bytes of a batch whose masks are int64, and whose other uint8 values are float32."""
    fields = dataset.stored_fields if isinstance(dataset, PackedDataset) else {}
    names = [n for n, f in fields.items() if isinstance(f, Mask) and hasattr(batch, n)]
    masks = [t for name in names for t in tensors_of(getattr(batch, name))]
    pixels = sum(t.nbytes for t in tensors_of(batch) if t.dtype is torch.uint8)
    pixels -= sum(t.nbytes for t in masks if t.dtype is torch.uint8)
    grown = sum(_INT64_BYTES * t.numel() - t.nbytes for t in masks)
    return _nbytes(batch) + (_FLOAT_BYTES - 1) * pixels + grown


def text_nbytes(value: Any) -> int:
    """Return the length of all texts and bytes of a batch, at any depth.

    Example:
        >>> text_nbytes({"name": ["one", "two"], "x": (b"four", 5)})
        10
    """
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    return sum(map(text_nbytes, value)) if isinstance(value, list | tuple) else 0


def ram_bytes_of(target: Target, *, decode: bool, count: int = 256) -> int:
    """Return the bytes of a ``RAMDataset`` of these samples: pixels are whole, whatever is cropped from them later.

    Of many samples, some that are spread evenly are looked at.

    Raises:
        LoadersError: It is not known how a ``RAMDataset`` would hold them.
    """
    dataset = target.dataset
    if isinstance(dataset, TokenWindows):
        dataset = dataset.dataset
    if isinstance(dataset, PackedDataset):
        some = dataset.select(_spread(len(dataset), count))
        plans = plan_columns(some, decode=decode, progress=False).values()
        return sum(plan.nbytes for plan in plans) * len(dataset) // len(some)
    if isinstance(dataset, ImageFiles):
        files = [dataset.files[i] for i in _spread(len(dataset), count)]
        sizes = [
            3 * math.prod(picture_size(file.read_bytes())) if decode else file.stat().st_size
            for file in files
        ]
        return sum(sizes) * len(dataset) // len(files)
    raise LoadersError(f"--ram: {target.name!r} is no packed dataset and no folder of images")


def _spread(num: int, count: int) -> list[int]:
    """Return some of so many indices, spread evenly."""
    return np.linspace(0, num - 1, min(count, num)).astype(np.int64).tolist()  # type: ignore[no-any-return]


def table(plans: dict[str, Plan]) -> list[tuple[str, ...]]:
    """Return rows for ``report.aligned``: one column per plan."""
    first = next(iter(plans.values()))
    rows: list[tuple[str, ...]] = [("", *plans)]
    rows.append(("one batch", *(in_bytes(p.batch_bytes) for p in plans.values())))
    most = f"{first.batches} batch{'es' * (first.batches != 1)} at a time"
    rows.append((most, *(in_bytes(p.slots_bytes) for p in plans.values())))
    rows.append(("pinned copies", *(in_bytes(p.pinned_bytes) for p in plans.values())))
    rows.append(("workers", *(in_bytes(p.workers_bytes) for p in plans.values())))
    rows.append(("one rank", *(in_bytes(p.rank_bytes) for p in plans.values())))
    copies = f"dataset in RAM, {first.cache_copies} cop{'y' if first.cache_copies == 1 else 'ies'}"
    rows.append((copies, *(in_bytes(p.cache_bytes) for p in plans.values())))
    node = f"all of the node, {first.ranks} rank{'s' * (first.ranks > 1)}"
    rows.append((node, *(in_bytes(p.node_bytes) for p in plans.values())))
    return rows


def fits(plans: dict[str, Plan], available: int) -> str:
    """Say whether what the node needs fits into the memory that is available, and what to do if not."""
    needed = max(p.node_bytes for p in plans.values())
    if needed <= available:
        return f"fits: at most {in_bytes(needed)} of the {in_bytes(available)} available here"
    least = min(p.node_bytes for p in plans.values())
    some = "" if least > available else f"; {in_bytes(least)} does"
    cached = any(p.cache_bytes for p in plans.values())
    remedy = (
        "--shared, --ram encoded or ShardDataset"
        if cached
        else "a smaller --batch-size or --prefetch"
    )
    return (
        f"does not fit: {in_bytes(needed)}, and {in_bytes(available)} are available here{some}\n"
        f"Do: {remedy}"
    )
