"""Duplicates among keys and other strings, by their hashes: a source may have tens of millions of items."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.data.columns import row_views
from loaders.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loaders.data.columns import Column
    from loaders.remote.url import Location

_RENAME = "Keys are names, mostly without suffix: rename or remove one"


def duplicates(names: Callable[[], Iterable[str]]) -> set[str]:
    """Return the duplicates among names.

    ``names`` yields them, each time the same: once for their hashes, and only where two of these are equal once more.
    """
    hashes = np.fromiter(map(hash_of, names()), np.uint64)
    hashes.sort()
    same = {*hashes[1:][hashes[1:] == hashes[:-1]].tolist()}
    counts = Counter(name for name in names() if hash_of(name) in same) if same else {}
    return {name for name, num in counts.items() if num > 1}


def check_unique(
    keys: Callable[[], Iterable[tuple[str, str]]], path: Location | str, hint: str = _RENAME
) -> None:
    """Raise SourceError if two items share a key; ``keys`` yields pairs of key and place, each time the same."""
    if found := duplicates(lambda: (key for key, _ in keys())):
        first = min(found)
        one, other, *_ = (where for key, where in keys() if key == first)
        raise SourceError(f"two samples have the key {first!r}: {one} and {other}", path, hint)


def row_hashes(column: Column) -> npt.NDArray[np.uint64]:
    """Return a hash of each row: of keys, that of ``View.key_hashes``."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, row_views(column)), np.uint64, len(column))


def repeated(hashes: npt.NDArray[np.uint64]) -> tuple[list[int], list[int]]:
    """Return the places of duplicate hashes, ascending, and the first place of each of them."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    later = np.sort(order[1:][ordered[1:] == ordered[:-1]])
    return later.tolist(), order[np.searchsorted(ordered, hashes[later])].tolist()


def hash_of(name: str) -> int:
    """Return a hash of 64 bits."""
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogateescape"))
