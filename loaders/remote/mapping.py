"""How much of a cache this process may map, where the cache does not hold what all its clients read."""

from __future__ import annotations

from typing import Protocol

from loaders.system.registry import WeakRegistry


class Mapper(Protocol):
    """Maps files of a cache."""

    def close_beyond(self, max_bytes: int) -> None:
        """Close what is mapped, if it is more."""


_mappers: WeakRegistry[Mapper] = WeakRegistry()  # of this process


def add_mapper(mapper: Mapper) -> None:
    """Note what maps files of a cache, unless it is known."""
    if mapper not in _mappers.all():
        _mappers.add(mapper)


def limit_of_each(max_bytes: int) -> int:
    """Return how many bytes each may map, where this process may map so many: half, as batches hold some, too."""
    return max_bytes // (2 * max(1, len(_mappers.all())))


def close_beyond(max_bytes: int) -> None:
    """Have each close what it maps, if that is more than its part of what this process may map."""
    for mapper in _mappers.all():
        mapper.close_beyond(limit_of_each(max_bytes))
