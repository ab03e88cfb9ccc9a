import copy
import itertools
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import loaders
from loaders import DataLoader, RAMDataset
from loaders.loading.delivery import Delivery
from loaders.profiling import ProfileReport, TimedSpan


def a_loader(**options: Any) -> DataLoader:
    images = np.zeros((64, 3, 64, 64), np.uint8)
    return DataLoader(
        RAMDataset.from_arrays(image=images), **{"batch_size": 8, "num_workers": 1} | options
    )


def a_report(waits: list[float], computes: list[float]) -> ProfileReport:
    spans = [TimedSpan("wait for data", 0, 0.0, took) for took in waits]
    return ProfileReport([*spans, *[TimedSpan("compute", 0, 0.0, took) for took in computes]])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 0},
        {"backend": "process"},
        pytest.param({"backend": "subprocess"}, marks=pytest.mark.slow),
    ],
)
def test_it_stops_after_so_many_steps_and_leaves_the_loader_as_it_was(options: Any) -> None:
    loader = a_loader(**options)

    with loaders.profile(loader, steps=5) as profile:
        epochs = [len(list(loader)) for _ in range(2)]
        assert isinstance(iter(loader), Delivery)  # it is off already

    assert epochs == [8, 8]
    assert profile.report.num_steps == len(profile.report.compute_s) == 5


def test_waits_and_computes_are_told_apart() -> None:
    def wait(sample: Any) -> Any:
        time.sleep(0.01 / 8)
        return sample

    dataset = RAMDataset.from_arrays(image=np.zeros((64, 3, 8, 8), np.uint8))
    loader = DataLoader(dataset.replace(transform=wait), 8, num_workers=0)

    with loaders.profile(loader, steps=8) as profile:
        for _ in loader:
            time.sleep(0.03)

    report = profile.report
    assert min(report.wait_s) >= 0.01
    assert min(report.compute_s) >= 0.03
    assert 0.1 < report.data_share < 0.5
    assert "waiting for data" in str(report)


def test_the_first_batch_and_the_time_between_epochs_are_left_out() -> None:
    report = a_report([9.0, 0.1, 0.1], [0.7, 0.3, 0.3])
    loader = a_loader()

    with loaders.profile(loader, steps=16) as profile:
        for _ in range(2):
            list(loader)
            time.sleep(0.3)

    assert report.data_share == pytest.approx(0.25)
    assert "first batch after 9 s" in str(report)
    assert len(profile.report.compute_s) == 16
    assert max(profile.report.compute_s) < 0.3


def test_what_follows_an_epoch_that_was_left_is_no_step() -> None:
    loader = a_loader()

    with loaders.profile(loader, steps=16) as profile:
        for _ in range(2):
            for number, _batch in enumerate(loader):
                if number == 3:
                    break
            time.sleep(0.3)

    assert len(profile.report.wait_s) == 8
    assert len(profile.report.compute_s) == 6
    assert max(profile.report.compute_s) < 0.3


def test_a_report_has_the_median_and_the_99th_percentile_in_milliseconds() -> None:
    waits = [i / 1000 for i in range(1, 98)] + [5.0, 6.0, 7.0]

    text = str(a_report([1.0, *waits], waits))

    assert text.count("median 50.5 ms, p99 7 s per step") == 2


def test_a_report_has_the_stages_of_a_batch() -> None:
    report = a_report([0.1], [0.1])
    report.spans.append(TimedSpan("read and decode", 1, 0.0, 0.4, num_batches=8))

    assert "  read and decode    50 ms per batch, all threads together" in str(report)
    assert str(ProfileReport()) == "no step was profiled"
    assert ProfileReport().verdict == ""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_that_are_handed_over_together_are_counted_one_by_one(num_workers: int) -> None:
    """Rows that are only copied are read many batches at a time."""
    dataset = RAMDataset.from_arrays(x=np.zeros((1024, 16), np.uint8))
    loader = DataLoader(dataset, 8, num_workers=num_workers)

    with loaders.profile(loader, steps=128) as profile:
        assert len(list(loader)) == 128

    assert set(profile.report.stage_s) == {"read and decode", "collate and pin"}
    assert profile.report.num_batches == 128


