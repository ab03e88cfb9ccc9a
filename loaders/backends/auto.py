"""Threads, until the training step turns out to wait for the GIL; then a child process.

A loop of small operations releases the GIL at each of them, and beside busy threads waits
to get it back: hundreds of short waits a second, which a step of long operations (or one that waits for
a GPU) does not have. The kernel counts them per thread, as voluntary context switches. If the workers were idle
while the trainer waited, it did not wait for the GIL; nor if other threads worked, such as those of a GPU. Steps
that a device is still at work on when they ask for the next batch do not count: what the trainer lost, the device
did not.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from threading import Thread
from typing import TYPE_CHECKING

from loaders.backends.threads import thread_pool
from loaders.errors import UnsendableError
from loaders.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.backends.chunk import Chunk
    from loaders.backends.maker import Made, Maker
    from loaders.backends.ordered import Pool
    from loaders.backends.payload import Payload
    from loaders.backends.subprocess import Child
    from loaders.device.accelerator import Accelerator

    Usage = tuple[float, ...]  # so far: time, the thread's, that of the workers, and its waits

logger = logging.getLogger(__name__)
_WINDOW_S = 1.0  # of steps, before anything is decided
_WAITS_PER_S = 100
_LOST_SHARE = 0.05
_NOTHING: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
_BUSY_SHARE = 0.5  # of the time lost: the thread that holds the GIL meanwhile works
# Between processes a batch costs tens of microseconds more: a shorter step loses by it.
_MIN_STEP_S = 1e-3


def can_watch() -> bool:
    """Tell whether the kernel counts what ``StepWatch`` reads, and a child process can be started."""
    return sys.platform == "linux"


class StepWatch:
    """Tells from what the kernel counts whether the trainer's steps wait for the interpreter."""

    def __init__(self, accelerator: Accelerator | None = None) -> None:
        self._accelerator = accelerator
        self._left: Usage | None = None
        self._seen, self._num_steps = _NOTHING, 0
        self.is_waiting = self._is_over = False
        self.lost_share = 0.0  # of the steps' time

    def give_up(self) -> None:
        """Decide nothing any more."""
        self.is_waiting, self._is_over = False, True

    def begin(self) -> None:
        """Begin an epoch: the time since the last one is no step's."""
        self._left = None

    def leave(self, pool: Pool, num_steps: int = 0) -> None:
        """The trainer returns to its loop for this many steps, while the threads of a pool work."""
        self._left = _usage(pool)
        self._num_steps += num_steps

    def enter(self, pool: Pool) -> None:
        """The step is over; decide once a second of steps was seen."""
        if self._left is None or self._is_over:
            return
        if self._accelerator is not None and self._accelerator.is_busy():
            self._left = None
            return
        times = zip(self._seen, _usage(pool), self._left, strict=True)
        self._seen, self._left = tuple(seen + now - left for seen, now, left in times), None
        wall_s, cpu_s, *_ = self._seen
        if wall_s > _WINDOW_S:
            is_long = wall_s > _MIN_STEP_S * self._num_steps
            self.is_waiting = is_long and waits_for_interpreter(*self._seen)
            self.lost_share = 1 - cpu_s / wall_s
            self._is_over = self.is_waiting
            self._seen, self._num_steps = _NOTHING, 0


def waits_for_interpreter(wall_s: float, cpu_s: float, others_s: float, num_waits: float) -> bool:
    """Judge a stretch of steps, by CPU time (the trainer's and the workers') and how often the trainer waited."""
    lost_s = wall_s - cpu_s
    is_often = num_waits > _WAITS_PER_S * wall_s
    return is_often and lost_s > _LOST_SHARE * wall_s and others_s > _BUSY_SHARE * lost_s


def _usage(pool: Pool) -> Usage:
    import resource

    usage = resource.getrusage(resource.RUSAGE_THREAD)
    cpu_s = usage.ru_utime + usage.ru_stime
    return time.perf_counter(), cpu_s, getattr(pool, "cpu_s", 0.0), usage.ru_nvcsw


