"""Locks that are open in a forked child, also those that a thread of the parent held."""

from __future__ import annotations

import os
import threading
import weakref


class ForkLock:
    """A lock that is renewed in a forked child, where the thread that held it does not exist.

    What it guards may be half written there: use it only for caches that can be filled again, and counts.

    Attributes:
        plain: What to hold, ``with lock.plain:``. An ``__enter__`` of our own would have an instruction
            between taking the lock and holding it, and Ctrl-C there would leave it locked for ever.
    """

    def __init__(self) -> None:
        self.plain = threading.Lock()
        _locks.add(self)


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew() -> None:
    for lock in list(_locks):
        lock.plain = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
