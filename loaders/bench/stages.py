"""Stages of a pipeline, each run by itself: what a sample costs there, in wall time, CPU time and time with the GIL.

What a thread does between two looks at the clocks splits into time on a core, and time off it. Time
off it counts as waiting only if the thread gave its core up (a sleep, a read, a page fault from disk),
and only until it could go on: what it then queued for a core, as the kernel counts it, others took, and
that is no property of the dataset. Nor does it wait while it lets others compute for it: threads of a library,
or a process that ends with its work, such as a decoder that it calls.
"""

from __future__ import annotations

import functools
import hashlib
import os
import statistics
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import torch

from loaders import opencv
from loaders.backends.maker import Maker
from loaders.bench.measure import batch_nbytes, num_samples
from loaders.bench.targets import ImageFiles, TargetError, is_map_style
from loaders.datasets.base import reads_batches
from loaders.datasets.packed import PackedDataset
from loaders.datasets.reading.samples import collate
from loaders.device.nested import map_tensors, tensors_of
from loaders.device.normalize import Normalize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loaders.bench.measure import Clock

_PROBE_SWITCH_S = 1e-4
_PROBES = 4
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_HASHED = bytes(1 << 18)
_COPY_BYTES, _LEAST_COPY_BYTES = 32 << 20, 4 << 20  # less would stay in a core's cache
ROOM_SHARE = 8  # of the available memory, one part is taken
_QUOTA_PERIODS_S = 0.2  # two of 100 ms, as is usual: a part of one shows a burst, or a pause


