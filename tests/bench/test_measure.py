import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from loaders.bench import sweep
from loaders.bench.measure import (
    Config,
    Result,
    TimedPass,
    family,
    make_loader,
    memory,
    time_loader,
)
from loaders.bench.targets import MeasuredDataset
from tests.bench.constructed import Hashes, Instant


class FakeClock:
    """Seconds that pass only when someone says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def batches(clock: FakeClock, waits: list[float], size: int = 10) -> Iterator[torch.Tensor]:
    """Yield batches that each take the given time."""
    for wait in waits:
        clock.now += wait
        yield torch.zeros(size, 4)


def timed(clock: FakeClock, waits: list[float], **options: Any) -> TimedPass:
    usual: dict[str, Any] = {"seconds": 1e9, "clock": clock}
    return time_loader(batches(clock, waits), 10, **usual | options)


def test_the_rate_leaves_the_late_first_batch_out() -> None:
    clock = FakeClock()

    run = timed(clock, [5.0, 0.5, 0.5, 0.5])

    assert run.first_batch_s == 5.0
    assert run.latencies_s == [0.5, 0.5, 0.5]
    assert run.num_samples == 30
    assert run.samples_per_s == pytest.approx(20)


def test_the_rate_is_taken_over_whole_rounds_of_workers() -> None:
    """Four workers that each take 4 s make 10 samples/s: their batches come four at a time."""
    clock = FakeClock()

    run = timed(clock, [4.0, 0, 0, 0] * 3 + [4.0], round_size=4)

    assert run.samples_per_s == pytest.approx(4 * 10 / 4.0)


def test_the_first_batch_is_waited_for_from_before_the_epoch_begins() -> None:
    """Workers start when an iterator is asked for."""
    clock = FakeClock()

    class Loader:
        def __iter__(self) -> Iterator[torch.Tensor]:
            clock.now += 3.0
            return batches(clock, [2.0, 0.5])

    assert time_loader(Loader(), 10, seconds=9, clock=clock).first_batch_s == 5.0


def test_it_stops_at_the_end_of_a_round_when_the_time_is_up() -> None:
    clock = FakeClock()

    run = timed(clock, [1.0] * 100, seconds=4.5, round_size=2)

    assert clock.now == 6.0
    assert run.samples_per_s == pytest.approx(10)


def test_of_less_than_two_rounds_all_batches_count_and_that_is_told() -> None:
    run = timed(FakeClock(), [4.0, 0.0, 2.0], round_size=2)

    assert (run.num_samples, run.has_start) == (30, True)
    assert run.samples_per_s == pytest.approx(30 / 6)
    assert not timed(FakeClock(), [4.0, 0.0, 2.0, 0.0], round_size=2).has_start


def test_what_is_made_ahead_does_not_count_and_what_is_done_with_a_batch_is_no_wait() -> None:
    """Batches come each second, and a step takes three: it waits for a quarter of the time."""
    clock = FakeClock()

    def step(batch: torch.Tensor) -> None:
        clock.now += 3.0

    run = timed(clock, [9.0, 0.0, 0.0, *[1.0] * 5], round_size=2, ahead=1, step=step)

    assert (run.samples_per_s, run.stall_share) == (10 / 4, 1 / 4)
    assert run.num_samples == 40


def test_a_run_that_gets_no_further_is_ended() -> None:
    clock = FakeClock()

    run = timed(clock, [1.0] * 100, seconds=2.0, round_size=64, patience_s=3.0)

    assert clock.now == 5.0
    assert run.has_start


def test_one_batch_is_enough_for_a_rate() -> None:
    assert timed(FakeClock(), [2.0]).samples_per_s == pytest.approx(5)


def test_no_batch_is_held_while_the_next_is_waited_for() -> None:
    """A loader would need another slot for it, which costs large rows a twentieth."""
    before, kept = weakref.ref(torch.zeros(1)), []

    def watched() -> Iterator[torch.Tensor]:
        nonlocal before
        for _ in range(5):
            kept.append(before() is not None)
            batch = [torch.zeros(10)]
            before = weakref.ref(batch[0])
            yield batch.pop()

    time_loader(watched(), 10, seconds=1e9)

    assert kept == [False] * 5


def test_no_batch_is_an_error() -> None:
    with pytest.raises(ValueError):
        timed(FakeClock(), [])


def swept(
    monkeypatch: pytest.MonkeyPatch, measure: Callable[[Config], TimedPass], repeats: int
) -> list[Result]:
    """Sweep three settings by a measure of our own."""
    monkeypatch.setattr(sweep, "time_target", lambda _, config, **options: measure(config))
    configs = [Config(workers, 8) for workers in (0, 1, 2)]
    target = MeasuredDataset("d", Instant)
    return sweep.run_sweep(target, configs, seconds=1, repeats=repeats).results


def test_configurations_take_turns_so_that_drift_hits_all_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[int] = []

    def measure(config: Config) -> TimedPass:
        order.append(config.num_workers)
        return TimedPass(99.0 + len(order), 0.1, [0.1], 10)

    results = swept(monkeypatch, measure, 3)

    assert order == [2, *[0, 1, 2] * 3]  # one warms up
    assert [result.rate for result in results] == [104, 105, 106]
    assert results[0].spread == (101, 107)


def test_a_summary_has_the_figures_of_all_runs_in_their_units() -> None:
    waits = [i / 100 for i in range(99, -1, -1)]
    runs = [
        TimedPass(10.0, 0.3, waits[:50], 5, pss_bytes=5),
        TimedPass(90.0, 0.1, waits[50:], 7, pss_bytes=9),
        TimedPass(11.0, 0.2, [], 6, pss_bytes=7),
    ]

    result = Result(Config(2, 4), runs)
    summary = result.summary()

    assert result.spread == (10, 90)
    assert summary["samples_per_s"] == 11
    assert summary["samples_per_s_repeats"] == [10, 90, 11]
    assert summary["first_batch_s"] == 0.2
    assert (summary["batch_wait_p50_s"], summary["batch_wait_p99_s"]) == (0.50, 0.99)
    assert (summary["peak_pss_bytes"], summary["num_samples"]) == (9, 18)


def test_a_configuration_that_fails_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def measure(config: Config) -> TimedPass:
        tried.append(config.num_workers)
        if config.num_workers == 1:
            raise RuntimeError("no room")
        return TimedPass(1.0, 0.1, [], 1)

    good, bad, other = swept(monkeypatch, measure, 2)

    assert (len(good.runs), len(bad.runs), len(other.runs)) == (2, 0, 2)
    assert tried.count(1) == 1  # it is left out from then on
    assert bad.error == "RuntimeError: no room"
    assert good.summary()["error"] is None
    assert bad.summary()["samples_per_s"] == 0.0


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_loader_is_timed_with_its_memory_and_ended(backend: str) -> None:
    config = Config(2, 16, backend)

    run = time_loader(make_loader(Instant(), config), 16, seconds=0.1, round_size=2)

    assert run.samples_per_s > 0
    assert run.pss_bytes > 1 << 20


def test_what_is_held_at_the_end_of_a_short_run_counts() -> None:
    kept: list[torch.Tensor] = []

    def grow() -> Iterator[torch.Tensor]:
        for _ in range(4):
            kept.append(torch.ones(8 << 20))  # 32 MiB
            yield torch.zeros(10, 4)

    gc.collect()  # as the measurement does: what goes then was of others
    before = memory(family())

    assert time_loader(grow(), 10, seconds=9).pss_bytes - before > 90 << 20


def test_settings_print_as_they_are_typed() -> None:
    assert str(Config(2, 8, "thread")) == "num_workers=2, batch_size=8, backend='thread'"
    assert str(Config(2, 8, prefetch=3)).endswith("backend='auto', prefetch_factor=3")
    assert "prefetch_factor" not in Config(0, 8, prefetch=3).arguments()


def test_processes_of_an_iterator_that_is_still_held_are_ended() -> None:
    """Or they would be beside the next one that is measured."""
    config, before = Config(1, 8, "process"), set(family())
    batches = iter(make_loader(Instant(), config))
    next(batches)
    during = set(family())

    batches.close()

    assert len(during - before) > 0
    assert not set(family()) & (during - before)


def by_hand(loader: Any, seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """The loop that anyone would write: samples/s after the first round of batches."""
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    began, samples = clock(), 0
    while clock() - began < seconds:
        samples += len(next(iterator)) + len(next(iterator))
    rate = samples / (clock() - began)
    iterator.close()
    return rate


def test_figures_agree_with_a_loop_by_hand_on_a_fake_clock() -> None:
    """Two workers, whose batches come two at a time."""
    clock, other = FakeClock(), FakeClock()
    waits = [5.0, 0.0, *[0.75, 0.25] * 50]

    ours = timed(clock, waits, seconds=40.0, round_size=2)

    assert ours.samples_per_s == by_hand(batches(other, waits), 35.0, other) == 20.0


@pytest.mark.slow
def test_figures_agree_with_a_loop_by_hand_on_real_work() -> None:
    """On real work, in turns, by the thread's CPU clock, which others on the machine cannot disturb."""
    config = Config(0, 16, "thread")
    ratios = []

    for _ in range(15):
        loader = make_loader(Hashes(), config)
        run = time_loader(loader, 16, seconds=0.3, round_size=1, clock=time.thread_time)
        ratios.append(run.samples_per_s / by_hand(loader, 0.3, time.thread_time))

    assert sorted(ratios)[7] == pytest.approx(1, rel=0.05)
