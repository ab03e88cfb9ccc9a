"""Verdicts on datasets and steps that were made to have one limit, measured for real."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from loaders.bench import analysis
from loaders.bench.analysis import analyse, real_steps
from loaders.bench.measure import Config, time_loader
from loaders.bench.stages import Cost, Stage
from loaders.bench.sweep import make_loader, round_size
from loaders.bench.verdict import Facts, Verdict, judge, limits_of
from loaders.datasets.reading.samples import collate
from tests.bench import constructed

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = Config(2, 8, "thread")


def facts_of(dataset: Any, **stages: Any) -> Facts:
    """Measure, as the command does."""
    run = time_loader(
        make_loader(dataset, CONFIG), seconds=0.2, round_size=round_size(dataset, CONFIG)
    )
    return analyse(dataset, CONFIG, run.samples_per_s, seconds=1.2, **stages).facts


def verdict_on(dataset: Any, **stages: Any) -> Verdict:
    """Measure and judge."""
    return judge(facts_of(dataset, **stages))


def on_free_cores(facts: Facts) -> Facts:
    """Give back what others on the machine took: the rate becomes what the lowest limit allows."""
    free = replace(facts, available=1.0, queued_s=0.0)
    return replace(free, rate=min(limits_of(free).values()))


def verdict_near(limit: str, samples_per_s: float, dataset: Any, **stages: Any) -> Verdict:
    """Judge until a limit is where it was put, at most four times: others on the machine only lower it."""
    for _ in range(3):
        verdict = verdict_on(dataset, **stages)
        if verdict.bound == limit and verdict.limits[limit] == pytest.approx(
            samples_per_s, rel=0.2
        ):
            return verdict
    return verdict_on(dataset, **stages)


def test_a_dataset_that_sleeps_is_bound_by_storage() -> None:
    verdict = verdict_near("storage", 2 / 0.004, constructed.Sleeps())

    assert verdict.bound == "storage"
    assert verdict.limits["storage"] == pytest.approx(2 / 0.004, rel=0.3)


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="no schedstat here")
def test_storage_is_told_from_a_core_that_others_have() -> None:
    """A dataset that sleeps waits for its bytes on a busy core, too; one that computes waits for the core.

    What the host of a virtual machine takes is in no figure of its kernel: it may look like one or the other, once.
    """
    with constructed.contended_core():
        sleeps = (facts_of(constructed.Sleeps()) for _ in range(4))
        slept = next((f for f in sleeps if judge(f).bound == "storage"), None)
        hashes = (facts_of(constructed.Hashes()) for _ in range(4))
        hashed = next((f for f in hashes if f.wait_s < 0.2 * (f.cpu_s + f.queued_s)), None)

    assert slept is not None
    assert slept.wait_s > 0.003
    assert hashed is not None
    assert judge(hashed).bound != "storage"


def test_only_waits_of_reading_count_as_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else gives a core up waits for no bytes."""
    names = ["read", "decode", "augment", "collate"]
    costs = [Cost(1.0, 0.5, 0.25, 0.25), *[Cost(9.0, 1.0, 6.0, 2.0)] * 3]
    found = [Stage(name, cost) for name, cost in zip(names, costs, strict=True)]
    monkeypatch.setattr("loaders.bench.stages.host_stages", lambda *_, **__: found)

    facts = analyse(constructed.instant, CONFIG, 100.0, seconds=0.2).facts

    assert (facts.wait_s, facts.queued_s, facts.cpu_s) == (0.25, 6.25, 3.5)


@pytest.mark.parametrize(
    ("dataset", "bound"), [(constructed.Hashes(), "cpu"), (constructed.Counts(), "gil")]
)
def test_work_on_the_cpu_is_told_apart_by_whether_it_holds_the_gil(
    dataset: Any, bound: str
) -> None:
    """What a thread itself did is seen on a busy machine, too; that threads run at once is not."""
    tries = [facts_of(dataset)]
    while judge(tries[-1]).bound != bound and len(tries) < 6:
        tries.append(facts_of(dataset))

    facts = tries[-1]
    assert judge(facts if facts.available > 0.8 else on_free_cores(facts)).bound == bound


def test_a_slow_copy_is_the_limit() -> None:
    verdict = verdict_near("transfer", 500, constructed.instant, copy=constructed.slow_copy)

    assert verdict.bound == "transfer"
    assert verdict.limits["transfer"] == pytest.approx(500, rel=0.2)


