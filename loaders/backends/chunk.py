"""Chunks: consecutive batches that are planned together, as finding many samples takes hardly longer than few.

Planned between two batches, each would meet cold caches: copying or decoding a batch displaces the planner's code.
Small batches of a chunk are made and handed over together as well, as a hand-over takes tens of microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.backends.maker import Group
from loaders.sampling.batch import Steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loaders.backends.maker import Maker
    from loaders.workers import Job

_FIRST_TOGETHER = 4  # batches: the first one should not wait for many others


class Chunk:
    """1 to 64 consecutive batches; one thread at a time asks for their jobs.

    With ``is_together`` all are made and handed over at once, in one turn; else each has a turn.
    """

    def __init__(self, batches: Sequence[Any], *, is_together: bool = False) -> None:
        self.batches, self.is_together = batches, is_together
        self._planned: Sequence[Any] | None = None

    @property
    def num_turns(self) -> int:
        """How often something of it is handed over."""
        return 1 if self.is_together else len(self.batches)

    def job(self, turn: int, maker: Maker) -> Job:
        """Return the work of making what is handed over in a turn; an interrupted turn is made anew."""
        job = self._job(turn, maker)
        return job if maker.watched is None else maker.watched(job)

    def _job(self, turn: int, maker: Maker) -> Job:
        if self.is_together:
            return Group(maker, self.batches)
        if self._planned is None:
            self._planned = maker.plan(self.batches) if len(self.batches) > 1 else self.batches
        return maker.job(self._planned[turn])


class Chunks:
    """Cuts indices into chunks of up to ``size`` batches; the first chunks are smaller.

    Indices come batch by batch, or as ``Steps``. If they raise, the error comes after the batches before it.
    """

    def __init__(self, batches: Iterator[Any], size: int, *, is_together: bool = False) -> None:
        self._batches, self._max_size, self._is_together = batches, size, is_together
        self._size = min(size, _FIRST_TOGETHER) if is_together else 1
        self._steps: Sequence[Any] = ()  # that came, and were not taken
        self._failed: Exception | None = None

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        taken = self._take()
        if taken:
            return Chunk(taken, is_together=self._is_together)
        failed, self._failed = self._failed, None
        try:
            raise failed or StopIteration
        finally:
            del failed  # its traceback holds this frame: the two would keep the loader alive

    def _take(self) -> Sequence[Any]:
        size, self._size = self._size, min(2 * self._size, self._max_size)
        taken: Sequence[Any] = [] if self._steps else self._come(size)
        if self._steps:
            taken, self._steps = self._steps[:size], self._steps[size:]
        return taken

    def _come(self, size: int) -> list[Any]:
        """Return so many batches, or less; none where steps come instead."""
        taken: list[Any] = []
        try:
            # By next(), not by a loop: some iterators begin anew whenever iter() is called on them.
            while len(taken) < size and self._failed is None and not self._steps:
                batch = next(self._batches)
                if type(batch) is Steps:
                    self._steps = batch
                else:
                    taken.append(batch)
        except StopIteration:
            self._batches = iter(())
        except Exception as error:
            self._batches, self._failed = iter(()), error
        return taken
