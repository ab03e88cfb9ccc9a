"""What a thread reads samples for: epoch and draws, for loaders' datasets inside third-party ones.

A dataset that wraps one of loaders hands plain numbers on, and some compute others
(``torch.utils.data.Subset``): nothing in them says which epoch they are of.
It stands here while their batch is fetched.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import get_worker_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]


class _Context(threading.local):
    batch: Any = None  # indices that know their epoch
    draw: int = 0  # of the sample that is fetched
    draws: Int64s | None = None  # of all samples, when their numbers were gone through


_here = _Context()


@contextmanager
def reading(indices: Any) -> Iterator[None]:
    """Fetch the samples of some indices; those that know no epoch have no context."""
    before = _here.batch, _here.draw, _here.draws
    _enter(indices)
    try:
        yield
    finally:
        _here.batch, _here.draw, _here.draws = before


def entered(steps: Iterable[Any]) -> Iterator[Any]:
    """Yield the indices of each batch in their context: for a loader that fetches it right after taking them."""
    for indices in steps:
        _enter(indices)
        yield indices


def begin_in_worker(indices: Any) -> None:
    """Set the context of indices until the next ones come: in a worker process of torch, where only they are ours."""
    if get_worker_info() is not None:
        _enter(indices)


def _enter(indices: Any) -> None:
    _here.batch = indices if hasattr(indices, "epoch") else None
    _here.draw, _here.draws = getattr(indices, "draw", 0), None


def one_by_one(items: Iterable[Any], draws: Int64s) -> Iterator[Any]:
    """Yield indices, each with its own draw as the current one; at the end, those of all are.

    (``Subset.__getitems__`` of torch goes through them first, and reads then.)
    """
    _here.draws = None
    for item, draw in zip(items, draws.tolist(), strict=True):
        _here.draw = draw
        yield item
    _here.draws = draws


def with_draws(items: Sequence[Any]) -> Iterable[Any]:
    """Go through a batch whose indices were listed before, each again with its own draw as the current one."""
    draws = _here.draws
    return items if draws is None or len(draws) != len(items) else one_by_one(items, draws)


def is_reading() -> bool:
    """Tell whether this thread reads samples for an epoch that is known."""
    return _here.batch is not None


def drawing(num_samples: int) -> tuple[int | None, int, Int64s | None] | None:
    """Return what this thread reads so many samples together for; None where it is not known.

    Returns:
        The seed of the run (None: the dataset's own), the epoch, and the draw of each sample, which tells it from other
        times that the epoch has it (None: they come for the first time).
    """
    batch, draws = _here.batch, _here.draws
    if batch is None:
        return None
    if draws is None or len(draws) != num_samples:
        draws = np.full(num_samples, _here.draw, np.int64) if _here.draw else None
    return getattr(batch, "seed", None), batch.epoch, draws
