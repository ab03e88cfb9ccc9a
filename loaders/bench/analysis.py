"""From a dataset and a chosen configuration to the facts that a verdict needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from loaders.bench import stages as alone
from loaders.bench import targets
from loaders.bench.measure import end, num_samples
from loaders.bench.sweep import make_loader
from loaders.bench.verdict import Facts
from loaders.datasets.reading.samples import collate
from loaders.limits import available_memory, cpu_quota, usable_cores

if TYPE_CHECKING:
    from loaders.bench.measure import Clock, Config

Step = Callable[[Any], Any]
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
    stages = _host_stages(served, config.batch_size, share, collate_fn, reopen_cold)
    fetch = alone.fetcher(served, config.batch_size)
    with alone.one_thread():
        gil_s = alone.gil_s_per_sample(lambda: _all(fetch, collate_fn), seconds=share)
    batch = collate_fn(fetch())
    host = _host_facts(stages, quota)
    stages += _device_stages(batch, device, share / 2, copy, loader.finisher)
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
    reopen_cold: Callable[[], Any] | None,
) -> list[alone.Stage]:
    stages = alone.host_stages(served, batch_size, seconds=2 * share, collate_fn=collate_fn)
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
    queued_s = sum(stage.cost.queued_s for stage in stages)
    # Of less than a core's time a thread waits for the rest of it by itself: that nobody else took.
    throttled_s = 0.0 if quota is None else max(0.0, cpu_s / quota - cpu_s)
    return {
        "cpu_s": cpu_s,
        "wait_s": sum(stage.cost.wait_s for stage in stages if stage.name in _READS),
        "queued_s": max(0.0, queued_s - throttled_s),
        "stages": {stage.name: stage.cost.cpu_s for stage in stages},
    }


def _all(fetch: Callable[[], Any], collate_fn: Callable[[Any], Any]) -> int:
    samples = fetch()
    count = len(samples)
    collate_fn(samples)
    return count


def real_steps(
    dataset: Any,
    config: Config,
    step: Step,
    *,
    seconds: float,
    device: torch.device | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[float, float]:
    """Train on real batches; return samples/s, and the share of time that the step waited for data."""
    more = {} if device is None else {"device": device, "pin_memory": device.type == "cuda"}
    batches = iter(make_loader(dataset, config, **more))
    try:
        step(next(batches))  # the first batch is late, and a first step slow, in any run
        began, waited, samples, steps = clock(), 0.0, 0, 0
        while steps < 3 or clock() - began < seconds:
            asked = clock()
            batch = next(batches, None)
            waited += clock() - asked
            if batch is None:
                break
            step(batch)
            alone.synchronize(device)
            samples, steps = samples + num_samples(batch), steps + 1
        took = clock() - began
    finally:
        end(batches)
    return samples / max(1e-9, took), waited / max(1e-9, took)
