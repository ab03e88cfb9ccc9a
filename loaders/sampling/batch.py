"""Indices on their way to a dataset, beside them the epoch and draw that augmentation needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeGuard

from loaders.sampling.context import begin_in_worker

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from loaders.sampling.order import Order
    from loaders.sampling.plan import Plan

    Int64s = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]


class SampleIndex(int):
    """An index that knows its epoch and draw; in every other respect an int.

    Args:
        index: Position in the dataset.
        epoch: The epoch it is drawn in.
        draw: Tells it from other times that the epoch has the same index: 0 unless it repeats.
        seed: Of the run: augmentation depends on it, too; None: the dataset's own.

    Example:
        >>> index = SampleIndex(7, epoch=2, draw=1)
        >>> index, index.epoch, index.draw, index + 1
        (7, 2, 1, 8)
    """

    epoch: int
    draw: int
    seed: int | None

    def __new__(
        cls, index: int, epoch: int = 0, draw: int = 0, seed: int | None = None
    ) -> SampleIndex:
        """Make an int that also knows where in the order it comes from."""
        self = super().__new__(cls, index)
        self.epoch, self.draw, self.seed = epoch, draw, seed
        return self

    def __reduce__(self) -> Any:
        return _unpickled, (SampleIndex, int(self), self.epoch, self.draw, self.seed)


@dataclass(slots=True, eq=False)  # not frozen: it would take twice as long to make one
class IndexBatch(Sequence[Any]):
    """The indices of one batch: a sequence of ints to everyone, arrays to our datasets.

    With a second dimension, those of consecutive batches of one size: a sequence of batches.

    Args:
        indices: ``(N,)`` positions in the dataset, or ``(batches, N)``; the arrays below have the same shape.
        epoch: The epoch they are drawn in.
        draws: They tell repeats of an index within the epoch apart; None: there are none.
        valid: False where a row is padding; None: padding was not asked to be marked.
        seed: Of the run: augmentation depends on it as on epoch and draw.
    """

    indices: Int64s
    epoch: int = 0
    draws: Int64s | None = None
    valid: Bools | None = None
    seed: int = 0

    def __len__(self) -> int:
        return len(self.indices)

    def __reduce__(self) -> Any:
        rest = self.epoch, self.draws, self.valid, self.seed
        return _unpickled, (IndexBatch, self.indices, *rest)

    def __iter__(self) -> Iterator[Any]:
        if self.indices.ndim > 1:
            return (self[i] for i in range(len(self)))
        return iter(self.indices.tolist() if self.draws is None else self.samples())

    def samples(self) -> list[SampleIndex]:
        """Return the indices of one batch, each with its epoch and draw: for third-party datasets."""
        draws = repeat(0) if self.draws is None else self.draws.tolist()
        pairs = zip(self.indices.tolist(), draws, strict=False)
        return [SampleIndex(number, self.epoch, draw, self.seed) for number, draw in pairs]

    def __getitem__(self, item: int | slice) -> Any:
        """Return one index, or one of several batches; or the batches, or the batch, of a slice."""
        if not isinstance(item, slice) and self.indices.ndim == 1:
            return int(self.indices[item])
        draws = None if self.draws is None else self.draws[item]
        valid = None if self.valid is None else self.valid[item]
        return IndexBatch(self.indices[item], self.epoch, draws, valid, self.seed)

    @property
    def joined(self) -> IndexBatch:
        """The indices of several batches end to end, as those of one."""
        draws = None if self.draws is None else self.draws.ravel()
        return IndexBatch(self.indices.ravel(), self.epoch, draws, None, self.seed)


def is_several(batches: Any) -> TypeGuard[IndexBatch]:
    """Return True for the indices of several batches, in one."""
    return type(batches) is IndexBatch and batches.indices.ndim > 1


def _unpickled(make: Callable[..., Any], *values: Any) -> Any:
    indices = make(*values)
    begin_in_worker(indices)
    return indices


def evaluate(
    order: Order, plan: Plan, epoch: int, seed: int = 0, multiple: int = 1
) -> Iterator[IndexBatch]:
    """Yield the remaining steps of a plan, many at a time, but the first at once: see ``Plan.chunks``."""
    for positions, valid in plan.chunks(multiple):
        indices, draws = order.at(epoch, positions.ravel())
        rows = None if draws is None else draws.reshape(positions.shape)
        yield IndexBatch(indices.reshape(positions.shape), epoch, rows, valid, seed)


def index_batches(order: Order, plan: Plan, epoch: int, seed: int = 0) -> Iterator[IndexBatch]:
    """Yield the remaining batches of a plan: a pure function, a few microseconds each.

    Example:
        >>> from loaders.sampling.order import Sequential
        >>> from loaders.sampling.plan import Plan
        >>> [list(batch) for batch in index_batches(Sequential(5), Plan(5, batch_size=2), epoch=0)]
        [[0, 1], [2, 3], [4]]
    """
    for steps in evaluate(order, plan, epoch, seed):
        yield from steps


def samples(order: Order, plan: Plan, epoch: int, seed: int = 0) -> Iterator[SampleIndex]:
    """Yield the sample of each remaining step of a plan of single ones."""
    for steps in evaluate(order, plan, epoch, seed):
        yield from steps.joined.samples()
