"""Errors on their way to another process: what arrives says the same, and is of the same type if that can be."""

from __future__ import annotations

import pickle
import traceback
from contextlib import suppress
from typing import Any


def portable(error: BaseException) -> BaseException:
    """Return what arrives as the error: with its traceback as text, and of a plain type if need be."""
    trace = "".join(traceback.format_exception(error))
    notes = [f"In the loader's child process:\n{trace}"]
    with suppress(Exception):  # an error may have anything for its notes
        notes = [*error.__notes__, *notes]
    for form in (_as_pickled, _by_attributes):
        with suppress(Exception):
            return form(error, notes)
    plain = RuntimeError(f"{type(error).__name__}: {_text(error)}")
    plain.__notes__ = notes
    return plain


def _as_pickled(error: BaseException, notes: list[str]) -> BaseException:
    copy = _sent(error)
    if type(copy) is not type(error):
        raise TypeError
    copy.__notes__ = notes
    return copy


def _by_attributes(error: BaseException, notes: list[str]) -> BaseException:
    """Send an error as its attributes: its ``__init__`` takes other arguments than ``args``, or some do not pickle."""
    beside = {name: getattr(error, name, None) for name in ("errno", "strerror", "filename")}
    found = {name: value for name, value in beside.items() if value is not None} | vars(error)
    values = {name: value for name, value in found.items() if _pickles(value)}
    args = error.args if _pickles(error.args) else (_text(error),)
    parts: Any = _ErrorParts(type(error), args, values | {"__notes__": notes})
    if _text(_sent(parts)) != _text(error):
        raise ValueError  # its text needs what was left out
    return parts  # type: ignore[no-any-return]


class _ErrorParts:
    """Becomes an error when it is unpickled."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

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


def _sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301  # what we made ourselves


def _pickles(value: Any) -> bool:
    try:
        _sent(value)
    except Exception:
        return False
    return True


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"(its text cannot be had: {type(failure).__name__})"
