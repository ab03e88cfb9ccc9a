"""What runs in the child process of ``backend="subprocess"``: the same threads, and a socket.

The worker that completes a batch sends it, and those behind it that are done: a thread that wakes up only for that
would have to fetch its code and data into a cache that the copying of the batch has filled. The main thread listens
to the parent. Where workers fill all cores, whoever is woken takes one away from them, and from the trainer that wakes
him: there one worker that has nothing else to do listens, and the main thread only while all are busy.
It ends when the parent says so, closes its end or is gone.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import traceback
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from loaders.backends.asking import asked
from loaders.backends.channel import Channel
from loaders.backends.chunk import Chunk
from loaders.backends.forms import MessageWriter
from loaders.backends.maker import Raised
from loaders.backends.portable import portable
from loaders.backends.threads import ThreadPool
from loaders.backends.wire import SharedSlots, let_go_of_inherited
from loaders.live import dump_in_child

if TYPE_CHECKING:
    import socket

    from loaders.backends.maker import Made, Maker
    from loaders.backends.wire import Message

_PARENT_POLL_S = 2.0
_BUSY_POLL_S = 0.1  # how often the main thread looks for messages while all workers are busy


def main(
    maker: Maker,
    end: socket.socket,
    parents_end: socket.socket | None,
    begun: socket.socket,
    *,
    is_full: bool,
) -> None:
    """Serve batches until the parent closes its end.

    Args:
        maker: Makes them.
        end: Of the socket.
        parents_end: The other one, which a fork inherits.
        begun: A byte in it says that SIGUSR1 may come.
        is_full: Whether the workers fill all cores.
    """
    _leave_signals_to_parent()
    let_go_of_inherited()
    if parents_end is not None:  # inherited by a fork: or the socket would not end with the parent
        parents_end.close()
    maker.slots = SharedSlots()
    code = 0
    try:
        serving = _Child(maker, Channel(end, _PARENT_POLL_S), is_full=is_full)
        begun.send(b"1")
        begun.close()
        serving.listen()
    except (EOFError, ConnectionError):
        pass  # the parent is gone
    except BaseException:  # or the parent would wait for us
        traceback.print_exc()
        code = 1
    finally:
        with suppress(Exception):  # what was printed by transforms
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # no exit handlers of the parent's libraries, no waiting for threads


def _leave_signals_to_parent() -> None:
    """Ignore what the parent has a handler for, as a fork does, too; Ctrl-C is for the parent, who then ends us."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


class _Child:
    def __init__(self, maker: Maker, channel: Channel, *, is_full: bool) -> None:
        self._maker, self._channel = maker, channel
        self._slots: SharedSlots = maker.slots  # type: ignore[assignment]
        self._messages = MessageWriter(self._slots)
        self._sending, self._listening = threading.Lock(), threading.Lock()
        self._is_over = False
        self._gone = select.poll()  # ends with the parent's end of the socket
        self._gone.register(channel.socket, 0)
        self._chunk, self._turn = Chunk([]), 0  # to be made next
        self._passes: deque[int] = deque()  # of the groups that are not sent yet
        self._num_told = maker.num_replaced  # of replaced samples
        self._is_full = is_full
        calls = {"on_done": self._send_ready, **({"on_idle": self._look} if is_full else {})}
        with self._listening:  # nobody else before the pool is there
            self._pool = ThreadPool(maker, **calls)
        dump_in_child(self._pool.describe)

    def listen(self) -> None:
        """Do what the parent asks for, until it asks for no more; of full cores, only while all workers are busy."""
        parent = os.getppid()
        while not self._is_over and os.getppid() == parent:
            if self._listening.acquire(blocking=not self._is_full):
                try:
                    self._hear(now=self._is_full)
                finally:
                    self._leave_listening()
            if self._is_full:
                self._gone.poll(1000 * _BUSY_POLL_S)

    def _look(self) -> None:
        """Do what the parent asks for, on a worker that has nothing to do, until something is; one at a time."""
        if not self._listening.acquire(blocking=False):
            return
        try:
            while not self._is_over and not self._pool.num_queued:
                self._hear()
        except BaseException:  # or the parent would wait for us
            traceback.print_exc()
            os._exit(1)
        finally:
            self._leave_listening()

    def _leave_listening(self) -> None:
        """Let a worker listen that has nothing to do, and perhaps tried to just now."""
        self._listening.release()
        if self._is_full and self._pool.num_idle:
            self._pool.wake_one()

    def _hear(self, *, now: bool = False) -> None:
        """Wait for a message, and do what it asks for."""
        try:
            message = self._channel.receive(now=now)
        except (EOFError, ConnectionError):
            self._is_over = True  # the parent is gone
        else:
            if message is not None:
                self._do(*asked(message))

    def _do(self, kind: str, *values: Any) -> None:
        if kind == "close":
            self._is_over = True
        elif kind == "describe":
            self._describe()
        elif kind == "epoch":
            self._set_epoch(*values)
        else:
            self._make(kind, *values)

    def _make(self, kind: str, number: int, batches: list[Any]) -> None:
        self._passes.append(number)
        if kind != "next":
            self._chunk, self._turn = Chunk(batches, is_together=kind == "make"), 0
        self._pool.put(self._chunk, self._turn)
        self._turn += 1

    def _set_epoch(self, epoch: int) -> None:
        if hasattr(self._maker.dataset, "set_epoch"):
            self._maker.dataset.set_epoch(epoch)

    def _describe(self) -> None:
        with self._sending:
            self._post(self._messages.write(self._pool.describe()))
        self._send_ready()  # what was done meanwhile

    def _send_ready(self) -> None:
        """Send the groups that are done; if another thread is about it, leave it to that one."""
        while self._pool.is_ready and self._sending.acquire(blocking=False):
            try:
                if self._pool.is_ready:
                    self._send(self._take())  # no name here: it would keep the slots of a group
            except ConnectionError:
                os._exit(0)  # the parent is gone
            except BaseException:  # or the parent would wait for us
                traceback.print_exc()
                os._exit(1)
            finally:
                self._sending.release()

    def _take(self) -> Made:
        try:
            return self._pool.take()
        except BaseException as error:  # whatever it is, it is for the parent to see
            return [Raised(error)]

    def _send(self, group: Made) -> None:
        if isinstance(group, list):
            group = [Raised(portable(b.error)) if isinstance(b, Raised) else b for b in group]
        num_replaced = self._maker.num_replaced
        status = num_replaced - self._num_told, self._pool.num_ready
        self._num_told, number = num_replaced, self._passes.popleft()
        try:
            message = self._messages.write(group, number, status)
        except Exception as error:  # something in a batch does not pickle
            group = [Raised(portable(error))] * len(group)
            message = self._messages.write(group, number, status)
        self._post(message)

    def _post(self, message: Message) -> None:
        self._slots.hold(message.leases)
        fds = [self._slots.fds.popleft() for _ in range(len(self._slots.fds))]
        self._channel.send(message.data, fds)
        for fd in fds:
            os.close(fd)
