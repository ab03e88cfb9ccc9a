"""Stages of a pipeline, each run by itself: what a sample costs there, and the facts that a verdict needs.

What a thread does between two looks at the clocks splits into time on a core, time in which it queued for
one, as the kernel counts it, and the rest: there it waited (for a disk, or in a sleep).
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders.bench.measure import (
    batch_nbytes,
    group_size_of,
    in_flight,
    make_loader,
    round_size,
    time_loader,
)
from loaders.datasets.packed import PackedDataset
from loaders.device.nested import map_tensors, tensors_of
from loaders.errors import LoadersError
from loaders.system import opencv
from loaders.system.limits import cpu_quota, text, usable_cores
from loaders.verdict import Facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loaders.bench.measure import Config, TimedPass

_PROBE_SWITCH_S = 1e-4
_PROBES = 4
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_HASHED = bytes(1 << 18)
_QUOTA_PERIODS_S = 0.2  # two of 100 ms, as is usual: a part of one shows a burst, or a pause


@dataclass(frozen=True, slots=True)
class Cost:
    """What one sample costs where samples are made one after another."""

    wall_s: float  # seconds until it is done
    cpu_s: float  # seconds on a core, of all threads and processes that work at it
    wait_s: float = 0.0  # seconds that the thread gave up, to sleep or to read

    def minus(self, other: Cost) -> Cost:
        """Return what this costs beyond something that it contains."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Cost(*(max(0.0, a - b) for a, b in pairs))

    @property
    def samples_per_s(self) -> float:
        """What one thread, or one device, would do if this were all."""
        return 1 / self.wall_s if self.wall_s > 1e-9 else float("nan")


def time_alone(work: Callable[[], int], *, seconds: float, min_calls: int = 3) -> Cost:
    """Call something for some time, at least ``min_calls`` times; return the median cost of a sample.

    It does a batch of work, and returns how many samples it was; a first call does not count.
    """
    work()
    costs: list[tuple[float, ...]] = []
    clock = time.perf_counter
    deadline = clock() + seconds
    while clock() < deadline or len(costs) < min_calls:
        queued, own, cpu, wall = _queued_s(), time.thread_time(), _cpu_s(), clock()
        samples = work()
        wall, cpu, own = clock() - wall, _cpu_s() - cpu, time.thread_time() - own
        queued = min(_queued_s() - queued, max(0.0, wall - own))
        costs.append((wall / samples, cpu / samples, max(0.0, wall - cpu - queued) / samples))
    return Cost(*map(statistics.median, zip(*costs, strict=True)))


def _cpu_s() -> float:
    """Return the CPU seconds so far of all threads of this process, and of its children that ended."""
    return time.process_time() + sum(os.times()[2:4])


def _queued_s() -> float:
    """Return for how long this thread has queued for a core so far; 0 where the kernel does not say.

    Source: the kernel's Documentation/scheduler/sched-stats.rst; the second number of three, in ns.
    """
    words = (text(_SCHEDSTAT) or "").split()
    return int(words[1]) / 1e9 if len(words) > 1 else 0.0


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


# -- on the CPU ------------------------------------------------------------------------------------


def batches_of(dataset: Any, config: Config) -> Iterator[Any]:
    """Yield batches without end, each made on this thread when it is asked for, by the loader's own code."""
    loader = make_loader(dataset, replace(config, num_workers=0, prefetch=None))
    while True:
        is_empty = True
        for batch in loader:
            is_empty = False
            yield batch
        if is_empty:  # or this would go on for ever
            raise LoadersError(
                "the stream has no whole batch, or none any more: it can be read only once if its __iter__ "
                "returns the same iterator each time; let it return a new one, as a generator function does"
            )


def batch_maker(dataset: Any, config: Config) -> Callable[[], int]:
    """Return what makes a batch (of small ones a group, as workers do), and says how many samples it has."""
    batches, together = batches_of(dataset, config), group_size_of(dataset, config)

    def make() -> int:
        for _ in range(together):
            next(batches)
        return together * config.batch_size

    return make