def test_an_epoch_under_the_clock_is_an_epoch_like_any_other() -> None:
    """Its iterator has a length, and whatever else the loader's has."""
    loader = a_loader()

    with loaders.profile(loader):
        batches = iter(loader)
        next(batches)

        assert len(batches) == 8
        assert callable(batches.close)


def test_a_child_process_gets_no_clock_along() -> None:
    """What it would note there nobody reads, and what the trainer hands in need not pickle."""
    loader = a_loader()

    with loaders.profile(loader):
        assert loader._maker().watched is not None
        assert loader._maker().for_child().watched is None


@pytest.mark.parametrize(
    "again", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy]
)
def test_a_copy_of_a_loader_is_one_without_a_clock(again: Any) -> None:
    loader = a_loader(shuffle=True)

    with loaders.profile(loader) as profile:
        other = again(loader)
        assert len(list(other)) == 8

    assert other._profile is None
    assert profile.report.num_steps == 0


def test_stages_of_the_workers_are_timed() -> None:
    def collate_fn(samples: Any) -> Any:
        time.sleep(0.01)
        return samples

    loader = a_loader(collate_fn=collate_fn)

    with loaders.profile(loader, steps=8) as profile:
        list(loader)

    stage_s = profile.report.stage_s
    assert set(stage_s) == {"read and decode", "collate and pin"}
    assert stage_s["collate and pin"] >= 8 * 0.01 > stage_s["read and decode"]
    assert profile.report.num_batches == 8


def test_batches_are_the_same_under_the_clock() -> None:
    images = np.arange(64 * 3 * 4 * 4, dtype=np.uint8).reshape(64, 3, 4, 4)
    plain = [b.image for b in DataLoader(RAMDataset.from_arrays(image=images), 8, shuffle=True)]
    loader = DataLoader(RAMDataset.from_arrays(image=images), 8, shuffle=True)

    with loaders.profile(loader, steps=3):
        seen = [b.image for b in loader]

    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))


