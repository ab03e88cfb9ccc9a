"""What a thread reads samples for: the epoch, for loaders' datasets inside third-party ones.

A dataset that wraps one of loaders may compute other numbers (``torch.utils.data.Subset``): nothing in them says which
epoch they are of. It stands here while their batch is fetched.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class _Context(threading.local):
    batch: Any = None  # indices that know their epoch


_here = _Context()


@contextmanager
def reading(indices: Any) -> Iterator[None]:
    """Fetch the samples of some indices; those that know no epoch have no context."""
    before = _here.batch
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


def begin_in_worker(indices: Any) -> None:
    """Set the context of indices until the next ones come: in a worker process of torch, where only they are ours."""
    if get_worker_info() is not None:
        _enter(indices)


def _enter(indices: Any) -> None:
    first = indices[0] if isinstance(indices, list) and indices else indices
    _here.batch = first if hasattr(first, "epoch") else None


def current_batch() -> Any:
    """Return an index or indices, with ``epoch`` and ``seed``, that this thread reads samples for, or None."""
    return _here.batch
