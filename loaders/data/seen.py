"""Which of some items were seen before: blocks that were verified, records that have arrived."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loaders.system.locks import ForkLock

Indices = npt.NDArray[np.int64]


class Seen:
    """A bit for each item, by number, and how many are not set.

    Thread-safe. In a forked child it goes on with what was seen at the fork; at worst an item is looked at again.
    """

    def __init__(self, num: int = 0) -> None:
        self._bits = np.zeros(num, bool)
        self._num, self._num_new = num, num
        self._lock = ForkLock()

    def are_all(self) -> bool:
        """Tell whether no item is new."""
        return not self._num_new

    def new(self, numbers: Indices) -> npt.NDArray[np.bool_] | None:
        """Return which of some items are new, or None if none is."""
        if not self._num_new:
            return None
        known = self._bits.take(numbers)
        return None if known.all() else ~known

    def add(self, num: int, *, is_seen: bool = False) -> int:
        """Make room for more items; return the number of the first one."""
        with self._lock.plain:
            first, self._num = self._num, self._num + num
            if self._num > len(self._bits):
                self._bits = np.append(self._bits, np.zeros(max(self._num, 64), bool))
            self._bits[first : self._num] = is_seen
            self._num_new += 0 if is_seen else num
            return first

    def note(self, numbers: Indices) -> None:
        """Note that some items were seen, once or several times."""
        with self._lock.plain:
            fresh = len(np.unique(numbers[~self._bits.take(numbers)]))
            self._bits[numbers] = True
            self._num_new -= fresh  # last: a child forked in between then counts too many
