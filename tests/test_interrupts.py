"""Ctrl-C in the trainer's thread, at any moment: nothing hangs, and states tell what was handed over."""

import gc
import itertools
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import loaders
from loaders import DataLoader, RAMDataset
from tests.loading.test_loader_others import Raises

NUM = 12


def interrupting(function: Any, at: int, before: bool) -> Any:
    """Return a function that is interrupted at one of its calls, before or behind what it does."""
    calls: list[int] = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(0)
        if len(calls) == at and before:
            raise KeyboardInterrupt
        result = function(*args, **kwargs)
        if len(calls) == at:
            raise KeyboardInterrupt
        return result

    return interrupted


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("name", ["put", "take"])
def test_ctrl_c_while_a_batch_changes_hands_loses_none_silently(name: str, before: bool) -> None:
    loader = DataLoader([*range(NUM)], 2, num_workers=1, backend="thread")
    iterator: Any = iter(loader)
    pool = iterator._batches._pool
    setattr(pool, name, interrupting(getattr(pool, name), 3, before))

    batches: list[list[int]] = []
    with pytest.raises(KeyboardInterrupt):
        batches.extend(batch.tolist() for batch in iterator)
    if name == "take" and before:  # in a wait, which nothing is lost by
        assert next(iterator).tolist() == [2 * len(batches), 2 * len(batches) + 1]
        return
    with pytest.raises(RuntimeError):
        next(iterator)
    assert next(iterator, None) is None
    state = loader.state_dict()["sampler"]
    assert (state["epoch"], state["delivered"]) == (0, 2 * len(batches))


def test_a_batch_that_ctrl_c_found_in_the_trainers_hands_is_counted_as_one_that_failed() -> None:
    loader = DataLoader(Raises(ValueError()), 2, num_workers=1, backend="thread")
    iterator: Any = iter(loader)
    iterator._finish = interrupting(iterator._finish, 2, before=False)

    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert loader.state_dict()["sampler"]["delivered"] == 2
    with pytest.raises(ValueError):  # of sample 5
        next(iterator)
    assert next(iterator).tolist() == [6, 7]
    assert loader.state_dict()["sampler"]["delivered"] == 8


def test_ctrl_c_while_a_batch_is_copied_ends_the_iteration_and_the_state_is_right() -> None:
    loader = DataLoader([*range(NUM)], 2, num_workers=1, backend="thread", device="cpu")
    iterator: Any = iter(loader)
    accelerator = iterator._source._accelerator
    accelerator.copy = interrupting(accelerator.copy, 2, before=True)

    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    with pytest.raises(RuntimeError):
        next(iterator)
    assert next(iterator, None) is None
    state = loader.state_dict()["sampler"]
    assert (state["epoch"], state["delivered"]) == (0, 2)


# -- at every moment -------------------------------------------------------------------------------