def test_a_slow_step_is_the_limit_and_does_not_wait_for_data() -> None:
    verdict = verdict_near("step", 500, constructed.instant, step=constructed.slow_step)

    assert verdict.bound == "step"
    assert verdict.limits["step"] == pytest.approx(500, rel=0.2)
    assert "waits for data" in verdict.sentence


def test_a_quick_step_on_slow_data_waits_for_it() -> None:
    verdict = verdict_on(constructed.Sleeps(), step=constructed.quick_step)

    assert verdict.bound == "storage"


def test_a_real_run_counts_what_the_step_waits_for_but_not_its_first_batch() -> None:
    """By a clock that only samples (0.1 s each) and steps (0.6 s each, the first one 100 s) move."""
    now, steps = [0.0], []

    class Ticks(constructed.Made):
        def work(self) -> None:
            now[0] += 0.1

    def step(batch: Any) -> None:
        steps.append(len(batch))
        now[0] += 0.6 if len(steps) > 1 else 100.0

    found = real_steps(Ticks(), Config(0, 4), step, seconds=4.5, clock=lambda: now[0])

    assert steps == [4] * 6
    assert found == pytest.approx((4.0, 0.4))


def test_batches_that_come_at_once_do_not_hide_that_the_step_waits() -> None:
    """Four workers give four batches each 64 ms; a step takes 4 ms, so it waits for three quarters of the time."""
    found = real_steps(
        constructed.Sleeps(), Config(4, 16, "process"), lambda _: time.sleep(0.004), seconds=0.01
    )

    assert found is not None
    rate, waited = found
    assert waited > 0.4
    assert rate < 2 * 4 * 16 / 0.064  # steps alone: twice that; workers may be out of step


@pytest.mark.parametrize(
    ("step_s", "seconds", "num_steps", "num_counted", "took"),
    [(0.5, 5.0, 4, 4, 6.0), (0.5, 6.5, 5, 4, 6.0), (1.5, 5.0, 3, 3, 8.5)],
)
def test_steps_are_timed_over_whole_rounds_of_workers_if_there_is_time_for_one(
    step_s: float, seconds: float, num_steps: int, num_counted: int, took: float
) -> None:
    """By a clock that only steps and the first batch of each four (4 s) move."""
    now, steps = [0.0], []

    def batches() -> Iterator[torch.Tensor]:
        for number in range(100):
            now[0] += 0.0 if number % 4 else 4.0
            yield torch.zeros(8)

    def step(batch: torch.Tensor) -> None:
        steps.append(len(batch))
        now[0] += step_s

    found = analysis._timed_steps(batches(), step, 4, seconds, lambda: now[0])

    assert len(steps) == num_steps
    assert found == pytest.approx((8 * num_counted / took, 4.0 / took))


def test_batches_ahead_are_stepped_through_for_a_bounded_time() -> None:
    """By a clock that only steps (1 s each) move; seventy batches are there before the first is asked for."""
    now = [0.0]

    def step(batch: Any) -> None:
        now[0] += 1.0

    config = Config(2, 4, "thread", prefetch=70)
    found = real_steps(constructed.instant, config, step, seconds=3.5, clock=lambda: now[0])

    assert found == (4.0, 0.0)
    assert now[0] == 1 + 4 + 4  # the first, 3.5 s of those ahead, 3.5 s that count


def test_steps_that_are_all_of_the_first_batches_tell_nothing() -> None:
    """A stream shorter than a batch has but one."""
    stream, config = constructed.Stream(), Config(0, 8192, "process")

    found = analyse(stream, config, 1e5, seconds=0.3, step=constructed.quick_step)

    assert real_steps(stream, config, constructed.quick_step, seconds=0.1) is None
    assert (found.step_samples_per_s, found.facts.stall_share) == (None, None)
    assert judge(found.facts).bound != "step"


class Checksums(constructed.Made):
    """As one that calls a decoder for each sample."""

    def work(self) -> None:
        subprocess.run(["sha512sum"], input=bytes(4 << 20), capture_output=True, check=True)


@pytest.mark.skipif(shutil.which("sha512sum") is None, reason="no sha512sum here")
def test_samples_that_other_programs_compute_are_bound_by_the_cpu() -> None:
    """On a busy machine waiting for a program that waits for a core may look like storage, once."""
    facts = (facts_of(Checksums()) for _ in range(8))

    assert any(judge(found).bound == "cpu" for found in facts)


