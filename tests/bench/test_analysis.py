"""Verdicts on datasets and steps that were made to have one limit, measured for real."""

from __future__ import annotations

from typing import Any

import pytest

from loaders.bench.analysis import analyse
from loaders.bench.measure import Config, time_loader
from loaders.bench.stages import available_share
from loaders.bench.sweep import make_loader, round_size
from loaders.bench.verdict import Verdict, judge
from tests.bench import constructed

CONFIG = Config(2, 8, "thread")


def verdict_on(dataset: Any, **stages: Any) -> Verdict:
    """Measure and judge, as the command does."""
    run = time_loader(
        make_loader(dataset, CONFIG), seconds=0.2, round_size=round_size(dataset, CONFIG)
    )
    return judge(analyse(dataset, CONFIG, run.samples_per_s, seconds=1.2, **stages).facts)


def test_a_dataset_that_sleeps_is_bound_by_storage() -> None:
    verdict = verdict_on(constructed.Sleeps())

    assert verdict.bound == "storage"
    assert verdict.limits["storage"] == pytest.approx(2 / 0.004, rel=0.3)


@pytest.mark.parametrize(
    ("dataset", "bound"), [(constructed.Hashes(), "cpu"), (constructed.Counts(), "gil")]
)
def test_work_on_the_cpu_is_told_apart_by_whether_it_holds_the_gil(
    dataset: Any, bound: str
) -> None:
    """Where others take the cores, threads hardly run at once, and this cannot be seen."""
    found: list[str] = []
    for _ in range(5):
        found.append(verdict_on(dataset).bound)
        if found[-1] == bound:
            return
    if available_share(2) < 0.8:
        pytest.skip(f"the machine is busy: found {found}")
    assert bound in found


def test_a_slow_copy_is_the_limit() -> None:
    verdict = verdict_on(constructed.instant, copy=constructed.slow_copy)

    assert verdict.bound == "transfer"
    assert verdict.limits["transfer"] == pytest.approx(500, rel=0.2)


def test_a_slow_step_is_the_limit_and_does_not_wait_for_data() -> None:
    verdict = verdict_on(constructed.instant, step=constructed.slow_step)

    assert verdict.bound == "step"
    assert verdict.limits["step"] == pytest.approx(500, rel=0.2)
    assert "Change nothing in loading" in verdict.sentence


def test_a_quick_step_on_slow_data_waits_for_it() -> None:
    verdict = verdict_on(constructed.Sleeps(), step=constructed.quick_step)

    assert verdict.bound == "storage"
