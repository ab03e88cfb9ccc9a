"""Batches made by threads of one child process, so that the trainer's interpreter is touched once per batch.

Contract:

1. *Normal end.* The parent sends the indices of a batch and gets the batch back, in order; at most as many are
   under way as the owner put in. A slot is used again after the parent's last tensor on it has died.
2. *Failure.* An error of a batch comes back in its place and with its type. A child that dies is an
   error at once, also while the parent waits. Who was interrupted in the middle of a message has no use for its child
   any more.
3. *Early close.* ``close`` ends the child: by closing the socket, and after 5 s by a signal; or leaves it to the
   next pool, which drops what it still owes to this one. A child whose parent died ends itself. Slots are anonymous
   memory: nothing is left behind by any death.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections import deque
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from loaders.backends import child
from loaders.backends.asking import ask, ask_for
from loaders.backends.channel import Channel, pair
from loaders.backends.forms import MessageReader
from loaders.backends.maker import MAX_KEPT
from loaders.backends.ordered import Lost
from loaders.backends.wire import Mapped
from loaders.datasets.reading.samples import SplitBatches
from loaders.device.pinned import page_lock
from loaders.limits import cores_of_rank
from loaders.signals import finalize, handlers_later, no_interrupt
from loaders.workers import Late

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.backends.chunk import Chunk
    from loaders.backends.maker import Made, Maker

_END_TIMEOUT_S = 5.0
_DESCRIBE_TIMEOUT_S = 1.0
_LOOK_S = 2.0  # how often a wait looks whether the process is alive


def start_method() -> str:
    """Return how the child is started where nobody says: what was set, else by a fork, on Linux.

    Python 3.14 has another default, which pickles and imports the main module; the child of a fork runs nothing but
    our threads. What was set to Python's default cannot be told from what was not set.
    """
    default = multiprocessing.get_all_start_methods()[0]
    method = multiprocessing.get_start_method(allow_none=True) or default
    return "fork" if method == default and sys.platform == "linux" else method


class Child:
    """A process that makes batches on as many threads as the maker says; for one pool after another.

    Args:
        maker: Makes them; it goes to the process.
        context: How the process is started: a ``multiprocessing`` context or method; None: see ``start_method``.

    Attributes:
        pid: Of the process.
        is_up: Whether something came from it.
        is_silent: True once it was asked what it is doing and did not say, until something comes.
        is_whole: False in the middle of a message or of its count: there Ctrl-C leaves it, and it is of no more use.
        num_passes: How many pools it worked for; each group is asked for, and comes, with the number of its pass.
    """

    def __init__(self, maker: Maker, context: Any = None) -> None:
        if multiprocessing.current_process().daemon:
            what = "backend='subprocess' starts a process, which a daemonic one may not"
            raise RuntimeError(
                f"{what} (a worker of a Pool or of another loader): backend='thread'"
            )
        if context is None or isinstance(context, str):
            context = multiprocessing.get_context(context or start_method())
        self.is_up, self.is_silent, self.is_whole = False, False, True
        self.num_passes = 0
        # Of its own, with a byte once its handlers are set: a signal handler may look here while the socket is in use.
        self._begun, begun = socket.socketpair()
        lock = partial(page_lock, what="a batch slot") if maker.locks_slots else None
        ours, theirs = pair()
        self._channel = Channel(ours)
        self._mapped = Mapped(self._channel.fds.popleft, lock)
        self._messages = MessageReader(self._mapped)
        method = context.get_start_method()
        self._is_started_anew = method != "fork"
        self._process = context.Process(
            target=child.main,
            args=(maker.for_child(), theirs, ours if method == "fork" else None, begun),
            kwargs={"is_full": maker.num_workers >= cores_of_rank()},
            name="loaders-child",
            daemon=True,
        )
        self._pid = os.getpid()
        try:
            with nullcontext() if method == "forkserver" else no_interrupt():
                self._process.start()
        except BaseException:  # Ctrl-C, say, which came while it was forked
            if self._process.pid is None:
                self._channel.close()
                self._begun.close()
            else:
                _end(self._process, self._channel, self._begun, self._pid)
            raise
        finally:
            theirs.close()
            begun.close()
        self.pid: int = self._process.pid
        self.end = finalize(self, _end, self._process, self._channel, self._begun, self._pid)

    @property
    def is_usable(self) -> bool:
        """Whether another pool can have it."""
        is_ours = os.getpid() == self._pid and self.end.alive
        can_talk = self.is_whole and not self.is_silent
        return is_ours and can_talk and self._process.is_alive()

    @property
    def takes_signals(self) -> bool:
        """Whether SIGUSR1 makes it say what it is doing: not before its handlers are set, nor after its end."""
        return self.end.alive and (self.is_up or _has_byte(self._begun))

    @property
    def has_message(self) -> bool:
        """Whether a message is here."""
        return self.end.alive and self._channel.is_ready()

    @property
    def slot_bytes(self) -> int:
        """Bytes of its batch slots."""
        return self._mapped.nbytes

    @property
    def num_leased(self) -> int:
        """Tensors of batches that live, and lie in its slots."""
        return self._mapped.num_leased

    def check(self) -> None:
        """RuntimeError if it is another process's, or was ended, or left in the middle of a message."""
        if os.getpid() != self._pid:
            raise RuntimeError("this child process belongs to the parent of this forked process")
        if self.end.alive and not self.is_whole:
            self.end()
            what = "a message to or from the loader's child process was interrupted"
            raise RuntimeError(f"{what}: begin a new iteration")
        self._check_open()

    def _check_open(self) -> None:
        if not self.end.alive:
            raise RuntimeError("the loader's child process was closed: begin a new iteration")

    def uninterrupted(self) -> _Uninterrupted:
        """Return what to do a part of a message in: who is interrupted there leaves the child not whole."""
        return _Uninterrupted(self)

    def send(self, message: bytes) -> None:
        """Ask it for something; RuntimeError if it died."""
        with self.uninterrupted():
            self._mapped.set_free()
            try:
                self._channel.post(message)
            except OSError:
                raise self._death() from None

    def wait(self, deadline: float) -> bool:
        """Wait until something of a message is here, or can be sent; False if nothing was until then (``monotonic``).

        Raises:
            RuntimeError: It died, and another process that was forked meanwhile holds its end of the socket open.
        """
        with self.uninterrupted():
            self._mapped.set_free()  # before the child begins with what it is asked for already
        left = deadline - time.monotonic()
        while not self._channel.is_ready(max(0, min(left, _LOOK_S)), or_has_room=True):
            if not self._process.is_alive() and not self._channel.is_ready():
                raise self._death()
            left = deadline - time.monotonic()
            if left <= 0:
                return False
        return True

    def receive(self) -> Any:
        """Send what waits for room; return the next message if all of it is here, else None.

        It is text; or a pass, a group of it, and two numbers.

        The numbers are of samples that were replaced since the last message, and of groups that are ready.

        Raises:
            RuntimeError: It died.
        """
        try:
            self._channel.flush()
            message = self._channel.receive()
            if message is None:
                return None
            number, value, status = self._messages.read(message)
        except (EOFError, ConnectionError):
            raise self._death() from None
        except Exception:
            self._check_open()  # another thread may have closed it
            # No descriptor or no memory for a slot, say: what follows cannot be read.
            self.end()
            raise
        self.is_up, self.is_silent = True, False
        return value if isinstance(value, str) else (number, value, *status)

    def _death(self) -> RuntimeError:
        self._process.join(_END_TIMEOUT_S)
        code = self._process.exitcode
        self.end()
        what = f"the loader's child process (pid {self.pid})"
        if code is not None and code < 0:
            return RuntimeError(f"{what} was killed by {killed_by(-code)}")
        why = "what it printed says why"
        if not self.is_up and self._is_started_anew:
            why += "; a script that starts processes by spawn has its code under if __name__ == '__main__'"
        when = "" if self.is_up else ", before it had handed over a batch"
        return RuntimeError(f"{what} ended ({code}){when}: {why}")


