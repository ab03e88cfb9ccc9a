"""Timing a loader: from the first batch on, over whole rounds of its workers, on a clock that can be replaced.

A loader's first batches come late, and then several at once: one of each worker. So the rate is
taken over whole rounds: from the last batch of the first round to the last batch of a later one.
"""

from __future__ import annotations

import gc
import itertools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from loaders.bench.processes import MemoryWatch, bytes_read, cpu_s, family
from loaders.datasets.reading.samples import Ragged
from loaders.device.nested import tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of a loader.

    Attributes:
        num_workers: Threads or processes.
        batch_size: Samples per batch.
        backend: As ``loaders.DataLoader`` takes it.
        prefetch: Batches in flight (threads) or per worker (processes); None is the loader's default.
    """

    num_workers: int
    batch_size: int
    backend: str = "auto"
    prefetch: int | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a ``DataLoader``."""
        chosen: dict[str, Any] = {
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "backend": self.backend,
        }
        if self.prefetch is not None and self.num_workers:
            chosen["prefetch_factor"] = self.prefetch
        return chosen

    def __str__(self) -> str:
        text = f"num_workers={self.num_workers}, batch_size={self.batch_size}, backend={self.backend!r}"
        return text + ("" if self.prefetch is None else f", prefetch_factor={self.prefetch}")


@dataclass(slots=True)
class Run:
    """One timed pass over a loader.

    Attributes:
        samples_per_s: From the end of the first round of workers on.
        first_batch_s: From asking for an iterator to the first batch.
        latencies_s: How long each later batch was waited for.
        num_samples: Samples that the rate is of.
        batch_bytes: Bytes of all tensors of a batch, on average over some of them.
        cpu_s_per_1000: CPU seconds of all processes per 1,000 samples.
        peak_pss_bytes: Of all processes, see ``Memory``.
        peak_own_bytes: The same without mapped files.
        read_bytes: What the storage had to read, or None where that is not known.
        watch_s: What watching the memory cost while it ran.
        batch_samples: Samples of a batch, on average over the same; None: each had the size that was asked for.
    """

    samples_per_s: float
    first_batch_s: float
    latencies_s: list[float]
    num_samples: int
    batch_bytes: float
    cpu_s_per_1000: float
    peak_pss_bytes: int = 0
    peak_own_bytes: int = 0
    read_bytes: int | None = None
    watch_s: float = 0.0
    batch_samples: float | None = None

    def sample_bytes(self, batch_size: int) -> float:
        """Return the bytes of a sample in batches that were to have this size."""
        return self.batch_bytes / (self.batch_samples or batch_size)


