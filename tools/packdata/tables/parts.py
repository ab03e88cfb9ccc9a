"""What a table file is to those who scan and pack it: parts that can be read on their own.

A part holds a few megabytes of text, a row group or a record batch, so that a table of any size is read in little
memory, packing goes on in the middle after a kill, and the result does not depend on the number of workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from loaders.errors import SourceError
from loaders.system.regular import regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from packdata.tables.values import Codes

    Bytes = npt.NDArray[np.uint8]

Kind = Literal["number", "flag", "date", "time", "text"]  # what a column is read as
PART_BYTES = 4 << 20  # of text: large enough for few calls, small enough for many workers
MAX_ROW_BYTES = 64 << 20
_PIECE_BYTES = 1 << 17
_LINE_END = 10
Text = bytes | bytearray
Why = str | Callable[[], str]  # a reason in words, or what makes some


class FilePart(NamedTuple):
    """One stretch of a file."""

    file: int  # number of the file
    start: int  # where it begins: an offset in bytes, or the number of a row group or batch
    stop: int  # where it ends: an offset in bytes, or a row
    line: (
        int  # number of its first line, from 1; of its first row, from 0, where there are no lines
    )


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows that were read.

    Attributes:
        table: The columns that were asked for.
        line: Says at which line or row of the file a row of the table stands.
        bad: Lines that were left out, and why; ``said`` makes words of that, where somebody reads them.
        cell: Says how a value is written there, where that is not what the table shows.
        mixed: Of columns of JSON with values of several kinds: the kind of each, as its place in ``GROUPS``.
    """

    table: pa.Table
    line: Callable[[int], int]
    bad: Sequence[tuple[int, Why]] = ()
    mixed: Mapping[str, Codes] = field(default_factory=dict)
    cell: Callable[[int, str], str] | None = None


def said(why: Why) -> str:
    """Return a reason in words."""
    return why if isinstance(why, str) else why()


class TableFile(Protocol):
    """One file of rows.

    Attributes:
        path: Where it is.
    """

    path: Path

    @property
    def unit(self) -> str:
        """``line`` or ``row``: what places in it are counted in."""

    @property
    def is_text(self) -> bool:
        """Whether reading it means parsing text."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Its columns in order, or None where every row may have its own."""

    def guesses(self, column: str) -> frozenset[str]:
        """Return what texts of a column may be, where all are; nothing where the file declares them texts."""

    def parts(self, number: int) -> Iterator[FilePart]:
        """List the parts of the file, which is the ``number``-th; SourceError if it cannot be read."""

    def read(
        self, part: FilePart, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> Iterator[TableRows]:
        """Read columns (None: all) of a part, piece by piece.

        Columns come as the file declares them, those of a CSV file as texts; of kind ``text`` as texts.

        Raises:
            SourceError: The part cannot be read.
        """


def cut(
    path: Path,
    number: int,
    last_end: Callable[[Text], int],
    begin: int = 0,
    line: int = 1,
    *,
    check_end: Callable[[Text, int], None] | None = None,
    hint: str = "",
) -> Iterator[FilePart]:
    """List pieces of whole rows of a text file, the last one though its row may have no end.

    Args:
        path: The file.
        number: Of the file.
        last_end: Returns where the last row of some bytes ends, 0 if none does.
        begin: Where the first row begins.
        line: Its number.
        check_end: Looks at a last row without an end, and its line.
        hint: What to do about a row of no end.
    """
    with open(path, "rb", opener=regular) as file:
        whole, start, rest = os.fstat(file.fileno()).st_size, begin, 0
        data = bytearray()  # filled again and again: fresh memory takes longer than reading
        while True:
            file.seek(start)  # again what belongs to no whole row yet
            size = min(rest + PART_BYTES, max(0, whole - start))
            data.extend(bytes(max(0, size - len(data))))
            del data[size:]
            del data[file.readinto(data) :]
            if len(data) <= rest:
                break
            length = last_end(data)
            if length:
                yield FilePart(number, start, start + length, line)
                start += length
                line += _num_lines(data, length)
            elif len(data) > MAX_ROW_BYTES:
                what = f"the row has more than {MAX_ROW_BYTES >> 20} MiB"
                raise SourceError(what, f"{path}, line {line}", hint)
            rest = len(data) - length
        if data.strip(b"\r\n"):
            if check_end is not None:
                check_end(data, line)
            yield FilePart(number, start, start + len(data), line)


def _num_lines(data: bytearray, stop: int) -> int:
    text = np.frombuffer(data, np.uint8, stop)
    return sum(int(np.count_nonzero(piece == _LINE_END)) for _, piece in pieces(text))


def pieces(text: Bytes) -> Iterator[tuple[int, Bytes]]:
    """Yield stretches that the cache holds, and where each begins: what is computed of them takes no fresh memory."""
    for first in range(0, len(text), _PIECE_BYTES):
        yield first, text[first : first + _PIECE_BYTES]


def read_bytes(path: Path, start: int, stop: int) -> bytes:
    """Return a stretch of a file; SourceError if it is not there."""
    try:
        with open(path, "rb", opener=regular) as file:
            file.seek(start)
            data = file.read(stop - start)
    except OSError as error:
        raise SourceError(f"it cannot be read ({error.strerror or error})", path) from error
    if len(data) < stop - start:
        raise SourceError("it became shorter while it was packed", path)
    return data


def some_of(table: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    """Return these columns of a table; one that it lacks is empty."""
    if columns is None:
        return table
    arrays: list[Any] = [
        table[name] if name in table.column_names else pa.nulls(len(table)) for name in columns
    ]
    return pa.Table.from_arrays(arrays, names=list(columns))
