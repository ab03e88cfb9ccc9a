import ctypes
import gc
import hashlib
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from loaders import DataLoader, RAMDataset, ShardDataset, augment
from loaders.backends import auto
from loaders.backends.auto import AutoPool, StepWatch, Successor, waits_for_interpreter
from loaders.backends.chunk import Chunk
from loaders.backends.maker import Maker
from loaders.backends.ordered import OrderedBatches, Pool
from loaders.backends.subprocess import Child, ChildPool
from loaders.datasets.memory.sealed import HeldShard
from loaders.datasets.reading.samples import collate
from loaders.workers import Workers
from tests.device.copies import ManualCopies
from tests.packdata.packing import pack_samples

POOL: Any = None  # where what it would be asked for is set


@pytest.mark.parametrize(
    ("what", "cpu_s", "others_s", "num_waits", "verdict"),
    [
        ("tiny operations beside a busy thread", 0.6, 0.5, 260, True),
        ("a few long operations", 0.99, 0.9, 8, False),
        ("waiting for a GPU", 0.02, 0.9, 30, False),
        ("tiny operations that nobody disturbs", 0.99, 0.9, 400, False),
        ("waiting often, while no thread works", 0.1, 0.1, 400, False),
    ],
)
def test_many_short_waits_beside_busy_threads_are_the_interpreters(
    what: str, cpu_s: float, others_s: float, num_waits: int, verdict: bool
) -> None:
    assert waits_for_interpreter(1.0, cpu_s, others_s, num_waits) is verdict, what


def test_the_watch_counts_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens between ``enter`` and ``leave`` is the loader's own."""
    now = [0.0, 0.0, 0.0, 0]
    monkeypatch.setattr(auto, "_usage", lambda _: tuple(now))
    watch = StepWatch()

    for _ in range(11):
        watch.leave(POOL)
        now = [
            now[0] + 0.1,
            now[1] + 0.05,
            now[2] + 0.05,
            now[3] + 5,
        ]  # the step: 50 waits a second
        watch.enter(POOL)
        now = [now[0] + 9, now[1], now[2] + 9, now[3] + 10_000]  # the loader
    assert not watch.is_waiting

    for _ in range(11):
        watch.leave(POOL)
        now = [now[0] + 0.1, now[1] + 0.05, now[2] + 0.05, now[3] + 50]
        watch.enter(POOL)
    assert watch.is_waiting
    assert watch.lost_share == pytest.approx(0.5)


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_trainer_whose_device_has_work_left_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    now = [0.0, 0.0, 0.0, 0]
    monkeypatch.setattr(auto, "_usage", lambda _: tuple(now))
    accelerator = ManualCopies()
    monkeypatch.setattr(accelerator, "is_busy", lambda: is_busy)
    watch = StepWatch(accelerator)

    for _ in range(11):
        watch.leave(POOL)
        now = [now[0] + 0.1, now[1] + 0.05, now[2] + 0.05, now[3] + 50]
        watch.enter(POOL)

    assert watch.is_waiting is not is_busy


@pytest.mark.parametrize(("step_s", "verdict"), [(2e-3, True), (5e-4, False)])
def test_steps_that_are_shorter_than_handing_over_is_worth_stay_beside_threads(
    monkeypatch: pytest.MonkeyPatch, step_s: float, verdict: bool
) -> None:
    now = [0.0, 0.0, 0.0, 0]
    monkeypatch.setattr(auto, "_usage", lambda _: tuple(now))
    watch = StepWatch()

    for _ in range(60):
        watch.leave(POOL, 64)  # a group of them
        now = [now[0] + 64 * step_s, now[1] + 32 * step_s, now[2] + 32 * step_s, now[3] + 64]
        watch.enter(POOL)

    assert watch.is_waiting is verdict


