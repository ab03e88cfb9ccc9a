"""A property that is computed once, without a lock: before Python 3.12, ``functools`` holds one for all instances.

A process that is forked while another thread computes has that lock for good, and waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

ValueT = TypeVar("ValueT")


class cached_property(Generic[ValueT]):
    """As ``functools.cached_property``; threads that ask at the same time may each compute it."""

    def __init__(self, function: Callable[[Any], ValueT]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type[Any]) -> ValueT: ...

    def __get__(self, instance: Any, owner: type[Any]) -> Self | ValueT:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value
