"""Batches made by threads of one child process, so that the trainer's GIL is taken once per batch.

Contract:

1. *Start.* The child is a fresh interpreter, never a fork: it gets ``sys.path``, the working folder and the dataset,
   and of the trainer's descriptors its socket and the memory files. What it cannot be given is an error at once.
2. *Normal end.* The trainer sends the indices of a batch and gets the batch back, in order; at most as many are
   under way as the owner put in. A slot is used again after the trainer's last tensor on it has died.
3. *Failure.* An error of a batch comes back in its place and with its type. A child that dies is an
   error at once, also while the trainer waits. After Ctrl-C in the middle of a message the child is not used again.
4. *Early close.* ``close`` leaves the child to the next pool, which drops what it still owes to this one. The child
   ends when its loader does: by closing the socket, and after 5 s by a signal. A child whose trainer is gone ends
   itself. Slots are anonymous memory: nothing is left behind by any death.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.backends.channel import Channel, pair
from loaders.backends.child import MASKED
from loaders.backends.maker import MAX_KEPT
from loaders.backends.ordered import Lost
from loaders.backends.payload import pack
from loaders.backends.slots import MappedSlots, make_file
from loaders.buffers import SMALL_BYTES
from loaders.datasets.reading.samples import SplitBatches
from loaders.device.pinned import page_lock
from loaders.errors import UnsendableError
from loaders.workers import Late

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loaders.backends.chunk import Chunk
    from loaders.backends.maker import Made, Maker

_START_TIMEOUT_S = 300.0  # of an interpreter that imports torch, also on a crowded machine
_END_TIMEOUT_S = 5.0
_DESCRIBE_TIMEOUT_S = 1.0
_LOOK_S = 2.0  # how often a wait looks whether the process is alive
_BEGIN = (
    "import pickle, sys; payload = open(int(sys.argv[1]), 'rb'); sys.path[:] = pickle.load(payload); "
    "from loaders.backends.child import main; main(payload, *map(int, sys.argv[2:]))"
)


class Child:
    """A process that makes batches on as many threads as the maker says; for one pool after another.

    Args:
        maker: Makes them; a copy goes to the process.

    Attributes:
        pid: Of the process.
        is_up: Whether something came from it.
        is_silent: True once it was asked what it is doing and did not say, until something comes.
        is_whole: False in the middle of a message or of its count: there Ctrl-C leaves it, and it is of no more use.
        num_passes: How many pools it worked for; each group is asked for, and comes, with the number of its pass.

    Raises:
        UnsendableError: It cannot be given the dataset, or what goes with it.
    """

    def __init__(self, maker: Maker) -> None:
        self.is_up, self.is_silent, self.is_whole = False, False, True
        self.num_passes = 0
        self._epoch: int | None = None
        payload = pack(maker)
        self._digest = _digest(payload)
        lock = partial(page_lock, what="a batch slot") if maker.locks_slots else None
        self._pid = os.getpid()
        ours, theirs = pair()
        self._channel = Channel(ours)
        slots = -1
        try:
            slots = make_file()
            self._slots = MappedSlots(slots, lock)
            self._process = _start(payload, theirs.fileno(), slots)
            self.end = weakref.finalize(self, _end, self._process, self._channel, self._pid)
        except BaseException:
            self._channel.close()  # which ends a child that has begun
            raise
        finally:
            theirs.close()
            if slots >= 0:
                os.close(slots)
        self.pid: int = self._process.pid

    @property
    def is_usable(self) -> bool:
        """Whether another pool can have it."""
        is_ours = os.getpid() == self._pid and self.end.alive
        can_talk = self.is_whole and not self.is_silent
        return is_ours and can_talk and self._process.poll() is None

    @property
    def has_message(self) -> bool:
        """Whether a message is here."""
        return self.end.alive and self._channel.is_ready()

    @property
    def slot_bytes(self) -> int:
        """Bytes of its batch slots."""
        return self._slots.nbytes

    @property
    def num_leased(self) -> int:
        """Tensors of batches that live, and lie in its slots."""
        return self._slots.num_leased

    def follow(self, maker: Maker, epoch: int | None) -> None:
        """Give the child another maker of the same loader."""
        payload = pack(maker)
        if (digest := _digest(payload)) != self._digest:
            self.send("change", payload)
            self._digest = digest
        if epoch != self._epoch:
            self.send("epoch", epoch)
            self._epoch = epoch

    def check(self) -> None:
        """Raise RuntimeError if the child is another process's, was ended, or was left in the middle of a message."""
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
        """Return a context manager; an interrupt inside it marks the child unusable."""
        return _Uninterrupted(self)

    def send(self, kind: str, *values: Any) -> None:
        """Ask it for something, by the name of a method of ``Serving``; RuntimeError if it died."""
        with self.uninterrupted():
            message = (self._slots.free(), kind, *values)
            try:
                self._channel.post(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
            except OSError:
                raise self._death() from None

    def wait(self, deadline: float) -> bool:
        """Wait a while, at most until then (``monotonic``); return whether a message is here, or one can be sent.

        Raises:
            RuntimeError: It died, and another process that was forked meanwhile holds its end of the socket open.
        """
        left = max(0.0, deadline - time.monotonic())
        if self._channel.is_ready(min(left, _LOOK_S), or_has_room=True):
            return True
        if self._process.poll() is not None and not self._channel.is_ready():
            raise self._death()
        return False

    def receive(self) -> Any:
        """Send what waits for room; return the next message if all of it is here, else None.

        It is text; or a pass, a group of it, and two numbers: samples that were replaced since the last message, and
        groups that are ready. That it is up is no message.

        Raises:
            RuntimeError: It died.
            UnsendableError: It did not find what it needs.
        """
        try:
            with suppress(ConnectionError):  # there may be a message that says why
                self._channel.flush()
            message = self._channel.receive(now=True)
            if message is None:
                return None
            number, value, (*status, changes) = self._slots.load(message)
            self._slots.change(changes)
        except (EOFError, ConnectionError):
            raise self._death() from None
        except Exception:
            self._check_open()  # another thread may have closed it
            self.end()  # what follows cannot be read
            raise
        self.is_silent = False
        if number:
            return number, value, *status
        if isinstance(value, BaseException):
            self.end()
            raise _not_found(value)
        self.is_up = True
        return value

    def _failure(self) -> UnsendableError | None:
        """Return why it could not begin, if it said so before it ended."""
        with suppress(EOFError, OSError):
            if (message := self._channel.receive(now=True)) is not None:
                value = self._slots.load(message)[1]
                return _not_found(value) if isinstance(value, BaseException) else None
        return None

    def _death(self) -> Exception:
        """Return what to raise where the process has ended, or closed its end."""
        if not self.is_up and (failure := self._failure()) is not None:
            return failure
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_TIMEOUT_S)
        code = self._process.returncode
        self.end()
        what = f"the loader's child process (pid {self.pid})"
        if code is not None and code < 0:
            return RuntimeError(f"{what} was killed by {killed_by(-code)}")
        when = "" if self.is_up else ", before it had begun"
        return RuntimeError(f"{what} ended ({code}){when}: what it printed says why")


