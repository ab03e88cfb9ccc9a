from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import Dataset

from loaders import DataLoader, RAMDataset, ShardDataset
from loaders.backends import auto
from loaders.backends.auto import AutoPool, StepWatch, can_fork, waits_for_interpreter
from loaders.backends.chunk import Chunk
from loaders.backends.maker import Maker
from loaders.backends.ordered import OrderedBatches
from loaders.backends.subprocess import Child, ChildPool
from loaders.datasets.reading.samples import collate
from tests.packdata.packing import pack_samples

if TYPE_CHECKING:
    from pathlib import Path

    from loaders.backends.ordered import Pool

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

    for _ in range(11):
        watch.leave(POOL)
        now = [now[0] + 0.1, now[1] + 0.05, now[2] + 0.05, now[3]]
        watch.enter(POOL)
    assert not watch.is_waiting  # each second of steps is judged by itself


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


def child_pool(maker: Maker) -> ChildPool:
    return ChildPool(maker, Child(maker))


def served(change_at: int) -> tuple[list[Any], list[str]]:
    """Take every batch from a pool that is told to change over when ``change_at`` batches were put in."""
    maker = Maker(Numbers(), torch.utils.data.default_collate, 1, True, 2)
    told: list[str] = []

    def to_child() -> ChildPool:
        told.append("changed")
        return child_pool(maker)

    pool = AutoPool(maker, to_child)
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
            return results, told


@pytest.mark.parametrize("change_at", [0, 5, 8, 20, 100])
def test_nothing_is_lost_or_out_of_order_when_it_changes_over(change_at: int) -> None:
    results, told = served(change_at)

    assert results == [i if i != 7 else ZeroDivisionError for i in range(40)]
    assert told == ["changed"] * (change_at < 40)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("change_at", [0, 5])
def test_threads_have_ended_before_it_forks(
    monkeypatch: pytest.MonkeyPatch, change_at: int
) -> None:
    """A lock that one of them held would stay locked in the child."""
    before = set(threading.enumerate())  # some of other tests never end
    alive: list[set[threading.Thread]] = []

    def pool(maker: Maker) -> ChildPool:
        alive.append(set(threading.enumerate()))
        return ChildPool(maker, Child(maker))

    monkeypatch.setitem(globals(), "child_pool", pool)
    served(change_at)

    assert alive
    assert alive[0] <= before


def test_slots_of_the_child_are_counted_once_there_is_one() -> None:
    dataset = RAMDataset.from_arrays(x=torch.zeros(4, 100_000, dtype=torch.uint8))
    maker = Maker(dataset, collate, 1, True, 1)
    pool = AutoPool(maker, lambda: child_pool(maker))
    pool._watch.is_waiting = True

    pool.put(Chunk([[0]]), 0)
    pool.take()

    assert pool.slot_bytes >= 100_000
    pool.close()


def test_epochs_that_are_shorter_than_it_takes_to_decide_are_judged_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the trainer does between two of them, such as an evaluation, is not counted."""
    now = [0.0, 0.0, 0.0, 0]
    monkeypatch.setattr(auto, "_usage", lambda _: tuple(now))
    data = RAMDataset.from_arrays(x=torch.zeros(48, 4))
    loader = DataLoader(data, 16, num_workers=1, collate_fn=len)

    for _ in range(10):
        for _batch in loader:
            now = [
                now[0] + 0.1,
                now[1] + 0.05,
                now[2] + 0.05,
                now[3] + 50,
            ]  # three steps in an epoch
        now = [now[0] + 60, now[1] + 60, now[2] + 60, now[3]]

    assert loader.backend == "subprocess"


def test_where_nothing_can_be_forked_there_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_fork()
    daemon = multiprocessing.get_context("fork").Process(
        target=lambda: os._exit(can_fork()), daemon=True
    )
    daemon.start()
    daemon.join(30)
    assert daemon.exitcode == 0  # it may not have children
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "spawn")

    assert not can_fork()


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
    images = torch.zeros(20_000, 3, 64, 64, dtype=torch.uint8)
    data = RAMDataset.from_arrays(image=images).replace(transform=lambda s: sum(range(3000)))
    loader = DataLoader(data, 16, num_workers=1, collate_fn=len)
    began = time.monotonic()

    for _ in loader:
        x = torch.zeros(4)
        for _ in range(5000):
            x = x + 1
        if loader.backend == "subprocess" or time.monotonic() - began > 60:
            break

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


class Slow(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        time.sleep(1.5 * (index == 2))
        return index

    def __len__(self) -> int:
        return 8


def test_while_it_changes_over_the_trainer_still_waits_no_longer_than_it_said() -> None:
    maker = Maker(Slow(), torch.utils.data.default_collate, 1, True, 1)
    pool = AutoPool(maker, lambda: child_pool(maker))
    batches = OrderedBatches(
        pool, iter([[i] for i in range(8)]), prefetch_batches=2, timeout_s=0.2
    )
    assert next(batches).item() == 0
    pool._watch.is_waiting = True
    assert next(batches).item() == 1

    with pytest.raises(RuntimeError, match="timed out"):
        next(batches)

    served: list[int] = []
    while len(served) < 6:
        with suppress(RuntimeError):  # late again: the child takes a while to begin
            served.append(next(batches).item())
    assert served == [2, 3, 4, 5, 6, 7]
    batches.close()


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
