"""Files of rows with named columns, and those whose text is parsed (CSV, JSON lines), compressed or not.

A file is read in parts of a few megabytes, cut where rows end: each can be read on its own, so that a file of any size
takes little memory, threads read several at once, and a packing that was killed goes on in the middle. Cells of CSV are
texts; ``packdata.types`` tells what they stand for.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import pyarrow as pa

from loaders.errors import PackError, SourceError
from packdata.parsing import UTF8_HINT
from packdata.reading import LocalFile, open_file
from packdata.types import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from loaders.remote.url import Location
    from packdata.reading import File

    Names = Sequence[str] | None  # of columns; None: all

DELIMITED = (".csv", ".tsv")
JSON_LINES = (".jsonl", ".ndjson")
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}  # by suffix
PART_BYTES = 4 << 20  # of text: large enough for few calls, small enough for many workers
_PART_COLUMNS = 1 << 10  # where there are more, parts are larger: each takes time for each column
MAX_ROW_BYTES = 64 << 20
HEAD_BYTES = 1 << 16  # looked at first


class Part(NamedTuple):
    """One stretch of a file."""

    file: int  # number of the file among others; 0 of one alone
    start: int  # where it begins: an offset in bytes, or the number of a row group or row
    stop: int  # where it ends: an offset in bytes, or a row
    line: int  # number of its first line, from 1; of its first row, from 0, if it has no lines


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that were read."""

    table: pa.Table  # of the columns that were asked for
    line: Callable[[int], int]  # says at which line or row of the file a row of the table is
    bad: Sequence[tuple[int, str]] = ()  # lines that were left out, and why


class RowFile(ABC):
    """One file of rows.

    Attributes:
        path: Where it is.
        unit: ``line`` or ``row``: what places in it are counted in.
        columns: Its columns in order, or None where every row may have its own.
        classes: Names of classes of columns that declare some.
        guesses: Kinds that texts may turn out to be; none where the file declares types.
    """

    path: Location
    unit = "row"
    columns: tuple[str, ...] | None
    classes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    guesses = frozenset[Kind]()

    def place(self, line: int) -> str:
        """Return where a line or row is, for messages."""
        return f"{self.path}, {self.unit} {line}"

    @abstractmethod
    def parts(self) -> Iterator[Part]:
        """List the parts of the file; SourceError if it cannot be read."""

    @abstractmethod
    def read(self, part: Part, columns: Names = None) -> Iterator[Rows]:
        """Read columns (None: all) of a part, piece by piece: as the file declares them, those of CSV as texts.

        Raises:
            SourceError: The part cannot be read.
        """


def compression_of(name: str) -> str | None:
    """Return how a file of such a name is compressed, as Arrow calls it; None if it is not."""
    return COMPRESSIONS.get(os.path.splitext(name)[1].lower())


def suffix_inside(name: str) -> str:
    """Return the suffix that says what a file is, without that of its compression.

    Example:
        >>> suffix_inside("A.CSV.gz"), suffix_inside("a.parquet")
        ('.csv', '.parquet')
    """
    stem, suffix = os.path.splitext(name.lower())
    return os.path.splitext(stem)[1] if suffix in COMPRESSIONS else suffix


@contextmanager
def open_text(file: File) -> Iterator[BinaryIO]:
    """Open a file of text, decompressed as it is read; SourceError if that fails, PackError if a copy has no room."""
    compression = compression_of(file.path.name)
    try:
        with open_file(file) as opened:
            text: Any = pa.CompressedInputStream(opened, compression) if compression else opened
            with io.BufferedReader(text) as text:
                yield text
    except (OSError, pa.ArrowException) as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            what = f"{file.path} cannot be unpacked there ({error})"
            raise PackError(what, tempfile.gettempdir(), "TMPDIR names another folder") from error
        what = f"the file cannot be {'decompressed' if compression else 'read'} ({error})"
        raise SourceError(what, file.path, "Is the file complete?") from error


