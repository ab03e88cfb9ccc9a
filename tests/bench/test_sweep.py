"""What a sweep may choose, and what it makes of streams."""

import time
from typing import Any

import pytest

from loaders.bench.measure import Config
from loaders.bench.sweep import (
    Sweep,
    default_batch_size,
    grid,
    run_sweep,
    time_target,
)
from loaders.bench.targets import MeasuredDataset
from loaders.errors import LoadersError
from tests.bench.constructed import Instant, Made, Stream, a_result, a_sweep


class FailsLater(Made):
    """Its first runs go well."""

    left = 4000

    def work(self) -> None:
        self.left -= 1
        time.sleep(1e-4)
        if self.left < 0:
            raise OSError("too many open files")


def failed(config: Config, repeats: int = 1) -> Any:
    result = a_result(config, repeats)
    result.error = "OSError: no room"
    return result


def test_a_stream_is_measured_with_at_most_one_worker() -> None:
    """Each of several may give all of it."""
    target = MeasuredDataset("d", Stream)

    assert [config.num_workers for config in grid(target)] == [0, 1]
    assert default_batch_size(target.dataset) == 64  # of its length nothing follows
    with pytest.raises(LoadersError):
        grid(target, workers=[0, 2])


def test_a_setting_that_failed_in_some_run_is_not_chosen_while_another_never_did() -> None:
    slow, quick = Config(0, 64, "thread"), Config(2, 64, "thread")

    sweep = Sweep("d", [a_result(slow), failed(quick)])

    assert sweep.best.config == slow
    assert [result.config for result in sweep.sound] == [slow]


def test_a_run_that_fails_later_keeps_what_came_before() -> None:
    sweep = run_sweep(
        MeasuredDataset("d", FailsLater), [Config(0, 64, "process")], seconds=0.1, repeats=30
    )

    (result,) = sweep.results
    assert result.error == "OSError: too many open files"
    assert 0 < len(result.runs) < 30
    assert sweep.sound == []


def test_a_warm_run_goes_on_for_its_time() -> None:
    run = time_target(MeasuredDataset("d", Instant), Config(0, 64, "process"), seconds=0.3)

    assert run.num_samples > 512


@pytest.mark.parametrize(
    ("num", "rate", "is_small"), [(180, 300.0, True), (180, 5.0, False), (5000, 1e6, False)]
)
def test_few_samples_that_are_read_at_once_are_too_few_to_measure(
    num: int, rate: float, is_small: bool
) -> None:
    result = a_result(Config(0, 64, "thread"), 1)
    result.runs[0].samples_per_s = rate

    assert bool(Sweep("d", [result], num_samples=num).notes) is is_small


@pytest.mark.parametrize(
    ("usual", "told"),
    [
        (Config(0, 64, "thread"), "num_workers=2 instead of num_workers=0: 3x (2.99 to 3)"),
        (
            Config(0, 64, "process"),
            "num_workers=2, backend='thread' instead of num_workers=0: 3x (2.99 to 3)",
        ),
        (Config(2, 64, "thread"), "None"),  # that is what was chosen
        (Config(1, 32, "thread"), "None"),  # that was not measured
    ],
)
def test_the_sweep_shows_what_the_chosen_settings_gain(usual: Config, told: str) -> None:
    assert str(a_sweep().change_from(usual)) == told


def test_every_setting_that_differs_is_named() -> None:
    old, new = Config(0, 8, "thread"), Config(1, 16, "thread", 4)

    change = Sweep("d", [a_result(old), a_result(new)]).change_from(old)

    assert change is not None
    assert change.what == (
        "num_workers=1, batch_size=16, prefetch_factor=4 instead of num_workers=0"
    )


def test_ranges_that_overlap_are_not_worth_a_change() -> None:
    """It may be chance."""
    sweep = a_sweep()
    sweep.results[0].runs[0].samples_per_s = 3000.0

    change = sweep.change_from(Config(0, 64, "thread"))

    assert change is not None
    assert change.between == (1.0, 3002 / 1001)
    assert not change.is_worth_it