class Numbers(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise ZeroDivisionError("seven")
        return index

    def __len__(self) -> int:
        return 40


def auto_pool(maker: Maker, *, is_up: bool = True) -> AutoPool:
    """Return a pool that goes over as soon as its watch says so."""
    successor = Successor(StepWatch())
    pool = AutoPool(maker, successor, lambda child: ChildPool(maker, child))
    if is_up:
        successor._child = child = Child(maker)
        deadline = time.monotonic() + 60
        while not child.is_up and time.monotonic() < deadline:
            if child.wait(deadline):
                child.receive()
    return pool


@pytest.mark.parametrize(
    "change_at", [8, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 20))]
)
def test_nothing_is_lost_or_out_of_order_when_it_changes_over(change_at: int) -> None:
    maker = Maker(Numbers(), torch.utils.data.default_collate, 1, True, 2)
    pool = auto_pool(maker)
    put, num_put = pool.put, 0

    def counted(chunk: Chunk, turn: int) -> None:
        nonlocal num_put
        pool._watch.is_waiting = num_put >= change_at
        num_put += 1
        put(chunk, turn)
        assert num_put - len(results) <= 3 + 1  # one was taken, and is not in the results yet

    pool.put = counted  # type: ignore[method-assign]
    batches = OrderedBatches(pool, iter([[i] for i in range(40)]), prefetch_batches=3)
    results: list[Any] = []
    while True:
        try:
            results.append(next(batches).item())
        except ZeroDivisionError as error:
            results.append(type(error))
        except StopIteration:
            break

    assert results == [i if i != 7 else ZeroDivisionError for i in range(40)]
    assert isinstance(pool._pool, ChildPool)


@pytest.mark.slow
def test_threads_go_on_until_the_child_is_up() -> None:
    maker = Maker(Numbers(), torch.utils.data.default_collate, 1, True, 1)
    pool = auto_pool(maker, is_up=False)
    child = Child(maker)
    pool._successor._child = child
    pool._watch.is_waiting = pool._watch._is_over = True  # as it says once, and for good
    os.kill(child.pid, signal.SIGSTOP)
    for i in range(5):
        pool.put(Chunk([[i]]), 0)
        assert next(iter(pool.take(30))).item() == i
    assert isinstance(pool._pool, Workers)
    os.kill(child.pid, signal.SIGCONT)

    for _ in range(1000):
        pool.put(Chunk([[1]]), 0)
        assert next(iter(pool.take(30))).item() == 1
        if isinstance(pool._pool, ChildPool):
            break
        time.sleep(0.05)

    assert isinstance(pool._pool, ChildPool)
    pool.close()


@pytest.mark.slow
def test_slots_of_the_child_are_counted_once_there_is_one() -> None:
    dataset = RAMDataset.from_arrays(x=torch.zeros(4, 100_000, dtype=torch.uint8))
    pool = auto_pool(Maker(dataset, collate, 1, True, 1))
    pool._watch.is_waiting = True

    pool.put(Chunk([[0]]), 0)
    pool.take()

    assert pool.slot_bytes >= 100_000
    pool.close()


def keeps(sample: Any) -> Any:
    return sample


