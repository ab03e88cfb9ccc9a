"""What a thread reads samples for: epoch and draws, for loaders' datasets inside third-party ones.

A dataset that wraps one of loaders hands plain numbers on, and some compute others
(``torch.utils.data.Subset``): nothing in them says which epoch they are of.
It stands here while their batch is fetched.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch.utils.data import get_worker_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]


class Context(NamedTuple):
    """What is known of a sample that is asked for by its number alone.

    Attributes:
        epoch: It is drawn in.
        draw: Tells it from other times that the epoch has the same sample.
        seed: Of the run; None: the dataset's own.
        draws: Of the whole batch, where all its numbers were asked for before the first was read.
    """

    epoch: int
    draw: int
    seed: int | None
    draws: Int64s | None = None

    def draws_of(self, num_samples: int) -> Int64s | None:
        """Return the draw of each of so many samples that are read together; None if none is a repeat."""
        if self.draws is not None and len(self.draws) == num_samples:
            return self.draws
        return np.full(num_samples, self.draw, np.int64) if self.draw else None


class _Here(threading.local):
    batch: Any = None  # indices that know their epoch
    draw: int = 0  # of the sample that is fetched
    draws: Int64s | None = None  # of all samples, when their numbers were gone through


_here = _Here()


@contextmanager
def reading(indices: Any) -> Iterator[None]:
    """Fetch the samples of some indices; those that know no epoch have no context."""
    before = _here.batch, _here.draw, _here.draws
    _enter(indices)
    try:
        yield
    finally:
        _here.batch, _here.draw, _here.draws = before


class Entering:
    """The steps of a loader that fetches each batch itself right after taking its indices: in their context.

    Args:
        steps: The indices of each batch.
    """

    def __init__(self, steps: Any) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Any]:
        for indices in self._steps:
            _enter(indices)
            yield indices


def begin_in_worker(indices: Any) -> None:
    """Say what is fetched until the next indices come, in a worker process of torch, where only they are ours."""
    if get_worker_info() is not None:
        _enter(indices)


def _enter(indices: Any) -> None:
    _here.batch = indices if hasattr(indices, "epoch") else None
    _here.draw, _here.draws = getattr(indices, "draw", 0), None


def one_by_one(items: Iterable[Any], draws: Int64s) -> Iterator[Any]:
    """Yield indices; the draw of each is known until the next one is asked for, then those of all.

    (``Subset.__getitems__`` of torch goes through them first, and reads then.)
    """
    _here.draws = None
    for item, draw in zip(items, draws.tolist(), strict=True):
        _here.draw = draw
        yield item
    _here.draws = draws


def with_draws(items: Sequence[Any]) -> Iterable[Any]:
    """Go through the items of a batch whose numbers were asked for before; its draws are known again, one by one."""
    draws = _here.draws
    return items if draws is None or len(draws) != len(items) else one_by_one(items, draws)


def current_context() -> Context | None:
    """Return what this thread reads a sample for; None where it is not known."""
    batch = _here.batch
    if batch is None:
        return None
    return Context(batch.epoch, _here.draw, getattr(batch, "seed", None), _here.draws)