def host_stages(dataset: Any, config: Config, *, seconds: float) -> dict[str, Cost]:
    """Return what a sample costs on the CPU, by stage, in the order of the pipeline.

    Each is what more of the pipeline costs than less of it. Of third-party datasets the inside cannot be told apart.
    """
    alone = partial(time_alone, seconds=seconds / 3)
    whole = alone(batch_maker(dataset, config))
    if not isinstance(dataset, PackedDataset):
        return {"fetch": whole}
    if dataset.has_own_samples or dataset.sample_nbytes is not None:
        return {"read": whole}
    read = alone(_record_reader(dataset, config.batch_size))
    if dataset.augment:
        plain = alone(batch_maker(dataset.replace(augment=[]), config))
        if plain.cpu_s <= whole.cpu_s:  # a crop decodes less than a whole picture
            return {"read": read, "decode": plain.minus(read), "augment": whole.minus(plain)}
    return {"read": read, "decode": whole.minus(read)}


def _record_reader(dataset: PackedDataset, batch_size: int) -> Callable[[], int]:
    """Return what copies the stored bytes of a random batch, without looking at them."""
    rng = np.random.default_rng(1)
    names = [name for name in dataset.fields if name in dataset.schema.fields]

    def read() -> int:
        rows = dataset.view.rows(rng.integers(len(dataset), size=batch_size))
        for name in names:
            for record in dataset.store.records(name, rows):
                np.array(record)
        return batch_size

    return read


def gil_s_per_sample(work: Callable[[], int], *, seconds: float) -> float:
    """Return for how long, of its CPU time, a sample holds the GIL.

    A probe thread runs pure Python beside the work, so it always wants the GIL. When it gives its core
    up, it waits for the GIL, and what the work advances meanwhile it does with the GIL held. Others on the machine
    only add to it, so the least of a few measurements counts. 0 where a thread's clock cannot be read.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return 0.0
    before = sys.getswitchinterval()
    sys.setswitchinterval(_PROBE_SWITCH_S)  # the work gets the GIL back soon, too
    try:
        work()
        return min(_gil_s_once(work, seconds / _PROBES) for _ in range(_PROBES))
    finally:
        sys.setswitchinterval(before)


def _gil_s_once(work: Callable[[], int], seconds: float) -> float:
    import resource  # which systems have that have clocks of threads

    def voluntary_switches() -> int:
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

    watched = time.pthread_getcpuclockid(threading.get_ident())
    held, stop, started = [0.0], threading.Event(), threading.Event()

    def probe() -> None:
        seen, waits = time.clock_gettime(watched), voluntary_switches()
        started.set()
        while not stop.is_set():
            done, now = time.clock_gettime(watched), voluntary_switches()
            if now != waits:
                done = time.clock_gettime(watched)  # the wait may have come between the two
                held[0] += done - seen
            seen, waits = done, now

    thread = threading.Thread(target=probe, name="bench-probe", daemon=True)
    thread.start()
    started.wait()
    samples, cpu, deadline = 0, time.thread_time(), time.perf_counter() + seconds
    try:
        while not samples or time.perf_counter() < deadline:
            samples += work()
        cpu = time.thread_time() - cpu
    finally:
        stop.set()
        thread.join()
    return min(held[0], cpu) / samples


# -- the machine -----------------------------------------------------------------------------------


def available_share(num_threads: int, quota: float, seconds: float = _QUOTA_PERIODS_S) -> float:
    """Return the share of ``num_threads`` cores that this process gets now, 0 to 1; other work takes the rest."""

    def spin(_: int) -> float:
        wall, cpu = time.perf_counter(), time.thread_time()
        while time.perf_counter() - wall < seconds:
            hashlib.sha256(_HASHED)  # without the GIL
        return (time.thread_time() - cpu) / (time.perf_counter() - wall)

    with ThreadPoolExecutor(num_threads) as pool:
        return min(1.0, sum(pool.map(spin, range(num_threads))) / quota)


# -- the device, and the step ----------------------------------------------------------------------


def copy_cost(batch: Any, num_samples: int, device: torch.device, *, seconds: float) -> Cost:
    """Time moving the tensors of a batch to a device, from pinned memory, until they have arrived."""
    pinned = [t.pin_memory() if device.type == "cuda" else t for t in tensors_of(batch)]

    def copy(_: Any) -> None:
        for tensor in pinned:
            tensor.to(device, copy=True, non_blocking=True)

    return device_cost(copy, batch, num_samples, device, seconds=seconds)


def device_cost(
    work: Callable[[Any], Any],
    batch: Any,
    num_samples: int,
    device: torch.device | None,
    *,
    seconds: float,
) -> Cost:
    """Time what is done to a batch where it is used, again and again: no loading."""
    ready = batch if device is None else map_tensors(batch, lambda tensor: tensor.to(device))

    def done() -> int:
        work(ready)
        synchronize(device)
        return num_samples

    return time_alone(done, seconds=seconds)


def synchronize(device: torch.device | None) -> None:
    """Wait until a device has done what it was given."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


