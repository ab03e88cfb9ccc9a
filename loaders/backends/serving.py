"""The child's side: makes what the trainer asks for on threads, and sends it.

The worker that completes a batch sends it, and those behind it that are done: a thread that wakes up only for that
would have to fetch its code and data into a cache that the copying of the batch has filled. The main thread listens to
the trainer, and never waits for anything else: so the trainer's requests are always taken.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from collections import deque
from socket import socket
from typing import TYPE_CHECKING, Any

from loaders.backends.channel import Channel
from loaders.backends.chunk import Chunk
from loaders.backends.maker import Raised
from loaders.backends.payload import unpack
from loaders.backends.portable import portable
from loaders.backends.slots import SharedSlots, dump
from loaders.backends.threads import thread_pool
from loaders.live import dump_in_child

if TYPE_CHECKING:
    from typing import BinaryIO

    from loaders.backends.maker import Made, Maker

    Status = tuple[int, int, list[tuple[int, int]]]

_NO_STATUS: Status = (0, 0, [])


def serve(payload: BinaryIO, sock: int, slots: int) -> None:
    """Report that the child is up, or why not; then serve until the trainer closes its end (EOFError)."""
    channel, shared = Channel(socket(fileno=sock)), SharedSlots(slots)
    os.close(slots)
    try:
        serving = Serving(unpack(payload.read()), channel, shared)
        payload.close()
    except Exception as error:  # a module that only the trainer can import, say
        channel.send(dump((0, portable(error), _NO_STATUS), shared)[0])
        return
    channel.send(dump((0, None, _NO_STATUS), shared)[0])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1, signal.SIGUSR2])
    serving.listen()


class Serving:
    """Does what the trainer asks for."""

    def __init__(self, maker: Maker, channel: Channel, slots: SharedSlots) -> None:
        self._channel, self._slots = channel, slots
        self._sending = threading.Lock()
        self._begin(maker)

    def _begin(self, maker: Maker) -> None:
        maker.slots, self._maker = self._slots, maker
        self._num_told = maker.num_replaced  # of replaced samples
        self._chunk, self._turn = Chunk([]), 0  # to be made next
        self._passes: deque[int] = deque()  # of the groups that are not sent yet
        self._pool = thread_pool(maker, on_done=self._send_ready)
        dump_in_child(self._pool.describe)

    def listen(self) -> None:
        """Do what the trainer asks for, until it closes its end (EOFError)."""
        while (message := self._channel.receive()) is not None:
            free, kind, *values = pickle.loads(message)  # noqa: S301  # of our own parent
            self._slots.free(free)
            getattr(self, kind)(*values)

    def make(self, number: int, batches: list[Any], is_together: bool) -> None:
        """Make a chunk for a pass: all of it, or the batch of its first turn."""
        self._chunk, self._turn = Chunk(batches, is_together=is_together), 0
        self.next(number)

    def next(self, number: int) -> None:
        """Make what is next of the chunk."""
        self._passes.append(number)
        self._pool.put(self._chunk, self._turn)
        self._turn += 1

    def change(self, data: bytes) -> None:
        """Switch to another maker: work under way belongs to a pass that was abandoned."""
        self._pool.close()
        self._begin(unpack(data))

    def epoch(self, epoch: int) -> None:
        """Set the epoch of the dataset."""
        if hasattr(self._maker.dataset, "set_epoch"):
            self._maker.dataset.set_epoch(epoch)

    def describe(self) -> None:
        """Send what each worker is doing."""
        with self._sending:
            self._channel.send(dump((0, self._pool.describe(), _NO_STATUS), self._slots)[0])
        self._send_ready()  # what was done meanwhile

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
        status = num_replaced - self._num_told, self._pool.num_ready, self._slots.changes()
        self._num_told, number = num_replaced, self._passes.popleft()
        try:
            data, storages = dump((number, group, status), self._slots)
        except Exception as error:  # something in a batch does not pickle
            raised = [Raised(portable(error))] * len(group)
            data, storages = dump((number, raised, status), self._slots)
        self._slots.hold(storages)
        self._channel.send(data)
