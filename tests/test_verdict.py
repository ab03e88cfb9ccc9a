from typing import Any

import pytest

from loaders.verdict import Change, Facts, judge


def facts(**changed: Any) -> Facts:
    """Two cores that decode: 1 ms each, next to nothing else."""
    usual: dict[str, Any] = {
        "cores": 2,
        "num_workers": 2,
        "backend": "thread",
        "rate": 1900.0,
        "cpu_s": 1e-3,
        "gil_s": 1e-5,
        "sample_bytes": 150e3,
        "stages": {"read": 1e-5, "decode": 8e-4, "augment": 1.9e-4},
    }
    return Facts(**usual | changed)


def change(what: str, gain: float, low: float | None = None) -> Change:
    return Change(what, gain, (low or gain - 0.1, gain + 0.1))


COPIES = {"cpu_s": 2.5e-5, "rate": 60e3, "stages": {"read": 2.5e-5}}


@pytest.mark.parametrize(
    ("changed", "bound", "said"),
    [
        ({}, "cpu", "80% of it to decode"),
        ({"stages": {"fetch": 1e-3}}, "cpu", "1 ms of a core, and 2 of 2"),
        ({"wait_s": 0.01, "rate": 190.0}, "storage", "waits 10 ms"),
        ({"gil_s": 9e-4, "rate": 1050.0}, "gil", "90% of a sample's CPU time"),
        ({"gil_s": 9e-4, "backend": "process"}, "cpu", "2 of 2 cores"),
        (COPIES, "memory", "Memory bandwidth"),
        (COPIES | {"cpu_s": 4e-5, "rate": 45e3}, "memory", "146.5 KiB each"),
        (
            COPIES | {"cores": 64, "num_workers": 64, "gil_s": 0.0, "rate": 500e3},
            "memory",
            "Memory bandwidth",
        ),
        (COPIES | {"rate": 5e3}, "overhead", "No stage explains"),
        ({"transfer_s": 2e-3}, "transfer", "500 samples/s"),
        ({"finish_s": 2e-3}, "finish", "500 samples/s"),
        ({"step_s": 2e-3}, "step", "it takes 500 samples/s, and loading gives 1,900"),
        ({"step_s": 1e-3, "transfer_s": 2e-3}, "transfer", "500 samples/s"),
        ({"step_s": 1e-3, "finish_s": 1e-3}, "step", "it takes 500 samples/s"),
        ({"num_workers": 1, "gil_s": 8e-4, "rate": 950.0}, "gil", "80% of a sample's CPU time"),
        ({"num_workers": 1, "gil_s": 6e-4, "rate": 950.0}, "cpu", "1 of 2 cores"),
        ({"cores": 0.5, "num_workers": 1, "rate": 480.0}, "cpu", "0.5 of 0.5 cores"),
        ({"rate": 100.0}, "overhead", "No stage explains"),
    ],
)
def test_the_lowest_limit_is_named(changed: dict[str, Any], bound: str, said: str) -> None:
    verdict = judge(facts(**changed))

    assert verdict.bound == bound
    assert said in verdict.sentence


def test_limits_come_with_the_lowest_first() -> None:
    verdict = judge(facts())

    assert list(verdict.limits) == ["cpu", "gil"]
    assert verdict.limits["cpu"] == 2000
    assert judge(facts(wait_s=0.01, rate=190.0)).limits["storage"] == 200  # each worker by itself
    assert judge(facts(num_workers=0, rate=950.0)).limits["cpu"] == 1000


def test_the_cpu_is_not_what_comes_behind_copying() -> None:
    """The limit of the CPU is that of the copies."""
    assert "the CPU" not in judge(facts(**COPIES)).sentence


def test_a_limit_is_what_was_computed_also_where_more_was_seen() -> None:
    """What was seen still counts: what comes behind loading may bound it at less."""
    assert judge(facts(rate=3000.0)).limits["cpu"] == 2000
    assert judge(facts(rate=3000.0)).bound == "cpu"
    assert judge(facts(rate=3000.0, transfer_s=1 / 2500)).bound == "transfer"


