"""What an error is about, as a check for ``pytest.raises``: attributes that callers can rely on, and no wording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class At:
    """Holds for errors that are about a place.

    Args:
        place: How their ``path`` ends: a file's name, and what is said of a place in it.
        others: Other attributes: row, field, index, key.
    """

    def __init__(self, place: Path | str = "", **others: Any) -> None:
        self._place, self._others = str(place), others

    def __call__(self, error: Any) -> bool:
        is_there = not self._place or f"/{error.path}".endswith(f"/{self._place}")
        return is_there and all(
            getattr(error, name) == self._others[name] for name in self._others
        )

    def __repr__(self) -> str:
        return f"At({self._place!r}, {self._others})"
