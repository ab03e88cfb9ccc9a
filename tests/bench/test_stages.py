import hashlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from loaders import RAMDataset, ShardDataset
from loaders.bench import stages
from loaders.bench.measure import Config
from loaders.bench.stages import Cost, device_cost, host_stages, one_thread
from loaders.bench.targets import ops_for
from loaders.datasets.base import BatchDataset
from loaders.errors import LoadersError
from tests.bench.constructed import Counts, Instant, Stream, contended_core, small_rows
from tests.packdata.packing import pack_samples


def packed(folder: Path, field: str, size: int) -> ShardDataset:
    return ShardDataset(pack_samples(folder / "d", 6), fields=[field], augment=ops_for(size))


ONE = Config(1, 4, "thread")


@pytest.mark.parametrize(
    ("make", "alone", "told"),
    [
        (lambda f: packed(f, "image", 8), [10, 1, 6], {"read": 1, "decode": 5, "augment": 4}),
        (lambda f: packed(f, "image", 8), [10, 1, 12], {"read": 1, "decode": 9}),  # crops decode less
        (lambda f: packed(f, "image", 0), [10, 1], {"read": 1, "decode": 9}),
        (lambda f: packed(f, "pixels", 0), [10], {"read": 10}),  # gathered: there is nothing else
        (lambda f: Instant(), [10], {"fetch": 10}),
        (lambda f: Stream(), [10], {"fetch": 10}),
        (lambda f: Own.from_arrays(x=np.zeros((64, 1), np.uint8)), [10], {"read": 10}),
    ],
)  # fmt: skip
def test_stages_that_cannot_be_run_alone_are_differences_of_those_that_can(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], Any],
    alone: list[float],
    told: dict[str, float],
) -> None:
    """Every piece of work is done; what it takes is scripted: all of it, then ever more."""
    costs = iter(alone)

    def scripted(work: Callable[[], int], **options: Any) -> Cost:
        assert work() > 0
        return Cost(cost := next(costs), cost)

    monkeypatch.setattr(stages, "time_alone", scripted)
    dataset = make(tmp_path)
    found = host_stages(dataset, replace(ONE, backend=backend_of(dataset)), seconds=1)

    assert {name: cost.wall_s for name, cost in found.items()} == told
    assert next(costs, None) is None


def backend_of(dataset: Any) -> str:
    return "thread" if isinstance(dataset, BatchDataset) else "process"


class Own(RAMDataset):
    """A subclass that says itself what a sample is."""

    def __getitem__(self, i: Any) -> Any:
        return super().__getitem__(i).x.long() + 1000


def test_batches_are_made_as_the_loader_makes_them() -> None:
    """By a subclass's own code; of small ones a group at once."""
    dataset = Own.from_arrays(x=np.arange(64, dtype=np.uint8).reshape(64, 1))

    samples = next(stages.batches_of(dataset, ONE))

    assert all(1000 <= int(sample) < 1064 for sample in samples)
    assert stages.batch_maker(small_rows, ONE)() > 4
    assert stages.batch_maker(Instant(), replace(ONE, backend="process"))() == 4


def test_a_sample_costs_its_share_of_a_batch_and_waits_where_it_neither_runs_nor_queues() -> None:
    def sleep() -> int:
        time.sleep(0.01)
        return 10

    def spin() -> int:
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass
        return 10

    slept, spun = (stages.time_alone(work, seconds=0.02) for work in (sleep, spin))

    assert 0.001 <= slept.wall_s < 0.005
    assert 0.5 * slept.wall_s < slept.wait_s > 4 * slept.cpu_s
    assert 0.0003 <= spun.cpu_s < 0.0006
    assert spun.wait_s < 0.5 * spun.cpu_s


def by_a_process() -> int:
    spin = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-S", "-c", spin], check=True)
    return 1


def by_a_thread() -> int:
    def spin() -> None:
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            hashlib.sha256(bytes(1 << 16))

    thread = threading.Thread(target=spin)
    thread.start()
    thread.join()
    return 1


