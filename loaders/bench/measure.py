"""Time and memory of a loader: from the first batch on, over whole rounds of its workers.

A loader's first batches come late, and then several at once: one of each worker, or a group of small ones. So the rate
is taken over whole rounds: from the last batch of the first round to the last batch of a later one.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.backends.maker import num_in_flight
from loaders.bench.targets import Endless, is_map_style
from loaders.datasets.base import BatchDataset
from loaders.device.nested import tensors_of
from loaders.loading.loader import DataLoader
from loaders.system.limits import numbers, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of a loader."""

    num_workers: int  # threads or processes
    batch_size: int  # samples per batch
    backend: str = "auto"  # as ``loaders.DataLoader`` takes it
    # Batches in flight (threads) or per worker (processes); None is the loader's default.
    prefetch: int | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a ``DataLoader``."""
        given = asdict(self)
        prefetch = given.pop("prefetch")
        return given | ({"prefetch_factor": prefetch} if prefetch and self.num_workers else {})

    def __str__(self) -> str:
        return as_arguments(self.arguments())


def as_arguments(given: Mapping[str, Any]) -> str:
    """Return arguments as they are typed."""
    return ", ".join(f"{name}={value!r}" for name, value in given.items())


@dataclass(slots=True)
class TimedPass:
    """One timed pass over a loader."""

    samples_per_s: float  # from the end of the first round of workers on
    first_batch_s: float  # from asking for an iterator to the first batch
    latencies_s: list[float]  # how long each later batch was waited for
    num_samples: int  # samples that the rate is of
    pss_bytes: int = 0  # memory of all processes at the end of the run, see ``memory``
    has_start: bool = False  # there were too few batches to leave the first round out of the rate
    stall_share: float = 0.0  # share of the time that was waited for batches
    gil_share: float = 0.0  # share of the steps' time that was waited for the GIL


@dataclass(slots=True)
class Result:
    """Every run of one configuration."""

    config: Config
    runs: list[TimedPass] = field(default_factory=list)
    error: str | None = None

    def median(self, name: str) -> float:
        """Return the median of a figure over the runs; NaN if there are none."""
        values = [getattr(run, name) for run in self.runs]
        return statistics.median(values) if values else math.nan

    @property
    def rate(self) -> float:
        """Samples per second, the median."""
        return self.median("samples_per_s") if self.runs else 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest rate."""
        rates = [run.samples_per_s for run in self.runs] or [0.0]
        return min(rates), max(rates)

    def latency_s(self, share: float) -> float:
        """Return a quantile of the waits for a batch, of all runs together."""
        waits = sorted(wait for run in self.runs for wait in run.latencies_s)
        return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else math.nan

    def most(self, name: str) -> int:
        """Return the most that a figure was in any run."""
        return max((getattr(run, name) for run in self.runs), default=0)

    def summary(self) -> dict[str, Any]:
        """Return the figures, with every repeat."""
        return asdict(self.config) | {
            "error": self.error,
            "samples_per_s": self.rate,
            "samples_per_s_repeats": [run.samples_per_s for run in self.runs],
            "first_batch_s": self.median("first_batch_s"),
            "batch_wait_p50_s": self.latency_s(0.5),
            "batch_wait_p99_s": self.latency_s(0.99),
            "peak_pss_bytes": self.most("pss_bytes"),
            "num_samples": sum(run.num_samples for run in self.runs),
        }


def make_loader(dataset: Any, config: Config, **more: Any) -> DataLoader:
    """Return an endless shuffled loader over a dataset, of whole batches."""
    if is_map_style(dataset):
        more = {"sampler": Endless(len(dataset)), "rank": 0, "world_size": 1} | more
    return DataLoader(dataset, **config.arguments(), drop_last=True, **more)


def group_size_of(dataset: Any, config: Config) -> int:
    """Return how many batches the loader hands over at once."""
    if config.backend == "process" or not isinstance(dataset, BatchDataset):
        return 1
    return make_loader(dataset, config)._maker().group_size


def round_size(dataset: Any, config: Config) -> int:
    """Return how many batches come together."""
    if config.backend == "process" or not isinstance(dataset, BatchDataset):
        return max(1, config.num_workers)
    return group_size_of(dataset, config) if config.num_workers else 1


def in_flight(dataset: Any, config: Config) -> int:
    """Return how many batches are made ahead: of threads in all, of processes by each."""
    if not config.num_workers:
        return 0
    if config.backend == "process":
        return (config.prefetch or 2) * config.num_workers
    group = group_size_of(dataset, config)
    return group * (config.prefetch or num_in_flight(config.num_workers, is_together=group > 1))


def time_loader(
    loader: Iterable[Any],  # anything that yields batches
    batch_size: int,  # samples of each of them
    *,
    seconds: float,  # stop after so long, at the end of a round; one round behind the first is always done
    # Batches that come together: of processes, one of each; of grouped ones, a group.
    round_size: int = 1,
    ahead: int = 0,  # further batches that do not count, as they may have been made before
    step: Callable[[Any], Any] = lambda _: None,  # what is done with each batch
    patience_s: float = math.inf,  # end in the middle of a round so long after the time is up
    clock: Callable[[], float] = time.perf_counter,  # seconds that only grow
) -> TimedPass:
    """Iterate a loader for some time, and return what it did.

    Raises:
        ValueError: The loader gave no batch.
    """
    gc.collect()  # an older loader's memory and threads are not this one's
    waits, done, first = list[float](), [clock()], round_size + ahead
    batches: Any = iter(loader)
    for batch in batches:  # not by enumerate(), which keeps one until the next is there
        waits.append(clock() - done[-1])
        step(batch)
        done.append(clock())
        late_s, behind = done[-1] - done[0] - seconds, len(waits) - first
        if late_s >= patience_s or (late_s >= 0 and behind > 0 and behind % round_size == 0):
            break
        del batch
    pids = family()
    if not waits:
        raise ValueError("the loader gave no batch: is the dataset smaller than a batch?")
    num = (len(waits) - first) // round_size * round_size
    first, last = (first, first + num) if num > 0 else (0, len(waits))
    took_s = max(1e-9, done[last] - done[first])
    run = TimedPass(
        samples_per_s=(last - first) * batch_size / took_s,
        first_batch_s=waits[0],
        latencies_s=waits[1:],
        num_samples=(last - first) * batch_size,
        pss_bytes=memory(pids),
        has_start=num <= 0,
        stall_share=sum(waits[first:last]) / took_s,
    )
    batches.close()
    return run


def batch_nbytes(batch: Any) -> int:
    """Return the bytes of all tensors of a batch."""
    return sum(tensor.nbytes for tensor in tensors_of(batch))


def family(pid: int | None = None) -> list[int]:
    """Return a process and all its descendants."""
    found, waiting = [], [os.getpid() if pid is None else pid]
    while waiting:
        parent = waiting.pop()
        found.append(parent)
        for children in (PROC / str(parent) / "task").glob("*/children"):
            waiting += map(int, (text(children) or "").split())
    return found


def memory(pids: list[int]) -> int:
    """Return the bytes of some processes together: what they share counts once, what has ended not at all.

    All of it, mapped files included: what the machine would get back.
    """
    return _proportional("Pss", pids)


def own_memory(pids: list[int]) -> int:
    """Return the same without mapped files, which the kernel drops when it needs room."""
    return memory(pids) - _proportional("Pss_File", pids)


def _proportional(name: str, pids: list[int]) -> int:
    return sum(numbers(PROC / str(pid) / "smaps_rollup").get(name, 0) for pid in pids) << 10