@dataclass(frozen=True, slots=True)
class Cost:
    """What one sample costs where samples are made one after another.

    Attributes:
        wall_s: Seconds until it is done.
        cpu_s: Seconds on a core, of all threads and processes that work at it.
        wait_s: Seconds that the thread gave up, to sleep or to read.
        queued_s: Seconds that it could have run, but others had the cores; 0 where the kernel does not count them.
    """

    wall_s: float
    cpu_s: float
    wait_s: float
    queued_s: float = 0.0

    def minus(self, other: Cost | None) -> Cost:
        """Return what this costs beyond something that it contains."""
        if other is None:
            return self
        pairs = (
            (self.wall_s, other.wall_s),
            (self.cpu_s, other.cpu_s),
            (self.wait_s, other.wait_s),
            (self.queued_s, other.queued_s),
        )
        return Cost(*(max(0.0, a - b) for a, b in pairs))


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the pipeline, run alone.

    Attributes:
        name: read, decode, augment, fetch, collate, copy, finish or step.
        cost: Of one sample.
    """

    name: str
    cost: Cost

    @property
    def samples_per_s(self) -> float:
        """What one thread, or one device, would do if this were all."""
        return 1 / self.cost.wall_s if self.cost.wall_s > 1e-9 else float("nan")


def time_alone(
    work: Callable[[], int],
    *,
    seconds: float,
    min_calls: int = 3,
    warm_up: bool = True,
    clock: Clock = time.perf_counter,
) -> Cost:
    """Call something for some time; return the median cost of a sample.

    Args:
        work: Does a batch of work; returns how many samples it was.
        seconds: Stop after so long.
        min_calls: Calls at least.
        warm_up: Call it once before the first that counts.
        clock: Seconds that only grow.
    """
    if warm_up:
        work()
    costs: list[Cost] = []
    gave_up = 0
    deadline = clock() + seconds
    while clock() < deadline or len(costs) < min_calls:
        switches, queued = _voluntary_switches(), _queued_s()
        cpu, own, wall = _cpu_s(), time.thread_time(), clock()
        samples = max(1, work())
        wall, own, cpu = clock() - wall, time.thread_time() - own, _cpu_s() - cpu
        queued = min(_queued_s() - queued, max(0.0, wall - own))
        gave_up += _voluntary_switches() > switches
        wait = max(0.0, wall - cpu - queued)
        costs.append(Cost(wall / samples, cpu / samples, wait / samples, queued / samples))
    waits = gave_up >= len(costs) / 2
    return Cost(
        statistics.median(c.wall_s for c in costs),
        statistics.median(c.cpu_s for c in costs),
        statistics.median(c.wait_s for c in costs) if waits else 0.0,
        statistics.median(c.queued_s for c in costs),
    )


def _cpu_s() -> float:
    """Return the CPU seconds so far of all threads of this process, and of its children that ended."""
    try:
        import resource
    except ImportError:  # not on this system
        return time.process_time() + sum(os.times()[2:4])
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _queued_s() -> float:
    """Return for how long this thread has queued for a core so far; 0 where the kernel does not say.

    Source: the kernel's Documentation/scheduler/sched-stats.rst; the second number of three, in ns.
    """
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _voluntary_switches() -> int:
    """Return how often this thread gave its core up."""
    try:
        import resource
    except ImportError:  # not on this system: all time off the core counts as waiting
        return time.perf_counter_ns()
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw


def fetcher(dataset: Any, batch_size: int) -> Callable[[], Any]:
    """Return what makes the samples of one random batch after another, on the calling thread."""
    if not is_map_style(dataset):
        return _stream(dataset, batch_size)
    rng = np.random.default_rng(0)
    maker = Maker(dataset, lambda samples: samples, batch_size, True, 1)
    takes_arrays = reads_batches(dataset)

    def fetch() -> Any:
        indices = rng.integers(len(dataset), size=batch_size)
        return maker.make(indices if takes_arrays else indices.tolist())

    return fetch


def group_fetcher(dataset: Any, batch_size: int, group_size: int) -> Callable[[], Any]:
    """Return what makes one group of small random batches after another, as workers make them."""
    rng = np.random.default_rng(0)
    maker = Maker(dataset, collate, batch_size, True, 1)

    def fetch() -> Any:
        group = list(rng.integers(len(dataset), size=(group_size, batch_size)))
        made = maker.make_group(group)
        return [maker.make(indices) for indices in group] if made is None else made

    return fetch


def _stream(dataset: Any, batch_size: int) -> Callable[[], Any]:
    def endless() -> Iterator[Any]:
        while True:
            is_empty = True
            for sample in dataset:
                is_empty = False
                yield sample
            if is_empty:  # or this would go on for ever
                raise TargetError(
                    "the stream has no samples, or none any more: it can be read only once if its __iter__ "
                    "returns the same iterator each time; let it return a new one, as a generator function does"
                )

    samples = endless()
    return lambda: [next(samples) for _ in range(batch_size)]


def host_stages(
    dataset: Any,
    batch_size: int,
    *,
    seconds: float,
    collate_fn: Callable[[Any], Any] = collate,
    group_size: int = 1,
) -> list[Stage]:
    """Run the stages that happen on the CPU, each alone; in the order of the pipeline.

    Where the dataset is not ours, its inside cannot be told apart, and is one stage: fetch.

    Args:
        dataset: What is loaded.
        batch_size: Samples of a batch.
        seconds: For all stages together, about.
        collate_fn: Joins samples.
        group_size: How many batches a worker makes at once.
    """
    share = seconds / 4
    if group_size > 1:
        return _group_stages(dataset, batch_size, group_size, share)
    fetch = fetcher(dataset, batch_size)
    whole = time_alone(_counted(fetch), seconds=share)
    stages = _inside(dataset, batch_size, share, whole) or [Stage("fetch", whole)]
    samples = fetch()
    joined = time_alone(lambda: num_samples(collate_fn(samples)), seconds=share / 2)
    return [*stages, Stage("collate", joined)]


def _group_stages(dataset: Any, batch_size: int, group_size: int, seconds: float) -> list[Stage]:
    """Gather all rows of a group at once, and then cut them into batches."""
    fetch = group_fetcher(dataset, batch_size, group_size)
    whole = time_alone(lambda: len(fetch()) * batch_size, seconds=seconds)
    group = fetch()
    cut = time_alone(lambda: len(list(group)) * batch_size, seconds=seconds / 2)
    name = "read" if isinstance(dataset, PackedDataset) else "fetch"
    return [Stage(name, whole), Stage("collate", cut)]


@contextmanager
def one_thread() -> Iterator[None]:
    """Let libraries use one thread, as they do in workers."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with opencv.one_thread():
            yield
    finally:
        torch.set_num_threads(num_threads)


def cold_stage(dataset: Any, batch_size: int, warm: list[Stage], *, seconds: float) -> Stage:
    """Fetch samples whose files have left the page cache; return what that costs beyond the same in memory."""
    fetch = _counted(fetcher(dataset, batch_size))
    cost = time_alone(fetch, seconds=seconds, min_calls=2, warm_up=False)
    for stage in warm:
        cost = cost.minus(stage.cost)
    return Stage("read, cold", cost)


def _counted(fetch: Callable[[], Any]) -> Callable[[], int]:
    return lambda: len(fetch())


def _inside(dataset: Any, batch_size: int, seconds: float, whole: Cost) -> list[Stage]:
    if getattr(dataset, "has_own_samples", False):
        return []
    if isinstance(dataset, PackedDataset):
        return _inside_packed(dataset, batch_size, seconds, whole)
    if isinstance(dataset, ImageFiles):
        return _inside_files(dataset, batch_size, seconds, whole)
    return []