@pytest.mark.parametrize("work", [by_a_process, by_a_thread])
def test_work_that_others_do_for_the_thread_is_cpu_time_and_no_wait(
    work: Callable[[], int],
) -> None:
    """Each takes 200 ms of a core, however long it waits for one; those of a process are counted in hundredths."""
    cost = stages.time_alone(work, seconds=0.0, min_calls=1)

    assert cost.cpu_s > 0.17
    assert cost.wait_s <= cost.wall_s - 0.17


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="no schedstat here")
def test_the_wait_for_a_core_that_others_have_is_no_wait_of_the_sample() -> None:
    """Though the thread gives its core up now and then, as any that takes a lock does."""

    def work() -> int:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        time.sleep(1e-6)
        return 1

    with contended_core():
        cost = stages.time_alone(work, seconds=0.4)

    assert cost.wall_s - cost.cpu_s > 0.005
    assert cost.wait_s < 0.2 * (cost.wall_s - cost.cpu_s)


def test_libraries_use_one_thread_meanwhile_and_as_many_as_before_then() -> None:
    before = cv2.getNumThreads(), torch.get_num_threads()

    with one_thread():
        inside = cv2.getNumThreads(), torch.get_num_threads()

    assert inside == (1, 1)
    assert (cv2.getNumThreads(), torch.get_num_threads()) == before


def test_the_least_of_several_looks_at_the_lock_counts_and_the_interpreter_is_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others on the machine only add to what is seen."""
    seen, before = iter([5e-4, 2e-4, 9e-4, 3e-4]), sys.getswitchinterval()
    monkeypatch.setattr(stages, "_gil_s_once", lambda work, seconds: next(seen))

    assert stages.gil_s_per_sample(lambda: 1, seconds=60) == 2e-4
    assert next(seen, None) is None
    assert sys.getswitchinterval() == before


def test_pure_python_holds_the_lock_for_as_long_as_it_computes() -> None:
    """Of a sample, not of a batch."""
    dataset = Counts()

    def work() -> int:
        return len([dataset[i] for i in range(8)])

    shares = [
        stages.gil_s_per_sample(work, seconds=0.05) / stages.time_alone(work, seconds=0.05).cpu_s
        for _ in range(5)
    ]

    assert 1 / 4 < sorted(shares)[2] < 4  # a processor's speed changes; a batch has 8 samples


def test_what_a_dataset_leaves_to_do_after_the_copy_is_timed() -> None:
    batch, finished = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), []

    def finisher(batch: torch.Tensor) -> torch.Tensor:
        finished.append(len(batch))
        return batch

    device_cost(finisher, batch, 4, None, seconds=0.0)

    assert len(finished) > 3


class Once(torch.utils.data.IterableDataset[Any]):
    """Returns the same iterator each time, and is asked for it so often at most."""

    def __init__(self, num_samples: int) -> None:
        self.samples, self.asked = iter(range(num_samples)), 0

    def __iter__(self) -> Iterator[int]:
        self.asked += 1
        assert self.asked < 10
        return self.samples


@pytest.mark.parametrize("num_samples", [0, 10])
def test_a_stream_that_can_be_read_only_once_is_an_error_and_no_hang(num_samples: int) -> None:
    batches = stages.batches_of(Once(num_samples), Config(0, 4, "process"))

    with pytest.raises(LoadersError):
        list(batches)


class Counted(Stream):
    """A stream that knows its length."""

    def __len__(self) -> int:
        return 4096


def test_a_stream_with_a_length_is_read_as_a_stream_again_and_again() -> None:
    batches = stages.batches_of(Counted(), Config(0, 2000, "process"))

    assert [int(next(batches)[0]) for _ in range(4)] == [0, 2000, 0, 2000]


@pytest.mark.parametrize(("quota", "share"), [(2.0, 0.75), (1.5, 1.0), (1.0, 1.0)])
def test_what_a_quota_takes_is_no_other_work(
    monkeypatch: pytest.MonkeyPatch, quota: float, share: float
) -> None:
    """Of two threads, each of which runs for three quarters of the time."""

    class Clock:
        perf_counter = staticmethod(time.perf_counter)

        @staticmethod
        def thread_time() -> float:
            return 0.75 * time.perf_counter()

    monkeypatch.setattr(stages, "time", Clock)

    assert stages.available_share(2, quota, 0.01) == pytest.approx(share, abs=0.02)
