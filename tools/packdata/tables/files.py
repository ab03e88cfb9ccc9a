"""Table files: each lists parts that can be read on their own, in any order and on any thread.

A part holds a few megabytes of text, a row group or a record batch, so that a table of any size is read in little
memory, packing goes on in the middle after a kill, and the result does not depend on the number of workers.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from loaders.errors import SourceError
from packdata.sources.base import is_hidden, suffix_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

Kind = Literal["number", "flag", "date", "time", "text"]  # what a column is read as
PART_BYTES = 4 << 20  # of text: large enough for few calls, small enough for many workers
_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather", ".ipc")
_COMPRESSED = (".gz", ".bz2", ".zst", ".xz", ".lz4", ".zip")


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
        columns: Its columns in order, or None where every row may have its own.
        unit: ``line`` or ``row``: what places in it are counted in.
    """

    path: Path
    columns: tuple[str, ...] | None
    unit: str

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


def open_tables(sources: Sequence[Path | str], delimiter: str | None = None) -> list[TableFile]:
    """Open the files that paths, patterns and folders name: each once, in the order given, those of one sorted.

    Args:
        sources: Files, patterns such as ``data/*.csv``, and folders of table files.
        delimiter: What separates the cells of CSV files; None for a comma, or a tab in ``.tsv``.

    Raises:
        SourceError: There is no such file, or it is not a table.
    """
    paths: dict[Path, None] = {}
    for source in sources:
        paths |= dict.fromkeys(_expand(source))
    if not paths:
        raise SourceError("there is no table to pack", ", ".join(map(str, sources)))
    return [_open(path, delimiter) for path in paths]


def _expand(source: Path | str) -> list[Path]:
    path = Path(source)
    if path.is_dir():
        found = [p for p in sorted(path.iterdir()) if suffix_of(p.name) in _SUFFIXES]
        found = [p for p in found if not is_hidden(p.name)]
        if not found:
            raise SourceError(f"the folder has no {', '.join(_SUFFIXES)}", path)
        return found
    if path.exists() or not glob.has_magic(str(source)):
        return [path]
    matches = sorted(Path(match) for match in glob.glob(str(source), recursive=True))
    if not matches:
        raise SourceError("no file matches", source)
    return [match for match in matches if match.is_file()]


def _open(path: Path, delimiter: str | None) -> TableFile:
    suffix = suffix_of(path.name)
    openers: dict[str, Callable[[Path], Any]] = {}
    if suffix in (".csv", ".tsv", ".txt"):
        from packdata.tables.delimited import DelimitedFile

        separator = delimiter or ("\t" if suffix == ".tsv" else ",")
        openers[suffix] = partial(DelimitedFile, delimiter=separator)
    elif suffix in (".jsonl", ".ndjson"):
        from packdata.tables.jsonl import JsonLinesFile

        openers[suffix] = JsonLinesFile
    elif suffix == ".parquet":
        from packdata.tables.arrow import ParquetTable

        openers[suffix] = ParquetTable
    elif suffix in (".arrow", ".feather", ".ipc"):
        from packdata.tables.arrow import ArrowTable

        openers[suffix] = ArrowTable
    if suffix not in openers:
        what = f"files of kind {suffix or 'without suffix'} are not tables that can be packed"
        hint = "Decompress it" if suffix in _COMPRESSED else f"It takes {', '.join(_SUFFIXES)}"
        raise SourceError(what, path, hint)
    try:
        file: TableFile = openers[suffix](path)
    except OSError as error:
        raise SourceError(f"it cannot be read ({error.strerror or error})", path) from error
    return file


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
