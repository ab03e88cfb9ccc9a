"""Files of rows with named columns, and those whose text is parsed (CSV, JSON lines), compressed or not.

A file is read in parts of a few megabytes, cut where rows end: each can be read on its own, so that a file of any size
takes little memory, threads read several at once, and a packing that was killed goes on in the middle. Cells of CSV are
texts; ``packdata.types`` tells what they stand for.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError
from loaders.system.regular import regular
from packdata.readers import UTF8_HINT
from packdata.types import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from packdata.reading import File

DELIMITED = (".csv", ".tsv")
JSON_LINES = (".jsonl", ".ndjson")
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}  # by suffix
PART_BYTES = 4 << 20  # of text: large enough for few calls, small enough for many workers
_PART_COLUMNS = 1 << 10  # where there are more, parts are larger: each takes time for each column
PART_ROWS = 1 << 16  # of columns that are declared
FEW_ROWS = 32  # of pictures, say
MAX_ROW_BYTES = 64 << 20
HEAD_BYTES = 1 << 16  # looked at first
# What a text may be where nothing says, and where a file has numbers and flags of its own, but no dates.
ANY_KIND = frozenset[Kind](("number", "code", "flag", "date", "zoned"))
DATES = frozenset[Kind](("date", "zoned"))


class Part(NamedTuple):
    """One stretch of a file."""

    file: int  # number of the file
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

    path: Path
    unit = "row"
    columns: tuple[str, ...] | None
    classes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    guesses = frozenset[Kind]()

    def place(self, line: int) -> str:
        """Return where a line or row is, for messages."""
        return f"{self.path}, {self.unit} {line}"

    @abstractmethod
    def parts(self, number: int = 0) -> Iterator[Part]:
        """List the parts of the file, which is the ``number``-th; SourceError if it cannot be read."""

    @abstractmethod
    def read(
        self,
        part: Part,
        columns: Sequence[str] | None = None,
        kinds: Mapping[str, Kind] = MappingProxyType({}),
    ) -> Iterator[Rows]:
        """Read columns (None: all) of a part, piece by piece: as the file declares them, those of CSV as texts.

        ``kinds`` says what some columns are wanted as: JSON has values of several kinds in one column.

        Raises:
            SourceError: The part cannot be read.
        """


class TypedRows(RowFile):
    """A file that declares its columns; its groups of rows are read by themselves.

    Attributes:
        schema: Its columns, with what Hugging Face's ``datasets`` wrote of them.
        groups: Its groups, each a part.
        num_rows: Rows of all groups.
    """

    def __init__(self, path: Path, schema: pa.Schema, sizes: Sequence[int]) -> None:
        self.path, self.schema = path, schema
        self.columns: tuple[str, ...] = tuple(schema.names)
        self.classes = class_names(schema)
        ends = [*accumulate(sizes)]
        sized = enumerate(zip(sizes, ends, strict=True))
        self.groups = [Part(0, group, end, end - size) for group, (size, end) in sized]
        self.num_rows = sum(sizes)

    @abstractmethod
    def nbytes(self, group: Part, columns: Sequence[str]) -> int:
        """Return about how many bytes some columns of a group take."""

    @abstractmethod
    def batches(
        self, part: Part, columns: Sequence[str] | None = None, num_rows: int = FEW_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, so many at a time; SourceError where they cannot be read."""

    def table(self, part: Part, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a part; SourceError if they cannot be read."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        batches = self.batches(part, columns, max(1, part.stop - part.line))
        return pa.Table.from_batches(batches, schema)

    def parts(self, number: int = 0) -> Iterator[Part]:
        """List the groups."""
        return (group._replace(file=number) for group in self.groups)

    def read(
        self,
        part: Part,
        columns: Sequence[str] | None = None,
        kinds: Mapping[str, Kind] = MappingProxyType({}),
    ) -> Iterator[Rows]:
        """Read a part, ``PART_ROWS`` rows at a time; numbers of classes become their names."""
        names, row = list(self.columns if columns is None else columns), part.line
        # A small part is read as a whole, however many batches an Arrow file has of it.
        is_small = part.stop - part.line <= PART_ROWS
        whole = self.table(part, names).combine_chunks().to_batches() if is_small else ()
        for batch in whole or self.batches(part, names, PART_ROWS):
            named = zip(names, batch.columns, strict=True)
            arrays = [_named(array, self.classes.get(name)) for name, array in named]
            yield Rows(pa.Table.from_arrays(arrays, names=names), partial(int.__add__, row))
            row += len(batch)


def class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the names of classes by column, as Hugging Face's ``datasets`` wrote them into the schema."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"].items()
        features = [(name, each) for name, each in features if isinstance(each, dict)]  # no lists
        labels = {n: each for n, each in features if each.get("_type") == "ClassLabel"}
        return {n: tuple(map(str, each["names"])) for n, each in labels.items() if each["names"]}
    except (TypeError, KeyError, ValueError, AttributeError):  # none, or of another tool
        return {}


def _named(array: pa.Array, classes: tuple[str, ...] | None) -> pa.Array:
    """Return numbers of classes by their names; -1 stands for none."""
    if classes is None or not pa.types.is_integer(array.type):
        return array
    numbers = pc.if_else(pc.equal(array, -1), pa.scalar(None, array.type), array).cast(pa.int32())
    return pa.DictionaryArray.from_arrays(numbers, pa.array(classes, pa.string()))


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
def open_text(file: File) -> Iterator[Any]:
    """Open a file of text, decompressed as it is read; SourceError if that fails."""
    compression = compression_of(file.path.name)
    try:
        with open(file.local(), "rb", opener=regular) as opened:
            yield pa.CompressedInputStream(opened, compression) if compression else opened
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or error
        what = f"the file cannot be {'decompressed' if compression else 'read'} ({reason})"
        raise SourceError(what, file.path, "Is it complete?") from error


class TextRows(RowFile):
    """A file of text, which is unpacked below ``TMPDIR`` for as long as it is used, where it is compressed."""

    unit = "line"

    def __init__(self, file: File) -> None:
        self.file, self.path = file, file.path
        with open_text(file) as text:
            head: bytes = text.read(HEAD_BYTES)
        if not head:
            raise SourceError("the file is empty", self.path, "Leave the file out")
        if head[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in head[:200]:
            raise SourceError("the file is not UTF-8 text", self.path, UTF8_HINT)

    def __getstate__(self) -> dict[str, Any]:
        """Leave what was unpacked where it is: another process unpacks the file itself."""
        return {name: value for name, value in vars(self).items() if name != "_unpacked"}

    @property
    def _plain(self) -> Path:
        """The file with its text."""
        return self.file.local() if compression_of(self.path.name) is None else self._unpacked

    @abstractmethod
    def records(self, part: Part) -> Iterator[tuple[int, Any, str]]:
        """Yield the rows of a part one by one in Python: the line of each, what it holds, and why it cannot be read."""

    @cached_property
    def _unpacked(self) -> Path:
        """Its decompressed copy, which is removed with this object."""
        number, name = tempfile.mkstemp(prefix="packdata-")
        weakref.finalize(self, os.unlink, name)
        with open_text(self.file) as source, open(number, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        return Path(name)

    def _open(self) -> Any:
        """Open the text; SourceError if it is not there."""
        try:
            return open(self._plain, "rb", opener=regular)
        except OSError as error:
            raise SourceError(f"the file cannot be read ({error.strerror})", self.path) from error

    def _bytes(self, part: Part) -> bytes:
        with self._open() as file:
            file.seek(part.start)
            data: bytes = file.read(part.stop - part.start)
        if len(data) < part.stop - part.start:
            raise SourceError("the file became shorter while it was packed", self.path)
        return data

    def _cut(
        self, number: int, last_end: Callable[[bytes], int], begin: int = 0, line: int = 1
    ) -> Iterator[Part]:
        """List pieces of whole rows, the last one though its row may have no end.

        ``last_end`` returns where the last row of some bytes ends, 0 if none does; the first row begins at ``begin``,
        on ``line``.
        """
        size = PART_BYTES * (1 + len(self.columns or ()) // _PART_COLUMNS)
        with self._open() as file:
            start, rest = begin, 0
            while True:
                file.seek(start)  # again what belongs to no whole row yet
                data: bytes = file.read(rest + size)
                if len(data) <= rest:
                    break
                length = last_end(data)
                if length:
                    yield Part(number, start, start + length, line)
                    start += length
                    line += data.count(b"\n", 0, length)
                elif len(data) > MAX_ROW_BYTES:
                    what = f"the row has more than {MAX_ROW_BYTES >> 20} MiB"
                    hint = "Is a quote never closed, or a line end missing?"
                    raise SourceError(what, f"{self.path}, line {line}", hint)
                rest = len(data) - length
            if data.strip(b"\r\n"):
                self._check_last(data, line)
                yield Part(number, start, start + len(data), line)

    def _check_last(self, data: bytes, line: int) -> None:
        """Look at a last row without an end, and its line."""
