"""Ordered work on threads: jobs are done in parts by many threads, and handed over in the order they were put in.

Contract:

1. *Normal end.* The owner puts jobs in and takes their results out, in the same order, from one thread. A job's parts
   run on any worker; whoever runs the last of them also finishes the job. How many jobs are in flight is the owner's
   choice, so memory does not depend on the number of threads.
2. *Failure.* The first error of a job ends it (parts not yet begun are skipped); ``take`` raises that error when the
   job's turn comes. Other jobs are not touched. A worker survives any error: it is an item like the others.
3. *Early close.* ``close`` may be called at any time, more than once, from any thread: parts not yet begun are dropped,
   running ones end, threads are joined. It happens when the pool is dropped, too, and at interpreter exit. ``take`` on a
   closed pool raises; in a forked child, where the threads do not exist, too.

Workers hold no reference to their pool, only to its queues; that is why dropping the pool can end them.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Protocol

_JOIN_TIMEOUT_S = 30.0


class Job(Protocol):
    """A piece of work that splits into independent parts.

    Attributes:
        num_parts: How many calls of ``run`` it takes, at least one.
    """

    @property
    def num_parts(self) -> int: ...

    def run(self, part: int) -> None:
        """Do one part; may run at the same time as the others."""

    def finish(self) -> Any:
        """Return the result, after all parts ran."""

    def describe(self, part: int) -> str:
        """Say in a few words what a part does, for stall reports."""


class _Ticket:
    """A job on its way: who has to finish it, and how it ended."""

    __slots__ = ("done", "error", "job", "lock", "remaining", "result")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.lock = threading.Lock()
        self.remaining = job.num_parts
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False

    def run(self, part: int) -> bool:
        """Run one part; return True if it was the last and the job is now done."""
        if self.error is None:
            try:
                self.job.run(part)
            except BaseException as error:  # whatever it was: a worker that dies silently is a hang
                self.error = error
        with self.lock:
            self.remaining -= 1
            if self.remaining:
                return False
        self._finish()
        return True

    def _finish(self) -> None:
        if self.error is None:
            try:
                self.result = self.job.finish()
            except BaseException as error:
                self.error = error
        self.done = True


_Task = tuple[_Ticket, int]
_Running = dict[int, tuple[_Ticket, int, float]]


def _work(
    tasks: SimpleQueue[_Task | None],
    finished: SimpleQueue[None],
    running: _Running,
    prepare: Callable[[], None],
) -> None:
    prepare()
    me = threading.get_ident()
    while (task := tasks.get()) is not None:
        ticket, part = task
        running[me] = (ticket, part, time.monotonic())
        last = ticket.run(part)
        del running[me], ticket, task  # an idle worker keeps no batch alive
        if last:
            finished.put(None)


class Workers:
    """A pool of threads that does jobs in order.

    Args:
        num_workers: Number of threads, at least one.
        prepare: Called once on each thread before its first part.
        name: Prefix of the threads' names.
    """

    def __init__(
        self, num_workers: int, *, prepare: Callable[[], None] = lambda: None, name: str = "loaders"
    ) -> None:
        self.num_workers = num_workers
        self._pid = os.getpid()
        self._tickets: deque[_Ticket] = deque()
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._finished: SimpleQueue[None] = SimpleQueue()
        self._running: _Running = {}
        args = (self._tasks, self._finished, self._running, prepare)
        self._threads = [
            threading.Thread(target=_work, args=args, name=f"{name}-{i}", daemon=True) for i in range(num_workers)
        ]
        self._close = weakref.finalize(self, _close, self._tasks, self._threads)
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """Return how many jobs were put in and not yet taken out."""
        return len(self._tickets)

    @property
    def num_ready(self) -> int:
        """Jobs that could be taken without waiting."""
        return sum(ticket.done for ticket in self._tickets)

    def put(self, job: Job) -> None:
        """Begin a job."""
        if not self._close.alive:
            raise RuntimeError("this pool of workers is closed")
        ticket = _Ticket(job)
        self._tickets.append(ticket)
        for part in range(job.num_parts):
            self._tasks.put((ticket, part))

    def take(self, *, timeout_s: float | None = None) -> Any:
        """Return the result of the oldest job, waiting for it.

        Raises:
            TimeoutError: It was not done in time; it can be taken later.
        """
        ticket = self._tickets[0]
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not ticket.done:
            self._wait(deadline)
        self._tickets.popleft()
        if ticket.error is not None:
            raise ticket.error
        return ticket.result

    def _wait(self, deadline: float | None) -> None:
        """Wait until some job is done, the deadline passes, or the threads turn out to be gone."""
        if not self._close.alive or os.getpid() != self._pid:
            raise RuntimeError("these workers are closed, or belong to the parent of this forked process")
        left = 5.0 if deadline is None else min(5.0, deadline - time.monotonic())
        try:
            self._finished.get(timeout=max(0.0, left))
        except Empty:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(self.describe()) from None

    def describe(self) -> str:
        """Say what each thread is doing and for how long."""
        now = time.monotonic()
        lines = [f"{t.job.describe(part)} for {now - since:.1f} s" for t, part, since in list(self._running.values())]
        return "; ".join(lines) or "no worker is running"

    def close(self) -> None:
        """Drop what has not begun, wait for what has, and end the threads."""
        self._close()
        self._tickets.clear()


def _close(tasks: SimpleQueue[_Task | None], threads: list[threading.Thread]) -> None:
    while True:
        try:
            tasks.get_nowait()
        except Empty:
            break
    for _ in threads:
        tasks.put(None)
    deadline = time.monotonic() + _JOIN_TIMEOUT_S
    for thread in threads:
        if thread is not threading.current_thread() and thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
