"""Locks that a forked child finds open, whoever held them in its parent."""

from __future__ import annotations

import os
import threading
import weakref


class ForkLock:
    """A lock whose holder does not exist in a forked child: there it is new, and open.

    So what it guards may be half written there: let it guard only caches that can be filled again, and counts.

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
