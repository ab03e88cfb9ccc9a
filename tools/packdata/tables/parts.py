"""What a table file is to those who scan and pack it: parts that can be read on their own.

A part holds a few megabytes of text, a row group or a record batch, so that a table of any size is read in little
memory, packing goes on in the middle after a kill, and the result does not depend on the number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from loaders.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

Kind = Literal["number", "flag", "date", "time", "text"]  # what a column is read as
PART_BYTES = 4 << 20  # of text: large enough for few calls, small enough for many workers


@dataclass(frozen=True, slots=True)
class Part:
    """One stretch of a file.

    Attributes:
        file: Number of the file.
        start: Where it begins: an offset in bytes, or the number of a row group or batch.
        stop: Where it ends: an offset in bytes, or a row.
        line: Number of its first line, from 1; of its first row, from 0, where there are no lines.
    """

    file: int
    start: int
    stop: int
    line: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that were read.

    Attributes:
        table: The columns that were asked for.
        line: Says at which line or row of the file a row of the table stands.
        bad: Lines that were left out, and why.
    """

    table: pa.Table
    line: Callable[[int], int]
    bad: Sequence[tuple[int, str]] = ()


class TableFile(Protocol):
    """One file of rows.

    Attributes:
        path: Where it is.
        unit: ``line`` or ``row``: what places in it are counted in.
    """

    path: Path
    unit: str

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Its columns in order, or None where every row may have its own."""

    def parts(self, number: int) -> Iterator[Part]:
        """List the parts of the file, which is the ``number``-th; SourceError if it cannot be read."""

    def read(
        self, part: Part, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> Iterator[Rows]:
        """Read columns (None: all) of a part, piece by piece.

        Columns without a kind come as what they seem to be; ``text`` as strings; others as strings too where a value
        is not of their kind.

        Raises:
            SourceError: The part cannot be read.
        """


def read_bytes(path: Path, start: int, stop: int) -> bytes:
    """Return a stretch of a file; SourceError if it is not there."""
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            data = bytearray()
            while block := file.read(stop - start - len(data)):
                data += block
    except OSError as error:
        raise SourceError(f"it cannot be read ({error.strerror or error})", path) from error
    if len(data) < stop - start:
        raise SourceError("it became shorter while it was packed", path)
    return bytes(data)
