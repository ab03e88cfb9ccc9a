"""Ordered work on threads: many threads do jobs in parts, and hand them over in the order they came.

Contract:

1. *Normal end.* The owner puts jobs in and takes their results out, in the same order, from one
   thread. A job's parts run on any worker; the thread that runs the last of them also finishes the job. How
   many jobs are in flight is the owner's choice, so memory does not depend on the number of threads.
2. *Failure.* The first error of a job ends it (parts not yet begun are skipped); ``take`` raises that
   error when the job's turn comes. Other jobs are not touched. A worker survives any error of a job; one of
   ``prepare``, or between jobs, ends the pool: ``take`` raises it.
3. *Early close.* ``close`` may be called at any time, more than once, from any thread: parts not yet
   begun are dropped, running ones end, threads are joined (for up to 30 s; a part that never ends is
   logged, and ends with the process). It happens when the pool is dropped, too, and at interpreter
   exit. ``put`` and ``take`` on a closed pool raise, also in an owner that is waiting; in a forked
   child, where the threads do not exist, too.
4. *Prefetch.* One more thread, that begins with the first job that has something to prefetch, lets
   jobs do so in the order they came. No worker waits for it, nor for what storage reads: what did not come
   is waited for by the part that needs it, and what failed is its error.

Workers hold no reference to their pool, only to its queues; that is why dropping the pool can end them. Closing puts
None into each queue, which a worker passes on to the next one.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)
_JOIN_TIMEOUT_S = 30.0


class Late(TimeoutError):
    """A result did not come in time; what a job raises itself is none, also a ``TimeoutError``."""


class Job(Protocol):
    """A piece of work that splits into independent parts."""

    @property
    def num_parts(self) -> int:
        """How many calls of ``run`` it takes, at least one."""

    @property
    def needs_prefetch(self) -> bool:
        """Whether its parts will need something that storage was not asked for yet."""

    def prefetch(self) -> None:
        """Ask storage, without waiting for it.

        A thread of the pool's own does so, that bytes come while earlier jobs are done: their workers may be waiting
        for storage themselves. What fails there is raised by the part that needs it.
        """

    def run(self, part: int) -> None:
        """Do one part; may run at the same time as the others."""

    def finish(self) -> Any:
        """Return the result, after all parts ran."""

    def describe(self, part: int) -> str:
        """Say in a few words what a part does, for stall reports."""


def complete(job: Job) -> Any:
    """Run all parts of a job on this thread, and return its result."""
    for part in range(job.num_parts):
        job.run(part)
    return job.finish()


class _Ticket:
    """A job on its way: who has to finish it, and how it ended."""

    __slots__ = ("__weakref__", "done", "error", "job", "lock", "remaining", "result")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.lock = threading.Lock()
        self.remaining = job.num_parts
        if self.remaining < 1:
            raise ValueError(f"a job has at least one part, got {self.remaining}")
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False

    def run(self, part: int) -> bool:
        """Run one part; return True if it was the last and the job is now done."""
        if self.error is None:
            try:
                self.job.run(part)
            except BaseException as error:  # whatever it is: a worker that dies silently is a hang
                self._fail(error)
        with self.lock:
            self.remaining -= 1
            if self.remaining:
                return False
        self._finish()
        return True

    def _fail(self, error: BaseException) -> None:
        with self.lock:
            if self.error is None:
                self.error = error

    def _finish(self) -> None:
        if self.error is None:
            try:
                self.result = self.job.finish()
            except BaseException as error:
                self._fail(error)
        self.done = True

    def outcome(self) -> Any:
        """Return the result, or raise the error, and keep neither."""
        error, self.error = self.error, None
        if error is None:
            result, self.result = self.result, None
            return result
        try:
            raise error
        finally:
            del error  # its traceback holds this frame: the two would keep the batch alive


_here = threading.local()  # of a worker: ``running``, what the threads of its pool are doing


def is_worker() -> bool:
    """Tell whether this thread is a worker of a pool."""
    return hasattr(_here, "running")


def begin_step() -> None:
    """Count the seconds of a description anew, for the part that this thread runs: another sample, say."""
    running: dict[int, Any] = getattr(_here, "running", {})
    me = threading.get_ident()
    if me in running:
        ticket, part, _ = running[me]
        running[me] = (ticket, part, time.monotonic())


class _Shared:
    """What the threads of a pool share; it holds no reference to the pool."""

    def __init__(self) -> None:
        self.is_open = True
        self.tasks: SimpleQueue[tuple[_Ticket, int] | None] = SimpleQueue()
        # Weak: what is late keeps no batch alive.
        self.prefetches: SimpleQueue[weakref.ref[_Ticket] | None] = SimpleQueue()
        self.finished: SimpleQueue[None] = SimpleQueue()
        # By thread; of prefetching, no part.
        self.running: dict[int, tuple[_Ticket, int | None, float]] = {}
        self.cpu_s: dict[int, float] = {}  # by thread
        self.failed: list[BaseException] = []  # what ended a thread
        self.threads: list[threading.Thread] = []

    def start(self, name: str, work: Callable[..., None], *args: Any) -> None:
        """Start one more thread."""
        thread = threading.Thread(target=work, args=(self, *args), name=name, daemon=True)
        thread.start()
        self.threads.append(thread)


def _work(shared: _Shared, prepare: Callable[[], None], on_done: Callable[[], None]) -> None:
    try:
        prepare()
        running = _here.running = shared.running
        me = threading.get_ident()
        while shared.is_open:
            task = shared.tasks.get()
            if task is None:
                break
            ticket, part = task
            running[me] = (ticket, part, time.monotonic())
            last = ticket.run(part)
            del running[me], ticket, task  # an idle worker keeps no batch alive
            shared.cpu_s[me] = time.thread_time()
            if last:
                shared.finished.put(None)
                on_done()
    except BaseException as error:
        # As where gevent replaced what is called: the owner must not wait.
        shared.failed.append(error)
        shared.finished.put(None)
    shared.tasks.put(None)  # for the next one


def _prefetch(shared: _Shared) -> None:
    me = threading.get_ident()
    while shared.is_open:
        reference = shared.prefetches.get()
        ticket = None if reference is None else reference()
        if ticket is not None and ticket.job.needs_prefetch:  # no worker was faster
            shared.running[me] = (ticket, None, time.monotonic())
            with suppress(BaseException):
                ticket.job.prefetch()
            del shared.running[me]
        del ticket  # as above


class Workers:
    """A pool of threads that does jobs in order."""

    def __init__(
        self,
        num_workers: int,  # number of threads, at least one
        *,
        job: Callable[..., Job] = lambda job: job,  # makes one of what ``put`` is given
        # Called once on each thread before its first part.
        prepare: Callable[[], None] = lambda: None,
        # Called after each job by the thread that did its last part; may take what is ready, if it sees to it that
        # one thread at a time does. It must not raise.
        on_done: Callable[[], None] = lambda: None,
        name: str = "loaders",  # prefix of the threads' names
    ) -> None:
        if num_workers < 1:
            raise ValueError(f"num_workers must be at least 1, got {num_workers}")
        self.num_workers, self._job, self._name = num_workers, job, name
        self._pid = os.getpid()
        self._tickets: deque[_Ticket] = deque()
        self._shared = _Shared()
        self._close = weakref.finalize(self, _close, self._shared)
        try:
            for i in range(num_workers):
                self._shared.start(f"{name}-{i}", _work, prepare, on_done)
        except BaseException:  # its traceback keeps this pool, and with it those that began
            self.close()
            raise

    def __len__(self) -> int:
        """Return how many jobs were put in and not yet taken out."""
        return len(self._tickets)

    @property
    def num_ready(self) -> int:
        """Jobs that could be taken without waiting."""
        return sum(ticket.done for ticket in tuple(self._tickets))

    @property
    def is_ready(self) -> bool:
        """Whether the oldest job is done: ``take`` would not wait. Not once the pool closes, which drops its jobs."""
        try:
            return self._close.alive and self._tickets[0].done
        except IndexError:  # there is none
            return False

    @property
    def cpu_s(self) -> float:
        """Seconds of processor that the threads took for the parts they have done."""
        return sum(tuple(self._shared.cpu_s.values()))

    def put(self, *asked: Any) -> None:
        """Begin a job: the one given, or what ``job`` of ``__init__`` makes of the arguments."""
        self._check_open()
        ticket = _Ticket(self._job(*asked))
        self._tickets.append(ticket)
        if ticket.job.needs_prefetch:  # many datasets have nothing to, and no such thread
            if len(self._shared.threads) == self.num_workers:
                self._shared.start(f"{self._name}-prefetch", _prefetch)
            self._shared.prefetches.put(weakref.ref(ticket))
        for part in range(ticket.remaining):
            self._shared.tasks.put((ticket, part))

    def take(self, timeout_s: float | None = None) -> Any:
        """Return the result of the oldest job, waiting for it.

        Raises:
            Late: It was not done in time; it can be taken later.
            RuntimeError: The pool is closed, or a thread ended early.
            IndexError: No job is left.
        """
        self._check_open()
        if not self._tickets:
            raise IndexError("there is no job to take")
        ticket = self._tickets[0]
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not ticket.done:
            self._wait(deadline)
            self._check_open()
        self._tickets.popleft()
        # Drain the done queue so that it does not grow.
        if not self._shared.finished.empty():
            with suppress(Empty):
                self._shared.finished.get_nowait()
        return ticket.outcome()

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("these workers are threads of the parent of this forked process")
        if not self._close.alive:
            raise RuntimeError("this pool of workers is closed")
        if self._shared.failed:
            raise RuntimeError("a worker thread ended early") from self._shared.failed[0]

    def _wait(self, deadline: float) -> None:
        """Wait until some job is done, the pool is closed or the deadline passes."""
        left = min(5.0, deadline - time.monotonic())
        try:
            self._shared.finished.get(timeout=max(0.0, left))
        except Empty:
            if time.monotonic() >= deadline:
                raise Late(self.describe()) from None

    def describe(self) -> str:
        """Say what each thread is doing and for how long."""
        now = time.monotonic()
        lines = [
            ("prefetching for " if part is None else "")
            + f"{ticket.job.describe(part or 0)} for {now - since:.1f} s"
            for ticket, part, since in list(self._shared.running.values())
        ]
        return "; ".join(lines) or "no worker is running"

    def close(self) -> None:
        """Drop what has not begun, wait for what has, and end the threads."""
        self._close()
        self._tickets.clear()


def _close(shared: _Shared) -> None:
    shared.is_open = False
    for queue in (shared.tasks, shared.prefetches, shared.finished):
        with suppress(Empty):
            while True:
                queue.get_nowait()
        queue.put(None)  # wakes the threads, and an owner that waits
    if threading.current_thread() in shared.threads:
        return  # garbage is collected in the middle of a job: the others may wait for a lock that this one holds
    deadline = time.monotonic() + _JOIN_TIMEOUT_S
    for thread in shared.threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    stuck = [t.name for t in shared.threads if t.is_alive() and t.ident in shared.running]
    if stuck and time.monotonic() >= deadline:
        logger.warning("%s did not end within %.0f s", ", ".join(stuck), _JOIN_TIMEOUT_S)