def test_a_verdict_ends_with_a_line_that_says_what_to_do() -> None:
    last = str(judge(facts(), change("b", 3.1))).splitlines()[-1]

    assert last == "Do: b: 3.1x (3 to 3.2)"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "less work (pack images at the size"),
        ({"wait_s": 0.01, "rate": 190.0}, "try more workers"),
        ({"gil_s": 9e-4, "rate": 1050.0}, "backend='process'"),
        (COPIES, "crop at packing"),
        ({"transfer_s": 2e-3}, "uint8 instead of float"),
        ({"finish_s": 2e-3}, "crop smaller"),
        ({"rate": 100.0}, "larger batch_size"),
        ({"step_s": 2e-3}, "change nothing"),
    ],
)  # fmt: skip
def test_without_better_settings_there_is_advice(changed: dict[str, Any], said: str) -> None:
    assert said in judge(facts(**changed)).advice
    if "step_s" not in changed:
        assert judge(facts(**changed), change("b", 3.1)).advice.startswith("b: 3.1x")


@pytest.mark.parametrize("changed", [{"cpu_s": 1e-6, "sample_bytes": 40.0}, {"cpu_s": 1e-8}])
def test_where_loading_is_faster_than_steps_are_a_step_is_to_be_measured(
    changed: dict[str, Any],
) -> None:
    """More cores would not make training faster; settings that help are told nevertheless."""
    fast = facts(**{"rate": 1.9e6, "stages": {"read": 1e-6}} | changed)
    measured = facts(rate=1.9e6, cpu_s=1e-6, gil_s=0.0, step_s=1e-8, sample_bytes=40.0)

    assert "--step" in judge(fast).advice
    assert "2 instead of 1" in judge(fast, change("num_workers=2 instead of 1", 1.5)).advice
    assert "--step" not in judge(measured).advice


def test_a_change_that_does_not_help_is_left_out() -> None:
    helps = change("a", 1.2)

    assert judge(facts(), helps).change == helps
    assert judge(facts(), change("b", 0.9)).change is None
    assert judge(facts(), change("c", 1.79, low=0.9)).change is None
    assert judge(facts(step_s=2e-3), helps).change is None


@pytest.mark.parametrize("available", [0.3, 0.5])
def test_on_a_busy_machine_the_verdict_says_so_and_nothing_of_the_gil(available: float) -> None:
    """Threads hardly run at once there, and who waits for whom cannot be seen."""
    verdict = judge(facts(gil_s=9e-4, rate=500.0, available=available))

    assert verdict.bound == "cpu"
    assert f"{1 - available:.0%} of the cores" in verdict.sentence


def test_a_step_that_waits_little_is_the_limit_though_loading_alone_is_not_faster() -> None:
    """What counts is the run: on a busy machine loading alone may look slower than it is."""
    assert judge(facts(step_s=5e-4, stall_share=0.02)).bound == "step"
    assert judge(facts(step_s=5e-4, stall_share=0.5)).bound == "cpu"


def test_a_step_that_could_take_far_more_than_loading_gives_is_not_the_limit() -> None:
    """However little it seemed to wait in a short run."""
    verdict = judge(facts(step_s=4e-4, stall_share=0.0))

    assert verdict.bound == "cpu"
    assert judge(facts(step_s=5e-4, transfer_s=6e-4, stall_share=0.0)).bound == "transfer"


@pytest.mark.parametrize(("share", "bound"), [(0.07, "step"), (0.9, "overhead")])
def test_of_a_run_that_loading_does_not_explain_the_step_is_the_limit_if_it_takes_most(
    share: float, bound: str
) -> None:
    """Epochs of five steps, say: the first batch of each is waited for, and the workers are idle."""
    run = facts(rate=30.0, step_s=(1 - share) / 30, stall_share=share, cpu_s=2e-3, gil_s=0.0)

    assert judge(run).bound == bound


@pytest.mark.parametrize(
    ("stall_share", "num_workers", "said"),
    [(0.01, 2, "change nothing"), (0.3, 0, "num_workers=1 or more"), (0.3, 2, "prefetch_factor=4")],
)  # fmt: skip
def test_a_step_that_is_the_limit_and_yet_waits_is_told_what_to_try(
    stall_share: float, num_workers: int, said: str
) -> None:
    run = facts(step_s=2e-3, stall_share=stall_share, num_workers=num_workers)

    assert said in judge(run).advice


def test_a_step_that_waits_for_the_gil_is_told_of_the_child_process() -> None:
    run = facts(step_s=2e-3, stall_share=0.01, gil_share=0.25)

    assert "backend='subprocess'" in judge(run).advice
    assert "25%" in judge(run).advice
