"""Batches made by threads of one child process, so that the trainer's GIL is taken once per batch.

Contract:

1. *Start.* The child is a fresh interpreter, never a fork: it gets ``sys.path``, the working folder and the dataset,
   and of the trainer's descriptors its connection and the memory file of slots. What it cannot be given is an error
   at once, as is what it does not find.
2. *Normal end.* A pass begins with a message, which the child answers once it has given up the pass before (see
   ``messages.py``). The trainer then sends the indices of a batch and gets the batch back, in order; at most as many
   are under way as the owner put in. A slot is used again after the trainer's last tensor on it has died.
3. *Failure.* An error of a batch comes back in its place and with its type. A child that dies is an
   error at once, also while the trainer waits. An interrupt while a message is sent or read ends the child, as does a
   child that stands still in the middle of one for ``STUCK_S``.
4. *Early close.* ``close`` leaves the child to the next pool, which drops what was sent before its own pass began.
   The child ends when its loader does: by closing the connection, and after 5 s by a signal. A child whose trainer is
   gone ends itself. Slots are anonymous memory: nothing is left behind by any death.
"""

from __future__ import annotations

import math
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.backends.child import MASKED
from loaders.backends.maker import MAX_KEPT
from loaders.backends.messages import Begin, Begun, Put, Turn, from_plain, to_plain
from loaders.backends.payload import pack
from loaders.backends.slots import MappedSlots, make_file
from loaders.buffers import SMALL_BYTES
from loaders.datasets.reading.samples import SplitBatches
from loaders.device.pinned import page_lock
from loaders.errors import UnsendableError
from loaders.workers import Late

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.backends.maker import Chunk, Made, Maker
    from loaders.backends.messages import Message

STUCK_S = 60
_START_TIMEOUT_S = 300.0  # of an interpreter that imports torch, also on a crowded machine
_END_TIMEOUT_S = 5.0
_LOOK_S = 2.0  # how often a wait looks whether the process is alive
# The path comes as a message: as an argument it may be too long.
_BEGIN = (
    "import sys; from multiprocessing.connection import Connection; connection = Connection({}); "
    "sys.path[:] = connection.recv(); from loaders.backends.child import main; main(connection, {}, {})"
)


