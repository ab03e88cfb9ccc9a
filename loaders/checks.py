"""Arguments are checked where they enter: what is needed, what was passed, what to do instead.

A wrong type is a ``TypeError``, a value out of range a ``ValueError``. Nothing here is for
single samples of a batch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sized
from difflib import get_close_matches
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_SHOWN = 80  # characters


def shown(value: Any) -> str:
    """Return how a value looks in a message: itself if that is short, else what it is.

    Example:
        >>> shown("4"), shown(list(range(1000)))
        ("'4'", 'a list of 1000')
    """
    kind, shape = type(value).__name__, getattr(value, "shape", ())
    article = "an" if kind[0].lower() in "aeiou" or kind == "ndarray" else "a"
    if isinstance(shape, tuple) and shape:
        return f"{article} {kind} of shape {tuple(shape)}"
    text = repr(value)
    if len(text) <= _MOST_SHOWN and "\n" not in text and " object at 0x" not in text:
        return text
    size = f" of {len(value)}" if isinstance(value, Sized) and not isinstance(value, type) else ""
    return f"{article} {kind}{size}"


def whole_number(
    name: str, value: Any, *, at_least: int | None = None, below: int | None = None
) -> int:
    """Return a whole number of any integer type, as an int.

    Raises:
        TypeError: It is none; True and 3.0 are not.
        ValueError: It is out of range.

    Example:
        >>> whole_number("batch_size", "4", at_least=1)
        Traceback (most recent call last):
        TypeError: batch_size must be a whole number, got '4'
    """
    try:
        whole = None if isinstance(value, bool) else index(value)
    except TypeError:
        whole = None
    if whole is None:
        raise TypeError(f"{name} must be a whole number, got {shown(value)}")
    if at_least is not None and whole < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {whole}")
    if below is not None and whole >= below:
        raise ValueError(f"{name} must be below {below}, got {whole}")
    return whole


def real_number(
    name: str, value: Any, *, at_least: float = -math.inf, at_most: float = math.inf
) -> Any:
    """Return a number as it is.

    Raises:
        TypeError: It is none.
        ValueError: It is out of range, or nan where there is one.
    """
    try:
        real = None if isinstance(value, (str, bytes, bool)) else float(value)
    except (TypeError, ValueError):
        real = None
    if real is None:
        raise TypeError(f"{name} must be a number, got {shown(value)}")
    is_limited = (at_least, at_most) != (-math.inf, math.inf)
    if is_limited and not at_least <= real <= at_most:
        raise ValueError(f"{name} must be in [{at_least:g}, {at_most:g}], got {value!r}")
    return value


def one_of(name: str, value: Any, choices: Sequence[Any]) -> Any:
    """Return a value if it is one of a few.

    Raises:
        ValueError: It is not; the message has what is close.

    Example:
        >>> one_of("backend", "treads", ["auto", "threads"])
        Traceback (most recent call last):
        ValueError: backend must be 'auto' or 'threads', got 'treads': did you mean 'threads'?
    """
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return value
    listed = " or ".join(map(repr, choices))
    raise ValueError(f"{name} must be {listed}, got {shown(value)}{did_you_mean(value, choices)}")


def did_you_mean(value: Any, choices: Iterable[Any]) -> str:
    """Return the end of a message about a name that there is not, where one is close to it."""
    names = [choice for choice in choices if isinstance(choice, str)]
    close = get_close_matches(value, names, 1) if isinstance(value, str) else []
    return f": did you mean {close[0]!r}?" if close else ""


def as_list(name: str, value: Any, like: str) -> list[Any]:
    """Return several values as a list; TypeError if it is a text, a path, a mapping, a set or a single value.

    ``like`` is what would be right, such as ``"shares, such as [0.9, 0.1]"``.
    """
    single = isinstance(value, (str, bytes, os.PathLike, Mapping, set, frozenset, type))
    if single or not isinstance(value, Iterable) or getattr(value, "shape", None) == ():
        raise TypeError(f"{name} must be a list of {like}, got {shown(value)}")
    return list(value)


def as_path(name: str, value: Any, what: str) -> Path:
    """Return a path; TypeError if it is neither a path nor a text. ``what`` must be at it, for the message."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be {what}, got {shown(value)}")
    return Path(value)


def shares(parts: Any) -> list[float]:
    """Return the shares that something is divided by.

    Raises:
        TypeError: They are not a list of numbers.
        ValueError: They do not sum to 1, or one is negative.
    """
    found = as_list("parts", parts, "shares that sum to 1, such as [0.9, 0.1]")
    numbers = [float(real_number(f"parts[{i}]", part)) for i, part in enumerate(found)]
    if not abs(sum(numbers) - 1) <= 1e-6 or min(numbers) < 0:  # nor NaN
        raise ValueError(f"parts must be shares that sum to 1, such as [0.9, 0.1], got {found}")
    last = max(i for i, number in enumerate(numbers) if number)
    numbers[last] += max(0.0, 1 - sum(numbers))  # no sample is left out
    return numbers


class Settled:
    """Settings that are given once: assigning another value later, which nothing would follow, is a ``ValueError``."""

    _settled: ClassVar[frozenset[str]] = frozenset()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._settled and self._is_made(name):
            before = getattr(self, name, self)  # an argument may be no attribute
            if before is not value and not (type(before) is type(value) and before == value):
                self._refuse(name, value)
        super().__setattr__(name, value)

    def _is_made(self, name: str) -> bool:
        return name in self.__dict__

    def _refuse(self, name: str, value: Any) -> None:
        kind = type(self).__name__
        what = f"{name} of a {kind} cannot change after it was made, got {shown(value)}"
        raise ValueError(f"{what}: make another {kind}")
