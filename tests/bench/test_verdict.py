from __future__ import annotations

from typing import Any

import pytest

from loaders.bench.verdict import Change, Facts, judge


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
        "copy_bytes_per_s": 10e9,
        "stages": {"read": 1e-5, "decode": 8e-4, "augment": 1.9e-4},
        "holds": "pictures",
    }
    return Facts(**usual | changed)


@pytest.mark.parametrize(
    ("changed", "bound", "said"),
    [
        ({}, "cpu", "80% of it to decode"),
        ({"wait_s": 0.01, "rate": 190.0}, "storage", "waits 10 ms"),
        (
            {"queued_s": 2e-3, "rate": 950.0},
            "cores",
            "takes 1 ms of a core, and waits 2 ms for one",
        ),
        ({"queued_s": 5e-4, "rate": 1200.0}, "cpu", "waits 500 us for a core that others have"),
        ({"gil_s": 9e-4, "rate": 1050.0}, "gil", "90% of a sample's CPU time"),
        (
            {"cpu_s": 2.5e-5, "rate": 60e3, "stages": {"read": 2.5e-5}},
            "memory",
            "Memory bandwidth",
        ),
        ({"cpu_s": 4e-5, "rate": 45e3, "stages": {"read": 4e-5}}, "memory", "150 kB each"),
        ({"transfer_s": 2e-3}, "transfer", "500 samples/s"),
        ({"finish_s": 2e-3}, "finish", "500 samples/s"),
        ({"step_s": 2e-3}, "step", "Change nothing"),
        ({"step_s": 2e-3, "stall_share": 0.01}, "step", "waits for data 1% of the time"),
        ({"step_s": 1e-3, "transfer_s": 2e-3}, "transfer", "500 samples/s"),
        ({"step_s": 1e-3, "finish_s": 1e-3}, "step", "it takes 500 samples/s"),
        ({"num_workers": 1, "gil_s": 8e-4, "rate": 950.0}, "gil", "80% of a sample's CPU time"),
        ({"num_workers": 1, "gil_s": 6e-4, "rate": 950.0}, "cpu", "1 of 2 cores"),
        ({"rate": 100.0}, "overhead", "No stage explains"),
    ],
)
def test_the_lowest_limit_is_named(changed: dict[str, Any], bound: str, said: str) -> None:
    verdict = judge(facts(**changed))

    assert verdict.bound == bound
    assert said in verdict.sentence


def test_limits_come_with_the_lowest_first_and_the_next_is_told() -> None:
    verdict = judge(facts())

    assert list(verdict.limits) == ["cpu", "memory", "gil"]
    assert verdict.limits["cpu"] == 2000
    assert "The next limit is memory bandwidth, at 66,667 samples/s (35.1x)." in verdict.sentence


def test_every_worker_waits_by_itself() -> None:
    assert judge(facts(wait_s=0.01, rate=190.0)).limits["storage"] == 200


def test_a_limit_is_what_was_computed_also_where_more_was_seen() -> None:
    """What was seen still counts: what comes behind loading may bound it at less."""
    assert judge(facts(rate=3000.0)).limits["cpu"] == 2000
    assert judge(facts(rate=3000.0)).bound == "cpu"
    assert judge(facts(rate=3000.0, transfer_s=1 / 2500)).bound == "transfer"
    assert judge(facts(rate=3000.0, cpu_s=1.0, stages={}, gil_s=1e-9)).bound == "cpu"


def test_a_lock_that_allowed_more_than_it_should_is_told_by_what_was_seen() -> None:
    more, less = (judge(facts(gil_s=9e-4, rate=rate)).sentence for rate in (1300.0, 1050.0))

    assert "threads together end near the 1,300 samples/s that were measured." in more
    assert "threads together end at 1,111 samples/s." in less


