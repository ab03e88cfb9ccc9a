"""What a sweep may choose, what it makes of streams, and how cold a cold one is."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from loaders.bench import sweep as sweep_module
from loaders.bench.measure import Config, time_loader
from loaders.bench.sweep import (
    Sweep,
    default_batch_size,
    grid,
    repeats_itself,
    run_sweep,
    time_target,
)
from loaders.bench.targets import MeasuredDataset, load
from loaders.system.mounts import mount_of
from tests.bench.constructed import Instant, Made, a_result, a_sweep
from tests.packdata.packing import pack_samples
from tests.pages import resident_share


class Whole(IterableDataset[Any]):
    """A stream that every worker gives from its beginning; it has a length, too."""

    def __len__(self) -> int:
        return 512

    def __iter__(self) -> Iterator[Any]:
        for i in range(512):
            yield {"x": torch.full((16,), i, dtype=torch.bfloat16), "name": f"sample {i}"}


class Divided(IterableDataset[Any]):
    """A stream of which each worker gives its part."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from (torch.full((16,), i) for i in range(first, 512, step))


class Alike(IterableDataset[Any]):
    """Samples by which no worker can be told from another."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from (torch.zeros(16) for _ in range(512))


class Ends(IterableDataset[Any]):
    """One sample, and an error."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield torch.zeros(16)
        raise OSError("the connection is lost")


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


@pytest.mark.parametrize(
    ("stream", "is_repeated"), [(Whole(), True), (Divided(), False), (Alike(), False), (Ends(), False)]
)  # fmt: skip
def test_a_stream_that_each_worker_gives_whole_is_found_by_its_first_samples(
    stream: Any, is_repeated: bool
) -> None:
    assert repeats_itself(stream) is is_repeated


@pytest.mark.parametrize(
    ("name", "is_repeated", "said"),
    [
        ("Whole", True, "each gives the whole stream, and several only repeat it"),
        ("Divided", False, "each of several workers serves the whole stream, unless"),
    ],
)
def test_workers_that_repeat_each_other_are_not_chosen(
    monkeypatch: pytest.MonkeyPatch, name: str, is_repeated: bool, said: str
) -> None:
    """Twice as many samples a second, half of which are the other half's copies."""
    monkeypatch.setattr(
        sweep_module, "time_target", lambda _, config, **more: a_result(config, 1).runs[0]
    )
    target = load(f"tests.bench.test_sweep:{name}")

    sweep = run_sweep(target, grid(target, workers=[0, 1, 2]), seconds=0.1, repeats=1)

    assert [result.rate for result in sweep.results] == [1000, 2000, 3000]
    assert sweep.is_repeated is is_repeated
    assert sweep.best.config.num_workers == (1 if is_repeated else 2)
    assert [said in note for note in sweep.notes] == [True]


def test_one_worker_cannot_repeat_another() -> None:
    target = load("tests.bench.test_sweep:Whole")

    sweep = run_sweep(target, grid(target, workers=[0, 1]), seconds=0.1, repeats=1)

    assert (sweep.is_repeated, sweep.notes) == (False, [])
    assert default_batch_size(target.dataset) == 64  # of its length nothing follows


def test_a_setting_that_failed_in_some_run_is_not_chosen_while_another_never_did() -> None:
    slow, quick = Config(0, 64, "thread"), Config(2, 64, "thread")

    sweep = Sweep("d", [a_result(slow), failed(quick)])

    assert sweep.best.config == slow
    assert [result.config for result in sweep.sound] == [slow]
    assert Sweep("d", [failed(slow), failed(quick)]).best.config == quick


def test_a_run_that_fails_later_keeps_what_came_before() -> None:
    sweep = run_sweep(
        MeasuredDataset("d", FailsLater), [Config(0, 64, "process")], seconds=0.1, repeats=30
    )

    (result,) = sweep.results
    assert result.error == "OSError: too many open files"
    assert 0 < len(result.runs) < 30
    assert sweep.sound == []


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_cold_run_ends_with_the_pass(tmp_path: Path, backend: str) -> None:
    """A second one would find the files in memory."""
    target = load(str(pack_samples(tmp_path / "d", 12)), size=32)
    seen: list[int] = []

    def count(sample: Any) -> Any:
        seen.append(1)
        return sample

    target.dataset = target.dataset.replace(transform=count)

    run = time_target(target, Config(0, 4, backend), seconds=20, once=True)

    assert len(seen) == 12
    assert run.num_samples == 8  # behind the first batch


