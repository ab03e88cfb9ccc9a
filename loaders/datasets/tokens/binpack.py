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
    from collections.abc import Callable, Iterator

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
    place: Callable[[int, int], Indices] = (_BestFit if fit == "best" else _FirstFit)(size).place
    bins = np.empty(len(lengths), np.int64)
    done = 0
    for length, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        bins[order[done : done + count]] = place(length, count)
        done += count
    return bins


class _FirstFit:
    """Bins by number, and the room in each."""

    def __init__(self, size: int) -> None:
        self._size, self._num = size, 0
        self._room = np.zeros(1024, np.int64)

    def place(self, length: int, count: int) -> Indices:
        """Put ``count`` items of a length into bins; return which."""
        room = self._room[: self._num]
        bins = np.flatnonzero(room >= length)
        taken = _deal(room[bins] // length, count)
        room[bins] -= taken * length
        rest = count - int(taken.sum())
        fresh, taken_fresh = self._open(length, rest)
        return np.concatenate([np.repeat(bins, taken), np.repeat(fresh, taken_fresh)])

    def _open(self, length: int, count: int) -> tuple[Indices, Indices]:
        each = self._size // length
        num = -(-count // each)
        fresh = np.arange(self._num, self._num + num)
        self._num += num
        if self._num > len(self._room):
            self._room = np.concatenate([self._room, np.zeros(self._num, np.int64)])
        taken = _deal(np.full(num, each), count)
        self._room[fresh] = self._size - taken * length
        return fresh, taken


class _BestFit:
    """Bins by the room in them."""

    def __init__(self, size: int) -> None:
        self._size, self._num = size, 0
        self._bins: list[list[Indices]] = [[] for _ in range(size + 1)]
        self._counts = np.zeros(size + 1, np.int64)

    def place(self, length: int, count: int) -> Indices:
        """Put ``count`` items of a length into bins; return which."""
        placed: list[Indices] = []
        for room in self._rooms(length):
            if count == 0:
                break
            placed.append(
                self._fill(self._take(room, -(-count // (room // length))), room, length, count)
            )
            count -= len(placed[-1])
        if count:
            num = -(-count // (self._size // length))
            fresh = np.arange(self._num, self._num + num)
            self._num += num
            placed.append(self._fill(fresh, self._size, length, count))
        return np.concatenate(placed)

    def _rooms(self, length: int) -> Iterator[int]:
        """Yield the rooms of at least ``length`` that bins have, the smallest first."""
        # What is filled keeps less than ``length``: it is not met again.
        return iter((np.flatnonzero(self._counts[length:]) + length).tolist())

    def _take(self, room: int, num: int) -> Indices:
        """Take up to ``num`` bins with this room, those with the smallest numbers."""
        bins = np.sort(np.concatenate(self._bins[room]))
        self._bins[room] = [bins[num:]]
        self._counts[room] = len(bins[num:])
        return bins[:num]

    def _fill(self, bins: Indices, room: int, length: int, count: int) -> Indices:
        """Fill bins one after the other; return the bin of each item."""
        taken = _deal(np.full(len(bins), room // length), count)
        left = room - taken * length
        for value in np.unique(left).tolist():
            if value:
                chosen = bins[left == value]
                self._bins[value].append(chosen)
                self._counts[value] += len(chosen)
        return np.repeat(bins, taken)


def _deal(room: Indices, count: int) -> Indices:
    """Return how many of ``count`` items each bin takes, if each in turn takes what it has room for."""
    before = np.cumsum(room) - room
    taken: Indices = np.clip(count - before, 0, room)
    return taken