class Child:
    """A process that makes batches on as many threads as the makers say that it follows; for one pool after another.

    Attributes:
        pid: Of the process.
        slots: Where its batches lie.
        digest: Of the maker that it was given last.
        is_late: A batch was waited for in vain: another pool has another child.
        end: Ends it; ``end.alive`` is False then.
    """

    def __init__(self, maker: Maker) -> None:
        self.is_late, self.digest = False, ""
        self._owner = os.getpid()
        self._why_gone = "the loader's child process was closed: begin a new iteration"
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(True)  # whatever ``socket.setdefaulttimeout`` says
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", STUCK_S, 0))
        self._connection = Connection(ours.detach())
        slots = make_file()
        try:
            lock = partial(page_lock, what="a batch slot") if maker.locks_slots else None
            self.slots = MappedSlots(slots, lock)
            self._process = _start(theirs.fileno(), slots)
        finally:
            theirs.close()
            os.close(slots)
        self.pid: int = self._process.pid
        self.end = weakref.finalize(self, _end, self._process, self._connection, self._owner)
        self._descriptor = self._connection.fileno()
        self._wholly(self._connection.send_bytes, pickle.dumps(sys.path))

    @property
    def is_usable(self) -> bool:
        """Whether another pool can have it."""
        is_ours = os.getpid() == self._owner and self.end.alive
        return is_ours and not self.is_late and self._process.poll() is None

    def wait(self, timeout_s: float) -> bool:
        """Wait for a message; return whether one is here. Any thread may ask."""
        # A tenth of what ``Connection.poll`` takes; each can be used by one thread at a time.
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(math.ceil(1000 * timeout_s)))

    def check(self) -> None:
        """Raise RuntimeError if the child was ended, or is another process's."""
        if os.getpid() != self._owner:
            raise RuntimeError("this child process belongs to the parent of this forked process")
        if not self.end.alive:
            raise RuntimeError(self._why_gone)

    def send(self, message: Message) -> None:
        """Ask it for something; RuntimeError if it died."""
        data = pickle.dumps(to_plain(message), pickle.HIGHEST_PROTOCOL)
        self.check()
        self._wholly(self._connection.send_bytes, data)

    def receive(self, deadline: float) -> Begun | Turn | None:
        """Return the next message; None if none came until then (``monotonic``), or for a while.

        Raises:
            RuntimeError: It died, also where a process that was forked meanwhile holds its end of the connection open.
        """
        self.check()
        left_s = max(0.0, deadline - time.monotonic())
        if not self.wait(min(left_s, _LOOK_S)):
            if self._process.poll() is not None and not self.wait(0):
                raise self._death(None)
            return None
        message: Begun | Turn = self._wholly(self._read)
        self.is_late = False
        return message

    def _read(self) -> Begun | Turn:
        message: Begun | Turn = from_plain(self.slots.load(self._connection.recv_bytes()))
        if isinstance(message, Turn):
            self.slots.change(message.slots)
        return message

    def _wholly(self, move: Callable[..., Any], *data: bytes) -> Any:
        """Send or read a message; end the child where that may not have come to its end."""
        try:
            return move(*data)
        except (EOFError, OSError) as error:
            raise self._death(error) from None
        except BaseException:
            self.end()
            raise

    def _death(self, error: Exception | None) -> RuntimeError:
        """Return what to raise, now and later, where the process has ended, or its connection failed."""
        if isinstance(error, BlockingIOError):
            how = f"stood still in the middle of a message for {STUCK_S} s"
        else:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_TIMEOUT_S)
            code = self._process.returncode
            how = f"ended ({code}): what it printed says why"
            if code is not None and code < 0:
                how = f"was killed by {killed_by(-code)}"
        self.end()
        self._why_gone = f"the loader's child process (pid {self.pid}) {how}"
        return RuntimeError(self._why_gone)


def _start(connection: int, slots: int) -> subprocess.Popen[bytes]:
    """Start an interpreter that runs ``loaders.backends.child.main``; signals wait until it has its handlers."""
    code = _BEGIN.format(connection, slots, os.getpid())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, MASKED)  # the child inherits it
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.DEVNULL,
            pass_fds=(connection, slots),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(process: subprocess.Popen[bytes], connection: Connection, owner: int) -> None:
    if os.getpid() != owner:  # in a fork: neither the child nor the connection is ours to end
        return
    ours = socket.socket(fileno=connection.fileno())
    with suppress(OSError):  # a process that was forked since may hold the connection open
        ours.shutdown(socket.SHUT_RDWR)
    ours.detach()
    connection.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_TIMEOUT_S)
    if process.returncode is None:
        process.kill()
        process.wait()


