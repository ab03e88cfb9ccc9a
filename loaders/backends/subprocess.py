"""Batches made by threads of one child process, so that the trainer's interpreter is touched once per batch.

Contract:

1. *Normal end.* The parent sends the indices of a batch and gets the batch back, in order; at most as many are
   under way as the owner put in. A slot is used again after the parent's last tensor on it has died.
2. *Failure.* An error of a batch comes back in its place and with its type. A child that dies is an
   error at once, also while the parent waits.
3. *Early close.* ``close`` ends the child: by closing the socket, and after 5 s by a signal. A child whose
   parent died ends itself. Slots are anonymous memory: nothing is left behind by any death.
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
    from collections.abc import Iterator

    from loaders.backends.maker import Maker

_END_TIMEOUT_S = 5.0


class ChildPool:
    """Makes batches in a child process, on as many threads as the maker says.

    Args:
        maker: Makes them; it goes to the child.
        context: How the child is started: a ``multiprocessing`` context or method; None is Python's default.
    """

    def __init__(self, maker: Maker, context: Any = None) -> None:
        if context is None or isinstance(context, str):
            context = get_context(context)
        self.num_ready = self.slot_bytes = 0
        self._count_replaced, self._num_replaced = maker.count_replaced, maker.num_replaced
        self._under_way = 0
        self._is_up = False  # its handlers are set
        self._came: deque[Any] = deque()  # while something else was waited for
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
        self._close = weakref.finalize(self, _close, self._process, self._channel, self._pid)

    def __len__(self) -> int:
        return self._under_way

    @property
    def is_ready(self) -> bool:
        """Whether the next message of the child is here."""
        return bool(self._came) or (self._close.alive and self._channel.is_ready())

    def put(self, group: list[Any]) -> None:
        """Ask for a group of batches."""
        self._check_open()
        self._send("make", group)
        self._under_way += 1

    def _send(self, *message: Any) -> None:
        try:
            self._channel.send(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except OSError:
            raise self._death() from None

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
            message = self._receive(left)
            if message is None:
                raise TimeoutError(self.describe())
            if not isinstance(message, str):  # an answer that came too late
                self._came.append(message)
        group, (num_replaced, self.num_ready, self.slot_bytes) = self._came.popleft()
        self._count_replaced(num_replaced - self._num_replaced)
        self._num_replaced = num_replaced
        self._under_way -= 1
        return group  # type: ignore[no-any-return]

    def _receive(self, timeout_s: float | None) -> Any:
        """Return the child's next message, or None if none came in time."""
        try:
            message = self._channel.receive(timeout_s)
            if message is None:
                return None
            self._is_up = True
            loaded = self._mapped.load(message)
            if isinstance(loaded, str):
                return loaded
            group, given_up, status = loaded
            self._mapped.forget(given_up)
            return group, status
        except (EOFError, ConnectionError):
            raise self._death() from None
        except (
            OSError
        ):  # no descriptor or no memory for a slot, say: what follows cannot be read any more
            self.close()
            raise

    def _death(self) -> RuntimeError:
        self._process.join(_END_TIMEOUT_S)
        code, pid = self._process.exitcode, self._process.pid
        self.close()
        how = (
            f"was killed by signal {-code}" if code is not None and code < 0 else f"ended ({code})"
        )
        return RuntimeError(
            f"the loader's child process (pid {pid}) {how}: if the machine ran out of "
            "memory, lower num_workers, prefetch_factor or batch_size"
        )

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("this child process belongs to the parent of this forked process")
        if not self._close.alive:
            raise RuntimeError("the loader's child process was closed")

    def describe(self) -> str:
        """Say what each worker is doing and for how long."""
        self._check_open()
        self._send("describe")
        while (message := self._receive(_END_TIMEOUT_S)) is not None:
            if isinstance(message, str):
                return message
            self._came.append(message)
        return f"the loader's child process (pid {self._process.pid}) does not answer"

    def describe_aside(self) -> str:
        """Make the child write to stderr what each worker is doing: the pipe may be in use."""
        pid = self._process.pid
        if self._is_up and pid is not None and self._close.alive:
            os.kill(pid, signal.SIGUSR1)
            return f"child process {pid} says for itself"
        return f"child process {pid} has not begun, or ended"

    def close(self) -> None:
        """End the child."""
        self._close()


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Hold Ctrl-C back until the child can ignore it; it inherits the mask, as a fork server would for good."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _close(process: Any, channel: Channel, pid: int) -> None:
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