def _inside_packed(
    dataset: PackedDataset, batch_size: int, seconds: float, whole: Cost
) -> list[Stage]:
    """Split fetching: records as bytes, then without augmentation, then all of it."""
    read = time_alone(_record_reader(dataset, batch_size), seconds=seconds)
    if dataset.sample_nbytes is not None:
        return [Stage("read", whole)]  # to gather is all that is done
    if not dataset.augment:
        return [Stage("read", read), Stage("decode", whole.minus(read))]
    plain = dataset.replace(augment=[])
    decoded = time_alone(_counted(fetcher(plain, batch_size)), seconds=seconds)
    if decoded.cpu_s > whole.cpu_s:  # a crop decodes less than the whole picture
        return [Stage("read", read), Stage("decode", whole.minus(read))]
    return [
        Stage("read", read),
        Stage("decode", decoded.minus(read)),
        Stage("augment", whole.minus(decoded)),
    ]


def _record_reader(dataset: PackedDataset, batch_size: int) -> Callable[[], int]:
    """Return what copies the stored bytes of a random batch, without looking at them."""
    rng = np.random.default_rng(1)
    scratch = np.empty(1 << 20, np.uint8)
    names = [name for name in dataset.fields if name in dataset.schema.fields]

    def read() -> int:
        nonlocal scratch
        rows = dataset.rows_of(rng.integers(len(dataset), size=batch_size))
        for name in names:
            for record in dataset.store.records(name, rows):
                if len(record) > len(scratch):
                    scratch = np.empty(len(record), np.uint8)
                scratch[: len(record)] = record
        return batch_size

    return read


def _inside_files(
    dataset: ImageFiles, batch_size: int, seconds: float, whole: Cost
) -> list[Stage]:
    rng = np.random.default_rng(1)

    def chosen() -> list[Any]:
        return [dataset.files[i] for i in rng.integers(len(dataset), size=batch_size)]

    def read() -> int:
        return len([file.read_bytes() for file in chosen()])

    records = [np.frombuffer(file.read_bytes(), np.uint8) for file in chosen()]

    def decode() -> int:
        return len([cv2.imdecode(record, cv2.IMREAD_COLOR_RGB) for record in records])

    reading, decoding = time_alone(read, seconds=seconds), time_alone(decode, seconds=seconds)
    rest = whole.minus(reading).minus(decoding)
    return [Stage("read", reading), Stage("decode", decoding), Stage("augment", rest)]


