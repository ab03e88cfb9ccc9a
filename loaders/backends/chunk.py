"""Chunks: consecutive batches that are planned together, because looking up many samples costs about as much as a few.

Planned between two batches, each would meet cold caches: copying or decoding a batch displaces the planner's code.
Small batches of a chunk are made and handed over together as well, as a hand-over takes tens of microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.backends.maker import Group
from loaders.sampling.batch import is_several

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
        """Return the work of making what is handed over in a turn."""
        job: Job
        if self.is_together:
            job = Group(maker, self.batches)
        else:
            if self._planned is None:
                self._planned = maker.plan(self.batches) if len(self.batches) > 1 else self.batches
            job = maker.job(self._planned[turn])
        return job if maker.watched is None else maker.watched(job)


def chunks(batches: Iterator[Any], size: int, *, is_together: bool = False) -> Iterator[Chunk]:
    """Cut indices into chunks of up to ``size`` batches; the first chunks are smaller.

    Indices come batch by batch, or many in one ``IndexBatch``. An error of theirs comes after the batches before it.
    """
    num = min(size, _FIRST_TOGETHER) if is_together else 1
    steps: Sequence[Any] = ()  # that came, and were not taken
    is_over = False
    failed: Exception | None = None
    while not is_over and failed is None:
        taken: list[Any] = []
        try:
            # By next(), not by a loop: some iterators begin anew whenever iter() is called on them.
            while len(taken) < num and not steps:
                batch = next(batches)
                if is_several(batch):
                    steps = batch
                else:
                    taken.append(batch)
        except StopIteration:
            is_over = True
        except Exception as error:
            failed = error
        if taken:
            yield Chunk(taken, is_together=is_together)
        elif steps:
            yield Chunk(steps[:num], is_together=is_together)
            steps = steps[num:]
        num = min(2 * num, size)
    try:
        if failed is not None:
            raise failed
    finally:
        del failed  # its traceback holds this frame: the two would keep the loader alive
