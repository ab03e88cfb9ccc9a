"""Many names in little memory, and which of them stand twice: a source may have tens of millions of items."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import xxhash

_ENCODING = ("utf-8", "surrogateescape")


def appended(numbers: array[int], number: int) -> array[int]:
    """Append a number of at least 0; return the array, or one of wider numbers, if it takes that."""
    try:
        numbers.append(number)
    except OverflowError:
        numbers = array("Q", numbers)
        numbers.append(number)
    return numbers


class Names(Sequence[str]):
    """A list of names that can only grow: its bytes, and 4 more for each, or 8 above 4 GB."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._bytes, self._ends = bytearray(), array("I")
        for name in names:
            self.append(name)

    def append(self, name: str) -> None:
        self._bytes += name.encode(*_ENCODING)
        self._ends = appended(self._ends, len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        return self._bytes[self._ends[i - 1] if i else 0 : self._ends[i]].decode(*_ENCODING)

    def __iter__(self) -> Iterator[str]:
        start = 0
        for end in self._ends:
            yield self._bytes[start:end].decode(*_ENCODING)
            start = end


def twice(names: Callable[[], Iterable[str]]) -> set[str]:
    """Return the names that stand more than once.

    ``names`` yields them, each time the same: once for their hashes, and only where two of these are equal once more.
    """
    hashes = np.fromiter(map(_hash, names()), np.uint64)
    hashes.sort()
    same = {*hashes[1:][hashes[1:] == hashes[:-1]].tolist()}
    seen: set[str] = set()
    found: set[str] = set()
    for name in names() if same else ():
        if _hash(name) in same:
            (found if name in seen else seen).add(name)
    return found


def _hash(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode(*_ENCODING))
