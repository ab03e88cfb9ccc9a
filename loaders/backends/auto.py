"""Threads, until the training step turns out to wait for the interpreter; then a child process.

A loop of small operations drops the interpreter's lock at each of them, and beside busy threads waits
to get it back: hundreds of short waits a second, which a step of long operations (or one that waits for
a GPU) does not have. The kernel counts them per thread, as voluntary context switches. If the workers were idle
while the trainer waited, it did not wait for the interpreter; nor if other threads worked, such as those of a GPU.
"""

from __future__ import annotations

import logging
import multiprocessing
import sys
import time
from typing import TYPE_CHECKING

from loaders.backends.subprocess import start_method
from loaders.backends.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.backends.chunk import Chunk
    from loaders.backends.maker import Made, Maker
    from loaders.backends.ordered import Pool

    Usage = tuple[float, ...]  # so far: time, the thread's, that of the workers, and its waits

logger = logging.getLogger(__name__)
_WINDOW_S = 1.0  # of steps, before anything is decided
_WAITS_PER_S = 100
_LOST_SHARE = 0.05
_NOTHING: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
_BUSY_SHARE = 0.5  # of the time lost: whoever holds the interpreter meanwhile works
_MIN_STEP_S = (
    1e-3  # between processes a batch costs tens of microseconds more: a shorter step loses by it
)


def can_fork() -> bool:
    """Tell whether a child process can be started without anything that pickles, or a main module that is guarded."""
    has_counts = sys.platform == "linux"
    is_daemon = multiprocessing.current_process().daemon
    return start_method() == "fork" and has_counts and not is_daemon


class StepWatch:
    """Tells from what the kernel counts whether the trainer's steps wait for the interpreter.

    The owner says when the trainer's thread goes back to its step, and when it comes again.
    """

    def __init__(self) -> None:
        self._left: Usage | None = None
        self._seen, self._num_steps = _NOTHING, 0
        self.is_waiting = self._is_over = False

    def give_up(self) -> None:
        """Decide nothing any more."""
        self.is_waiting, self._is_over = False, True

    def begin(self) -> None:
        """An epoch begins: what came since the last one was no step."""
        self._left = None

    def leave(self, pool: Pool, num_steps: int = 0) -> None:
        """The trainer goes back to its steps, so many of them, beside the threads of a pool."""
        self._left = _usage(pool)
        self._num_steps += num_steps

    def enter(self, pool: Pool) -> None:
        """The step is over; decide, if a second of steps was seen."""
        if self._left is None or self._is_over:
            return
        times = zip(self._seen, _usage(pool), self._left, strict=True)
        self._seen, self._left = tuple(seen + now - left for seen, now, left in times), None
        wall_s, *_ = self._seen
        if wall_s > _WINDOW_S:
            is_long = wall_s > _MIN_STEP_S * self._num_steps
            self.is_waiting = is_long and waits_for_interpreter(*self._seen)
            self._seen, self._num_steps = _NOTHING, 0


def waits_for_interpreter(wall_s: float, cpu_s: float, others_s: float, num_waits: float) -> bool:
    """Judge a stretch of training steps.

    Args:
        wall_s: How long it was.
        cpu_s: Seconds of processor that the trainer's thread took.
        others_s: And the workers.
        num_waits: How often the trainer's thread waited.
    """
    lost_s = wall_s - cpu_s
    is_often = num_waits > _WAITS_PER_S * wall_s
    return is_often and lost_s > _LOST_SHARE * wall_s and others_s > _BUSY_SHARE * lost_s


def _usage(pool: Pool) -> Usage:
    import resource

    usage = resource.getrusage(resource.RUSAGE_THREAD)
    cpu_s = usage.ru_utime + usage.ru_stime
    return time.perf_counter(), cpu_s, getattr(pool, "cpu_s", 0.0), usage.ru_nvcsw


class AutoPool:
    """A pool of threads that becomes a child process when the training step waits for the interpreter.

    Args:
        maker: Makes the batches.
        to_child: Returns the pool of a child process; called once, when it happens.
        watch: What was seen in the epochs before: each may be shorter than it takes to decide.
    """

    def __init__(
        self, maker: Maker, to_child: Callable[[], Pool], watch: StepWatch | None = None
    ) -> None:
        self._maker, self._to_child = maker, to_child
        self._pool: Pool = ThreadPool(maker)
        self._watch = StepWatch() if watch is None else watch
        self._watch.begin()
        self._waiting: list[
            tuple[Chunk, int]
        ] = []  # for the threads to be done, and the child to begin

    def __len__(self) -> int:
        return len(self._waiting) + len(self._pool)

    @property
    def num_ready(self) -> int:
        """How often something could be taken without waiting."""
        return self._pool.num_ready

    @property
    def is_ready(self) -> bool:
        """Whether the oldest could be taken without waiting."""
        return self._pool.is_ready

    @property
    def slot_bytes(self) -> int:
        """Bytes of the pool's own slots."""
        return getattr(self._pool, "slot_bytes", 0)

    def put(self, chunk: Chunk, turn: int) -> None:
        """Begin a turn of a chunk; if it is time, change over first, as soon as the threads are done."""
        self._watch.enter(self._pool)
        is_time = self._watch.is_waiting and isinstance(self._pool, ThreadPool)
        if is_time or self._waiting:
            self._waiting.append((chunk, turn))
            self._change_over()
        else:
            self._pool.put(chunk, turn)
        self._watch.leave(self._pool)

    def _change_over(self) -> None:
        """Fork, once no thread has work: a lock that one holds would stay locked in the child."""
        if len(self._pool):
            return
        self._pool.close()
        logger.info(
            "the training step waits for the interpreter: batches now come from a child process"
        )
        try:
            self._pool = self._to_child()
        except OSError as error:
            # No process or no memory is left for it: nothing is lost, but time.
            logger.warning("no child process can be started (%s): threads go on", error)
            self._watch.give_up()
            self._pool = ThreadPool(self._maker)
        while self._waiting:
            self._pool.put(*self._waiting.pop(0))

    def take(self, timeout_s: float | None = None) -> Made:
        """Return the batches that were put in first, or raise their error."""
        self._watch.enter(self._pool)
        made: Made = []
        try:
            made = self._pool.take(timeout_s)
            return made
        finally:
            if self._waiting:
                self._change_over()
            self._watch.leave(self._pool, len(made))

    def describe(self) -> str:
        """Say what each worker is doing, also while the pool is in use."""
        return self._pool.describe()

    def close(self) -> None:
        """End the workers."""
        self._pool.close()