class Slow(Dataset[int]):
    """The first sample takes a second and a half."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        time.sleep(0 if index else 1.5)
        return index


ROWS = RAMDataset.from_arrays(x=torch.zeros(64, 20_000), number=torch.arange(64))
WHOLE = [[*range(k, k + 16)] for k in range(0, 64, 16)]
_COUNTING = ("_count", "count")  # behind which no instruction looks for signals


class Interrupted:
    """One epoch of a loop that goes on after errors, with Ctrl-C at one call or return of the loader's code."""

    def __init__(self, loader: DataLoader, moment: int) -> None:
        self.loader, self._left = loader, moment
        self.batches: list[list[int]] = []
        self.errors: list[str] = []
        self.where = ""
        self._traced = self._trace  # kept: Python itself keeps no reference while it calls it
        sys.settrace(self._traced)
        try:
            self._iterate()
        finally:
            sys.settrace(None)

    def _trace(self, frame: Any, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(loaders.__path__[0]):
            return None
        self._left -= event == "call" or (event == "return" and code.co_name not in _COUNTING)
        if self._left or self.where:
            return self._traced
        self.where = f"{event} of {code.co_qualname}"
        signal.raise_signal(signal.SIGINT)  # its handler raises here, or is held back
        return self._traced

    def _iterate(self) -> None:
        iterator = None
        for _ in range(3 + len(WHOLE)):  # of which two raise
            try:
                iterator = iterator or iter(self.loader)
                self.batches.append(next(iterator).number.tolist())
            except StopIteration:
                return
            except (KeyboardInterrupt, RuntimeError) as error:
                self.errors.append(type(error).__name__)
        raise AssertionError(f"no end after {self.where}")

    @property
    def state(self) -> tuple[int, int]:
        state = self.loader.state_dict()["sampler"]
        return state["epoch"], state["delivered"]


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "step", [29, pytest.param(1, marks=pytest.mark.slow)], ids=["some moments", "every moment"]
)
def test_after_ctrl_c_an_epoch_is_whole_or_one_error_says_where_it_ended(
    alarm: Callable[[], None], step: int, num_workers: int, device: str | None
) -> None:
    seen = Counter[str]()
    for moment in itertools.count(1, step):
        alarm()
        loader = DataLoader(ROWS, 16, num_workers=num_workers, backend="thread", device=device)
        run = Interrupted(loader, moment)
        if not run.where:
            break
        if not run.errors:  # it came into a finalizer, where Python prints and forgets it
            assert (run.batches, run.state) == (WHOLE, (1, 0)), run.where
            continue
        num = len(run.batches)
        seen[f"{num} batches, {run.errors[1:]}"] += 1
        if "Interrupted" in run.errors and num < len(WHOLE):
            assert (run.batches, run.state) == (WHOLE[:num], (0, 16 * num)), run.where
        else:  # at most the one that was on its way is lost, and counted
            assert run.state in [(1, 0), (0, 64)], run.where
            assert num >= len(WHOLE) - 1, run.where
            assert run.batches == [batch for batch in WHOLE if batch in run.batches], run.where
    assert len(seen) >= 3
    assert seen["4 batches, []"] > 100 // step
    gc.collect()
    assert not [each.name for each in threading.enumerate() if each.name.startswith("loaders-")]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_ctrl_c_while_threads_start_comes_when_they_have(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Within its start, it can leave a thread waiting for ever."""
    started: list[threading.Thread] = []

    class Thread(threading.Thread):
        def start(self) -> None:
            if len(started) + 1 == at:
                signal.raise_signal(signal.SIGINT)
            super().start()
            started.append(self)

    monkeypatch.setattr(threading, "Thread", Thread)
    loader = DataLoader(ROWS, 16, num_workers=3, backend="thread")

    with pytest.raises(KeyboardInterrupt):
        list(loader)
    assert len(started) == 3
    assert not any(thread.is_alive() for thread in started)
    assert [batch.number.tolist() for batch in loader] == WHOLE


def test_ctrl_c_comes_in_the_wait_for_a_worker_process(alarm: None) -> None:
    loader = DataLoader(Slow(), 2, num_workers=1, backend="process")
    batches, began = iter(loader), time.monotonic()
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        next(batches)

    assert time.monotonic() - began < 1.2
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "backend", ["thread", "process", pytest.param("subprocess", marks=pytest.mark.slow)]
)
def test_what_a_signals_handler_raises_in_a_wait_stands_for_no_batch(backend: Any) -> None:
    loader = DataLoader(Slow(), 2, num_workers=1, backend=backend)
    batches = iter(loader)

    def late(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(TimeoutError):
            next(batches)
        assert next(batches).tolist() == [0, 1]
    finally:
        signal.signal(signal.SIGALRM, before)

    assert loader.state_dict()["sampler"]["delivered"] == 2
    assert next(batches).tolist() == [2, 3]


@pytest.mark.slow
def test_ctrl_c_while_a_child_process_is_ended_comes_when_it_has(alarm: None) -> None:
    loader = DataLoader(ROWS, 16, num_workers=1, backend="subprocess")
    iterator: Any = iter(loader)
    next(iterator)
    child = iterator._batches._pool._child
    wait = child._process.wait

    def interrupted(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return wait(*args)

    child._process.wait = interrupted
    pid = child.pid
    with pytest.raises(KeyboardInterrupt):
        child.end()

    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
def test_ctrl_c_in_a_message_of_a_child_process_is_one_error_and_the_end(
    alarm: None, again: bool
) -> None:
    """Also if Ctrl-C comes again, while the child is ended that is of no more use."""
    loader = DataLoader([*range(64)], 2, num_workers=1, prefetch_factor=1, backend="subprocess")
    iterator: Any = iter(loader)
    next(iterator)
    child = iterator._batches._pool._child
    receive, wait = child._channel.receive, child._process.wait

    def interrupted(**settings: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return receive(**settings)

    def interrupted_wait(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return wait(*args)

    child._channel.receive = interrupted
    with pytest.raises(KeyboardInterrupt):
        list(iterator)
    if again:
        child._process.wait = interrupted_wait
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    with pytest.raises(RuntimeError):
        next(iterator)
    assert next(iterator, None) is None
    assert next(iterator, None) is None
    assert [batch.tolist() for batch in loader] == [[k, k + 1] for k in range(0, 64, 2)]