def test_above_a_step_the_next_limit_is_loading() -> None:
    said = judge(facts(step_s=2e-3)).sentence

    assert "it takes 500 samples/s, and loading gives 1,900." in said
    assert "The next limit is loading, at 1,900 samples/s (3.8x)." in said


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {},
            "Less work for a sample (smaller images, a cheaper transform), or more cores, would be faster.",
        ),
        ({"wait_s": 0.01, "rate": 190.0}, "Try more workers"),
        ({"queued_s": 2e-3, "rate": 950.0}, "More workers would wait beside it"),
        ({"gil_s": 9e-4, "rate": 1050.0}, "backend='process'"),
        ({"cpu_s": 2.5e-5, "rate": 60e3}, "Smaller samples would be faster (crop at packing"),
        ({"transfer_s": 2e-3}, "uint8 instead of float"),
        ({"finish_s": 2e-3}, "A smaller crop"),
        ({"rate": 100.0}, "Try a larger batch_size"),
    ],
)
def test_where_nothing_was_tried_there_is_advice(changed: dict[str, Any], said: str) -> None:
    assert said in judge(facts(**changed)).sentence
    assert said not in judge(facts(**changed), [Change("b", 3.1)]).sentence


COPIES = {"cpu_s": 2.5e-5, "rate": 60e3}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (COPIES | {"holds": "other"}, "Smaller samples would be faster (narrower dtypes)."),
        (COPIES | {"holds": "tokens"}, "TokenWindows(..., dtype='stored') is narrower."),
        ({"holds": "tokens"}, "Less work for a sample (a cheaper transform)"),
        ({"holds": "tokens", "finish_s": 2e-3}, "TokenWindows(..., dtype='int32')"),
        ({"holds": "other", "finish_s": 2e-3}, "Less work there"),
        (COPIES | {"holds": "volumes"}, "Whole volumes are read: a crop reads less of each"),
        ({"holds": "volumes", "wait_s": 0.01, "rate": 190.0}, "augment.RandomCrop"),
        (COPIES | {"holds": "volumes", "is_whole": False}, "(narrower dtypes)."),
    ],
)
def test_advice_is_for_what_samples_hold(changed: dict[str, Any], said: str) -> None:
    sentence = judge(facts(**changed)).sentence

    assert said in sentence
    assert "image" not in sentence
    assert "crop at packing" not in sentence


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "Nothing that was tried is faster: less work for a sample (smaller images, "),
        (COPIES, "Nothing that was tried is faster: smaller samples would be (crop at packing"),
        (COPIES | {"holds": "tokens"}, "Nothing that was tried is faster: TokenWindows("),
    ],
)
def test_only_where_something_was_tried_it_is_told_that_it_does_not_help(
    changed: dict[str, Any], said: str
) -> None:
    """A change whose gain is not known was not tried."""
    run = facts(**changed)

    assert said in judge(run, [Change("a", 0.9)]).sentence
    assert "was tried" not in judge(run).sentence
    assert "was tried" not in judge(run, [Change("a")]).sentence


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "or more cores, would be faster."),
        ({"num_workers": 3}, "or more cores, would be faster."),
        (
            {"num_workers": 1},
            "would be faster; 1 of 2 cores does nothing for it: try num_workers=2.",
        ),
        (
            {"num_workers": 0},
            "would be faster; 1 of 2 cores does nothing for it: try num_workers=2.",
        ),
        ({"num_workers": 0, "threads": 1.9}, "or more cores, would be faster."),
        ({"cores": 8}, "would be faster; 6 of 8 cores do nothing for it: try num_workers=8."),
        ({"cores": 8, "quota": 2.0}, "or more cores, would be faster."),
        ({"cores": 8, "quota": 2.5}, "6 of 8 cores do nothing for it: try num_workers=3."),
        ({"num_workers": 0, "may_add_workers": False}, "1 of 2 cores does nothing for it."),
    ],
)
def test_more_cores_are_of_use_only_where_none_is_idle(changed: dict[str, Any], said: str) -> None:
    sentence = judge(facts(**{"rate": 950.0} | changed)).sentence

    assert said in sentence
    assert ("more cores" in sentence) == ("more cores" in said)


def test_libraries_with_threads_of_their_own_use_more_cores_than_there_are_workers() -> None:
    verdict = judge(facts(cores=4, num_workers=1, threads=3.0, rate=2900.0))

    assert verdict.limits["cpu"] == 3000
    assert "3 of 4 cores work at it" in verdict.sentence
    assert judge(facts(threads=3.0)).limits["cpu"] == 2000


def test_processes_are_not_bound_by_the_gil() -> None:
    verdict = judge(facts(gil_s=9e-4, backend="process"))

    assert verdict.bound == "cpu"
    assert "gil" not in verdict.limits