class _Uninterrupted:
    """Where a child is not whole; it is again as it was at a normal end, and stays so after Ctrl-C or an error.

    A class: ``contextmanager`` would take three times as long, and each message passes here several times.
    """

    __slots__ = ("_before", "_child")

    def __init__(self, child: Child) -> None:
        self._child = child

    def __enter__(self) -> None:
        self._before, self._child.is_whole = self._child.is_whole, False

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self._child.is_whole = self._before


class ChildPool:
    """Batches made by a child process, for the time of one epoch.

    Args:
        maker: What the child makes them by; it is told here how many samples were replaced.
        child: What it still owes to an earlier pool is dropped.
        leave: What becomes of the child when this pool is closed or dropped; None ends it.
    """

    def __init__(
        self, maker: Maker, child: Child, leave: Callable[[Child], None] | None = None
    ) -> None:
        self.num_ready = 0
        self._child, self._count_replaced = child, maker.count_replaced
        self._pinned = maker.pinned if maker.pin else None
        self._close = finalize(self, leave or _end_child, child)
        self._close.atexit = False  # then the child ends itself
        child.num_passes += 1
        self._pass = child.num_passes
        self._under_way = 0
        self._is_lost = False  # the child ended, and what was raised said so
        self._told: Chunk | None = None  # to the child
        self._came: deque[Any] = deque()  # while something else was waited for

    def __len__(self) -> int:
        return self._under_way

    @property
    def is_ready(self) -> bool:
        """Whether a message of the child is here."""
        return bool(self._came) or (self._close.alive and self._child.has_message)

    @property
    def slot_bytes(self) -> int:
        """Bytes of the child's slots."""
        return self._child.slot_bytes

    def put(self, chunk: Chunk, turn: int) -> None:
        """Ask for a turn of a chunk; ``Lost`` once an error said that the child is gone."""
        self._check_open()
        with self._child.uninterrupted():
            self._child.send(self._asking(chunk, turn))
            self._under_way += 1

    def _asking(self, chunk: Chunk, turn: int) -> bytes:
        """Return what is sent for a turn: the indices of a chunk come with the first one that is asked for."""
        if chunk.is_together:
            return ask_for("make", self._pass, chunk.batches)
        if chunk is self._told:
            return ask_for("next", self._pass)
        self._told = chunk
        return ask_for("chunk", self._pass, chunk.batches[turn:])

    def take(self, timeout_s: float | None = None) -> Made:
        """Return the batches that were asked for first, or raise their error.

        Raises:
            Late: It did not come in time.
            RuntimeError: The child died.
        """
        self._check_open()
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._came:
            if self._receive(deadline) is None:
                raise Late(self._ask_child())
        with self._child.uninterrupted():
            group = self._came.popleft()
            self._under_way -= 1
        if isinstance(group, SplitBatches):
            most = len(group.tensors) * (len(self._came) + 1 + MAX_KEPT)
            group.is_copied = self._child.num_leased > most
        return group if self._pinned is None else list(map(self._pinned, group))

    def _receive(self, deadline: float) -> Any:
        """Return the next message, or None if none came in time; keep it if it is a group of this pass."""
        while self._child.wait(deadline):
            message = self._read()
            if message is not None:
                return message
        return None

    def _read(self) -> Any:
        """Return a message if all of it is here."""
        try:
            with self._child.uninterrupted():
                message = self._child.receive()
                if isinstance(message, tuple):
                    self._keep(*message)
        except BaseException:
            if not self._child.end.alive:
                self._under_way = 0  # nothing will come any more
            raise
        return message

    def _keep(self, number: int, group: Made, num_replaced: int, num_ready: int) -> None:
        self.num_ready = num_ready
        if num_replaced:
            self._count_replaced(num_replaced)
        if number == self._pass:
            self._came.append(group)

    def _check_open(self) -> None:
        if self._is_lost:
            raise Lost
        try:
            self._child.check()
        except BaseException:
            if not self._child.end.alive:
                self._is_lost, self._under_way = True, 0
            raise
        if not self._close.alive:
            raise RuntimeError("this pool was closed; its child process may work for another")

    def _ask_child(self) -> str:
        """Return what each worker is doing and for how long."""
        self._check_open()
        self._child.send(ask("describe"))
        while (message := self._receive(time.monotonic() + _DESCRIBE_TIMEOUT_S)) is not None:
            if isinstance(message, str):
                return message
        self._child.is_silent = True
        return f"the loader's child process (pid {self._child.pid}) does not answer"

    def describe(self) -> str:
        """Make the child write to stderr what each worker is doing: the pipe may be in use."""
        pid = self._child.pid
        if not self._close.alive:
            return "this epoch has ended"
        if self._child.takes_signals:
            os.kill(pid, signal.SIGUSR1)
            return f"child process {pid} says for itself"
        return f"child process {pid} has not begun, or ended"

    def close(self) -> None:
        """Leave the child: end it, or let another pool have it."""
        self._close()


