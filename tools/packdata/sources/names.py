"""Compact lists of strings, and their duplicates: a source may have tens of millions of items."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.data.columns import row_views

if TYPE_CHECKING:
    from loaders.data.columns import Column

T = TypeVar("T")
_ENCODING = ("utf-8", "surrogateescape")


def appended(numbers: array[int], number: int) -> array[int]:
    """Append a number of at least 0; return the array, or one of wider numbers, if it takes that."""
    try:
        numbers.append(number)
    except OverflowError:
        numbers = array("Q", numbers)
        numbers.append(number)
    return numbers


def sent(numbers: Any) -> npt.NDArray[Any]:
    """Return an array, bytes or a view of them as Ray sends it: written once to memory that all of a node read."""
    return np.asarray(memoryview(numbers))


class ByNumber(Sequence[T]):
    """A list whose items are made when they are asked for."""

    @abstractmethod
    def at(self, number: int) -> T:
        """Return the item of a number from 0 on, which there is."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        numbers = range(len(self))[index]
        return self.at(numbers) if isinstance(numbers, int) else [*map(self.at, numbers)]

    def __iter__(self) -> Iterator[T]:
        return map(self.at, range(len(self)))


class Names(ByNumber[str]):
    """A list of names that can only grow: its bytes, and 4 more for each, or 8 above 4 GB."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._bytes: Any = bytearray()  # a view, as ``_ends``, where it was sent
        self._ends: Any = array("I")
        for name in names:
            self.append(name)

    def append(self, name: str) -> None:
        self._bytes += name.encode(*_ENCODING)
        self._ends = appended(self._ends, len(self._bytes))

    def __getstate__(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return sent(self._bytes), sent(self._ends)

    def __setstate__(self, state: tuple[Any, Any]) -> None:
        self._bytes, self._ends = memoryview(state[0]), memoryview(state[1])

    def __len__(self) -> int:
        return len(self._ends)

    def at(self, number: int) -> str:
        start = self._ends[number - 1] if number else 0
        return str(self._bytes[start : self._ends[number]], *_ENCODING)

    def __iter__(self) -> Iterator[str]:
        start = 0
        for end in self._ends:
            yield str(self._bytes[start:end], *_ENCODING)
            start = end


def twice(names: Callable[[], Iterable[str]]) -> set[str]:
    """Return the names that stand more than once.

    ``names`` yields them, each time the same: once for their hashes, and only where two of these are equal once more.
    """
    hashes = np.fromiter(map(hash_of, names()), np.uint64)
    hashes.sort()
    same = {*hashes[1:][hashes[1:] == hashes[:-1]].tolist()}
    seen: set[str] = set()
    found: set[str] = set()
    for name in names() if same else ():
        if hash_of(name) in same:
            (found if name in seen else seen).add(name)
    return found


def row_hashes(column: Column) -> npt.NDArray[np.uint64]:
    """Return a hash of each row: of keys, that of ``View.key_hashes``."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, row_views(column)), np.uint64, len(column))


def repeated(hashes: npt.NDArray[np.uint64]) -> tuple[list[int], list[int]]:
    """Return the places of hashes that stood before, ascending, and where each of these stands first."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    later = np.sort(order[1:][ordered[1:] == ordered[:-1]])
    return later.tolist(), order[np.searchsorted(ordered, hashes[later])].tolist()


def hash_of(name: str) -> int:
    """Return a hash of 64 bits."""
    return xxhash.xxh3_64_intdigest(name.encode(*_ENCODING))
