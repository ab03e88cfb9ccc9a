"""Ctrl-C means the same in every run (a shell starts what runs in its background with it ignored); nothing hangs.

What ``import torch`` left is no garbage: to look it through took 0.1 s of each full collection.
"""

from __future__ import annotations

import gc
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch  # noqa: F401  # before what follows

if TYPE_CHECKING:
    from collections.abc import Iterator

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.freeze()


@pytest.fixture
def alarm() -> Iterator[None]:
    """A hang is an error."""

    def late(*_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 100, 3)  # again and again: it may be held back
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
