"""Batches made in this process: on the trainer's own thread, or on worker threads in the same order."""

from __future__ import annotations

import time
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

from loaders.backends.maker import Group, Raised
from loaders.device.accelerator import without_autocast
from loaders.system import opencv
from loaders.workers import Workers, complete

if TYPE_CHECKING:
    from loaders.backends.maker import Chunk, Made, Maker
    from loaders.workers import Job

_START_TIMEOUT_S = 60.0


class InlinePool:
    """Makes batches on the trainer's own thread, when they are taken."""

    num_ready = 0
    is_ready = False  # making one takes the trainer's own time

    def __init__(self, maker: Maker) -> None:
        opencv.use_one_thread()
        self._maker = maker
        self._asked: tuple[Chunk, int] | None = None
        self._making: tuple[Job, float] | None = None

    def __len__(self) -> int:
        return 0 if self._asked is None else 1

    def put(self, chunk: Chunk, turn: int) -> None:
        """Keep a turn of a chunk until it is taken."""
        self._asked = chunk, turn

    def take(self, timeout_s: float | None = None) -> Made:
        """Make the batches, or raise their error."""
        asked, self._asked = self._asked, None
        assert asked is not None
        chunk, turn = asked
        try:
            job = chunk.job(turn, self._maker)
            self._making = job, time.monotonic()
            with without_autocast():
                made: Made = complete(job)
            return made
        finally:
            self._making = None

    def describe(self) -> str:
        """Say what the trainer's own thread is making, and for how long."""
        making = self._making
        if making is None:
            return "batches are made when they are asked for"
        return f"{making[0].describe(0)} for {time.monotonic() - making[1]:.1f} s"

    def close(self) -> None:
        """Nothing runs."""


def thread_pool(maker: Maker, **calls: Any) -> Workers:
    """Return a pool of as many threads as the maker's ``num_workers``; ``calls`` are those of ``Workers``.

    Each uses one core; the caller's own setting stays as it was.
    """
    opencv.use_one_thread()
    num_workers, num_threads = max(1, maker.num_workers), torch.get_num_threads()
    prepared: SimpleQueue[None] = SimpleQueue()

    def prepare() -> None:
        try:
            # Of this thread; and of threads to come, which is undone below.
            torch.set_num_threads(1)
            torch.get_num_threads()  # makes it last: a thread's first operation else takes the count of all
        finally:
            prepared.put(None)

    try:
        workers = Workers(num_workers, job=partial(_job, maker), prepare=prepare, **calls)
        for _ in range(num_workers):
            prepared.get(timeout=_START_TIMEOUT_S)
    finally:
        torch.set_num_threads(num_threads)
    return workers


def _job(maker: Maker, chunk: Chunk, turn: int) -> Job:
    try:
        return chunk.job(turn, maker)
    except Exception as error:  # an index out of range, say: it is raised in its turn
        return Group(maker, chunk.batches[turn : turn + 1], [Raised(error)])
