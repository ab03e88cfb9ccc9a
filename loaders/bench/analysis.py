"""From a dataset and a chosen configuration to the facts that a verdict needs."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from loaders.bench import stages as alone
from loaders.bench import targets
from loaders.bench.measure import end, iter_of, num_samples
from loaders.bench.planner import group_size_of, in_flight
from loaders.bench.sweep import make_loader, round_size
from loaders.bench.verdict import Facts
from loaders.datasets.reading.samples import collate
from loaders.limits import available_memory, cpu_quota, usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loaders.bench.measure import Clock, Config

Step = Callable[[Any], Any]
_PATIENCE_S = 2.0  # at least: for prefetched batches, and for a whole round of further ones
_MIN_STEPS = 3
_READS = ("read, cold", "read", "fetch")  # what "fetch" does cannot be told apart


@dataclass(slots=True)
class Analysis:
    """The facts, and the stages that they come from.

    Attributes:
        facts: For ``verdict.judge``.
        stages: Each alone, in the order of the pipeline.
        step_samples_per_s: Of a real run: loading and the step together; None without a step.
    """

    facts: Facts
    stages: list[alone.Stage] = field(default_factory=list)
    step_samples_per_s: float | None = None


def analyse(
    dataset: Any,
    config: Config,
    rate: float,
    *,
    seconds: float = 8.0,
    device: torch.device | None = None,
    copy: Callable[[Any], Any] | None = None,
    step: Step | None = None,
    collate_fn: Callable[[Any], Any] = collate,
    reopen_cold: Callable[[], Any] | None = None,
) -> Analysis:
    """Run every stage alone.

    Args:
        dataset: What is loaded.
        config: How; the rate is of this configuration.
        rate: Samples/s that it was measured at.
        seconds: For all stages together, about.
        device: Where batches go; None leaves the copy out.
        copy: Moves a batch there, where that is not ``Tensor.to``.
        step: The user's training step on a batch.
        collate_fn: Joins samples.
        reopen_cold: Takes the files out of the page cache, and returns the dataset, opened anew.
    """
    share = seconds / 6
    cores, quota = usable_cores(), cpu_quota()
    available = alone.available_share(cores, quota)
    loader = make_loader(dataset, config, **({} if device is None else {"device": device}))
    served = loader._served  # without the work that is left to the device
    group_size = group_size_of(served, config) if collate_fn is collate else 1
    with alone.one_thread() if config.num_workers else nullcontext():
        stages = _host_stages(
            served, config.batch_size, share, collate_fn, group_size, reopen_cold
        )
        work = _batch_maker(served, config.batch_size, collate_fn, group_size)
        gil_s = alone.gil_s_per_sample(work, seconds=share)
    batch = collate_fn(alone.fetcher(served, config.batch_size)())
    host = _host_facts(stages, quota)
    stages += _device_stages(batch, device, share / 2, copy, loader._finisher)
    together = None
    if step is not None:
        stages.append(alone.step_stage(step, batch, device, seconds=share))
        together = real_steps(dataset, config, step, device=device, seconds=share)
    wall_s = {stage.name: stage.cost.wall_s for stage in stages}
    facts = Facts(
        cores=cores,
        num_workers=config.num_workers,
        backend=config.backend,
        rate=rate,
        gil_s=min(gil_s, host["cpu_s"]),
        sample_bytes=alone.sample_nbytes(batch),
        copy_bytes_per_s=alone.copy_bytes_per_s(cores, available_memory()),
        transfer_s=wall_s.get("copy", 0.0),
        finish_s=wall_s.get("finish", 0.0),
        step_s=wall_s.get("step", 0.0),
        stall_share=None if together is None else together[1],
        available=(available + alone.available_share(cores, quota)) / 2,
        quota=quota,
        holds=targets.holds(dataset, batch),
        is_whole=not getattr(dataset, "augment", ()),
        **host,
    )
    return Analysis(facts, stages, None if together is None else together[0])


def _host_stages(
    served: Any,
    batch_size: int,
    share: float,
    collate_fn: Callable[[Any], Any],
    group_size: int,
    reopen_cold: Callable[[], Any] | None,
) -> list[alone.Stage]:
    stages = alone.host_stages(
        served,
        batch_size,
        seconds=2 * share,
        collate_fn=collate_fn,
        group_size=group_size,
    )
    if reopen_cold is None:
        return stages
    fetched = [stage for stage in stages if stage.name != "collate"]
    return [alone.cold_stage(reopen_cold(), batch_size, fetched, seconds=share), *stages]


def _device_stages(
    batch: Any,
    device: torch.device | None,
    seconds: float,
    copy: Callable[[Any], Any] | None,
    finisher: Callable[[Any], Any] | None,
) -> list[alone.Stage]:
    """Run what comes after the CPU, and before the step; without a device, only what there is of it."""
    stages = []
    if copy is not None or (device is not None and device.type != "cpu"):
        where = device or torch.device("cpu")
        stages.append(alone.copy_stage(batch, where, seconds=seconds, copy=copy))
    finish = alone.finish_stage(batch, device, finisher, seconds=seconds)
    return [*stages, finish] if finish else stages


def _host_facts(stages: list[alone.Stage], quota: float | None) -> dict[str, Any]:
    """Return what a sample costs in all stages on the CPU together."""
    cpu_s = sum(stage.cost.cpu_s for stage in stages)
    computing_s = sum(
        stage.cost.wall_s - stage.cost.wait_s - stage.cost.queued_s for stage in stages
    )
    queued_s = sum(stage.cost.queued_s for stage in stages)
    # Of less than a core's time a thread waits for the rest of it by itself: no other process took that.
    throttled_s = 0.0 if quota is None else max(0.0, cpu_s / quota - cpu_s)
    return {
        "cpu_s": cpu_s,
        "wait_s": sum(stage.cost.wait_s for stage in stages if stage.name in _READS),
        "queued_s": max(0.0, queued_s - throttled_s),
        "threads": max(1.0, cpu_s / max(1e-12, computing_s)),
        "stages": {stage.name: stage.cost.cpu_s for stage in stages},
    }


def _batch_maker(
    served: Any, batch_size: int, collate_fn: Callable[[Any], Any], group_size: int
) -> Callable[[], int]:
    """Return what makes whole batches as a worker does, and says how many samples they have."""
    if group_size > 1:
        fetch_group = alone.group_fetcher(served, batch_size, group_size)
        return lambda: len(list(fetch_group())) * batch_size
    fetch = alone.fetcher(served, batch_size)

    def work() -> int:
        samples = fetch()
        count = len(samples)
        collate_fn(samples)
        return count

    return work


def real_steps(
    dataset: Any,
    config: Config,
    step: Step,
    *,
    seconds: float,
    device: torch.device | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[float, float] | None:
    """Train on real batches; return samples/s, and the share of time that the step waited for data.

    Batches that workers made ahead, and those of their first round, are there at once whatever loading
    takes: the clock starts behind them. None: there are no more than these.
    """
    more = {} if device is None else {"device": device, "pin_memory": device.type == "cuda"}
    batches = iter_of(make_loader(dataset, config, **more))()

    def timed(batch: Any) -> None:
        step(batch)
        alone.synchronize(device)

    together = round_size(dataset, config)
    group_size = group_size_of(dataset, config)
    ahead = in_flight(config, group_size) * group_size
    try:
        _step_through(batches, timed, together + ahead, max(seconds, _PATIENCE_S), clock)
        return _timed_steps(batches, timed, together, seconds, clock)
    finally:
        end(batches)


def _step_through(
    batches: Iterator[Any], step: Step, count: int, seconds: float, clock: Clock
) -> None:
    """Take some steps: the first one, which is slow in any run, and others for so many seconds at most."""
    deadline = math.inf
    for number, batch in enumerate(itertools.islice(batches, count)):
        step(batch)
        if not number:
            deadline = clock() + seconds
        elif clock() > deadline:
            return


def _timed_steps(
    batches: Iterator[Any], step: Step, round_size: int, seconds: float, clock: Clock
) -> tuple[float, float] | None:
    """Take steps for some time, and for a whole round while patience lasts; figures are of whole rounds."""
    began, waited, samples = clock(), 0.0, 0
    found, is_whole = None, False
    for steps in itertools.count(1):
        asked = clock()
        batch = next(batches, None)
        came = clock()
        if batch is None:
            break
        step(batch)
        took, waited, samples = (
            clock() - began,
            waited + came - asked,
            samples + num_samples(batch),
        )
        if steps % round_size == 0 or not is_whole:
            found = samples / max(1e-9, took), waited / max(1e-9, took)
            is_whole = steps % round_size == 0
        if steps >= _MIN_STEPS and took >= seconds + (0.0 if is_whole else _PATIENCE_S):
            break
    return found
