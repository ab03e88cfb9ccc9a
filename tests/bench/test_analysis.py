"""Verdicts on datasets and steps that were made to have one limit, measured for real."""

import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loaders.bench.measure import Config, make_loader, round_size, time_loader
from loaders.bench.stages import Cost, analyse, real_steps
from loaders.verdict import Facts, Verdict, judge, limits_of
from tests.bench import constructed

CONFIG = Config(2, 8, "thread")


def facts_of(dataset: Any, **stages: Any) -> Facts:
    """Measure, as the command does."""
    run = time_loader(
        make_loader(dataset, CONFIG), 8, seconds=0.2, round_size=round_size(dataset, CONFIG)
    )
    return analyse(dataset, CONFIG, run.samples_per_s, seconds=0.6, **stages).facts


def verdict_on(dataset: Any, **stages: Any) -> Verdict:
    """Measure and judge."""
    return judge(facts_of(dataset, **stages))


def on_free_cores(facts: Facts) -> Facts:
    """Give back what others on the machine took: the rate becomes what the lowest limit allows."""
    free = replace(facts, available=1.0)
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


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="no schedstat here")
def test_storage_is_told_from_a_core_that_others_have() -> None:
    """A dataset that sleeps waits for its bytes on a busy core, too; one that computes waits for the core.

    What the host of a virtual machine takes is in no figure of its kernel: it may look like one or the other, once.
    """
    with constructed.contended_core():
        sleeps = (facts_of(constructed.Sleeps()) for _ in range(4))
        slept = next((f for f in sleeps if judge(f).bound == "storage"), None)
        hashes = (facts_of(constructed.Hashes()) for _ in range(4))
        hashed = next((f for f in hashes if f.wait_s < 0.2 * f.cpu_s), None)

    assert slept is not None
    assert slept.wait_s > 0.003
    assert hashed is not None
    assert judge(hashed).bound != "storage"


def test_only_waits_of_reading_count_as_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else gives a core up waits for no bytes."""
    names = ["read", "decode", "augment", "collate"]
    costs = [Cost(0.75, 0.5, 0.25), *[Cost(7.0, 1.0, 6.0)] * 3]
    found = dict(zip(names, costs, strict=True))
    monkeypatch.setattr("loaders.bench.stages.host_stages", lambda *_, **__: found)

    facts = analyse(constructed.instant, CONFIG, 100.0, seconds=0.2).facts

    assert (facts.wait_s, facts.cpu_s) == (0.25, 3.5)


@pytest.mark.slow
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


def test_a_slow_step_is_the_limit_and_does_not_wait_for_data() -> None:
    verdict = verdict_near("step", 500, constructed.instant, step=constructed.slow_step)

    assert verdict.bound == "step"
    assert verdict.limits["step"] == pytest.approx(500, rel=0.2)
    assert "change nothing" in verdict.advice or "waits for data" in verdict.advice


def test_a_quick_step_on_slow_data_waits_for_it() -> None:
    verdict = verdict_on(constructed.Sleeps(), step=constructed.quick_step)

    assert verdict.bound == "storage"


def test_a_real_run_counts_what_the_step_waits_for_but_not_its_first_batch() -> None:
    """Samples sleep 4 ms each, a step 24 ms of four: it waits for two fifths of the time."""
    steps: list[int] = []

    def step(batch: Any) -> None:
        steps.append(len(batch))
        time.sleep(0.024)

    found = real_steps(constructed.Sleeps(), Config(0, 4, "process"), step, seconds=0.4)

    assert found is not None
    assert found.samples_per_s < 4 / 0.04
    assert 0.2 < found.stall_share < 0.8


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_batches_that_come_at_once_do_not_hide_that_the_step_waits() -> None:
    """Four workers give four batches each 64 ms; a step takes 4 ms, so it waits for three quarters of the time.

    On a busy machine a step takes longer, and may hide it, once.
    """
    config = Config(4, 16, "process")
    tries = (
        real_steps(constructed.Sleeps(), config, lambda _: time.sleep(0.004), seconds=0.01)
        for _ in range(8)
    )

    found = next((found for found in tries if found is None or found.stall_share > 0.4), None)

    assert found is not None
    steps_alone = 4 * 4 * 16 / 0.064
    assert found.samples_per_s < steps_alone / 2  # workers may be out of step


def test_steps_that_are_all_of_the_first_batches_tell_nothing() -> None:
    """A stream of one batch has no other."""
    stream, config = constructed.Stream(), Config(0, 4096, "process")

    found = analyse(stream, config, 1e5, seconds=0.3, step=constructed.quick_step)

    assert real_steps(stream, config, constructed.quick_step, seconds=0.1) is None
    assert (found.step_samples_per_s, found.facts.stall_share) == (None, None)
    assert judge(found.facts).bound != "step"


class Checksums(constructed.Made):
    """As one that calls a decoder for each sample."""

    def work(self) -> None:
        subprocess.run(["sha512sum"], input=bytes(4 << 20), capture_output=True, check=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("sha512sum") is None, reason="no sha512sum here")
def test_samples_that_other_programs_compute_are_bound_by_the_cpu() -> None:
    """On a busy machine waiting for a program that waits for a core may look like storage, once."""
    facts = (facts_of(Checksums()) for _ in range(8))

    assert any(judge(found).bound == "cpu" for found in facts)
