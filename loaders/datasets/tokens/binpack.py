"""Documents into windows: which go together, so that little is left empty.

Both ways take the longest first. Lengths are whole numbers below a limit, so what is done for one
document is done for all of its length at once: the work grows with the number of different lengths.

Source:
    First-fit and best-fit decreasing: Johnson, "Near-optimal bin packing algorithms", MIT, 1973.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Indices = npt.NDArray[np.int64]

Fit = Literal["first", "best"]


def fit_decreasing(lengths: Indices, size: int, fit: Fit) -> Indices:
    """Assign each item to a bin.

    Args:
        lengths: ``(N,)``, each in [1, size].
        size: What a bin holds.
        fit: ``"best"``: each item goes to the fullest bin that has room, ``"first"``: to the first
            one; of equal items the earlier one goes first.

    Returns:
        ``(N,)`` numbers of bins, from 0 without a gap.

    Example:
        >>> fit_decreasing(np.array([3, 5, 2, 4]), 7, "best").tolist()
        [1, 0, 0, 1]
    """
    order = np.argsort(-lengths, kind="stable")
    values, counts = np.unique(lengths, return_counts=True)
    bins = np.empty(len(lengths), np.int64)
    # Room in each bin that is open; of 16 bits, which numpy sorts in linear time, where they do.
    room, done = np.empty(0, np.min_scalar_type(size)), 0
    for length, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        chosen = np.flatnonzero(room >= length)
        if fit == "best":
            chosen = chosen[np.argsort(room[chosen], kind="stable")]
        rest = count - int((room[chosen] // length).sum(dtype=np.int64))
        if rest > 0:
            num = -(-rest // (size // length))
            chosen = np.concatenate([chosen, np.arange(len(room), len(room) + num)])
            room = np.concatenate([room, np.full(num, size, room.dtype)])
        taken = _deal(room[chosen].astype(np.int64) // length, count)
        room[chosen] -= (taken * length).astype(room.dtype)
        bins[order[done : done + count]] = np.repeat(chosen, taken)
        done += count
    return bins


def _deal(room: Indices, count: int) -> Indices:
    """Return how many of ``count`` items each bin takes, if each in turn takes what it has room for."""
    before = np.cumsum(room) - room
    taken: Indices = np.clip(count - before, 0, room)
    return taken