class Successor:
    """The child process that a loader of threads goes over to: started once its steps wait, in use once it is up.

    What it gets is put together beside the steps: it may be a copy of all that memory holds. It is not started where
    it would run code of the user, which may keep something from batch to batch; that is logged.
    """

    def __init__(self, watch: StepWatch) -> None:
        self.watch, self._pid = watch, os.getpid()
        # Where a thread leaves what a child gets, once it has begun.
        self._packed: list[Payload | Exception] | None = None
        self._child: Child | None = None

    def look(self, maker: Maker) -> Child | None:
        """Return the child once it is up; start it when it is time."""
        if not self.watch.is_waiting or os.getpid() != self._pid:  # a fork has no part in it
            return None
        try:
            if self._child is None:
                self._child = self._start(maker)
            elif self._child.has_message:
                self._child.receive()
        except UnsendableError as error:
            self._give_up(f"backend='subprocess' would avoid that, but {error}")
        except Exception as error:  # no process is left, say, or what data raise when pickled
            self._give_up(f"no child process can be started, so threads continue: {error}")
        child = self._child
        return child if child is not None and child.is_up else None

    def _start(self, maker: Maker) -> Child | None:
        # What only Linux has is not loaded elsewhere.
        from loaders.backends.subprocess import Child

        if self._packed is None:
            self._packed = []
            Thread(target=_pack, args=(maker, self._packed), daemon=True).start()
        if not self._packed:
            return None
        made = self._packed.pop()
        if isinstance(made, Exception):
            try:
                raise made
            finally:
                del made  # its traceback holds this frame: the two would keep the loader, and all its data
        if not made.user_code:
            return Child(maker, made)
        names = ", ".join(made.user_code)
        what = "backend='subprocess' would avoid that, but is not chosen automatically"
        self._give_up(f"{what}: the loader runs code of yours ({names})")
        return None

    def _give_up(self, why: str) -> None:
        self._child = None
        self.watch.give_up()
        lost = f"{self.watch.lost_share:.0%} of the time of training steps was spent waiting"
        logger.warning("%s for the GIL beside the loader's threads; %s", lost, why)


def _pack(maker: Maker, packed: list[Payload | Exception]) -> None:
    """Put what a child gets, or why it cannot be had, into a list: without a lock, which a fork might find taken."""
    from loaders.backends.payload import pack

    try:
        packed.append(pack(maker))
    except Exception as error:
        packed.append(error)


class AutoPool:
    """A pool of threads that becomes a child process when the training step waits for the GIL.

    The successor is the loader's: an epoch may be shorter than it takes to decide and to start. ``to_pool`` returns
    the pool of a child that is up.
    """

    def __init__(
        self, maker: Maker, successor: Successor, to_pool: Callable[[Child], Pool]
    ) -> None:
        self._maker, self._successor, self._to_pool = maker, successor, to_pool
        self._pool: Pool = thread_pool(maker)
        self._watch = successor.watch
        self._watch.begin()
        self._child: Child | None = None
        self._waiting: list[tuple[Chunk, int]] = []  # for the threads to be done

    def __len__(self) -> int:
        return len(self._waiting) + len(self._pool)

    @property
    def num_ready(self) -> int:
        return self._pool.num_ready

    @property
    def is_ready(self) -> bool:
        return self._pool.is_ready

    @property
    def slot_bytes(self) -> int:
        """Bytes of the pool's own slots."""
        return getattr(self._pool, "slot_bytes", 0)

    def put(self, chunk: Chunk, turn: int) -> None:
        """Begin a turn of a chunk: on the threads, or in the child once it is up and the threads have finished."""
        self._watch.enter(self._pool)
        if self._child is None:
            self._child = self._successor.look(self._maker)
        if self._child is not None and isinstance(self._pool, Workers):
            self._waiting.append((chunk, turn))
            self._change_over(self._child)
        else:
            self._pool.put(chunk, turn)
        self._watch.leave(self._pool)

    def _change_over(self, child: Child) -> None:
        if len(self._pool):
            return
        self._pool.close()
        logger.info("the training step waits for the GIL: batches come from a child process now")
        self._pool = self._to_pool(child)
        while self._waiting:
            self._pool.put(*self._waiting.pop(0))

    def take(self, timeout_s: float | None = None) -> Made:
        self._watch.enter(self._pool)
        made: Made = []
        try:
            made = self._pool.take(timeout_s)
            return made
        finally:
            if self._waiting and self._child is not None:
                self._change_over(self._child)
            self._watch.leave(self._pool, len(made))

    def describe(self) -> str:
        return self._pool.describe()

    def close(self) -> None:
        self._pool.close()
