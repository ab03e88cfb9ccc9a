"""Ctrl-C at any moment: held back while something begins that must not be left half begun, and seldom lost.

Python prints and forgets what is raised in callbacks of weak references: what can be done without them is.
"""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import weakref

# The public one looks each of 62 answers up in an enumeration: a tenth of what beginning an epoch takes.
from _signal import getsignal  # type: ignore[import-not-found]  # no stubs
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
_NUMBERS = [int(number) for number in signal.valid_signals()]


@contextmanager
def handlers_later() -> Iterator[None]:
    """Call the handlers of signals that come meanwhile at the end.

    What a handler raises while a process forks, Python prints and forgets; where it raises while a thread
    starts, the thread may wait for ever. A mask of this thread holds nothing back where there are others.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run in that one
        yield
        return
    # In the order they came; not their frames, which would keep their callers.
    came: dict[int, None] = {}

    def later(number: int, frame: Any) -> None:
        came[number] = None

    given = ((number, getsignal(number)) for number in _NUMBERS)
    handlers: dict[int, Any] = {number: handler for number, handler in given if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, later)
        yield
    finally:
        try:
            _call_all([partial(signal.signal, *each) for each in handlers.items()])
        finally:
            _call_all([partial(handlers[number], number, sys._getframe()) for number in came])


def finalize(
    owner: object, function: Callable[..., object], *args: Any
) -> weakref.finalize[..., Any]:
    """As ``weakref.finalize``, which is called once, and does nothing where Ctrl-C comes before its first line.

    Where it was called before, the end of the owner runs no code: Ctrl-C that came into it would be lost.
    """
    again: list[weakref.finalize[..., Any]] = []  # empty if Ctrl-C comes here

    def once() -> None:
        function(*args)
        for each in again:
            each.detach()

    end = weakref.finalize(owner, once)
    again.append(weakref.finalize(owner, end))  # does nothing if that one has begun
    again[0].atexit = False
    return end


class Living(Generic[T]):
    """Those of a kind that exist: who is gone is forgotten when another is added. In a signal handler, too."""

    def __init__(self) -> None:
        # A plain dict: copying it is safe in any thread.
        self._references: dict[int, weakref.ref[T]] = {}
        self._numbers = itertools.count()

    def add(self, one: T) -> None:
        """Count it as long as it lives."""
        for number, reference in list(self._references.items()):
            if reference() is None:
                self._references.pop(number, None)
        self._references[next(self._numbers)] = weakref.ref(one)

    def all(self) -> list[T]:
        """Return those that live, the oldest first."""
        references = list(self._references.values())
        return [one for reference in references if (one := reference()) is not None]


def _call_all(calls: list[Callable[[], object]]) -> None:
    """Call each of them, also if another raises; an ``ExitStack`` would be kept by what is raised, and its callers."""
    if calls:
        try:
            calls.pop(0)()
        finally:
            _call_all(calls)