def test_a_warm_run_goes_on_for_its_time() -> None:
    run = time_target(MeasuredDataset("d", Instant), Config(0, 64, "process"), seconds=0.3)

    assert run.num_samples > 512


@pytest.mark.parametrize(
    ("config", "num_timed", "is_noted"),
    [
        (Config(0, 12, "thread"), 12, True),
        (Config(0, 3, "thread"), 9, False),
        (Config(2, 4, "process"), 12, True),  # one round of two batches, and one batch
    ],
)
def test_of_a_pass_of_few_batches_the_first_counts_and_that_is_noted(
    tmp_path: Path, config: Config, num_timed: int, is_noted: bool
) -> None:
    target = load(str(pack_samples(tmp_path / "d", 12)), size=32)

    sweep = run_sweep(target, [config], seconds=9.0, repeats=1, cold=True)

    assert [run.num_samples for run in sweep.results[0].runs] == [num_timed]
    assert sweep.results[0].rate > 0
    said = "a pass has so few batches that the start of the workers counts, too"
    assert (said in sweep.notes) is is_noted


@pytest.mark.parametrize("config", [Config(2, 8, "thread"), Config(1, 8, "process")])
def test_nothing_keeps_the_files_in_the_page_cache_while_a_cold_sweep_drops_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    """A dataset that somebody still holds has pages mapped, and those stay."""
    target = load(str(pack_samples(tmp_path / "d", 64)), size=32)
    mount = mount_of(tmp_path)
    if resident_share(target.files) is None or (mount and mount.kind == "tmpfs"):
        pytest.skip("what is in the page cache cannot be told, or dropped")
    shares: list[float | None] = []

    def spy(*args: Any, **options: Any) -> Any:
        shares.append(resident_share(target.files))
        return time_loader(*args, **options)

    monkeypatch.setattr(sweep_module, "time_loader", spy)
    assert len(list(target.dataset)) == 64
    run_sweep(target, [config], seconds=0.1, repeats=2, cold=True)

    assert len(shares) == 2
    assert max(share or 0.0 for share in shares) < 0.5


@pytest.mark.parametrize(
    ("num", "rate", "is_small"), [(180, 300.0, True), (180, 5.0, False), (5000, 1e6, False)]
)
def test_few_samples_that_are_read_at_once_are_too_few_to_measure(
    num: int, rate: float, is_small: bool
) -> None:
    result = a_result(Config(0, 64, "thread"), 1)
    result.runs[0].samples_per_s = rate

    assert bool(Sweep("d", [result]).too_small(range(num))) is is_small


@pytest.mark.parametrize(
    ("usual", "told"),
    [
        (Config(0, 64, "thread"), ["num_workers=2 instead of num_workers=0: 3x (2.99 to 3)"]),
        (
            Config(0, 64, "process"),
            ["num_workers=2, backend='thread' instead of num_workers=0: 3x (2.99 to 3)"],
        ),
        (Config(2, 64, "thread"), []),  # that is what was chosen
        (Config(1, 32, "thread"), []),  # that was not measured
    ],
)
def test_the_sweep_shows_what_the_chosen_settings_gain(usual: Config, told: list[str]) -> None:
    assert [str(change) for change in a_sweep().changes_from(usual)] == told


def test_every_setting_that_differs_is_named() -> None:
    old, new = Config(0, 8, "thread"), Config(1, 16, "thread", 4)

    changes = Sweep("d", [a_result(old), a_result(new)]).changes_from(old)

    assert [change.what for change in changes] == [
        "num_workers=1, batch_size=16, prefetch_factor=4 instead of num_workers=0"
    ]


def test_ranges_that_overlap_are_not_worth_a_change() -> None:
    """It may be chance."""
    sweep = a_sweep()
    sweep.results[0].runs[0].samples_per_s = 3000.0

    (change,) = sweep.changes_from(Config(0, 64, "thread"))

    assert change.between == (1.0, 3002 / 1001)
    assert not change.is_worth_it
