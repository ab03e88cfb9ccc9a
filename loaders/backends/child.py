"""What runs in the child process of ``backend="subprocess"``: the same threads, and two pipes.

The main thread takes batches from the workers and sends them; a second one listens to the parent:

- ``("make", freed slots, indices of each batch of a group)``: begin a group.
- ``("describe",)``: say what each worker is doing.
- ``("close",)``, the pipe ends, or the parent is gone: exit at once. The parent closes the pipe to end the child.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import traceback
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from loaders.backends.maker import Raised
from loaders.backends.threads import ThreadPool
from loaders.backends.wire import SharedSlots, dump
from loaders.live import dump_in_child

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from loaders.backends.maker import Maker

_PARENT_POLL_S = 2.0


def main(
    maker: Maker, connection: Connection, fds: socket.socket, parents_ends: list[Any]
) -> None:
    """Serve batches until the parent closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who then ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork has the parent's handler
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    for end in parents_ends:  # inherited by a fork: or the pipe would not end with the parent
        end.close()
    maker.slots = SharedSlots()
    try:
        _Child(maker, connection, fds).run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone
    finally:
        os._exit(0)  # no exit handlers of the parent's libraries, no waiting for threads


class _Child:
    def __init__(self, maker: Maker, connection: Connection, fds: socket.socket) -> None:
        self._maker, self._connection, self._fds = maker, connection, fds
        self._slots: SharedSlots = maker.slots  # type: ignore[assignment]
        self._held: dict[int, Any] = {}
        self._asked: SimpleQueue[None] = SimpleQueue()
        self._send_lock = threading.Lock()
        self._pool = ThreadPool(maker)
        dump_in_child(self._pool.describe)
        self._parent = os.getppid()

    def run(self) -> None:
        threading.Thread(target=self._listen, name="loaders-listen", daemon=True).start()
        while True:
            self._asked.get()
            try:
                group = self._pool.take()
            except BaseException as error:  # whatever it is, it is for the parent to see
                group = [Raised(error)]
            self._send(group)

    def _send(self, group: list[Any]) -> None:
        group = [Raised(_portable(b.error)) if isinstance(b, Raised) else b for b in group]
        given_up = [self._slots.given_up.popleft() for _ in range(len(self._slots.given_up))]
        status = self._maker.num_replaced, self._pool.num_ready, self._slots.nbytes
        try:
            message = dump((group, given_up, status), self._slots)
        except Exception as error:  # something in a batch does not pickle
            group = [Raised(_portable(error))] * len(group)
            message = dump((group, given_up, status), self._slots)
        self._held |= message.leases
        with self._send_lock:
            while self._slots.fds:
                fd = self._slots.fds.popleft()
                socket.send_fds(self._fds, [b"\0"], [fd])
                os.close(fd)
            self._connection.send_bytes(message.data)

    def _listen(self) -> None:
        try:
            while True:
                while not self._connection.poll(_PARENT_POLL_S):
                    if os.getppid() != self._parent:
                        os._exit(0)
                kind, *values = self._connection.recv()
                if kind == "close":
                    os._exit(0)
                if kind == "describe":
                    with self._send_lock:
                        self._connection.send_bytes(pickle.dumps(self._pool.describe()))
                else:
                    self._make(*values)
        except (EOFError, OSError):
            os._exit(0)
        except BaseException:  # or the parent would wait for us
            traceback.print_exc()
            os._exit(1)

    def _make(self, freed: list[int], group: list[Any]) -> None:
        for number in freed:
            self._held.pop(number, None)
        self._pool.put(group)
        self._asked.put(None)


def _portable(error: BaseException) -> BaseException:
    """Return an error that survives the way: with its traceback as text, and of a plain type if need be."""
    trace = "".join(traceback.format_exception(error))
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301  # what we made ourselves a line ago
        if type(copy) is not type(error):
            raise TypeError
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.__notes__ = [*getattr(error, "__notes__", []), f"In the loader's child process:\n{trace}"]
    return copy  # type: ignore[no-any-return]
