"""What an error is about, as a check for ``pytest.raises``: attributes that callers can rely on, and no wording."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_HASH = re.compile(r"(?<=/shard-\d{5})-[0-9a-f]{32}(?=\.)")


def without_hash(path: object) -> str:
    """Return a path with the plain name of its shard: ``shard-00000.lmdb``."""
    return _HASH.sub("", str(path))


class At:
    """Holds for errors that are about a place.

    Args:
        place: How their ``path`` ends: a file's name, of a shard without its hash, and what is said of a place in it.
        cause: The type of the error that says why; None: any, or none.
        others: Other attributes: row, field, index, key.
    """

    def __init__(
        self, place: Path | str = "", *, cause: type[Exception] | None = None, **others: Any
    ) -> None:
        self._place, self._cause, self._others = str(place), cause, others

    def __call__(self, error: Any) -> bool:
        path = f"/{without_hash(getattr(error, 'path', ''))}"
        is_there = not self._place or path.endswith(f"/{without_hash(self._place)}")
        is_because = self._cause is None or type(error.__cause__) is self._cause
        return (
            is_there
            and is_because
            and all(getattr(error, name) == self._others[name] for name in self._others)
        )

    def __repr__(self) -> str:
        return f"At({self._place!r}, {self._cause}, {self._others})"


def accepted(error: type[Exception], call: Callable[[T], object], cases: Iterable[T]) -> list[T]:
    """Return the cases of a table for which a call raises no such error: none, if all are refused."""

    def is_refused(case: T) -> bool:
        try:
            call(case)
        except error:
            return True
        return False

    return [case for case in cases if not is_refused(case)]
