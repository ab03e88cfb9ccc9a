"""Ctrl-C means the same in every run (a shell starts what runs in its background with it ignored); nothing hangs."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

# Before torch, which reads it once: its threads would spin on cores that other tests have work for.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Whatever the shell says: hundreds of processes would compile the same modules again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Nobody pulls the plug: what is flushed before what, tests of it read from the calls, whose number makes the disk slow.
os.fsync = os.fstat  # type: ignore[assignment]

settings.register_profile("any machine", settings.default, deadline=None, max_examples=30)
settings.load_profile("any machine")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_collect_report() -> None:
    """Look for no garbage until all tests are collected: nothing of them is."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look at what torch and thousands of collected tests left no more: it took most of each full collection's time."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture
def uncovered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start processes whose lines nobody measures.

    Some may not write what is measured, and coverage waits for its own lock for ever if Ctrl-C comes while it has it.
    """
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    """A hang is an error; what is yielded begins the time anew."""

    def late(*_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise TimeoutError("it hangs")

    def anew() -> None:
        signal.setitimer(signal.ITIMER_REAL, 100, 3)  # again and again: it may be held back

    before = signal.signal(signal.SIGALRM, late)
    anew()
    yield anew
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
