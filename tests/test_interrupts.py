"""Ctrl-C in the trainer's thread: it ends the iteration and its threads; states tell the last batch handed over."""

import gc
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import loaders
from loaders import DataLoader, RAMDataset

ROWS = RAMDataset.from_arrays(x=torch.zeros(64, 20_000), number=torch.arange(64))
WHOLE = [[*range(k, k + 16)] for k in range(0, 64, 16)]


class Slow(Dataset[int]):
    """The third sample takes a second."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        time.sleep(index == 2)
        return index


@pytest.fixture
def earlier() -> set[threading.Thread]:
    """Return the threads that other tests have left."""
    return set(threading.enumerate())


def names_of_threads(earlier: set[threading.Thread]) -> list[str]:
    new = set(threading.enumerate()) - earlier
    return [each.name for each in new if each.name.startswith("loaders-")]


def place(loader: DataLoader) -> tuple[int, int]:
    state = loader.state_dict()["sampler"]
    return state["epoch"], state["delivered"]


# -- inside of next --------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize(
    ("backend", "num_workers"),
    [
        ("thread", 0),
        ("thread", 1),
        ("process", 1),
        pytest.param("subprocess", 1, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_in_the_wait_for_a_batch_closes_the_iteration(
    alarm: None,
    earlier: set[threading.Thread],
    backend: Any,
    num_workers: int,
    device: str | None,
) -> None:
    loader = DataLoader(Slow(), 2, num_workers=num_workers, backend=backend, device=device)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        next(batches)

    assert names_of_threads(earlier) == []
    assert place(loader) == (0, 2)
    with pytest.raises(RuntimeError, match="interrupted"):
        next(batches)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    "backend", ["thread", "process", pytest.param("subprocess", marks=pytest.mark.slow)]
)
def test_what_a_signals_handler_raises_in_a_wait_stands_for_no_batch(backend: Any) -> None:
    loader = DataLoader(Slow(), 2, num_workers=1, backend=backend)
    batches = iter(loader)

    def late(*_: Any) -> None:
        raise TimeoutError

    assert next(batches).tolist() == [0, 1]
    before = signal.signal(signal.SIGALRM, late)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(TimeoutError):
            next(batches)
        assert next(batches).tolist() == [2, 3]
    finally:
        signal.signal(signal.SIGALRM, before)

    assert place(loader) == (0, 4)
    assert next(batches).tolist() == [4, 5]


class Interrupted:
    """One epoch, with Ctrl-C at one call or return of the loader's code."""

    def __init__(self, loader: DataLoader, moment: int) -> None:
        self._left, self.has_come, self.batches = moment, False, list[list[int]]()
        self._traced = self._trace  # kept: Python itself keeps no reference while it calls it
        sys.settrace(self._traced)
        try:
            for batch in loader:
                self.batches.append(batch.number.tolist())
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)

    def _trace(self, frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(loaders.__path__[0]):
            return None
        self._left -= event in ("call", "return")
        if not self._left and not self.has_come:
            self.has_come = True
            signal.raise_signal(signal.SIGINT)
        return self._traced


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_after_ctrl_c_at_some_moment_the_next_epoch_is_whole(
    alarm: Callable[[], None], num_workers: int
) -> None:
    num = 0
    for moment in itertools.count(1, 29):
        alarm()
        loader = DataLoader(ROWS, 16, num_workers=num_workers, backend="thread")
        run = Interrupted(loader, moment)
        if not run.has_come:
            break
        num += 1
        assert run.batches == WHOLE[: len(run.batches)]
        assert [batch.number.tolist() for batch in loader] == WHOLE
    assert num > 3


# -- in the body of the loop -----------------------------------------------------------------------


def leave(loader: DataLoader) -> tuple[Any, BaseException]:
    """Iterate up to an interrupt; return the iterator, and the error, which keeps it."""
    batches = iter(loader)
    try:
        for _ in batches:
            raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        return batches, error
    raise AssertionError


@pytest.mark.parametrize("how", ["iter", "close"])
def test_an_iteration_that_was_left_ends_with_the_next_one_or_with_close(
    earlier: set[threading.Thread], how: str
) -> None:
    loader = DataLoader(ROWS, 16, num_workers=1, backend="thread")
    left, _error = leave(loader)
    assert place(loader) == (0, 16)
    threads = names_of_threads(earlier)

    if how == "close":
        loader.close()
        assert names_of_threads(earlier) == []
    assert [batch.number.tolist() for batch in loader] == WHOLE

    assert len(threads) == 1
    assert names_of_threads(earlier) == []
    with pytest.raises(RuntimeError):
        next(left)
    assert place(loader) == (1, 0)


def test_an_iteration_that_was_left_ends_when_it_is_collected(
    earlier: set[threading.Thread],
) -> None:
    loader = DataLoader(ROWS, 16, num_workers=1, backend="thread")
    left = leave(loader)

    del left
    gc.collect()

    assert names_of_threads(earlier) == []


@pytest.mark.slow
def test_closing_a_loader_ends_its_child_process() -> None:
    loader = DataLoader(ROWS, 16, num_workers=1, backend="subprocess")
    iterator: Any = iter(loader)
    next(iterator)
    pid = iterator._batches._pool.child.pid

    loader.close()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert [batch.number.tolist() for batch in loader] == WHOLE
