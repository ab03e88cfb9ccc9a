"""Batches on their way to a device: copied ahead of the trainer, beside its work.

1. Copies run on a stream of their own. A batch is copied ahead of being asked for only if the host
   has it ready: the trainer never waits for a batch that it has not asked for yet. At most
   ``ahead`` batches lie on the device so; ``device_bytes`` is what they take.
2. An event is recorded behind the copies of each batch. When it is handed over, the trainer's
   current stream waits for the event; the trainer itself does not.
3. The host batch is held until its event has happened; then its slots go back to their pools.
   Events are asked whenever a batch is, and waited for only when ``ahead + 1`` host batches are
   held already: so many slots may be out, and no more.
4. The order is the source's. An error that is met ahead is kept and raised in its turn, after the
   batches before it; so is the end. What comes after an error is the source's to say.
5. Normal end, early close, a dropped iterator: batches ahead are forgotten, and host batches are
   let go only after the copies that read them. This waits for copies, never for the trainer's
   work. ``close`` may be called twice.
6. Interrupts (whatever is no ``Exception``) go through at once; 5 follows.
7. Only the trainer's thread is here. Without copies in the background (the CPU, or a device
   without streams) the same code runs one batch at a time, and holds nothing.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loaders.device.nested import map_tensors, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from loaders.device.accelerator import Accelerator


class Prefetcher:
    """Yields what a source yields, with every tensor on the device."""

    def __init__(
        self,
        source: Iterator[Any],  # yields batches in host memory, of any nesting
        accelerator: Accelerator,  # copies them
        *,
        ahead: int,  # how many batches may lie on the device before they are asked for
        is_ready: Callable[[], bool],  # tells whether the source has its next batch now
    ) -> None:
        self._source, self._is_ready = source, is_ready
        self._accelerator: Any = accelerator  # one that copies ahead has events
        self._ahead = ahead if accelerator.is_ahead else 0
        self._queue: deque[_Copied | Exception] = deque()  # an error in its place, or the end
        self._held = _Held(self._ahead + 1)
        self._release = weakref.finalize(self, self._held.clear)

    def __iter__(self) -> Prefetcher:
        return self

    def __next__(self) -> Any:
        self._held.sweep()
        if not self._queue:
            self._queue.append(self._fetch())
        first = self._queue.popleft()
        if isinstance(first, Exception):
            try:
                raise first
            finally:
                del first  # its traceback holds this frame: the two would keep the workers alive
        self._fetch_ready()
        if first.event is not None:
            self._accelerator.wait(first.event, tensors_of(first.batch))
        return first.batch

    @property
    def num_waiting(self) -> int:
        """Batches, and errors of batches, that were taken from the source and not handed over."""
        last = self._queue[-1] if self._queue else None
        return len(self._queue) - isinstance(last, StopIteration)

    @property
    def device_bytes(self) -> int:
        """Bytes of the batches that lie on the device and were not handed over yet."""
        return sum(item.nbytes for item in self._queue if isinstance(item, _Copied))

    def close(self) -> None:
        """Forget what was copied ahead, and let the host batches go."""
        self._queue.clear()
        self._held.clear()

    def _fetch_ready(self) -> None:
        while len(self._queue) < self._ahead and self._is_ready():
            item = self._fetch()
            self._queue.append(item)
            if isinstance(item, Exception):
                item.__traceback__ = _of_others(item.__traceback__)
                return

    def _fetch(self) -> _Copied | Exception:
        try:
            return self._copy(next(self._source))
        except Exception as error:  # whatever it is, the end included: it waits for its turn
            return error

    def _copy(self, batch: Any) -> _Copied:
        if not self._accelerator.is_ahead:
            return _Copied(map_tensors(batch, self._accelerator.copy), None, 0)
        self._held.make_room()
        with self._accelerator.copying():
            copied = map_tensors(batch, self._accelerator.copy)
        event = self._accelerator.record()
        self._held.batches.append((event, batch))
        return _Copied(copied, event, sum(tensor.nbytes for tensor in tensors_of(copied)))


@dataclass(slots=True)
class _Copied:
    """A batch on the device, or nearly."""

    batch: Any
    event: Any
    nbytes: int


def _of_others(behind: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that comes from another thread.

    Frames of this thread hold the iterator: the workers would live until the garbage is collected.
    """
    while behind is not None and behind.tb_next is not None:
        inner = behind.tb_next.tb_frame  # the same one again where an error was raised anew
        if inner is not behind.tb_frame and inner.f_back is not behind.tb_frame:
            return behind.tb_next
        behind = behind.tb_next
    return None


class _Held:
    """Host batches that copies read, oldest first, each with the event behind its copies."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.batches: deque[tuple[Any, Any]] = deque()

    def sweep(self) -> None:
        """Let go of those whose copies are done."""
        while self.batches and self.batches[0][0].query():
            self.batches.popleft()

    def make_room(self) -> None:
        """Wait for the oldest copies if too many batches are held."""
        self.sweep()
        while len(self.batches) >= self._limit:
            self.batches[0][0].synchronize()
            self.batches.popleft()

    def clear(self) -> None:
        """Wait for all copies, and let go."""
        while self.batches:
            with suppress(RuntimeError):  # of a broken device: then nothing is read any more
                self.batches[0][0].synchronize()
            self.batches.popleft()
