"""Indices on their way to a dataset, beside them the epoch and draw that augmentation needs.

A dataset that wraps one of loaders may compute other numbers (``torch.utils.data.Subset``): nothing in them says which
epoch they are of. So a thread knows for which indices it reads samples, while their batch is fetched. Indices of
third-party samplers get epoch and draw here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from torch.utils.data import get_worker_info

if TYPE_CHECKING:
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
    """Make indices; in a worker process of torch, where only they are ours, samples are read for them from now on."""
    indices = make(*values)
    if get_worker_info() is not None:
        _enter(indices)
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


# -- the epoch, for loaders' datasets inside third-party ones --------------------------------------


_here = threading.local()  # ``batch``: indices that know their epoch, or None


@contextmanager
def reading(indices: Any) -> Iterator[None]:
    """Fetch the samples of some indices; those that know no epoch have no context."""
    before = current_batch()
    _enter(indices)
    try:
        yield
    finally:
        _here.batch = before


def entered(steps: Iterable[Any]) -> Iterator[Any]:
    """Yield the indices of each batch in their context: for a loader that fetches it right after taking them."""
    for indices in steps:
        _enter(indices)
        yield indices


def _enter(indices: Any) -> None:
    first = indices[0] if isinstance(indices, list) and indices else indices
    _here.batch = first if hasattr(first, "epoch") else None


def current_batch() -> Any:
    """Return an index or indices, with ``epoch`` and ``seed``, that this thread reads samples for, or None."""
    return getattr(_here, "batch", None)


# -- indices of third-party samplers ---------------------------------------------------------------


def numbered(
    batches: Iterable[Any],  # indices, or batches of them: lists, arrays, tensors
    epoch: int,  # they are drawn in
    num_samples: int,  # in the dataset; 0 where draws make no difference
    seed: int,  # of the loader
    *,
    as_lists: bool = False,  # of single indices, for third-party datasets
) -> Iterator[Any]:
    """Wrap a third-party sampler or batch sampler: add the epoch, and a draw number where an index repeats.

    What is not made of whole numbers, and what has an epoch, is passed on as it is.
    """
    counts = np.zeros(num_samples, np.uint32)
    for batch in batches:
        numbers = _whole_numbers(batch)
        if numbers is None:
            yield batch
            continue
        flat = numbers.reshape(-1)
        indices = IndexBatch(flat, epoch, _draws(counts, flat), None, seed)
        if as_lists or not numbers.ndim:
            yield indices.samples() if numbers.ndim else indices.samples()[0]
        else:
            yield indices


def _whole_numbers(batch: Any) -> Int64s | None:
    """Return an index, or a list of them, as an array; None if it is neither, or has an epoch.

    A copy: a sampler may fill the same array again, while the batch before is still being made.
    """
    first = batch[0] if isinstance(batch, list | tuple) and batch else batch
    if hasattr(first, "epoch"):
        return None
    try:
        array = np.asarray(batch)
    except (TypeError, ValueError):  # of lists of different lengths
        return None
    return array.astype(np.int64) if array.dtype.kind in "iu" and array.ndim < 2 else None


def _draws(counts: npt.NDArray[np.uint32], indices: Int64s) -> Int64s | None:
    """Count some indices; return how often each came before, None where the dataset refuses some, or all are new."""
    n = len(counts)
    if not len(indices) or indices.min() < -n or indices.max() >= n:
        return None
    order = np.argsort(indices % n, kind="stable")
    ordered = (indices % n)[order]
    draws = np.empty(len(indices), np.int64)
    draws[order] = counts[ordered] + np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    np.add.at(counts, ordered, 1)
    return draws if draws.any() else None