class Mine(RAMDataset):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "changes",
    [
        {"collate_fn": len},
        {"transform": keeps},
        {"transform": {"x": torch.neg}},
        {"transform": lambda sample: sample},
        {"kind": Mine},
    ],
    ids=["collate_fn", "transform", "transform of a field", "lambda", "__getitem__"],
)
def test_where_code_of_the_user_runs_threads_stay_and_the_log_says_once_what_it_costs(
    changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    data: Any = changes.pop("kind", RAMDataset).from_arrays(x=torch.zeros(48, 4))
    collates: Any = {"collate_fn": own_collate} if changes.pop("collate_fn", None) else {}
    loader = DataLoader(data.replace(**changes), 4, num_workers=1, **collates)
    loader._successor.watch.is_waiting = loader._successor.watch._is_over = True
    loader._successor.watch.lost_share = 0.25

    iterate_until(loader, lambda: bool(caplog.records))
    assert len(list(loader)) == 12

    assert loader.backend == "thread"
    (record,) = caplog.records
    assert "25%" in record.getMessage()
    assert "backend='subprocess'" in record.getMessage()


def own_collate(samples: Any) -> int:
    return len(samples)


@pytest.mark.slow
def test_epochs_that_are_shorter_than_it_takes_to_decide_are_judged_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the trainer does between two of them, such as an evaluation, is not counted."""
    now = [0.0, 0.0, 0.0, 0]
    monkeypatch.setattr(auto, "_usage", lambda _: tuple(now))
    data = RAMDataset.from_arrays(x=torch.zeros(48, 200_000))  # handed over one by one
    loader = DataLoader(data, 16, num_workers=1)

    deadline = time.monotonic() + 100
    while loader.backend != "subprocess" and time.monotonic() < deadline:
        for _batch in loader:
            now = [now[0] + 0.1, now[1] + 0.05, now[2] + 0.05, now[3] + 50]
        now = [now[0] + 60, now[1] + 60, now[2] + 60, now[3]]
        time.sleep(0.01)

    assert loader.backend == "subprocess"


def pool_of(loader: DataLoader) -> Pool:
    iterator: Any = iter(loader)
    next(iterator)
    return iterator._batches._pool  # type: ignore[no-any-return]


def test_only_auto_watches(tmp_path: Path) -> None:
    data = ShardDataset(pack_samples(tmp_path / "a", 12, format="parquet"), fields=["label"])

    assert isinstance(pool_of(DataLoader(data, 2, num_workers=1)), AutoPool)
    assert not isinstance(pool_of(DataLoader(data, 2, num_workers=1, backend="thread")), AutoPool)


@pytest.mark.slow
def test_a_step_of_tiny_operations_gets_a_child_process() -> None:
    """Beside threads that crop pictures one by one."""
    images = torch.zeros(2_000, 3, 256, 256, dtype=torch.uint8)
    data = RAMDataset.from_arrays(image=images)
    data = data.replace(augment=[augment.RandomResizedCrop(224)])
    loader = DataLoader(data, 16, num_workers=2)
    began = time.monotonic()

    while loader.backend != "subprocess" and time.monotonic() - began < 100:
        for _ in loader:
            x = torch.zeros(4)
            for _ in range(5000):
                x = x + 1

    assert loader.backend == "subprocess"


@pytest.mark.slow
@pytest.mark.parametrize("naps", [[0.03], [0.002] * 3], ids=["once", "often"])
def test_a_step_that_waits_keeps_threads(naps: list[float]) -> None:
    images = torch.zeros(8_000, 3, 64, 64, dtype=torch.uint8)
    loader = DataLoader(RAMDataset.from_arrays(image=images), 16, num_workers=1)

    for _ in loader:
        for seconds in naps:
            time.sleep(seconds)

    assert loader.backend == "thread"


@pytest.mark.slow
def test_a_step_that_waits_for_threads_of_its_own_stays_beside_threads() -> None:
    """Autograd's thread of a GPU, say, works while the trainer's waits for it, and needs no interpreter."""
    loader = DataLoader(RAMDataset.from_arrays(x=torch.zeros(4096, 4096)), 512, num_workers=1)
    data = bytes(1 << 20)

    with ThreadPoolExecutor(1) as others:
        ends = time.monotonic() + 1.5
        while time.monotonic() < ends:
            for _ in loader:
                for _ in range(4):
                    others.submit(hashlib.sha256, data).result()

    assert loader.backend == "thread"


def whose(samples: Any) -> int:
    return os.getpid()


def waiting_loader(**settings: Any) -> DataLoader:
    """Return a loader whose steps wait for the interpreter, as it has seen."""
    data = RAMDataset.from_arrays(x=torch.zeros(48, 200_000)).replace(**settings)
    loader = DataLoader(data, 16, num_workers=1)
    loader._successor.watch.is_waiting = loader._successor.watch._is_over = True
    return loader


def iterate_until(loader: DataLoader, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so() and time.monotonic() < deadline:
        for _ in loader:
            pass
    assert is_so()


@pytest.mark.slow
def test_a_child_that_was_started_for_one_collate_fn_serves_no_other() -> None:
    loader = waiting_loader()
    child = None
    deadline = time.monotonic() + 60
    while child is None and time.monotonic() < deadline:
        child = loader._successor.look(loader._maker())
    assert child is not None

    loader.collate_fn = whose

    assert {*loader} == {os.getpid()}
    child.end()


@pytest.mark.slow
def test_a_loader_that_went_over_runs_another_collate_fn_here() -> None:
    loader = waiting_loader()
    iterate_until(loader, lambda: loader.backend == "subprocess")

    loader.collate_fn = whose

    assert {*loader} == {os.getpid()}
    assert loader.backend == "thread"


@pytest.mark.slow
def test_no_child_is_left_when_there_are_other_workers() -> None:
    loader = waiting_loader()
    iterate_until(loader, lambda: loader.backend == "subprocess")
    (pid,) = [child.pid for child in loader._kept_children()._idle]

    loader.num_workers = 2

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert len(list(loader)) == 3


@pytest.mark.slow
def test_a_fork_takes_nothing_from_the_child_that_its_parent_starts() -> None:
    loader = waiting_loader()
    deadline = time.monotonic() + 60
    while loader._successor._child is None and time.monotonic() < deadline:
        loader._successor.look(loader._maker())
    child = loader._successor._child
    assert child is not None
    while not child.has_message and time.monotonic() < deadline:
        time.sleep(0.01)

    pid, is_served = os.fork(), False
    if pid == 0:
        signal.alarm(30)
        try:
            is_served = len(list(loader)) == 3 and loader.backend == "thread"
        finally:
            os._exit(not is_served)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    iterate_until(loader, lambda: loader.backend == "subprocess")


class Pointing:
    """A transform that no pickle takes."""

    def __init__(self) -> None:
        self.pointer = ctypes.pointer(ctypes.c_int(1))

    def __call__(self, sample: Any) -> Any:
        return sample


class Odd:
    """A transform that raises an error of its own when it is pickled."""

    def __call__(self, sample: Any) -> Any:
        return sample

    def __reduce__(self) -> Any:
        raise ZeroDivisionError


@pytest.mark.parametrize("transform", [Pointing(), Odd()], ids=["a pointer", "an odd error"])
def test_threads_go_on_where_data_cannot_be_pickled_and_nothing_is_kept(
    transform: Any, caplog: pytest.LogCaptureFixture
) -> None:
    loader = waiting_loader(transform=transform)

    iterate_until(loader, lambda: bool(caplog.records))

    assert len(list(loader)) == 3
    assert (loader.backend, len(caplog.records)) == ("thread", 1)
    gone = weakref.ref(loader.dataset)
    gc.collect()
    gc.disable()
    try:
        del loader
        assert gone() is None
    finally:
        gc.enable()


def test_loaders_that_ask_for_a_copy_of_one_dataset_at_one_time_get_the_same() -> None:
    data = RAMDataset.from_arrays(x=torch.zeros(200, 100_000))
    (shard,) = data.store.shards
    assert isinstance(shard, HeldShard)
    begin = Barrier(3)

    def ask(_: int) -> Any:
        begin.wait(30)
        return shard.file()

    with ThreadPoolExecutor(3) as asking:
        found = [*asking.map(ask, range(3))]

    assert len({*map(id, found)}) == len(shard.files) == 1


EXITING = """
import time
from loaders import DataLoader, RAMDataset
import torch
from loaders.datasets.memory import sealed

fill = sealed.filled
def slowly(*args):
    print("packing", flush=True)
    for _ in range(200):
        fill(*args)
sealed.filled = slowly
loader = DataLoader(RAMDataset.from_arrays(x=torch.zeros(200, 100_000)), 8, num_workers=1)
loader._successor.watch.is_waiting = loader._successor.watch._is_over = True
for _ in loader:
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_the_interpreter_ends_while_a_childs_data_are_packed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXITING], capture_output=True, text=True, timeout=120
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "packing\n", "")
