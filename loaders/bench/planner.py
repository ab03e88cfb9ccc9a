"""What a configuration will need, before it runs: memory, and what an epoch over a URL downloads."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.bench.measure import Config, batch_nbytes, group_size_of, in_flight, own_memory
from loaders.bench.stages import batches_of
from loaders.datasets.memory.loading import nbytes_of, plan_columns
from loaders.datasets.packed import PackedDataset
from loaders.datasets.tokens.windows import TokenWindows
from loaders.errors import LoadersError
from loaders.loading.fetching import LoaderPass
from loaders.loading.loader import DataLoader
from loaders.remote.ahead import downloads
from loaders.remote.wire import PART_BYTES
from loaders.sampling.plan import Plan
from loaders.sampling.sampler import EpochSampler
from loaders.text import describe_size, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.bench.targets import MeasuredDataset

_PROCESS_BYTES = 20 << 20  # a forked worker's own pages: heap that is written to, torch's state
_HELD = 2  # batches that the trainer holds: the one in use, and the next before it lets go of it
_SCRATCH_BYTES = 4 << 20  # of a thread: what it decodes into, its stack, its heap arena
_SERVED = 8  # samples of which the mean is taken


def plan(
    dataset: Any,
    sample_bytes: float,  # of one sample in a batch, see ``sample_bytes_of``
    config: Config,
    *,
    pinned: bool = False,  # batches pass through page-locked memory
    cache_bytes: int = 0,  # of a ``RAMDataset``, per copy
    shared: bool = False,  # one copy of the cache, instead of one per rank
    ranks: int = 1,  # training processes on the node
) -> dict[str, int]:
    """Return what a configuration will need on one node, in bytes."""
    batch_bytes, ahead = int(sample_bytes * config.batch_size), in_flight(dataset, config)
    batches = ahead + _HELD
    pinned_batches = ahead + group_size_of(dataset, config) if pinned else 0
    per_worker = _process_bytes() if config.backend == "process" else _SCRATCH_BYTES
    parts = {  # per rank
        "slots_bytes": batches * batch_bytes,
        "pinned_bytes": pinned_batches * batch_bytes,
        "workers_bytes": config.num_workers * per_worker,  # beside batches
    }
    rank_bytes, copies = sum(parts.values()), 1 if shared else ranks
    return {
        "batch_bytes": batch_bytes,
        "batches": batches,  # that exist at one time, per rank
        **parts,
        "cache_bytes": cache_bytes,
        "cache_copies": copies,
        "ranks": ranks,
        "rank_bytes": rank_bytes,  # what one rank adds, without a cache
        "node_bytes": ranks * rank_bytes + copies * cache_bytes,
    }


def _process_bytes() -> int:
    """Return what a worker process needs: little of a fork; else (Python 3.14) what this one has, imports and all."""
    methods = multiprocessing.get_all_start_methods()
    is_fork = (multiprocessing.get_start_method(allow_none=True) or methods[0]) == "fork"
    return _PROCESS_BYTES if is_fork else own_memory([os.getpid()])


def sample_bytes_of(dataset: Any) -> float:
    """Return the mean bytes of a few samples in a batch, served one by one."""
    some = itertools.islice(batches_of(dataset, Config(0, 1)), _SERVED)
    return sum(batch_nbytes(batch) + _text_nbytes(batch) for batch in some) / _SERVED


def _text_nbytes(value: Any) -> int:
    """Return the length of all texts and bytes of a batch, at any depth."""
    if isinstance(value, Mapping | list | tuple):
        return sum(map(_text_nbytes, value.values() if isinstance(value, Mapping) else value))
    return len(value) if isinstance(value, str | bytes) else 0


def ram_bytes_of(target: MeasuredDataset, *, decode: bool, count: int = 256) -> int:
    """Return the bytes of a ``RAMDataset`` of these samples: pixels are whole, whatever is cropped from them later.

    Of many samples, some that are spread evenly are looked at. LoadersError if the dataset is not a packed one.
    """
    dataset = target.dataset
    if isinstance(dataset, TokenWindows):
        dataset = dataset.dataset
    if not isinstance(dataset, PackedDataset):
        raise LoadersError(f"--ram: {target.name!r} is no packed dataset: pack the data first")
    some = dataset.select(np.linspace(0, len(dataset) - 1, min(count, len(dataset))).astype(int))
    plans = plan_columns(some, decode=decode, progress=False)
    return nbytes_of(plans) * len(dataset) // len(some)


def table(plan: dict[str, int]) -> list[tuple[str, str]]:
    """Return rows for ``report.aligned``; what is 0 has none."""
    batches, copies, ranks = plan["batches"], plan["cache_copies"], plan["ranks"]
    names = {
        "one batch": plan["batch_bytes"],
        f"{batches} batch{'es' * (batches != 1)} at a time": plan["slots_bytes"],
        "pinned copies": plan["pinned_bytes"],
        "workers": plan["workers_bytes"],
        "one rank": plan["rank_bytes"],
        f"dataset in RAM, {copies} cop{'y' if copies == 1 else 'ies'}": plan["cache_bytes"],
        f"all of the node, {ranks} rank{'s' * (ranks > 1)}": plan["node_bytes"],
    }
    return [(name, describe_size(nbytes)) for name, nbytes in names.items() if nbytes]


def fits(plan: dict[str, int], available: int) -> str:
    """Say whether what the node needs fits into the memory that is available, and what to do if not."""
    needed, here = describe_size(plan["node_bytes"]), describe_size(available)
    if plan["node_bytes"] <= available:
        return f"fits: at most {needed} of the {here} available here"
    remedy = "a smaller --batch-size or --prefetch"
    if plan["cache_bytes"]:
        remedy = "--shared, --ram encoded or ShardDataset"
    return f"does not fit: {needed}, and {here} are available here\nDo: {remedy}"


# -- at a URL --------------------------------------------------------------------------------------


def epochs(
    dataset: PackedDataset[Any], *, shuffle: Any, batch_size: int, nodes: int, cache_bytes: int
) -> list[dict[str, float]]:
    """Return what the first epoch of a dataset at a URL downloads into empty caches, one a node, and each later one.

    Both are ``{"num_bytes", "num_requests", "node_bytes"}``: of all nodes, and of the one that downloads most.
    """
    (origin,) = dataset.store.remotes
    loader = DataLoader(dataset, batch_size, shuffle=shuffle, rank=0, world_size=nodes)
    assert isinstance(loader.sampler, EpochSampler)
    order = loader.sampler.order
    lanes = getattr(order, "num_lanes", 1)
    sizes = [file.size for file in dataset.store.files_at(origin)[0]]
    first, later = list[int](), list[int]()
    for node in range(nodes):
        plan = Plan(order.length, batch_size, node, nodes, num_lanes=lanes)
        needs = LoaderPass(dataset, origin, order, plan, 0).needs()  # of two epochs
        num_samples = plan.num_steps * batch_size
        here = zip(needs.starts, needs.reads, strict=True)
        reads = [n for at, each in here if at < num_samples for n in each.tolist()]
        first.append(downloads(reads, sizes, cache_bytes))
        later.append(needs.epoch_bytes(cache_bytes) - first[-1])
    part = sum(sizes) / sum(-(-size // PART_BYTES) for size in sizes)
    return [
        {
            "num_bytes": sum(each),
            "num_requests": round(sum(each) / part),  # of parts
            "node_bytes": max(each),
        }
        for each in (first, later)
    ]


def epoch_table(costs: Sequence[dict[str, float]]) -> list[tuple[str, ...]]:
    """Return rows for ``report.aligned``."""
    rows = {
        "num_bytes": ("downloaded by all nodes", describe_size),
        "node_bytes": ("by the one with most", describe_size),
        "num_requests": ("requests", number),
        "seconds": ("seconds, if the link bounds it", number),
    }
    said = [
        (what, *(as_text(each[name]) for each in costs)) for name, (what, as_text) in rows.items()
    ]
    return [("", "first epoch", "each later one"), *said]
