"""Errors on their way to another process: what arrives says the same, and is of the same type if it pickles."""

from __future__ import annotations

import pickle
import traceback
from contextlib import suppress


def portable(error: BaseException) -> BaseException:
    """Return what arrives as the error: with its traceback as a note, and a RuntimeError if it does not pickle."""
    note = f"In the loader's child process:\n{''.join(traceback.format_exception(error))}"
    with suppress(Exception):
        arrived: BaseException = pickle.loads(pickle.dumps(error))  # noqa: S301  # what we made ourselves
        if type(arrived) is type(error) and str(arrived) == str(error):
            arrived.add_note(note)
            return arrived
    text = "(no text)"
    with suppress(Exception):
        text = str(error)
    plain = RuntimeError(f"{type(error).__name__}: {text}")
    with suppress(Exception):  # an error may have anything for its notes
        plain.__notes__ = [*error.__notes__]
    plain.add_note(note)
    return plain