@pytest.mark.parametrize(("num_workers", "expected"), [(0, 3), (1, 1)])
def test_stages_have_the_threads_of_torch_that_the_loader_leaves_them(
    num_workers: int, expected: int
) -> None:
    seen: list[int] = []

    class Threads(constructed.Made):
        def work(self) -> None:
            seen.append(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        analyse(Threads(), Config(num_workers, 8, "process"), 100.0, seconds=0.1)
        stages_done = len(seen) - 8  # the last batch is made to look at
    finally:
        torch.set_num_threads(before)

    assert set(seen[:stages_done]) == {expected}


def test_threads_of_a_library_count_as_cores_that_a_worker_keeps_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [Stage("fetch", Cost(3.0, 4.0, 0.5, 0.5)), Stage("collate", Cost(1.0, 1.0, 0.0))]
    monkeypatch.setattr("loaders.bench.stages.host_stages", lambda *_, **__: found)

    facts = analyse(constructed.instant, CONFIG, 100.0, seconds=0.2).facts

    assert facts.threads == pytest.approx(5 / 3)


@pytest.mark.parametrize(
    ("backend", "collate_fn", "expected"),
    [("thread", collate, 64), ("process", collate, 1), ("thread", lambda s: collate(s), 1)],
)
def test_small_batches_are_analysed_in_the_groups_in_which_the_loader_makes_them(
    monkeypatch: pytest.MonkeyPatch, backend: str, collate_fn: Any, expected: int
) -> None:
    sizes: list[int] = []
    dataset = constructed.small_rows
    read_group = type(dataset).read_group

    def spy(self: Any, batches: Any, memory: Any) -> Any:
        sizes.append(len(batches))
        return read_group(self, batches, memory)

    monkeypatch.setattr(type(dataset), "read_group", spy)
    found = analyse(dataset, Config(1, 8, backend), 1e5, seconds=0.2, collate_fn=collate_fn)

    assert set(sizes) == ({expected} if expected > 1 else set())
    assert found.facts.sample_bytes == 16


def test_facts_are_of_all_stages_that_a_worker_runs_and_collate_waits_for_nobody() -> None:
    def collate_fn(samples: list[torch.Tensor]) -> torch.Tensor:
        time.sleep(0.002)
        return torch.stack(samples)

    found = analyse(constructed.instant, CONFIG, 100.0, seconds=0.6, collate_fn=collate_fn)

    cost, facts = {stage.name: stage.cost for stage in found.stages}, found.facts
    assert list(cost) == list(facts.stages) == ["fetch", "collate"]
    assert facts.cpu_s == cost["fetch"].cpu_s + cost["collate"].cpu_s
    assert facts.wait_s == cost["fetch"].wait_s < cost["collate"].wait_s
    assert facts.sample_bytes == 256
    assert (facts.rate, facts.num_workers, facts.backend) == (100.0, 2, "thread")
    assert 0 < facts.available <= 1


@pytest.mark.parametrize(
    ("quota", "queued_s"), [(None, 8.25), (1.5, 8.25), (0.5, 4.75), (0.1, 0.0)]
)
def test_what_a_container_holds_back_by_its_quota_no_other_work_took(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, queued_s: float
) -> None:
    """Of half a core's time a thread waits as long as it runs, whoever else there is."""
    asked: list[tuple[int, float | None]] = []

    def share(num_threads: int, quota: float | None) -> float:
        asked.append((num_threads, quota))
        return 1.0

    found = [
        Stage("fetch", Cost(11.0, 3.0, 0.0, 8.0)),
        Stage("collate", Cost(0.75, 0.5, 0.0, 0.25)),
    ]
    monkeypatch.setattr("loaders.bench.stages.host_stages", lambda *_, **__: found)
    monkeypatch.setattr("loaders.bench.stages.available_share", share)
    monkeypatch.setattr("loaders.bench.analysis.usable_cores", lambda: 2)
    monkeypatch.setattr("loaders.bench.analysis.cpu_quota", lambda: quota)

    facts = analyse(constructed.instant, CONFIG, 100.0, seconds=0.2).facts

    assert asked == [(2, quota)] * 2
    assert (facts.quota, facts.cpu_s, facts.queued_s) == (quota, 3.5, queued_s)


def test_little_memory_leaves_the_bandwidth_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken from what there is left."""
    monkeypatch.setattr("loaders.bench.analysis.available_memory", lambda: 20 << 20)

    facts = analyse(constructed.instant, CONFIG, 100.0, seconds=0.2).facts

    assert facts.copy_bytes_per_s == 0.0
    assert "memory" not in judge(facts).limits