class ChildPool:
    """Pool of one epoch whose batches a child process makes.

    Raises:
        UnsendableError: The child does not find what it needs.
        RuntimeError: It died, or did not begin in time.
    """

    def __init__(
        self,
        maker: Maker,
        child: Child,
        payload: bytes,  # the maker, as the child is given it
        epoch: int | None,  # of the dataset there; None: as it is
        count_replaced: Callable[[int], object],  # called with how many samples the child replaced
        timeout_s: float = 0,  # for a child that runs to begin; 0: as for one that starts
    ) -> None:
        self.child, self._count_replaced = child, count_replaced
        self._pinned = maker.pinned if maker.pin else None
        self._is_open = True
        self._under_way = 0
        self._sent: Chunk | None = None  # whose indices the child has
        is_new = (digest := xxhash.xxh3_128_hexdigest(payload)) != child.digest
        child.send(Begin(payload if is_new else None, epoch))
        self._wait_until_begun(_START_TIMEOUT_S if is_new or not timeout_s else timeout_s)
        child.digest = digest

    def _wait_until_begun(self, limit_s: float) -> None:
        """Wait until the pass has begun; what is dropped here the one before may wait to send, which ends first."""
        deadline = time.monotonic() + limit_s
        try:
            while not isinstance(message := self._receive(deadline), Begun):
                pass
        except Late:
            what = f"the loader's child process (pid {self.child.pid}) has not begun"
            raise RuntimeError(f"{what} after {limit_s:g} s") from None
        if (error := message.error) is not None:
            raise UnsendableError("what it needs", f"{type(error).__name__}: {error}")

    def __len__(self) -> int:
        return self._under_way if self.child.end.alive else 0  # of a dead one nothing comes

    @property
    def is_ready(self) -> bool:
        """Whether a message of the child is here."""
        return self._is_open and len(self) > 0 and self.child.wait(0)

    @property
    def num_ready(self) -> int:
        """1 if a message is here: how many wait behind it cannot be seen."""
        return int(self.is_ready)

    def put(self, chunk: Chunk, turn: int) -> None:
        """Ask for a turn of a chunk, which goes with the first one that is asked for."""
        self._check_open()
        self.child.send(Put(self.child.slots.free(), None if chunk is self._sent else chunk, turn))
        self._sent = chunk
        self._under_way += 1

    def take(self, timeout_s: float | None = None) -> Made:
        """Return the batches that were asked for first, or raise their error.

        Raises:
            Late: It did not come in time.
            RuntimeError: The child died.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        message = self._receive(deadline)
        assert isinstance(message, Turn)
        self._under_way -= 1
        group = message.group
        if isinstance(group, SplitBatches):
            num_in_slots = sum(tensor.nbytes >= SMALL_BYTES for tensor in group.whole)
            group.is_copied = self.child.slots.num_leased > num_in_slots * (1 + MAX_KEPT)
        return group if self._pinned is None else list(map(self._pinned, group))

    def _receive(self, deadline: float) -> Begun | Turn:
        """Return the next message; ``Late`` if none came until then."""
        message: Begun | Turn | None = None
        while message is None:
            self._check_open()  # another thread may close this
            message = self.child.receive(deadline)
            if message is None and time.monotonic() >= deadline:
                self.child.is_late = True
                raise Late(self.describe())
        if isinstance(message, Turn):
            self._count_replaced(message.num_replaced)
        return message

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError("this pool was closed, and its child process may serve another one")

    def describe(self) -> str:
        """Make the child write to stderr what each worker is doing: the connection may be in use."""
        if not self._is_open:
            return "this epoch has ended"
        if not self.child.end.alive:
            return f"child process {self.child.pid} has ended"
        os.kill(self.child.pid, signal.SIGUSR1)
        return f"child process {self.child.pid} writes to stderr what its workers do"

    def close(self) -> None:
        """Leave the child to another pool."""
        self._is_open = False


def child_pool(
    child: Child | None,
    maker: Maker,
    epoch: int | None,
    count_replaced: Callable[[int], object] = bool,
    timeout_s: float = 0,
) -> ChildPool:
    """Return a pool over a loader's child, or over a new one where that one cannot be used any more: see ``ChildPool``.

    Raises:
        UnsendableError: It cannot be given the dataset, or what goes with it, or does not find what that needs.
        RuntimeError: It died, or did not begin in time.
    """
    payload = pack(maker)
    if child is None or not child.is_usable:
        if child is not None:
            child.end()
        child = Child(maker)
    try:
        return ChildPool(maker, child, payload, epoch, count_replaced, timeout_s)
    except BaseException:
        child.end()
        raise


def killed_by(number: int) -> str:
    """Name a signal, and what to do about it."""
    names = {each.value: f" ({each.name})" for each in signal.Signals}
    name = f"signal {number}{names.get(number, '')}"
    if number == signal.SIGKILL:
        return f"{name}: if the machine ran out of memory, lower num_workers, prefetch_factor or batch_size"
    if number == signal.SIGBUS:
        return f"{name}: a shard was cut, or its storage failed, while it was read: run 'packdata verify'"
    return name
