"""Errors on their way to another process: what arrives says the same, and is of the same type if that can be."""

from __future__ import annotations

import pickle
import traceback
from contextlib import suppress
from typing import Any

_OF_SYSTEM = (
    "errno",
    "strerror",
    "filename",
)  # of an OSError, which does not list them among its attributes


def portable(error: BaseException) -> BaseException:
    """Return what arrives as the error: with its traceback as text, and a RuntimeError if it cannot be pickled."""
    notes = [f"In the loader's child process:\n{''.join(traceback.format_exception(error))}"]
    with suppress(Exception):  # an error may have anything for its notes
        notes = [*error.__notes__, *notes]
    text = _text(error)
    for form in (error, _ByAttributes(error)):
        with suppress(Exception):
            sent: Any = _Sent(pickle.dumps(form), notes)
            arrived = pickle.loads(pickle.dumps(sent))  # noqa: S301  # what we made ourselves
            if type(arrived) is type(error) and _text(arrived) == text:
                return sent  # type: ignore[no-any-return]
    plain = RuntimeError(f"{type(error).__name__}: {text}")
    plain.__notes__ = notes
    return plain


class _Sent:
    """Becomes an error, with its notes, when it is unpickled."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> Any:
        return _with_notes, self._parts


def _with_notes(data: bytes, notes: list[str]) -> BaseException:
    error: BaseException = pickle.loads(data)  # noqa: S301  # of our own child
    error.__notes__ = notes
    return error


class _ByAttributes:
    """Becomes an error whose ``__init__`` takes other arguments than ``args``."""

    def __init__(self, error: BaseException) -> None:
        names = [name for name in (*vars(error), *_OF_SYSTEM) if hasattr(error, name)]
        values = {name: getattr(error, name) for name in names}
        values = {name: value for name, value in values.items() if _pickles(value)}
        self._parts = type(error), error.args, values

    def __reduce__(self) -> Any:
        return _put_together, self._parts


def _put_together(
    kind: type[BaseException], args: tuple[Any, ...], values: dict[str, Any]
) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    for name, value in values.items():
        setattr(error, name, value)
    return error


def _pickles(value: Any) -> bool:
    with suppress(Exception):
        pickle.dumps(value)
        return True
    return False


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"(its text cannot be had: {type(failure).__name__})"