class PlainText:
    """The text of a file; of a compressed one a copy below ``TMPDIR``, which is made at its first reading.

    The copy is removed with this object. Any threads may read.
    """

    def __init__(self, file: File) -> None:
        self._file, self._lock = file, threading.Lock()
        self._copy: LocalFile | None = None

    def __reduce__(self) -> tuple[type[PlainText], tuple[File]]:
        """Leave the copy where it is: another process unpacks the file itself."""
        return PlainText, (self._file,)

    def open(self) -> BinaryIO:
        """Open the text; SourceError if it is not there."""
        if compression_of(self._file.path.name) is None:
            return open_file(self._file)
        with self._lock:
            self._copy = copy = self._copy or self._unpacked()
        return open_file(copy)

    def read(self, start: int, stop: int) -> bytes:
        """Return a range of its bytes, fewer at the end."""
        with self.open() as file:
            file.seek(start)
            return file.read(stop - start)

    def _unpacked(self) -> LocalFile:
        number, name = tempfile.mkstemp(prefix="packdata-")
        weakref.finalize(self, _remove, name, os.getpid())
        with open_text(self._file) as source, open(number, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        return LocalFile(name, str(self._file.path))


def _remove(name: str, maker: int) -> None:
    if os.getpid() == maker:  # and no fork of it, which may end first
        os.unlink(name)


class TextRows(RowFile):
    """A file of text, compressed or not."""

    unit = "line"

    def __init__(self, file: File) -> None:
        self.file, self.path, self._text = file, file.path, PlainText(file)
        with open_text(file) as text:
            head: bytes = text.read(HEAD_BYTES)
        if not head:
            raise SourceError("the file is empty", self.path, "Leave the file out")
        if head[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in head[:200]:
            raise SourceError("the file is not UTF-8 text", self.path, UTF8_HINT)

    @abstractmethod
    def records(self, part: Part) -> Iterator[tuple[int, Any, str]]:
        """Yield the rows of a part one by one in Python: the line of each, what it holds, and why it cannot be read."""

    @abstractmethod
    def _parsed(self, data: bytes, columns: Names) -> pa.Table | None:
        """Return columns of whole rows as Arrow parses them; None where it refuses one, or reads something else."""

    @abstractmethod
    def _table(self, rows: Sequence[Any], columns: Names) -> pa.Table:
        """Return columns of what records hold."""

    def read(self, part: Part, columns: Names = None) -> Iterator[Rows]:
        """Parse a part: by Arrow, or where it cannot, row by row, and only those that cannot be read are bad."""
        columns = self.columns if columns is None else columns
        if (table := self._parsed(self._bytes(part), columns)) is not None:
            # The part is read once more when a message says where a row is.
            lines = cache(lambda: [line for line, *_ in self.records(part)])
            yield Rows(table, lambda row: lines()[row])
            return
        found = [*self.records(part)]
        bad = [(line, why) for line, _, why in found if why]
        good = [(line, row) for line, row, why in found if not why]
        table = self._table([row for _, row in good], columns)
        yield Rows(table, [line for line, _ in good].__getitem__, bad)

    def _bytes(self, part: Part) -> bytes:
        data = self._text.read(part.start, part.stop)
        if len(data) < part.stop - part.start:
            raise SourceError("the file became shorter while it was packed", self.path)
        return data

    def _cut(
        self, last_end: Callable[[bytes], int], begin: int = 0, line: int = 1
    ) -> Iterator[Part]:
        """List pieces of whole rows, the last one though its row may have no line end.

        ``last_end`` returns where the last row of some bytes ends, 0 if none does; the first row begins at ``begin``,
        on ``line``.
        """
        size = PART_BYTES * (1 + len(self.columns or ()) // _PART_COLUMNS)
        with self._text.open() as file:
            start, rest = begin, 0
            while True:
                file.seek(start)  # again what belongs to no whole row yet
                data: bytes = file.read(rest + size)
                if len(data) <= rest:
                    break
                if length := last_end(data):
                    yield Part(0, start, start + length, line)
                    start += length
                    line += data.count(b"\n", 0, length)
                elif len(data) > MAX_ROW_BYTES:
                    what = f"the row has more than {MAX_ROW_BYTES >> 20} MiB"
                    hint = "Is a quote never closed, or a line end missing?"
                    raise SourceError(what, f"{self.path}, line {line}", hint)
                rest = len(data) - length
            if data.strip(b"\r\n"):
                if not last_end(data + b"\n"):
                    what = "a quote is opened and never closed"
                    raise SourceError(what, f"{self.path}, line {line}")
                yield Part(0, start, start + len(data), line)
