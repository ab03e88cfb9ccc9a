"""Batches made by threads of one child process, so that the trainer's interpreter is touched once per batch.

Contract:

1. *Normal end.* The parent sends the indices of a batch and gets the batch back, in order; at most as many are
   under way as the owner put in. A slot is used again after the parent's last tensor on it has died.
2. *Failure.* An error of a batch comes back in its place and with its type. A child that dies is an
   error at once, also while the parent waits.
3. *Early close.* ``close`` ends the child: by closing the socket, and after 5 s by a signal; or leaves it to the
   next pool, which drops what it still owes to this one. A child whose parent died ends itself. Slots are anonymous
   memory: nothing is left behind by any death.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import time
import weakref
from collections import deque
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from loaders.backends import child
from loaders.backends.channel import Channel
from loaders.backends.wire import Mapped
from loaders.device.pinned import page_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loaders.backends.maker import Maker

_END_TIMEOUT_S = 5.0


class Child:
    """A process that makes batches on as many threads as the maker says; for one pool after another.

    Args:
        maker: Makes them; it goes to the process.
        context: How the process is started: a ``multiprocessing`` context or method; None is Python's default.

    Attributes:
        num_owed: Groups that were asked for and did not come yet.
        is_up: Whether its handlers are set.
        pool: Returns the pool that it works for, or None.
    """

    def __init__(self, maker: Maker, context: Any = None) -> None:
        if context is None or isinstance(context, str):
            context = get_context(context)
        self.num_owed = 0
        self.is_up = False
        self.pool: Callable[[], ChildPool | None] = _nobody
        lock = partial(page_lock, what="a batch slot") if maker.pin else None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel = Channel(ours)
        self._mapped = Mapped(self._channel.fds.popleft, lock)
        method = context.get_start_method()
        self._process = context.Process(
            target=child.main,
            args=(maker.for_child(), theirs, ours if method == "fork" else None),
            name="loaders-child",
            daemon=True,
        )
        self._pid = os.getpid()
        try:
            with nullcontext() if method == "forkserver" else _no_interrupt():
                self._process.start()
        finally:
            theirs.close()
        self.pid: int = self._process.pid
        self.end = weakref.finalize(self, _end, self._process, self._channel, self._pid)

    @property
    def is_free(self) -> bool:
        """Whether it can be given to another pool."""
        pool = self.pool()
        is_idle = pool is None or pool.is_closed
        return is_idle and os.getpid() == self._pid and self.end.alive and self._process.is_alive()

    @property
    def has_message(self) -> bool:
        """Whether a message is here."""
        return self.end.alive and self._channel.is_ready()

    def check(self) -> None:
        """RuntimeError if it is another process's, or was ended."""
        if os.getpid() != self._pid:
            raise RuntimeError("this child process belongs to the parent of this forked process")
        if not self.end.alive:
            raise RuntimeError("the loader's child process was closed")

    def send(self, *message: Any) -> None:
        """Ask it for something; RuntimeError if it died."""
        try:
            self._channel.send(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except OSError:
            raise self._death() from None

    def receive(self, timeout_s: float | None) -> Any:
        """Return its next message, or None if none came in time: text, or a group and how the process is doing.

        Raises:
            RuntimeError: It died.
        """
        try:
            message = self._channel.receive(timeout_s)
            if message is None:
                return None
            self.is_up = True
            loaded = self._mapped.load(message)
            if isinstance(loaded, str):
                return loaded
            group, given_up, status = loaded
            self._mapped.forget(given_up)
            self.num_owed -= 1
            return group, status
        except (EOFError, ConnectionError):
            raise self._death() from None
        except (
            OSError
        ):  # no descriptor or no memory for a slot, say: what follows cannot be read any more
            self.end()
            raise

    def _death(self) -> RuntimeError:
        self._process.join(_END_TIMEOUT_S)
        code = self._process.exitcode
        self.end()
        how = (
            f"was killed by signal {-code}" if code is not None and code < 0 else f"ended ({code})"
        )
        return RuntimeError(
            f"the loader's child process (pid {self.pid}) {how}: if the machine ran out of "
            "memory, lower num_workers, prefetch_factor or batch_size"
        )


class ChildPool:
    """Batches made by a child process, for the time of one epoch.

    Args:
        maker: What the child makes them by; it is told here how many samples were replaced.
        child: What it still owes to a pool before this one is dropped.
        keep: Leave it to a later pool.

    Attributes:
        is_closed: Whether the process may work for another pool.
    """

    def __init__(self, maker: Maker, child: Child, *, keep: bool = False) -> None:
        self.num_ready = self.slot_bytes = 0
        self.is_closed = False
        self._child, self._keep = child, keep
        self._count_replaced = maker.count_replaced
        self._under_way = 0
        self._num_stale = child.num_owed
        self._came: deque[Any] = deque()  # while something else was waited for
        child.pool = weakref.ref(self)

    def __len__(self) -> int:
        return self._under_way

    @property
    def is_ready(self) -> bool:
        """Whether the next message of the child is here."""
        return bool(self._came) or (not self.is_closed and self._child.has_message)

    def put(self, group: list[Any]) -> None:
        """Ask for a group of batches."""
        self._check_open()
        self._child.send("make", group)
        self._child.num_owed += 1
        self._under_way += 1

    def take(self, timeout_s: float | None = None) -> list[Any]:
        """Return the oldest group, or raise its error.

        Raises:
            TimeoutError: It did not come in time.
            RuntimeError: The child died.
        """
        self._check_open()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._came:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            message = self._child.receive(left)
            if message is None:
                raise TimeoutError(self.describe())
            if not isinstance(message, str):  # an answer that came too late
                self._keep_group(message)
        group, (num_replaced, self.num_ready, self.slot_bytes) = self._came.popleft()
        self._count_replaced(num_replaced)
        self._under_way -= 1
        return group  # type: ignore[no-any-return]

    def _keep_group(self, message: Any) -> None:
        if self._num_stale:
            self._num_stale -= 1
        else:
            self._came.append(message)

    def _check_open(self) -> None:
        self._child.check()
        if self.is_closed:
            raise RuntimeError("this pool was closed; its child process may work for another")

    def describe(self) -> str:
        """Say what each worker is doing and for how long."""
        self._check_open()
        self._child.send("describe")
        while (message := self._child.receive(_END_TIMEOUT_S)) is not None:
            if isinstance(message, str):
                return message
            self._keep_group(message)
        return f"the loader's child process (pid {self._child.pid}) does not answer"

    def describe_aside(self) -> str:
        """Make the child write to stderr what each worker is doing: the pipe may be in use."""
        pid = self._child.pid
        if self._child.is_up and self._child.end.alive:
            os.kill(pid, signal.SIGUSR1)
            return f"child process {pid} says for itself"
        return f"child process {pid} has not begun, or ended"

    def close(self) -> None:
        """End the child, unless it is kept."""
        self.is_closed = True
        if not self._keep:
            self._child.end()


def _nobody() -> None:
    """Stand for a weak reference to nothing."""


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Hold Ctrl-C back until the child can ignore it; it inherits the mask, as a fork server would for good."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(process: Any, channel: Channel, pid: int) -> None:
    if os.getpid() != pid:  # in a fork: neither the child nor the socket is ours to end
        return
    with suppress(OSError):  # a process that was forked since may hold the socket open
        channel.socket.setblocking(False)
        channel.send(pickle.dumps(("close",)))
    channel.close()
    for end in (lambda: None, process.terminate, process.kill):
        end()
        process.join(_END_TIMEOUT_S)
        if process.exitcode is not None:
            break
    with suppress(ValueError):
        process.close()
