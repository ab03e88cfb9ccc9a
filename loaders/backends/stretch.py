"""Consecutive batches that are asked for at once: what they have in common is found once, and each is made by itself.

Where samples lie, and what is to be done with them, takes hardly longer for a few hundred than for a few. Between two
batches it would be done with cold caches, as copying or decoding a batch leaves none of its code in them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loaders.backends.maker import BatchOf, Maker


class Stretch:
    """Some consecutive batches.

    Args:
        batches: The indices of each.
    """

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches
        self._jobs: list[BatchOf | None] = []

    def steps(self) -> list[Step]:
        """Return its batches, one by one."""
        return [Step(self, number) for number in range(len(self.batches))]

    def job(self, number: int, maker: Maker) -> BatchOf:
        """Return the work of making a batch; one thread at a time."""
        if not self._jobs:
            self._jobs += maker.jobs(self.batches)
        job, self._jobs[number] = self._jobs[number], None
        return job or maker.one(self.batches[number])  # what was interrupted begins anew


@dataclass(slots=True, eq=False)
class Step:
    """One batch of a stretch, in place of its indices.

    Attributes:
        stretch: Of which.
        number: Its place there.
    """

    stretch: Stretch
    number: int

    def job(self, maker: Maker) -> BatchOf:
        """Return the work of making it."""
        return self.stretch.job(self.number, maker)

    @property
    def left(self) -> Sequence[Any]:
        """The indices of this batch and those behind it."""
        return self.stretch.batches[self.number :]


class Steps:
    """Takes the indices of several batches at once, of the first ones fewer, and yields their steps.

    Args:
        batches: The indices of each batch: of an order, which makes nobody wait for the next.
        size: How many to take at once, at most.

    An error of the order is raised behind the batches that came before it.
    """

    def __init__(self, batches: Iterator[Any], size: int) -> None:
        self._batches, self._max_size = batches, size
        self._size = 1
        self._ready: deque[Step] = deque()
        self._failed: Exception | None = None

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        if not self._ready:
            self._take()
        if self._ready:
            return self._ready.popleft()
        failed, self._failed = self._failed, None
        try:
            raise failed or StopIteration
        finally:
            del failed  # its traceback holds this frame: the two would keep the loader alive

    def _take(self) -> None:
        taken: list[Any] = []
        try:
            while len(taken) < self._size and not self._failed:
                taken.append(next(self._batches))
        except StopIteration:  # which nobody keeps
            self._batches = iter(())
        except Exception as error:
            self._batches, self._failed = iter(()), error
        self._ready.extend(Stretch(taken).steps())
        self._size = min(2 * self._size, self._max_size)
