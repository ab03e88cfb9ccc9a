"""A weak set of live objects, for code that must reach all of them, such as a signal handler."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakRegistry(Generic[T]):
    """Weak set of live instances, safe to read in a signal handler."""

    def __init__(self) -> None:
        # A plain dict, by ``id`` of the reference, of which an instance has one: copying it is safe in any thread.
        self._references: dict[int, weakref.ref[T]] = {}

    def add(self, one: T) -> None:
        """Keep a reference for as long as the instance lives."""
        for number, reference in list(self._references.items()):
            if reference() is None:
                self._references.pop(number, None)
        reference = weakref.ref(one)
        self._references[id(reference)] = reference

    def all(self) -> list[T]:
        """Return the instances that live, the oldest first."""
        references = list(self._references.values())
        return [one for reference in references if (one := reference()) is not None]
