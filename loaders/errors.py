"""What can go wrong, said with place, finding and remedy.

::

    LoadersError
    ├── SchemaError     (ValueError)    a field or schema that contradicts itself
    │   └── NoValueError (AttributeError)  an attribute that this dataset has no value for: hasattr() says False
    ├── ManifestError   (ValueError)    manifest.json is missing, damaged, newer, or points outside its folder
    ├── ShardError      (ValueError)    the bytes of a shard contradict its manifest
    │   ├── StaleDatasetError           the dataset was replaced in its folder since it was opened
    │   └── ChecksumError               a stored checksum differs from the bytes
    ├── CodecError      (ValueError)    a record that its codec cannot read, an array it cannot write
    ├── SampleError     (RuntimeError)  one sample could not be served: carries dataset, shard, row and key
    ├── BatchError      (ValueError)    samples that do not form a batch, or a tensor that is not what a module takes
    ├── UnsendableError (TypeError)     something that the child of backend="subprocess" cannot be given
    ├── StateError      (ValueError)    a state_dict that belongs to another dataset or order
    ├── SourceError     (ValueError)    offline: an input file that cannot be packed
    ├── PackError       (RuntimeError)  offline: a target that cannot be written, or is in use
    ├── RemoteError     (RuntimeError)  a store that does not answer, or not with what the manifest says
    └── CacheError      (RuntimeError)  a folder that cannot hold downloads, or is too small for them

Every error pickles, with its attributes and notes, so it crosses process borders. Its ``__cause__``
does not: what it says is part of the text.
"""

from __future__ import annotations

import re
from ast import literal_eval
from typing import Any

from loaders.text import printable


class LoadersError(Exception):
    """Base of every error this project raises on purpose."""


def sentence(*parts: str) -> str:
    """Join parts into sentences, each ending with one full stop, or as it does with ``?``, ``!`` or ``...``."""
    ends = ("?", "!", "...")
    whole = (part if part.endswith(ends) else f"{part.rstrip('.')}." for part in parts if part)
    return printable(" ".join(whole), keep="\n")


class SchemaError(LoadersError, ValueError):
    """A field or schema that contradicts itself or its data."""


class NoValueError(SchemaError, AttributeError):
    """An attribute that a dataset has no value for: ``hasattr`` says False, and ``getattr`` takes a default."""


class BatchError(LoadersError, ValueError):
    """Samples that do not form a batch, or a tensor that is not what a module takes."""


class StateError(LoadersError, ValueError):
    """A state that belongs to another dataset, order or format."""


class UnsendableError(LoadersError, TypeError):
    """Something that the child of ``backend="subprocess"`` cannot be given: it does not pickle, or is not found."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name, self.why = name, why

    def __str__(self) -> str:
        remedy = "Put it at the top of a module that can be imported, or use backend='thread' or backend='process'"
        return sentence(f"a child process cannot be given {self.name}: {self.why}", remedy)


class CodecError(LoadersError, ValueError):
    """A record that its codec cannot read, or an array that it cannot write."""


class _FileError(LoadersError):
    """What is wrong with one file, and what to do about it; ``path`` is a path, a URL, or what else names the file."""

    def __init__(self, what: str, path: Any, hint: str = "") -> None:
        super().__init__(what, path, hint)  # positional: this is what pickle replays
        self.what, self.path, self.hint = what, path, hint

    def __str__(self) -> str:
        return sentence(f"{printable(str(self.path))}: {self.what}", self.hint)


class ManifestError(_FileError, ValueError):
    """``manifest.json`` is missing, damaged, newer than this version, or points outside its folder."""


class SourceError(_FileError, ValueError):
    """An input file that cannot be packed."""


class PackError(_FileError, RuntimeError):
    """A target that cannot be written, or that another packer holds."""


class RemoteError(_FileError, RuntimeError):
    """A store that does not answer, refuses, or does not have what the manifest says; ``path`` is the URL."""


class CacheError(_FileError, RuntimeError):
    """A folder that cannot hold what is downloaded, or is too small for it; ``path`` is the folder."""


class ShardError(LoadersError, ValueError):
    """The bytes of a shard contradict its manifest; ``row`` is None where it is of the file, or of several."""

    def __init__(
        self,
        what: str,
        path: Any,
        row: int | None = None,
        field: str | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(what, path, row, field, hint)
        self.what, self.path, self.row, self.field, self.hint = what, path, row, field, hint

    def __str__(self) -> str:
        return self.beside()

    def beside(self, path: Any = None, row: int | None = None) -> str:
        """Return the text for a message that names a file and row already: without these, where they are the same."""
        where = [] if self.path == path else [printable(str(self.path))]
        where += [] if self.field is None else [f"field {self.field}"]
        if self.row is not None and (self.path, self.row) != (path, row):
            where.append(f"row {self.row}")
        return sentence(": ".join(filter(None, [", ".join(where), self.what])), self.hint)


class StaleDatasetError(ShardError):
    """A dataset was replaced in its folder since it was opened: its shards are others now."""


class ChecksumError(ShardError):
    """A stored checksum differs from the bytes it covers."""


class SampleError(LoadersError, RuntimeError):
    """One sample could not be served; the error that says why is its ``__cause__``.

    Torch's worker processes hand over no more than the text of an error, as ``message``: place and key
    are read from it.
    """

    # torch makes an error anew by type(message=...) where this is true
    message = "text of an error of a worker process"

    def __init__(
        self,
        what: str = "",
        index: int = -1,
        path: Any = "",
        row: int = -1,
        key: str | None = None,
        *,
        message: str | None = None,
    ) -> None:
        if message is not None:
            what, index, path, row, key = message, *_place_in(message)
        super().__init__(what, index, path, row, key)
        self.what, self.index, self.path, self.row, self.key = what, index, path, row, key

    def __str__(self) -> str:
        key = "" if self.key is None else f", key {self.key!r}"
        path = printable(str(self.path))
        return sentence(f"sample {self.index} ({path}, row {self.row}{key}): {self.what}")


_KEY = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""  # as repr writes a text, whatever is in it
_PLACE = re.compile(rf"SampleError: sample (\d+) \((.*?), row (\d+)(?:, key ({_KEY}))?\): ")


def _place_in(text: str) -> tuple[int, str, int, str | None]:
    """Find in the traceback of a ``SampleError`` what it was about."""
    found = _PLACE.search(text)
    if found is None:
        return -1, "", -1, None
    index, path, row, key = found.groups()
    return int(index), path, int(row), None if key is None else str(literal_eval(key))