def test_on_a_busy_machine_the_verdict_says_so_and_nothing_of_the_gil() -> None:
    """Threads hardly run at once there, and who waits for whom cannot be seen."""
    verdict = judge(facts(gil_s=9e-4, rate=500.0, available=0.3))

    assert verdict.bound == "cpu"
    assert verdict.sentence.startswith("Other work took 70% of the cores")


def test_without_workers_one_core_works() -> None:
    assert judge(facts(num_workers=0, rate=950.0)).limits["cpu"] == 1000


def test_changes_are_ranked_by_gain_and_those_that_do_not_help_left_out() -> None:
    tried = [Change("a", 1.2), Change("b", 3.1), Change("c", 0.9), Change("d", None)]

    verdict = judge(facts(), tried)

    assert [change.what for change in verdict.changes] == ["b", "a", "d"]
    assert verdict.sentence.endswith("What helps most: b: 3.1x.")


def test_a_gain_within_the_noise_of_its_runs_is_left_out() -> None:
    tried = [Change("a", 1.79, between=(0.9, 3.1)), Change("b", 1.3, between=(1.1, 1.5))]

    assert [change.what for change in judge(facts(), tried).changes] == ["b"]


def test_nothing_is_to_be_changed_where_the_step_is_the_limit() -> None:
    assert judge(facts(step_s=2e-3), [Change("b", 3.1)]).changes == []


def test_a_step_that_waits_little_is_the_limit_though_loading_alone_is_not_faster() -> None:
    """What counts is the run: on a busy machine loading alone may look slower than it is."""
    assert judge(facts(step_s=5e-4, stall_share=0.02)).bound == "step"
    assert judge(facts(step_s=5e-4, stall_share=0.5)).bound == "cpu"


def test_a_step_that_could_take_far_more_than_loading_gives_is_not_the_limit() -> None:
    """However little it seemed to wait in a short run."""
    verdict = judge(facts(step_s=4e-4, stall_share=0.0))

    assert verdict.bound == "cpu"
    assert "The next limit is the training step, at 2,500 samples/s (1.32x)." in verdict.sentence
    assert judge(facts(step_s=5e-4, transfer_s=6e-4, stall_share=0.0)).bound == "transfer"


@pytest.mark.parametrize(
    ("stall_share", "num_workers", "said"),
    [
        (0.01, 2, "Change nothing in loading: the step waits for data 1% of the time."),
        (0.3, 0, "waits for data 30% of the time: num_workers=1 or more"),
        (0.3, 2, "waits for data 30% of the time: the two share the cores"),
    ],
)
def test_a_step_that_is_the_limit_and_yet_waits_is_told_what_to_try(
    stall_share: float, num_workers: int, said: str
) -> None:
    run = facts(step_s=2e-3, stall_share=stall_share, num_workers=num_workers)

    assert said in judge(run).sentence


def test_a_change_says_whether_its_gain_was_tried() -> None:
    assert str(Change("x", 2.5)) == "x: 2.5x"
    assert str(Change("x", 2.5, between=(1.9, 3.25))) == "x: 2.5x (1.9 to 3.25)"
    assert str(Change("x", 2.5, between=(2.5, 2.5))) == "x: 2.5x (one run)"
    assert str(Change("x", 2.5, is_measured=False)) == "x: 2.5x (computed)"
    assert str(Change("x")) == "x (gain not measured)"


def test_a_quota_bounds_what_the_cores_do() -> None:
    """Half of a core's time, which one thread uses up."""
    run = facts(cores=1, num_workers=1, quota=0.5, rate=480.0)

    verdict = judge(run)

    assert (verdict.bound, verdict.limits["cpu"]) == ("cpu", 500)
    assert (
        "1 of 1 core work at it, held to 0.5 cores' time by the container's quota"
        in verdict.sentence
    )
    assert "Other work" not in verdict.sentence
    assert judge(facts(cores=1, num_workers=1, quota=0.1, rate=95.0)).bound == "cpu"
    assert judge(facts(cores=1, num_workers=1, quota=0.5, rate=480.0, gil_s=9e-4)).bound == "cpu"


def test_a_quota_of_more_than_what_works_is_not_told() -> None:
    verdict = judge(facts(quota=1.5, num_workers=1, rate=950.0))

    assert verdict.limits["cpu"] == 1000
    assert "quota" not in verdict.sentence
    assert judge(facts(quota=1.5, rate=1450.0)).limits["cpu"] == 1500