def test_the_trace_opens_in_perfetto(tmp_path: Path) -> None:
    """Complete events with times in microseconds, and a name for each thread."""
    loader = a_loader()

    with loaders.profile(loader, steps=4, trace=tmp_path / "out/trace.json") as profile:
        list(loader)

    assert [file.name for file in (tmp_path / "out").iterdir()] == ["trace.json"]
    events = json.loads((tmp_path / "out/trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"wait for data", "compute", "read and decode"} <= {span["name"] for span in spans}
    now_us = time.perf_counter() * 1e6
    assert all(now_us - 60e6 < span["ts"] <= span["ts"] + span["dur"] < now_us for span in spans)
    steps = sorted((s["ts"], s["dur"]) for s in spans if s["name"] in ("wait for data", "compute"))
    assert all(a + d <= b + 1 for (a, d), (b, _) in itertools.pairwise(steps))
    waits_us = [span["dur"] for span in spans if span["name"] == "wait for data"]
    assert waits_us == pytest.approx([1e6 * wait for wait in profile.report.wait_s])
    assert {"trainer", "worker 1"} <= names


def test_the_trainer_is_the_thread_that_iterates(tmp_path: Path) -> None:
    loader = a_loader(num_workers=0)

    with loaders.profile(loader, steps=4, trace=tmp_path / "trace.json"):
        trainer = threading.Thread(target=lambda: list(loader))
        trainer.start()
        trainer.join()

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert all(event["tid"] < 1 << 31 for event in events)  # viewers read 32 bits
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {names[event["tid"]] for event in events if event["ph"] == "X"} == {"trainer"}


def test_scalars_go_to_a_writer() -> None:
    class Writer:
        def __init__(self) -> None:
            self.scalars: list[tuple[str, float, int]] = []
            self.flushed = 0

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.scalars.append((name, value, step))

        def flush(self) -> None:
            self.flushed = len(self.scalars)

    writer, loader = Writer(), a_loader()

    with loaders.profile(loader, steps=4, tensorboard=writer) as profile:
        list(loader)

    report = profile.report
    assert writer.flushed == len(writer.scalars)
    for name, values in (("wait_ms", report.wait_s), ("compute_ms", report.compute_s)):
        written = [s for s in writer.scalars if s[0] == f"loaders/{name}"]
        assert [step for _, _, step in written] == [0, 1, 2, 3]
        assert [value for _, value, _ in written] == [1000 * value for value in values]
    assert len([s for s in writer.scalars if s[0] == "loaders/data_share"]) == 1


def test_without_tensorboard_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match="tensorboard"):
        loaders.profile(a_loader(), tensorboard=tmp_path)


def test_an_error_of_the_trainer_ends_it_too() -> None:
    loader = a_loader()

    def train() -> None:
        for _ in loader:
            raise KeyError

    profile = loaders.profile(loader, steps=100)
    with pytest.raises(KeyError), profile:
        train()

    assert loader._profile is None
    assert profile.report.num_steps == 1


def test_twice_at_once_is_an_error() -> None:
    loader = a_loader()
    with (
        loaders.profile(loader),
        pytest.raises(ValueError),
        loaders.profile(loader),
    ):
        pass
    with pytest.raises(ValueError):
        loaders.profile(loader, steps=0)


def test_off_it_is_not_in_the_way() -> None:
    """No call of the profiler between batches: neither before nor after it was on."""
    loader = a_loader(num_workers=0)
    with loaders.profile(loader, steps=1):
        next(iter(loader))
    called: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and "profiling" in frame.f_code.co_filename:
            called.append(frame.f_code.co_name)

    batches = iter(loader)
    sys.setprofile(note)
    try:
        for _ in batches:
            pass
    finally:
        sys.setprofile(None)

    assert called == []


SCRIPT = """
import numpy as np
from loaders import DataLoader, RAMDataset
loader = DataLoader(RAMDataset.from_arrays(image=np.zeros((64, 3, 8, 8), np.uint8)), 8)
other = DataLoader(RAMDataset.from_arrays(image=np.zeros((64, 3, 8, 8), np.uint8)), 8)
for _ in range(3):
    assert len(list(loader)) == 8
    assert len(list(other)) == 8
"""


@pytest.mark.parametrize(
    ("value", "steps"), [("12", 12), pytest.param("1", 24, marks=pytest.mark.slow)]
)
def test_the_environment_switches_it_on(tmp_path: Path, value: str, steps: int) -> None:
    """For the first loader of a run, over epochs if need be, and at the end of the run at the latest."""
    environment = os.environ | {"LOADERS_PROFILE": value, "LOADERS_PROFILE_DIR": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert f"LOADERS_PROFILE: {steps} steps" in done.stderr
    assert (
        done.stderr.count("LOADERS_PROFILE: ") == 2
    )  # report and trace, and nothing of the loader for validation
    assert (
        "the first loader that was iterated; loaders.profile(loader) times another" in done.stderr
    )
    assert len(list(tmp_path.glob("loaders-profile-*.json"))) == 1


LEAVING = """
import gc, weakref
import numpy as np
from loaders import DataLoader, RAMDataset
dataset = RAMDataset.from_arrays(image=np.zeros((64, 3, 8, 8), np.uint8))
loader = DataLoader(dataset, 8)
list(loader)
seen = weakref.ref(loader), weakref.ref(dataset)
del loader, dataset
gc.collect()
assert [each() for each in seen] == [None, None]
"""


@pytest.mark.slow
def test_after_its_steps_the_environment_keeps_no_loader(tmp_path: Path) -> None:
    environment = os.environ | {"LOADERS_PROFILE": "4", "LOADERS_PROFILE_DIR": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", LEAVING], env=environment, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "LOADERS_PROFILE: 4 steps" in done.stderr


FORKING = """
import os
import numpy as np
from loaders import DataLoader, RAMDataset
loader = DataLoader(RAMDataset.from_arrays(image=np.zeros((64, 3, 8, 8), np.uint8)), 8, num_workers=0)
list(loader)
if os.fork() == 0:
    list(DataLoader(loader.dataset, 8, num_workers=0))
    os._exit(0)
os.wait()
"""


@pytest.mark.slow
def test_a_forked_process_has_a_first_loader_too(tmp_path: Path) -> None:
    """As ranks that are forked have: each writes its own trace."""
    environment = os.environ | {"LOADERS_PROFILE": "4", "LOADERS_PROFILE_DIR": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", FORKING],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )

    assert "LOADERS_PROFILE: 4 steps" in done.stderr
    assert len(list(tmp_path.glob("loaders-profile-*.json"))) == 2


@pytest.mark.parametrize("value", ["", "0"])
def test_the_environment_leaves_it_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LOADERS_PROFILE", value)

    assert isinstance(iter(a_loader()), Delivery)


def test_an_odd_value_of_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from loaders import profiling

    monkeypatch.setattr(profiling, "_has_begun", set())
    iter(a_loader())
    monkeypatch.setattr(profiling, "_has_begun", set())
    monkeypatch.setenv("LOADERS_PROFILE", "yes")
    with pytest.raises(ValueError):
        iter(a_loader())


@pytest.mark.slow
def test_on_it_costs_below_two_percent(caplog: pytest.LogCaptureFixture) -> None:
    """Of steps of 5 ms: in turns, the least CPU time of the thread that does it all; others only add to it."""
    caplog.set_level(logging.ERROR)
    loader = a_loader(num_workers=0)

    def seconds(*, on: bool) -> float:
        profile = loaders.profile(loader, steps=1000)
        if on:
            profile.start()
        began = time.thread_time()
        for _ in loader:
            until = time.thread_time() + 0.005
            while time.thread_time() < until:
                pass
        took = time.thread_time() - began
        profile.stop()
        return took

    pairs = [(seconds(on=True), seconds(on=False)) for _ in range(21)]

    on, off = map(min, zip(*pairs, strict=True))
    assert on < 1.02 * off


def test_a_trace_that_cannot_be_written_does_not_end_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = a_loader()
    told: list[ProfileReport] = []
    profile = loaders.profile(loader, steps=2, trace="/proc/nowhere/trace.json")
    profile._on_stop = told.append
    profile.start()

    assert len(list(loader)) == 8

    assert "the profile cannot be written: " in caplog.text
    assert [report.num_steps for report in told] == [2]
    with pytest.raises(FileNotFoundError), loaders.profile(loader, trace="/proc/nowhere/x.json"):
        next(iter(loader))


def bound(report: ProfileReport) -> list[str]:
    return [line for line in str(report).splitlines() if line.startswith(("verdict: ", "Do: "))]


def test_a_report_ends_with_a_verdict_and_what_to_do() -> None:
    """A step that waits little is the limit; workers that compute are one; what is not seen is not guessed."""
    computes = TimedSpan("read and decode", 1, 0.0, 1.0, cpu_s=0.9, num_batches=1)
    waits = TimedSpan("read and decode", 1, 0.0, 1.0, cpu_s=0.1, num_batches=1)
    quick, slow = (
        a_report([0.0, 0.001], [1.0, 1.0]),
        [a_report([1.0] * 3, [0.1] * 3) for _ in range(4)],
    )
    for report, span in zip(slow, [computes, waits, waits], strict=False):
        report.spans.append(span)
    slow[2].has_read = True

    assert [bound(report)[0].split(" is the limit")[0] for report in [quick, *slow]] == [
        f"verdict: {what}"
        for what in ("The training step", "The CPU", "Loading", "Storage", "Loading")
    ]
    assert all(str(report).splitlines()[-1].startswith("Do: ") for report in [quick, *slow])


def test_steps_that_save_now_and_then_are_the_limit_of_a_run_that_hardly_waits() -> None:
    """What they take beyond the median is no matter of loading; nor is the first batch."""
    report = a_report([1.0, *[0.001] * 9], [0.02, 0.3] * 5)
    report.spans.append(TimedSpan("read and decode", 1, 0.0, 0.1, cpu_s=0.1, num_batches=10))

    assert bound(report)[0].startswith("verdict: The training step is the limit")


def test_as_if_data_were_free_one_batch_comes_again_and_again_and_the_loader_stays() -> None:
    dataset: Any = RAMDataset.from_arrays(x=np.arange(64, dtype=np.int64)).replace(transform=late)
    loader: Any = DataLoader(dataset, batch_size=8, num_workers=0)

    with loaders.profile(loader, steps=12, free=True) as profile:
        epochs = [[batch.x.tolist() for batch in loader] for _ in range(2)]

    assert epochs == [[list(range(8))] * 8] * 2  # those that are not timed, too
    assert profile.report.num_steps == 12
    assert max(profile.report.wait_s[1:]) < 0.02
    assert "training alone takes" in profile.report.verdict
    assert [batch.x[0] for batch in loader] == [8 * i for i in range(8)]


def late(sample: Any) -> Any:
    time.sleep(0.005)
    return sample
