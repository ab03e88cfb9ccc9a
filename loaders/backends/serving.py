"""The child's side: makes what the trainer asks for on threads, and sends it.

The worker that completes a batch sends it, and those behind it that are done: a thread that wakes up only for that
would have to fetch its code and data into a cache that the copying of the batch has filled. The main thread listens to
the trainer, and never waits for anything else: so the trainer's requests are always taken.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any

from loaders.backends.maker import Chunk, Raised
from loaders.backends.payload import Unpacker, portable
from loaders.backends.slots import SharedSlots, dump
from loaders.backends.threads import thread_pool
from loaders.dumping import dump_in_child

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from loaders.backends.maker import Made, Maker


class Serving:
    """Does what the trainer asks for.

    Each message to the trainer has the number of a pass, a group of it, and a status: samples that were replaced since
    the last one, groups that are ready, changes of slots. To a change the answer has number 0, and an error or None.
    """

    _pool: Any = None

    def __init__(self, connection: Connection, slots: SharedSlots) -> None:
        self._connection, self._slots = connection, slots
        self._sending = threading.Lock()

    def listen(self) -> None:
        """Do what the trainer asks for, until it closes its end (EOFError)."""
        while True:
            free, kind, *values = pickle.loads(self._connection.recv_bytes())  # noqa: S301  # of our own parent
            self._slots.free(free)
            getattr(self, kind)(*values)

    def change(self, data: bytes) -> None:
        """Switch to a maker, the first one or another; work under way belongs to a pass that was abandoned."""
        if self._pool is not None:
            self._pool.close()
        try:
            self._maker: Maker = Unpacker(io.BytesIO(data)).load()
        except Exception as error:  # a module that only the trainer can import, say
            self._answer(portable(error))
            return
        self._maker.slots = self._slots
        self._num_reported = self._maker.num_replaced  # of replaced samples
        self._chunk, self._turn = Chunk([]), 0  # to be made next
        self._passes: deque[int] = deque()  # of the groups that are not sent yet
        self._pool = thread_pool(self._maker, on_done=self._send_ready)
        dump_in_child(self._pool.describe)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1, signal.SIGUSR2])
        self._answer(None)

    def make(self, number: int, batches: list[Any], is_together: bool) -> None:
        """Make a chunk for a pass: all of it, or the batch of its first turn."""
        self._chunk, self._turn = Chunk(batches, is_together=is_together), 0
        self.next(number)

    def next(self, number: int) -> None:
        """Make what is next of the chunk."""
        self._passes.append(number)
        self._pool.put(self._chunk, self._turn)
        self._turn += 1

    def epoch(self, epoch: int) -> None:
        """Set the epoch of the dataset."""
        if hasattr(self._maker.dataset, "set_epoch"):
            self._maker.dataset.set_epoch(epoch)

    def _answer(self, error: BaseException | None) -> None:
        with self._sending:
            self._connection.send_bytes(dump((0, error, (0, 0, [])), self._slots)[0])

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
        status = num_replaced - self._num_reported, self._pool.num_ready, self._slots.changes()
        self._num_reported, number = num_replaced, self._passes.popleft()
        try:
            data, storages = dump((number, group, status), self._slots)
        except Exception as error:  # something in a batch does not pickle
            raised = [Raised(portable(error))] * len(group)
            data, storages = dump((number, raised, status), self._slots)
        self._slots.hold(storages)
        self._connection.send_bytes(data)
