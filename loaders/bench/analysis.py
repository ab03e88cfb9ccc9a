"""From a dataset and a chosen configuration to the facts that a verdict needs."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loaders.bench import stages as alone
from loaders.bench.measure import (
    batch_nbytes,
    begin,
    end,
    in_flight,
    make_loader,
    num_samples,
    round_size,
)
from loaders.bench.targets import holds
from loaders.profiling import profile
from loaders.system.limits import available_memory, cpu_quota, usable_cores
from loaders.verdict import Facts

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from loaders.bench.measure import Config

_PATIENCE_S = 2.0  # for prefetched batches, beyond the time that is asked for
_READS = ("read, cold", "read", "fetch")  # other stages wait for no bytes


@dataclass(slots=True)
class Analysis:
    """The facts, and the stages that they come from."""

    facts: Facts  # for ``verdict.judge``
    # Of a sample in each alone, in the order of the pipeline.
    stages: dict[str, alone.Cost] = field(default_factory=dict)
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
    # Takes the files out of the page cache, and returns the dataset, opened anew.
    reopen_cold: Callable[[], Any] | None = None,
    may_add_workers: bool = False,  # see ``Facts``
) -> Analysis:
    """Run every stage alone."""
    share, cores = seconds / 6, usable_cores()
    core_time = min(cores, cpu_quota() or cores)
    available = alone.available_share(cores, core_time)
    loader = make_loader(dataset, config, **({} if device is None else {"device": device}))
    served = loader._served  # without the work that is left to the device
    with alone.one_thread() if config.num_workers else nullcontext():
        stages = alone.host_stages(served, config, seconds=2 * share)
        if reopen_cold is not None:
            cold = alone.cold_cost(reopen_cold(), config, stages, seconds=share)
            stages = {"read, cold": cold, **stages}
        gil_s = alone.gil_s_per_sample(alone.batch_maker(served, config), seconds=share)
    batch = next(alone.batches_of(served, config))
    cpu_s = {name: cost.cpu_s for name, cost in stages.items()}
    wait_s = sum(cost.wait_s for name, cost in stages.items() if name in _READS)
    if device is not None and device.type != "cpu":
        stages["copy"] = alone.copy_cost(batch, device, seconds=share / 2)
    if (finish := loader._finisher) is not None:
        stages["finish"] = alone.device_cost(finish, batch, device, seconds=share / 2)
    together = None
    if step is not None:
        stages["step"] = alone.device_cost(step, batch, device, seconds=share)
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
        sample_bytes=batch_nbytes(batch) / max(1, num_samples(batch)),
        copy_bytes_per_s=alone.copy_bytes_per_s(cores, available_memory()),
        stages=cpu_s,
        transfer_s=wall_s.get("copy", 0.0),
        finish_s=wall_s.get("finish", 0.0),
        step_s=wall_s.get("step", 0.0),
        stall_share=None if together is None else together[1],
        available=(available + alone.available_share(cores, core_time)) / 2,
        holds=holds(dataset, batch),
        may_add_workers=may_add_workers,
    )
    return Analysis(facts, stages, None if together is None else together[0])


def real_steps(
    dataset: Any,
    config: Config,
    step: Callable[[Any], Any],
    *,
    seconds: float,
    device: torch.device | None = None,
) -> tuple[float, float] | None:
    """Train on real batches; return samples/s, and the share of time that the step waited for data.

    Batches that workers made ahead, and those of their first round, are there at once whatever loading
    takes: they do not count, nor does a round that is not whole. None: there are no more than these.
    """
    more = {} if device is None else {"device": device, "pin_memory": device.type == "cuda"}
    loader, together = make_loader(dataset, config, **more), round_size(dataset, config)
    skipped = max(1, together + in_flight(dataset, config)) if config.num_workers else 1
    samples: list[int] = []
    with profile(loader, steps=1 << 40) as found:
        batches, began = begin(loader), time.perf_counter()
        for number, batch in enumerate(batches):
            step(batch)
            alone.synchronize(device)
            samples.append(num_samples(batch))
            if number in (0, skipped):  # the first step is slow in any run
                began = time.perf_counter()
            patience_s = seconds + (_PATIENCE_S if number < skipped else 0)
            if time.perf_counter() - began > patience_s:
                break
    end(batches)
    steps = list(zip(found.report.wait_s, found.report.compute_s, samples, strict=False))[skipped:]
    steps = steps[: len(steps) // together * together] or steps
    took = sum(wait + compute for wait, compute, _ in steps)
    if not took:
        return None
    return sum(num for *_, num in steps) / took, sum(wait for wait, *_ in steps) / took
