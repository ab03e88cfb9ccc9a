"""Names of options in messages, as their reader gave them: ``vocab_size`` in Python, else ``--vocab-size``."""

from __future__ import annotations

import csv
import functools
import io
import re
import shlex
from typing import TYPE_CHECKING, Any, TypeVar

from loaders.errors import LoadersError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

F = TypeVar("F", bound="Callable[..., Any]")
# By option, where the two differ.
_PYTHON = {"size": "sizes", "shard_size": "shard_bytes", "no_header": "header=False"}
_FLAGS = frozenset({"overwrite", "gray", "keep_depth", "missing_mask", "segments"})
_VALUES = "cover|contain|stretch|shorter|skip|fail|png|jpeg|raw|lmdb|parquet|line|days|parts|mean|nan|float32|float64"
# Options that take names, such as a table's columns, in quotes where a shell needs them.
_NAMES = re.compile(
    r"--(drop|categorical|numeric) (?!takes\b|leaves\b|what\b)('(?:[^']|'\"'\"')*'|[\w@%+=:,./-]+)"
)
# Commands stay as they are: what is to be typed is typed in a shell.
_OPTION = re.compile(
    r"'packdata [^']*'|packdata [a-z]+(?: --[a-z-]+)+"
    rf"|(?<![\w'\"/=.-])--([a-z]+(?:-[a-z]+)*)(?: ([A-Z][A-Z.|]+|\d+)\b| ({_VALUES})(?: or ({_VALUES}))?\b)?"
)


def in_python(text: str) -> str:
    """Return a message that names options as arguments.

    Example:
        >>> in_python("Give --vocab-size, --fit cover, or --overwrite: 'packdata info --json' shows it")
        "Give vocab_size, fit='cover', or overwrite=True: 'packdata info --json' shows it"
        >>> in_python("--drop a,b leaves them out, --missing nan or mean says what becomes of them")
        "drop=['a', 'b'] leaves them out, missing='nan' or 'mean' says what becomes of them"
    """

    def renamed(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        name = match[1].replace("-", "_")
        value = match[2] or (match[3] and repr(match[3])) or ("True" if name in _FLAGS else None)
        value = f"{value} or {match[4]!r}" if match[4] else value
        return _PYTHON.get(name, name) + (f"={value}" if value else "")

    def listed(match: re.Match[str]) -> str:
        return f"{match[1]}={next(csv.reader(shlex.split(match[2]), skipinitialspace=True))}"

    text = _OPTION.sub(renamed, _NAMES.sub(listed, text))
    return re.sub(r"(['\]]) (?=[a-z_]+=)", r"\1, ", text)


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


def speaks_python(function: F) -> F:
    """Return a function whose errors name options as its arguments."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except (LoadersError, ValueError, TypeError) as error:
            _reword(error)
            raise

    return call  # type: ignore[return-value]


def _reword(error: Exception) -> None:
    """Change the words of an error: its text, or what it says beside a place, and what was added."""
    if hasattr(error, "__notes__"):
        error.__notes__ = [*map(in_python, error.__notes__)]
    words = {name: getattr(error, name, None) for name in ("what", "hint")}
    texts = [text for text in words.values() if isinstance(text, str)] or list(error.args[:1])
    error.args = tuple(
        in_python(arg) if isinstance(arg, str) and arg in texts else arg for arg in error.args
    )
    for name, text in words.items():
        if isinstance(text, str):
            setattr(error, name, in_python(text))