@dataclass(slots=True)
class Result:
    """Every run of one configuration."""

    config: Config
    runs: list[Run] = field(default_factory=list)
    error: str | None = None

    def median(self, name: str) -> float:
        """Return the median of a figure over the runs; NaN if there are none."""
        values = [getattr(run, name) for run in self.runs]
        return statistics.median(values) if values else float("nan")

    @property
    def rate(self) -> float:
        """Samples per second, the median."""
        return self.median("samples_per_s") if self.runs else 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest rate."""
        rates = [run.samples_per_s for run in self.runs] or [0.0]
        return min(rates), max(rates)

    @property
    def mb_per_s(self) -> float:
        """Millions of batch bytes per second."""
        sizes = [run.sample_bytes(self.config.batch_size) for run in self.runs]
        return self.rate * statistics.median(sizes) / 1e6 if sizes else float("nan")

    def latency_s(self, share: float) -> float:
        """Return a quantile of the waits for a batch, of all runs together."""
        waits = sorted(wait for run in self.runs for wait in run.latencies_s)
        return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else float("nan")

    @property
    def peak_pss_bytes(self) -> int:
        """The most memory of any run."""
        return max((run.peak_pss_bytes for run in self.runs), default=0)

    def summary(self) -> dict[str, Any]:
        """Return the figures, with every repeat."""
        reads = [run.read_bytes for run in self.runs if run.read_bytes is not None]
        return asdict(self.config) | {
            "error": self.error,
            "samples_per_s": self.rate,
            "samples_per_s_repeats": [run.samples_per_s for run in self.runs],
            "mb_per_s": self.mb_per_s,
            "first_batch_s": self.median("first_batch_s"),
            "batch_wait_p50_s": self.latency_s(0.5),
            "batch_wait_p99_s": self.latency_s(0.99),
            "cpu_s_per_1000_samples": self.median("cpu_s_per_1000"),
            "peak_pss_bytes": self.peak_pss_bytes,
            "read_bytes": max(reads, default=None),
            "num_samples": sum(run.num_samples for run in self.runs),
        }


def time_loader(
    loader: Iterable[Any],
    *,
    seconds: float,
    round_size: int = 1,
    max_samples: int | None = None,
    clock: Clock = time.perf_counter,
    watch: bool = True,
) -> Run:
    """Iterate a loader for some time, and return what it did.

    Args:
        loader: Anything that yields batches.
        seconds: Stop after so long, at the end of a round; one round behind the first is always done.
        round_size: Batches that come together: of processes, one of each; of grouped ones, a group.
        max_samples: Stop after so many, at the end of a round.
        clock: Seconds that only grow.
        watch: Look at the memory meanwhile.
    """
    gc.collect()  # an older loader's memory and threads are not this one's
    if not watch:
        return _time_batches(iter_of(loader), seconds, round_size, max_samples, clock)
    with MemoryWatch() as watcher:
        before = bytes_read(family())
        run = _time_batches(
            iter_of(loader), seconds, round_size, max_samples, clock, look=watcher.look
        )
    run.peak_pss_bytes, run.peak_own_bytes = watcher.peak.pss_bytes, watcher.peak.own_bytes
    run.watch_s = watcher.spent_s
    if run.read_bytes is not None and before is not None:
        run.read_bytes -= before
    return run


def iter_of(loader: Iterable[Any]) -> Callable[[], Iterator[Any]]:
    """Return what begins an epoch, so that beginning is timed too."""

    def begin() -> Iterator[Any]:
        with warnings.catch_warnings():  # more workers than cores are tried on purpose
            warnings.filterwarnings("ignore", "This DataLoader will create")
            warnings.filterwarnings("ignore", "epoch .* was left early")
            return iter(loader)

    return begin


def _time_batches(
    begin: Callable[[], Iterator[Any]],
    seconds: float,
    round_size: int,
    max_samples: int | None,
    clock: Clock,
    look: Callable[[], Any] = lambda: None,
) -> Run:
    began = clock()
    batches = begin()
    arrivals, samples, sizes = [began], [0], _Sizes()
    most = math.inf if max_samples is None else max_samples
    cpu_began = cpu_s(family())
    count = total = 0
    for batch in batches:  # not by enumerate(), which keeps one until the next is there
        count += 1  # noqa: SIM113
        arrivals.append(clock())
        num = num_samples(batch)
        samples.append(total := total + num)
        if not count & (count - 1):
            sizes.add(batch, num)
        if count == round_size:
            cpu_began = cpu_s(family())
        is_enough = arrivals[-1] - began >= seconds or total >= most
        if is_enough and count % round_size == 0 and count > round_size:
            break
        del batch
    pids = family()
    cpu, read = cpu_s(pids) - cpu_began, bytes_read(pids)
    look()
    end(batches)
    return _run(arrivals, samples, round_size, sizes, cpu, read)


@dataclass(slots=True)
class _Sizes:
    """Batches 1, 2, 4, 8, ... of a run: to look at each takes longer than to hand over a small one."""

    num_batches: int = 0
    num_samples: int = 0
    nbytes: int = 0

    def add(self, batch: Any, num_samples: int) -> None:
        self.num_batches += 1
        self.num_samples += num_samples
        self.nbytes += batch_nbytes(batch)


def _run(
    arrivals: list[float],
    samples: list[int],
    round_size: int,
    sizes: _Sizes,
    cpu: float,
    read: int | None,
) -> Run:
    """Return the figures of a run.

    Args:
        arrivals: When it began, and when each batch came.
        samples: How many had come by then.
        round_size: As for ``time_loader``.
        sizes: Of some batches.
        cpu: CPU seconds since the first round.
        read: As ``Run`` has it.
    """
    count = len(arrivals) - 1
    if not count:
        raise ValueError("the loader gave no batch: is the dataset smaller than a batch?")
    first = round_size if count > round_size else 0
    last = count - (count - first) % round_size if first else count
    timed = samples[last] - samples[first]
    return Run(
        samples_per_s=timed / max(1e-9, arrivals[last] - arrivals[first]),
        first_batch_s=arrivals[1] - arrivals[0],
        latencies_s=[b - a for a, b in itertools.pairwise(arrivals[1:])],
        num_samples=timed,
        batch_bytes=sizes.nbytes / sizes.num_batches,
        cpu_s_per_1000=cpu / max(1, samples[count] - samples[first]) * 1000,
        read_bytes=read,
        batch_samples=sizes.num_samples / sizes.num_batches,
    )


def end(batches: Any) -> None:
    """End an iterator's workers now, of any kind of loader."""
    for name in ("close", "_shutdown_workers"):
        if hasattr(batches, name):
            getattr(batches, name)()


def num_samples(batch: Any) -> int:
    """Return how many samples a batch has: the length of its first tensor, or else of its first part."""
    if isinstance(batch, torch.Tensor | Ragged):
        return 1 if (length := _length(batch)) < 0 else length
    if not isinstance(batch, dict | tuple):
        return num_samples(batch[0]) if _is_pair(batch) else len(batch)
    parts = batch.values() if isinstance(batch, dict) else batch
    # The first part mostly tells: to look at all of them takes longer than making a small batch.
    for part in parts:
        if (length := _length(part)) >= 0:
            return length
    if not parts:
        return 0
    first = next(iter(parts))
    is_ours = hasattr(batch, "_fields") and isinstance(first, list)  # a value for each sample
    return len(first) if is_ours else num_samples(first)


def _is_pair(batch: Any) -> bool:
    """Tell torch's ``[images, labels]`` from a list with one value per sample."""
    if not isinstance(batch, list) or not batch or not isinstance(batch[0], torch.Tensor):
        return False
    first = len(batch[0]) if batch[0].dim() else 0
    return first > 0 and all(
        len(part) == first if isinstance(part, list | tuple) else _length(part) == first
        for part in batch
    )


def _length(part: Any) -> int:
    if isinstance(part, torch.Tensor):
        return part.shape[0] if part.dim() else -1
    return len(part.offsets) - 1 if isinstance(part, Ragged) else -1


def batch_nbytes(batch: Any) -> int:
    """Return the bytes of all tensors of a batch."""
    return sum(tensor.nbytes for tensor in tensors_of(batch))


def interleave(
    configs: Sequence[Config],
    measure: Callable[[Config], Run],
    *,
    repeats: int,
    told: Callable[[Config], None] = lambda config: None,
) -> list[Result]:
    """Measure every configuration in turns (A B C, A B C, ...), so that drift hits all alike.

    A configuration that fails is left out from then on, with its error in the result.
    """
    results = [Result(config) for config in configs]
    for _ in range(repeats):
        for result in results:
            if result.error is None:
                try:
                    result.runs.append(measure(result.config))
                except Exception as error:  # whatever it is, the others are still worth measuring
                    result.error = f"{type(error).__name__}: {error}"
            told(result.config)
    return results
