"""The child's side: makes what the trainer asks for on threads, and sends it.

The worker that completes a batch sends it, and those behind it that are done: a thread that wakes up only for that
would have to fetch its code and data into a cache that the copying of the batch has filled. The main thread listens to
the trainer, and waits for nothing else but the end of a pass that was left: so the trainer's requests are always taken.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from typing import TYPE_CHECKING, Any

from loaders.backends.maker import Raised
from loaders.backends.messages import Begin, Begun, Turn, from_plain, to_plain
from loaders.backends.payload import portable
from loaders.backends.threads import thread_pool
from loaders.dumping import dump_in_child

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from loaders.backends.maker import Chunk, Made, Maker
    from loaders.backends.messages import Put
    from loaders.backends.slots import SharedSlots


class Serving:
    """Does what the trainer asks for."""

    _pool: Any = None
    _maker: Maker
    _chunk: Chunk  # which turns are asked for
    _num_reported = 0  # of replaced samples

    def __init__(self, connection: Connection, slots: SharedSlots) -> None:
        self._connection, self._slots = connection, slots
        self._sending = threading.Lock()

    def listen(self) -> None:
        """Do what the trainer asks for, until it closes its end (EOFError)."""
        while True:
            message = from_plain(pickle.loads(self._connection.recv_bytes()))  # noqa: S301  # of our own parent
            if isinstance(message, Begin):
                begun = Begun(self._begin(message))
                with self._sending:
                    self._connection.send_bytes(self._slots.dump(to_plain(begun)))
            else:
                self._put(message)

    def _begin(self, asked: Begin) -> BaseException | None:
        """Begin a pass; return what was wrong with its maker."""
        payload, epoch = asked
        is_new = self._pool is None or payload is not None or len(self._pool) > 0
        if is_new and self._pool is not None:
            self._pool.close()
        if payload is not None:
            try:
                self._maker = pickle.loads(payload)  # noqa: S301  # likewise
            except Exception as error:  # a module that only the trainer can import, say
                return portable(error)
            self._maker.slots, self._num_reported = self._slots, self._maker.num_replaced
        if epoch is not None and hasattr(self._maker.dataset, "set_epoch"):
            self._maker.dataset.set_epoch(epoch)
        if is_new:
            self._pool = thread_pool(self._maker, on_done=self._send_ready)
            dump_in_child(self._pool.describe)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1, signal.SIGUSR2])
        return None

    def _put(self, message: Put) -> None:
        self._slots.free(message.free)
        self._chunk = message.chunk or self._chunk
        self._pool.put(self._chunk, message.turn)

    def _send_ready(self) -> None:
        """Send the groups that are done, unless another thread is sending them already."""
        while self._pool.is_ready and self._sending.acquire(blocking=False):
            try:
                if self._pool.is_ready:
                    self._send(self._take())  # no name here: it would keep the slots of a group
            except ConnectionError:
                os._exit(0)  # the trainer is gone
            except BaseException:  # or the trainer would wait for us
                traceback.print_exc()
                os._exit(1)
            finally:
                self._sending.release()

    def _take(self) -> Made:
        try:
            made: Made = self._pool.take()
            return made
        except BaseException as error:  # whatever it is, it is for the trainer to see
            return [Raised(error)]

    def _send(self, group: Made) -> None:
        if isinstance(group, list):
            group = [Raised(portable(b.error)) if isinstance(b, Raised) else b for b in group]
        num_replaced = self._maker.num_replaced
        turn = Turn(group, num_replaced - self._num_reported, self._slots.changes())
        self._num_reported = num_replaced
        try:
            data = self._slots.dump(to_plain(turn))
        except Exception as error:  # something in a batch does not pickle
            raised = [Raised(portable(error))] * len(group)
            data = self._slots.dump(to_plain(turn._replace(group=raised)))
        self._connection.send_bytes(data)