def _not_found(error: BaseException) -> UnsendableError:
    return UnsendableError("what it needs", f"{type(error).__name__}: {error}")


def _digest(payload: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(payload)


def _start(payload: bytes, sock: int, slots: int) -> subprocess.Popen[bytes]:
    """Start an interpreter that runs ``loaders.backends.child.main``; signals wait until it has its handlers."""
    fd = os.memfd_create("loaders-payload", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            pickle.dump(sys.path, file)
            file.write(payload)
        os.lseek(fd, 0, os.SEEK_SET)
        numbers = [str(number) for number in (fd, sock, slots, os.getpid())]
        with _masked():
            return subprocess.Popen(
                [sys.executable, "-P", "-c", _BEGIN, *numbers],
                stdin=subprocess.DEVNULL,
                pass_fds=(fd, sock, slots),
            )
    finally:
        os.close(fd)


@contextmanager
def _masked() -> Iterator[None]:
    """Have a process that is started inherit a mask; of this thread it is put back."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, MASKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Uninterrupted:
    """Context manager: the child is unusable inside, and stays so if Ctrl-C or an error ends the block.

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
    """Pool of one epoch whose batches a child process makes; answers to an earlier pool are dropped.

    ``leave`` is called with the child when this pool is closed or dropped; None ends it.
    """

    def __init__(
        self, maker: Maker, child: Child, leave: Callable[[Child], None] | None = None
    ) -> None:
        self.num_ready = 0
        self._child, self._count_replaced = child, maker.count_replaced
        self._pinned = maker.pinned if maker.pin else None
        self._close = weakref.finalize(self, leave or _end_child, child)
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
            self._ask(chunk, turn)
            self._under_way += 1

    def _ask(self, chunk: Chunk, turn: int) -> None:
        """Ask for a turn; the indices of a chunk go with the first one that is asked for."""
        if chunk.is_together:
            self._child.send("make", self._pass, chunk.batches, True)
        elif chunk is self._told:
            self._child.send("next", self._pass)
        else:
            self._told = chunk
            self._child.send("make", self._pass, chunk.batches[turn:], False)

    def take(self, timeout_s: float | None = None) -> Made:
        """Return the batches that were asked for first, or raise their error.

        Raises:
            Late: It did not come in time.
            RuntimeError: The child died.
        """
        self._check_open()
        self._await_start()
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._came:
            if self._receive(deadline) is None:
                raise Late(self._ask_child())
        with self._child.uninterrupted():
            group = self._came.popleft()
            self._under_way -= 1
        if isinstance(group, SplitBatches):
            num_in_slots = sum(tensor.nbytes >= SMALL_BYTES for tensor in group.whole)
            most = num_in_slots * (len(self._came) + 1 + MAX_KEPT)
            group.is_copied = self._child.num_leased > most
        return group if self._pinned is None else list(map(self._pinned, group))

    def _receive(self, deadline: float) -> Any:
        """Return the next message, or None if none came in time; keep it if it is a group of this pass."""
        while True:
            if self._child.wait(deadline):
                message = self._read()
                if message is not None:
                    return message
            elif time.monotonic() >= deadline:
                return None
            self._check_open()  # another thread may have closed this

    def _await_start(self) -> None:
        """Wait until the child is up: its start makes no batch late."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._child.is_up:
            if self._child.wait(deadline):
                self._read()
            elif time.monotonic() >= deadline:
                what = f"the loader's child process (pid {self._child.pid}) has not begun"
                raise RuntimeError(f"{what} after {_START_TIMEOUT_S:.0f} s")
            self._check_open()

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
            raise RuntimeError(
                "this pool was closed, and its child process may serve another one by now"
            )

    def _ask_child(self) -> str:
        """Return what each worker is doing and for how long."""
        self._check_open()
        self._child.send("describe")
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
        if self._child.end.alive:
            os.kill(pid, signal.SIGUSR1)  # which waits until the child has begun
            return f"child process {pid} says for itself"
        return f"child process {pid} has ended"

    def close(self) -> None:
        """Leave the child: end it, or let another pool have it."""
        self._close()


def _end_child(child: Child) -> None:
    child.end()


class KeptChildren:
    """The child process that a loader keeps from epoch to epoch; two iterations at once have one each."""

    def __init__(self) -> None:
        self._idle: deque[Child] = deque()

    @property
    def slot_bytes(self) -> int:
        """Bytes of the slots of idle children."""
        return sum(child.slot_bytes for child in tuple(self._idle))

    def pool(self, maker: Maker, epoch: int | None) -> ChildPool:
        """Return a pool over the idle child or a new one, which is kept afterwards."""
        child = self._take() or Child(maker)
        child.follow(maker, epoch)
        return ChildPool(maker, child, self._leave)

    def _take(self) -> Child | None:
        try:
            child = self._idle.pop()  # another iteration at the same time gets a child of its own
        except IndexError:
            return None
        if child.is_usable:
            return child
        child.end()
        return None

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


def _end(process: subprocess.Popen[bytes], channel: Channel, pid: int) -> None:
    if os.getpid() != pid:  # in a fork: neither the child nor the socket is ours to end
        return
    with suppress(OSError):  # a process that was forked since may hold the socket open
        channel.socket.shutdown(socket.SHUT_RDWR)
    channel.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_TIMEOUT_S)
    if process.returncode is None:
        process.kill()
        process.wait()