def _end_child(child: Child) -> None:
    child.end()


class KeptChildren:
    """The child process that a loader keeps between epochs; two iterations at once have one each."""

    def __init__(self) -> None:
        self._idle: deque[Child] = deque()

    @property
    def slot_bytes(self) -> int:
        """Bytes of the slots of who waits."""
        return sum(child.slot_bytes for child in tuple(self._idle))

    def pool(self, maker: Maker, context: Any, epoch: int | None) -> ChildPool:
        """Return a pool of the child that waits, or of a new one.

        Args:
            maker: As for ``Child``, the same each time.
            context: As for ``Child``.
            epoch: What the dataset's epoch was set to since a child may have begun, if it was.
        """
        return ChildPool(maker, self._take(epoch) or Child(maker, context), self._leave)

    def _take(self, epoch: int | None) -> Child | None:
        try:
            child = self._idle.pop()  # whoever else asks at the same time does not get it
        except IndexError:
            return None
        if not child.is_usable:
            child.end()
            return None
        if epoch is not None:
            child.send(ask("epoch", epoch))
        return child

    def _leave(self, child: Child) -> None:
        """Keep one, if it can be used again."""
        if self._idle or not child.is_usable:
            child.end()
        else:
            self._idle.append(child)


def killed_by(number: int) -> str:
    """Name a signal, and what to do about it."""
    names = {each.value: f" ({each.name})" for each in signal.Signals}
    name = f"signal {number}{names.get(number, '')}"
    if number == signal.SIGKILL:
        return f"{name}: if the machine ran out of memory, lower num_workers, prefetch_factor or batch_size"
    if number == signal.SIGBUS:
        return f"{name}: a shard was cut, or its storage failed, while it was read: run 'packdata verify'"
    return name


def _has_byte(end: socket.socket) -> bool:
    with suppress(BlockingIOError):
        return bool(end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    return False


def _end(process: Any, channel: Channel, begun: socket.socket, pid: int) -> None:
    if os.getpid() != pid:  # in a fork: neither the child nor the socket is ours to end
        return
    with handlers_later():  # called once: who is interrupted here would leave the process behind
        with suppress(OSError):  # a process that was forked since may hold the socket open
            if not channel.unsent:  # or it would be taken for the rest of another message
                channel.post(ask("close"))
        channel.close()
        begun.close()
        for end in (lambda: None, process.terminate, process.kill):
            end()
            process.join(_END_TIMEOUT_S)
            if process.exitcode is not None:
                break
        with suppress(ValueError):
            process.close()