def gil_s_per_sample(work: Callable[[], int], *, seconds: float) -> float:
    """Return for how long, of its CPU time, a sample holds the GIL.

    A probe thread runs pure Python beside the work, so it always wants the lock. When it gives its core
    up, it waits for the lock, and what the work advances meanwhile it does with the lock held; to that
    comes what waking the probe takes, some tens of microseconds where a core is free. Others on the machine
    only add to it, so it is looked at a few times, and the least counts.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_PROBE_SWITCH_S)  # the work gets the lock back soon, too
    try:
        work()
        deadline = time.perf_counter() + seconds
        least = _gil_s_once(work, seconds / _PROBES)
        for _ in range(_PROBES - 1):
            if time.perf_counter() < deadline:  # a batch may take as long by itself
                least = min(least, _gil_s_once(work, seconds / _PROBES))
        return least
    finally:
        sys.setswitchinterval(before)


def _gil_s_once(work: Callable[[], int], seconds: float) -> float:
    probe = _Probe()
    samples, cpu = 0, time.thread_time()
    with probe:
        deadline = time.perf_counter() + seconds
        while not samples or time.perf_counter() < deadline:
            samples += max(1, work())
    cpu = time.thread_time() - cpu
    return min(probe.held_s, probe.off_core_s, cpu) / samples


class _Probe:
    """Runs pure Python on a thread, and sees how far the thread that made it advances meanwhile.

    Attributes:
        held_s: CPU time of that thread while it had the lock and the probe waited for it.
        off_core_s: Time that the probe did not run: waiting for the lock, or for a core.
    """

    def __init__(self) -> None:
        self.held_s = self.off_core_s = 0.0
        self._stop = False
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._spin, name="bench-probe", daemon=True)
        clock_of = getattr(time, "pthread_getcpuclockid", None)
        self._watched = None if clock_of is None else clock_of(threading.get_ident())

    def __enter__(self) -> None:
        self._thread.start()
        self._started.wait()

    def __exit__(self, *error: object) -> None:
        self._stop = True
        self._thread.join()

    def _spin(self) -> None:
        advance: Callable[[], float] = time.perf_counter
        if self._watched is not None:
            advance = functools.partial(time.clock_gettime, self._watched)
        wall, cpu = time.perf_counter(), time.thread_time()
        seen, waits = advance(), _voluntary_switches()
        self._started.set()
        while not self._stop:
            done, now = advance(), _voluntary_switches()
            if now != waits:
                done = advance()  # the wait may have come between the two
                self.held_s += done - seen
            seen, waits = done, now
        self.off_core_s = time.perf_counter() - wall - (time.thread_time() - cpu)


def available_share(
    num_threads: int, quota: float | None = None, seconds: float = _QUOTA_PERIODS_S
) -> float:
    """Return which share of so many cores, or of a quota of their time, this process gets now; others take the rest."""
    got: list[float] = []

    def spin() -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        while time.perf_counter() - wall < seconds:
            hashlib.sha256(_HASHED)  # without the GIL
        got.append((time.thread_time() - cpu) / (time.perf_counter() - wall))

    _on_threads(num_threads, spin)
    return min(1.0, sum(got) / min(num_threads, quota or num_threads))


def _on_threads(count: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def copy_bytes_per_s(num_threads: int, available_bytes: int, seconds: float = 0.3) -> float:
    """Return how many bytes per second so many threads copy together, from memory to memory.

    An eighth of the available memory is taken at most; 0 where that is too little to tell memory from caches.
    """
    num_bytes = min(_COPY_BYTES, available_bytes // ROOM_SHARE // (2 * num_threads))
    if num_bytes < _LEAST_COPY_BYTES:
        return 0.0
    rates: list[float] = []
    barrier = threading.Barrier(num_threads)

    def copy() -> None:
        source, target = (np.ones(num_bytes, np.uint8) for _ in range(2))
        barrier.wait(timeout=60)
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            np.copyto(target, source)
            count += 1
        rates.append(count * num_bytes / (time.perf_counter() - began))

    _on_threads(num_threads, copy)
    return sum(rates)


def copy_stage(
    batch: Any, device: torch.device, *, seconds: float, copy: Callable[[Any], Any] | None = None
) -> Stage:
    """Time moving a batch to a device, until it has arrived.

    Args:
        batch: On the host.
        device: Where it goes.
        seconds: Stop after so long.
        copy: Moves a batch and returns when it is there; default: each tensor, from pinned memory.
    """
    if copy is None:
        pinned = [t.pin_memory() if device.type == "cuda" else t for t in tensors_of(batch)]

        def copy(batch: Any) -> None:
            for tensor in pinned:
                tensor.to(device, copy=True, non_blocking=True)
            synchronize(device)

    moved = num_samples(batch)

    def work() -> int:
        copy(batch)
        return moved

    return Stage("copy", time_alone(work, seconds=seconds))


def finish_stage(
    batch: Any,
    device: torch.device | None,
    finisher: Callable[[Any], Any] | None,
    *,
    seconds: float,
) -> Stage | None:
    """Time what makes a batch whole after the copy: the dataset's device half, and ``Normalize`` on a GPU."""
    there = batch if device is None else map_tensors(batch, lambda tensor: tensor.to(device))
    whole = there if finisher is None else finisher(there)
    normalize = _normalize_for(whole) if device is not None and device.type != "cpu" else None
    if normalize is None and finisher is None:
        return None
    count = num_samples(whole)

    def work() -> int:
        done = there if finisher is None else finisher(there)
        if normalize is not None:
            normalize(_images(done)[0])
        synchronize(device)
        return count

    return Stage("finish", time_alone(work, seconds=seconds))


def _images(batch: Any) -> list[torch.Tensor]:
    return [t for t in tensors_of(batch) if t.dim() == 4 and t.dtype is torch.uint8]


def _normalize_for(batch: Any) -> torch.nn.Module | None:
    images = _images(batch)
    if not images:
        return None
    channels = images[0].shape[1]
    return Normalize([127.5] * channels, [64.0] * channels).to(images[0].device)


def step_stage(
    step: Callable[[Any], Any], batch: Any, device: torch.device | None, *, seconds: float
) -> Stage:
    """Time the user's training step on one batch, again and again: no loading."""
    ready = batch if device is None else map_tensors(batch, lambda tensor: tensor.to(device))
    count = num_samples(batch)

    def work() -> int:
        step(ready)
        synchronize(device)
        return count

    return Stage("step", time_alone(work, seconds=seconds))


def synchronize(device: torch.device | None) -> None:
    """Wait until a device has done what it was given."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def sample_nbytes(batch: Any) -> float:
    """Return the bytes of one sample in a batch."""
    return batch_nbytes(batch) / max(1, num_samples(batch))
