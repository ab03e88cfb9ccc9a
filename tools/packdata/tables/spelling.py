"""Messages about options, as Python spells them: the command says ``--drop a,b``, a caller ``drop=['a', 'b']``."""

from __future__ import annotations

import re
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loaders.errors import SchemaError, SourceError
from packdata.sources.readers import csv_cells

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = re.compile(
    r"--(drop|categorical|numeric) (?!takes\b|leaves\b|what\b)('(?:[^']|'\"'\"')*'|[\w@%+=:,./-]+)"
)
_VALUE = re.compile(r"--(missing|dates|dtype|on-error) (\w+)(?: or (\w+))?")
_PLAIN = {"--no-header": "header=False", "--skip-rows 1": "skip_rows=1"}
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


def in_python(text: str) -> str:
    """Return a message in which options are arguments.

    Example:
        >>> in_python("--drop a,b leaves them out, --missing nan or mean says what becomes of them")
        "drop=['a', 'b'] leaves them out, missing='nan' or 'mean' says what becomes of them"
    """
    text = _NAMES.sub(lambda m: f"{m[1]}={csv_cells(shlex.split(m[2])[0])}", text)
    text = _VALUE.sub(_value, text)
    for option, argument in _PLAIN.items():
        text = text.replace(option, argument)
    text = _OPTION.sub(lambda m: f"{m[1].replace('-', '_')}=", text)
    return re.sub(r"(['\]]) (?=[a-z_]+=)", r"\1, ", text)


def _value(found: re.Match[str]) -> str:
    more = f" or {found[3]!r}" if found[3] else ""
    return f"{found[1].replace('-', '_')}={found[2]!r}{more}"


@contextmanager
def speaking_python() -> Iterator[None]:
    """Spell the options in errors as arguments."""
    try:
        yield
    except (SourceError, SchemaError) as error:
        if isinstance(error, SourceError):
            spelled: Exception = SourceError(
                in_python(error.what), error.path, in_python(error.hint)
            )
        else:
            spelled = SchemaError(in_python(str(error)))
        for note in getattr(error, "__notes__", ()):
            spelled.add_note(in_python(note))
        raise spelled from error.__cause__
