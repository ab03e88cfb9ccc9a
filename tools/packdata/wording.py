"""Names in messages: as an option takes them, and the first of many."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def names_in_option(names: Sequence[str]) -> str:
    """Return names as an option takes them, those with a comma or line end in quotes.

    Example:
        >>> names_in_option(["age", "income, EUR"])
        'age,"income, EUR"'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(names)
    return text.getvalue().removesuffix("\r\n")


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
