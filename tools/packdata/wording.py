"""Texts in messages that may be too long: the first of many names, the beginning of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def few(names: Iterable[str], most: int = 5) -> str:
    """Return the first of some names, with dots where there are more.

    Example:
        >>> few(["a", "b"]), few("abc", 2)
        ('a, b', 'a, b, ...')
    """
    listed = list(names)
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "")


def cut(text: str, most: int) -> str:
    """Return a text of at most so many characters, with dots where it was longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
