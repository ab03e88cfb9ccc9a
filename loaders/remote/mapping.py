"""How much of a cache this process may map, where the cache does not hold what all its clients read."""

from __future__ import annotations

from typing import Any

from loaders.system.registry import WeakRegistry

_mappers: WeakRegistry[Any] = WeakRegistry()  # stores of this process: they have ``close_beyond``


def add_mapper(store: Any) -> None:
    """Note what maps files of a cache, unless it is known."""
    if store not in _mappers.all():
        _mappers.add(store)


def limit_of_each(max_bytes: int) -> int:
    """Return how many bytes each may map, where this process may map so many: half, as batches hold some, too."""
    return max_bytes // (2 * max(1, len(_mappers.all())))


def close_beyond(max_bytes: int) -> None:
    """Have each close what it maps, if that is more than its part of what this process may map."""
    for store in _mappers.all():
        store.close_beyond(limit_of_each(max_bytes))
