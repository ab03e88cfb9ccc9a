"""Holding back what signals raise while something begins that must not be left half begun."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def no_interrupt() -> Iterator[None]:
    """Hold Ctrl-C back until a new process can ignore it; it inherits the mask, as a fork server would for good."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with handlers_later():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def handlers_later() -> Iterator[None]:
    """Call the handlers of signals that come meanwhile at the end.

    What a handler raises while a process forks, Python prints and forgets; where it raises while a thread
    starts, the thread may wait for ever. A mask of this thread holds nothing back where there are others.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run in that one
        yield
        return
    came: list[tuple[int, Any]] = []
    is_held = True

    def later(number: int, frame: Any) -> None:
        if is_held:
            came.append((number, frame))
        else:  # another signal raised while handlers were put back
            handlers[number](number, frame)

    given = ((number, signal.getsignal(number)) for number in signal.valid_signals())
    handlers: dict[int, Any] = {number: handler for number, handler in given if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, later)
        yield
    finally:
        is_held = False
        with ExitStack() as each:  # also if one of them raises
            for number, frame in reversed(came):
                each.callback(handlers[number], number, frame)
            for number, handler in handlers.items():
                signal.signal(number, handler)
