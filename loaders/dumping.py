"""What every worker of every live loader is doing, on demand: for a run that seems to hang.

``loaders.dump()`` returns it as text; ``loaders.dump_on()``, or ``LOADERS_DUMP=SIGUSR1`` in the environment,
writes it to stderr when the signal comes, whatever the trainer is waiting for. Worker threads are
described here; a child process of a loader writes its own lines.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from loaders.system.registry import WeakRegistry

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_live: WeakRegistry[Any] = WeakRegistry()
_installed: set[int] = set()


def dump() -> str:
    """Say what every worker of every live loader of this process is doing, and for how long."""
    pid = os.getpid()
    lines = [f"  {_described(live)}\n" for live in _live.all() if live.pid == pid]
    return f"loaders: {len(lines)} being iterated in process {pid}\n{''.join(lines)}"


def _described(live: Any) -> str:
    try:
        return str(live.describe())
    except Exception as error:  # of any kind: the other iterators are described all the same
        return f"cannot tell: {type(error).__name__}: {error}"


def dump_on(signum: int | str = "SIGUSR1") -> None:
    """Write ``dump()`` to stderr whenever this process gets a signal; a handler that was there is called, too.

    Call it on the main thread. It works while the trainer waits for a batch, too.

    Args:
        signum: The signal, by number or by name.

    Raises:
        ValueError: There is no such signal, by number or by name.
    """
    signum = _signal("signum", signum)
    if signum in _installed:
        return
    previous = signal.getsignal(signum)

    def handle(number: int, frame: FrameType | None) -> None:
        write(dump())
        if callable(previous):
            previous(number, frame)

    signal.signal(signum, handle)
    _installed.add(signum)


def write(text: str) -> None:
    """Write to stderr past Python's buffers: a handler may have interrupted a write to them."""
    os.write(2, text.encode(errors="backslashreplace"))


def register(live: Any) -> None:
    """Count an iteration as live until it is dropped: ``pid`` says whose it is, ``describe()`` what it does."""
    name = os.environ.get("LOADERS_DUMP")
    if name and threading.current_thread() is threading.main_thread():
        dump_on(_signal("LOADERS_DUMP", name))
    _live.add(live)


def _signal(what: str, value: Any) -> signal.Signals:
    try:
        return signal.Signals[value] if isinstance(value, str) else signal.Signals(value)
    except (KeyError, ValueError):
        raise ValueError(f"{what} must name a signal (SIGUSR1, SIGUSR2), got {value!r}") from None


def dump_in_child(describe: Callable[[], str]) -> None:
    """Make SIGUSR1 write what this child process of a loader is doing; SIGUSR2 shall not end it either.

    Launchers send such signals to whole process groups.
    """
    pid = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        write(f"loaders: in child process {pid}: {describe()}\n")

    signal.signal(signal.SIGUSR1, handle)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def since(moment: float | None) -> str:
    """Say how long ago a moment of ``time.monotonic`` is."""
    return "" if moment is None else f" for {time.monotonic() - moment:.1f} s"