# -- all of it -------------------------------------------------------------------------------------

_PATIENCE_S = 4.0  # for workers to start, and for prefetched batches
_READS = ("read", "fetch")  # other stages wait for no bytes


@dataclass(slots=True)
class Analysis:
    """The facts, and the stages that they come from."""

    facts: Facts  # for ``verdict.judge``
    # Of a sample in each alone, in the order of the pipeline.
    stages: dict[str, Cost] = field(default_factory=dict)
    # Of a real run: loading and the step together; None without a step.
    step_samples_per_s: float | None = None


def analyse(
    dataset: Any,  # what is loaded
    config: Config,  # how; the rate is of this configuration
    rate: float,  # Samples/s that it was measured at
    *,
    seconds: float = 8.0,  # for all stages together, about
    device: torch.device | None = None,  # where batches go; None leaves the copy out
    step: Callable[[Any], Any] | None = None,  # the user's training step on a batch
) -> Analysis:
    """Run every stage alone."""
    share, cores = seconds / 6, usable_cores()
    core_time = min(cores, cpu_quota() or cores)
    loader = make_loader(dataset, config, device=device)
    served = loader._served  # without the work that is left to the device
    with one_thread() if config.num_workers else nullcontext():
        stages = host_stages(served, config, seconds=2 * share)
        gil_s = gil_s_per_sample(batch_maker(served, config), seconds=share)
    batch = next(batches_of(served, config))
    cpu_s = {name: cost.cpu_s for name, cost in stages.items()}
    wait_s = sum(cost.wait_s for name, cost in stages.items() if name in _READS)
    if device is not None and device.type != "cpu":
        stages["copy"] = copy_cost(batch, config.batch_size, device, seconds=share / 2)
    if (finish := loader._finisher) is not None:
        stages["finish"] = device_cost(finish, batch, config.batch_size, device, seconds=share / 2)
    together = None
    if step is not None:
        stages["step"] = device_cost(step, batch, config.batch_size, device, seconds=share)
        together = real_steps(dataset, config, step, device=device, seconds=share)
    wall_s = {name: cost.wall_s for name, cost in stages.items()}
    facts = Facts(
        cores=core_time,
        num_workers=config.num_workers,
        backend=config.backend,
        rate=rate,
        cpu_s=sum(cpu_s.values()),
        wait_s=wait_s,
        gil_s=min(gil_s, sum(cpu_s.values())),
        sample_bytes=batch_nbytes(batch) / config.batch_size,
        stages=cpu_s,
        transfer_s=wall_s.get("copy", 0.0),
        finish_s=wall_s.get("finish", 0.0),
        step_s=wall_s.get("step", 0.0),
        available=available_share(cores, core_time),
    )
    if together is None:
        return Analysis(facts, stages)
    facts = replace(facts, stall_share=together.stall_share, gil_share=together.gil_share)
    return Analysis(facts, stages, together.samples_per_s)


def real_steps(
    dataset: Any,
    config: Config,
    step: Callable[[Any], Any],
    *,
    seconds: float,
    device: torch.device | None = None,
) -> TimedPass | None:
    """Train on real batches, and time that.

    Batches that workers made ahead are there at once whatever loading takes: they do not count, nor do those of the
    first round. None: there are no more than these.
    """

    def train(batch: Any) -> None:
        step(batch)
        synchronize(device)

    loader = make_loader(dataset, config, device=device)
    run = time_loader(
        loader,
        config.batch_size,
        seconds=seconds,
        round_size=round_size(dataset, config),
        ahead=in_flight(dataset, config),
        step=train,
        patience_s=_PATIENCE_S,
    )
    run.gil_share = loader.stats().gil_share
    return None if run.has_start else run
