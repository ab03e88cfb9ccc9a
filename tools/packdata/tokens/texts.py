"""Sources of documents: text files, lines, JSON lines, Parquet and Arrow columns, cut into pieces when they are listed.

A piece is whole documents of about 4 MB together; a longer document is a piece of its own, unless
the tokenizer lets files be cut anywhere. Where the cuts lie follows from the files alone.
"""

from __future__ import annotations

from bisect import bisect_right
from codecs import utf_8_decode
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError
from loaders.system.limits import usable_cores
from packdata.delimited import CsvRows
from packdata.describe import counted
from packdata.packing.pool import OrderedPool
from packdata.sources.row_kinds import ROW_KINDS, open_row_file
from packdata.tokens.contents import Texts
from packdata.tokens.documents import Documents, Piece, TokenSource, not_utf8, texts_of
from packdata.tokens.files import ForwardReader, SourceFile, count_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from packdata.rows import Part
    from packdata.sources.objects import RemoteFile
    from packdata.tokens.contents import DocumentForm

    AnyPart: TypeAlias = "TextPart | RowsPart | CsvPart"
    Parts = list[tuple[AnyPart, int]]

PIECE_BYTES = 4 << 20
_MAX_CHAR_BYTES = 4
_CHECKED_BYTES = 64 << 10
_MAX_NUL_SHARE = 10  # one in so many bytes
_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 64 << 10  # tell how the lines of a file end
_AT_ONCE = 16  # objects that are looked at
NEWLINE = b"\n"
_WINDOWS = b"\r\n"


@dataclass(frozen=True, slots=True)
class TextPart:
    """A range of one text or JSON-lines file."""

    file: SourceFile
    start: int  # offset of its first byte, decompressed
    stop: int  # offset behind its last byte
    is_last: bool  # True if the file ends there
    options: TextOptions  # how documents are told apart
    mark: bytes | None  # behind it a document ends, and the file may be cut; None: neither
    # The bytes, where the file can be read in its order only; with up to three more.
    blob: bytes | None = None
    stored: RemoteFile | None = None  # what reads these, where the file is an object of a store

    def loaded(self, streams: _Streams) -> TextPart:
        """Return it with what its bytes come from, where a thread cannot read them from the file itself."""
        if self.file.compression is not None:
            return replace(self, blob=streams.read(self.file, self.start, self.stop))
        if self.file.stored is not None:
            end = self.stop + _MAX_CHAR_BYTES - 1
            return replace(self, stored=self.file.stored.part(self.start, end))
        return self

    @property
    def run(self) -> object:
        """Of which parts follow one another, where they are read so."""
        return None if self.file.compression is None else self.file.path

    @property
    def where(self) -> str:
        """The file, and where in it unless that is all of it."""
        if self.start == 0 and self.is_last:
            return self.file.name
        return f"{self.file.name}, bytes {self.start} to {self.stop}"

    def read(self) -> Documents:
        """Return its documents, less those that are not UTF-8, or not JSON.

        Raises:
            SourceError: A range out of a document is not UTF-8: it cannot be left out by itself.
        """
        blob = self._blob()
        length = self.stop - self.start
        line = self._lines(blob)
        if blob.count(0, 0, _CHECKED_BYTES) > min(len(blob), _CHECKED_BYTES) // _MAX_NUL_SHARE:
            where, hint = (
                self.where,
                "UTF-16 becomes UTF-8 by iconv; ids are read from .npy or .bin",
            )
            error = SourceError("the file is full of NUL bytes, not text", where, hint)
            none = np.empty(0, np.int64)
            return Documents(none.astype(np.uint8), none, line, ((where, error),))
        bad = self._first_bad(blob)
        if bad is not None and not self._is_whole:
            raise not_utf8(blob[bad], line(bad))[1]
        first = len(_BOM) if self.start == 0 and blob.startswith(_BOM) else 0
        if self.file.kind == "jsonl":
            content, text = self.options.content, blob[first:length]
            return content.of_lines(text, lambda at: line(first + at), is_utf8=bad is None)
        documents = self._split(np.frombuffer(blob, np.uint8)[first:length])
        place = documents.place
        documents = replace(documents, place=lambda at: line(first + int(place(at))))
        return documents if bad is None else documents.only_utf8()

    @property
    def _is_whole(self) -> bool:
        """True if no document begins before this part, or goes on behind it."""
        return self.mark is not None or (self.start == 0 and self.is_last)

    def _blob(self) -> bytes:
        if self.blob is not None:
            return self.blob
        if self.stored is not None:
            blob = self.stored()
        else:
            with self.file.open() as file:
                file.seek(self.start)
                blob = file.read(self.stop - self.start + _MAX_CHAR_BYTES - 1)
        if len(blob) < self.stop - self.start:
            raise SourceError("the file became shorter while it was read", self.file.name)
        return blob

    def _first_bad(self, blob: bytes) -> int | None:
        """Return where a character begins that is not UTF-8, one that a cut goes through included."""
        first, last = 0, self.stop - self.start
        if not self._is_whole:
            first = 0 if self.start == 0 else _num_continued(blob[: _MAX_CHAR_BYTES - 1])
            last += _num_continued(blob[last:])
        return _first_not_utf8(memoryview(blob)[first:last], first)

    def _lines(self, blob: bytes) -> Callable[[int], str]:
        """Return what says in which line of the file a byte of this part lies."""

        @cache
        def before() -> int:
            return count_lines(self.file, self.start)

        return lambda at: f"{self.file.name}, line {before() + blob.count(NEWLINE, 0, at)}"

    def _split(self, data: npt.NDArray[np.uint8]) -> Documents:
        """Return the documents; ``place`` gives offsets, as text."""
        if self.options.documents == "line":
            return split_lines(data)
        if self.mark is not None:
            return split_at(data, self.mark)
        ends = np.array([len(data)] if self.is_last else [], np.int64)
        return Documents(data, ends, str)


def _first_not_utf8(data: memoryview, offset: int) -> int | None:
    """Check piece by piece: a string of all of it would take fresh memory."""
    at = 0
    while at < len(data):
        piece = data[at : at + _CHECKED_BYTES]
        try:
            at += utf_8_decode(piece, "strict", at + len(piece) == len(data))[1]
        except UnicodeDecodeError as error:
            return offset + at + error.start
    return None


def _num_continued(data: bytes) -> int:
    """Return how many bytes at the beginning continue a character."""
    return next((i for i, byte in enumerate(data) if byte & 0xC0 != 0x80), len(data))


@dataclass(frozen=True, slots=True)
class CsvPart:
    """Some rows of a CSV file, of which a column holds texts."""

    name: str
    rows: CsvRows
    part: Part
    column: str
    run = None  # each is read on its own

    @classmethod
    def of(cls, file: SourceFile, content: DocumentForm) -> Iterator[CsvPart]:
        """Yield the parts of a file; SourceError if it has no such column, or no texts are wanted."""
        if not isinstance(content, Texts):
            hint = "Save lists and conversations as Parquet or JSON lines"
            raise SourceError("the cells of CSV are texts", file.path, hint)
        rows = CsvRows(file.path)
        content.check(pa.schema([(name, pa.string()) for name in rows.columns]), file.path)
        for part in rows.parts():
            yield cls(file.name, rows, part, content.column)

    @property
    def where(self) -> str:
        return f"{self.name}, from line {self.part.line}"

    def loaded(self, _: object) -> CsvPart:
        """Return it as it is: a thread reads it."""
        return self

    def read(self) -> Documents:
        """Return each row as a document, less those of more or fewer cells."""
        (rows,) = self.rows.read(self.part, [self.column])
        texts = pc.fill_null(rows.table[self.column], "").cast(pa.large_string())
        table = pa.table({self.column: texts})
        found = Texts(self.column).of_table(
            table, lambda row: f"{self.name}, line {rows.line(row)}"
        )
        places = ((f"{self.name}, line {line}", why) for line, why in rows.bad)
        bad = [(place, SourceError(why, place)) for place, why in places]
        return replace(found, rejects=(*found.rejects, *bad))


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Some rows of a group of a file; ``table`` has the columns that are read, once they are wanted."""

    rows: RowRanges
    group: int
    first: int
    last: int
    table: pa.Table = None

    @property
    def run(self) -> object:
        """Of which parts follow one another: they are read at once."""
        return self.rows.file.path, self.group

    @property
    def where(self) -> str:
        start = self.rows.firsts[self.group]
        return f"{self.rows.file.name}, rows {start + self.first} to {start + self.last - 1}"

    def loaded(self, _: object) -> RowsPart:
        """Return it with its columns."""
        return replace(self, table=self.rows.read(self.group, self.first, self.last))

    def read(self) -> Documents:
        """Return each row as a document, less those that cannot be one."""
        content, name = self.rows.content, self.rows.file.name
        first = self.rows.firsts[self.group] + self.first
        none = pa.nulls(len(self.table))  # of tools, which some files lack
        named = {*self.table.column_names}
        columns = (
            (self.table[each] if each in named else none, kind)
            for each, kind in content.types.items()
        )
        try:
            arrays = [column if kind is None else column.cast(kind) for column, kind in columns]
        except pa.ArrowException as error:
            raise SourceError(f"its values cannot be read ({error})", self.where) from error
        table = pa.Table.from_arrays(arrays, names=[*content.types])
        return content.of_table(table, lambda row: f"{name}, row {first + row}")


class RowRanges:
    """The rows of a file in ranges; a group of rows is read when its first ones are asked for.

    Raises:
        SourceError: It is not what its name says, or lacks a column.
    """

    def __init__(self, file: SourceFile, content: DocumentForm) -> None:
        self.file, self.content = file, content
        self._rows = open_row_file(file.path)
        content.check(self._rows.schema, file.path)
        named = {*self._rows.schema.names}
        self._columns = [name for name in content.types if name in named]
        self.firsts = [0, *accumulate(self._rows.groups)]  # number of the first row of each group
        self._read: tuple[int, Any] = (-1, None)

    def parts(self, nbytes: int) -> Iterator[tuple[RowsPart, int]]:
        """Yield parts of about so many bytes, with the bytes that each has."""
        for group, rows in enumerate(self._rows.groups):
            size = max(1, self._rows.nbytes(group, self._columns))
            step = max(1, rows * nbytes // size)
            for first in range(0, rows, step):
                last = min(first + step, rows)
                yield RowsPart(self, group, first, last), size * (last - first) // rows

    def read(self, group: int, first: int, last: int) -> pa.Table:
        if self._read[0] != group:
            self._read = group, self._rows.read(group, self._columns)
        table = self._read[1].slice(first, last - first)
        if last == self._rows.groups[group]:
            self._read = (-1, None)  # it is not needed again
        return table


def split_lines(data: npt.NDArray[np.uint8]) -> Documents:
    r"""Make each line a document, without its end (``\n`` or ``\r\n``)."""
    text = data.tobytes()
    breaks = np.flatnonzero(data == ord("\n"))
    if len(breaks) == 0 or breaks[-1] != len(data) - 1:  # no line end at the end
        breaks = np.append(breaks, len(data))
    ends = breaks - np.arange(len(breaks))
    if b"\r" in text:
        before = np.maximum(breaks - 1, 0)
        is_end = breaks < len(data)
        ends -= np.cumsum((data[before] == ord("\r")) & (breaks > 0) & is_end)
        text = text.replace(b"\r\n", b"\n")

    def place(at: int) -> str:
        line = int(np.searchsorted(ends, at, "right"))
        return str(at + (int(breaks[line - 1] - ends[line - 1]) + 1 if line else 0))

    return Documents(np.frombuffer(text.replace(b"\n", b""), np.uint8), ends, place)


def ending_as(head: bytes, separator: bytes) -> bytes:
    r"""Return a separator as a text has it that begins so: with ``\r\n`` where all its lines end in that.

    Example:
        >>> ending_as(b"one\r\n\r\ntwo\r\n", b"\n\n")
        b'\r\n\r\n'
    """
    num = head.count(NEWLINE)
    is_windows = num > 0 and num == head.count(_WINDOWS) and b"\r" not in separator
    return separator.replace(NEWLINE, _WINDOWS) if is_windows else separator


def split_at(data: npt.NDArray[np.uint8], separator: bytes) -> Documents:
    """Make what lies between separators documents, without these."""
    parts = data.tobytes().split(separator)
    if not parts[-1]:  # nothing follows the last separator
        parts.pop()
    ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), dtype=np.int64)
    kept = np.frombuffer(b"".join(parts), np.uint8)

    def place(at: int) -> str:
        return str(at + len(separator) * int(np.searchsorted(ends, at, "right")))

    return Documents(kept, ends, place)


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How documents are told apart."""

    documents: str = "file"  # ``file``, ``line``, or the text that separates documents
    # What the rows of JSON lines and Parquet hold.
    content: DocumentForm = field(default_factory=lambda: Texts("text"))
    # Files may be cut at multiples of so many bytes; None: only where a document ends.
    cut: int | None = None
    piece_bytes: int = PIECE_BYTES  # size of a piece

    def __post_init__(self) -> None:
        if not self.documents:
            raise ValueError("documents must be 'file', 'line' or a separator, got ''")

    @property
    def separator(self) -> bytes | None:
        """The bytes between documents, unless these are files or lines."""
        return None if self.documents in ("file", "line") else self.documents.encode()

    def mark(self, file: SourceFile) -> bytes | None:
        """Return the bytes behind which a file may be cut."""
        if file.kind == "jsonl" or self.documents == "line":
            return NEWLINE
        return self.separator


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Parts that are packed together."""

    parts: tuple[AnyPart, ...]

    @property
    def where(self) -> str:
        more = len(self.parts) - 1
        return self.parts[0].where + (f" and {counted(more, 'more file')}" if more else "")

    @property
    def reads(self) -> list[RemoteFile]:
        """What reads the parts that lie in a store."""
        stored = (getattr(part, "stored", None) for part in self.parts)
        return [each for each in stored if each is not None]

    def read(self) -> Documents:
        return join([part.read() for part in self.parts])


def join(documents: Sequence[Documents]) -> Documents:
    """Return the documents of several ranges as those of one."""
    if len(documents) == 1:
        return documents[0]
    sizes = [len(d.data) for d in documents]
    firsts = [0, *accumulate(sizes)]
    ends = [d.ends + first for d, first in zip(documents, firsts, strict=False)]

    def place(at: int) -> str:
        i = min(bisect_right(firsts, at) - 1, len(documents) - 1)
        return documents[i].place(at - firsts[i])

    rejects = tuple(reject for d in documents for reject in d.rejects)
    data = np.concatenate([d.data for d in documents])
    labels = [d.labels for d in documents if d.labels is not None]
    joined = np.concatenate(labels) if labels else None
    return Documents(data, np.concatenate(ends), place, rejects, joined)


class TextSource(TokenSource):
    """Pieces of text files, JSON lines, Parquet and Arrow columns, in a fixed order.

    Raises:
        SourceError: A file cannot be read, or lacks the column.
    """

    def __init__(self, files: Sequence[SourceFile], options: TextOptions) -> None:
        self.files, self.options = files, options
        self.kind, self.has_labels = options.content.kind, options.content.has_labels
        self.empty_files: list[str] = []
        self.windows_files: list[str] = []
        self._plan = self._group(part for parts in self._found() for part in parts)
        self.runs = [*self._runs()]

    def _found(self) -> Iterator[Parts]:
        """Yield the parts of each file: many are looked at where that is waiting for answers of a store."""
        are_stored = any(file.stored is not None for file in self.files)
        with OrderedPool(self._parts, _AT_ONCE if are_stored else usable_cores()) as pool:
            for file, parts in zip(self.files, pool.map(self.files), strict=True):
                first = parts[0][0] if parts else None
                if first is None:
                    self.empty_files.append(file.name)
                elif isinstance(first, TextPart) and first.mark != self.options.mark(file):
                    self.windows_files.append(file.name)
                yield parts

    def _parts(self, file: SourceFile) -> Parts:
        """Return the parts of a file, with their sizes in bytes."""
        if file.kind == "csv":
            parts = CsvPart.of(file, self.options.content)
            return [(part, part.part.stop - part.part.start) for part in parts]
        if file.kind in ROW_KINDS:
            return [*RowRanges(file, self.options.content).parts(self.options.piece_bytes)]
        ends, mark = self._ends(file)
        if ends == [0]:
            return []
        return [
            (TextPart(file, start, end, end == ends[-1], self.options, mark), end - start)
            for start, end in pairwise([0, *ends])
        ]

    def _runs(self) -> Iterator[int]:
        """Yield of each piece the number of the first that begins in the same compressed file, or group of rows."""
        first, last = 0, None
        for number, (part, *_) in enumerate(self._plan):
            first = first if last is not None and part.run == last else number
            last = part.run
            yield first

    def _ends(self, file: SourceFile) -> tuple[list[int], bytes | None]:
        """Return where the parts of a file end, and behind what; those of a compressed one take reading it."""
        mark = self.options.mark(file)
        if mark is None and file.compression is None:
            step = self.options.cut or max(1, file.size)
            return [*range(step, file.size, step), file.size], None
        with closing(ForwardReader(file)) as reader:
            if mark is not None and file.kind == "text" and self.options.separator is not None:
                mark = ending_as(reader.peek(_HEAD_BYTES), mark)
            return list(self._find_ends(reader, mark)), mark

    def _find_ends(self, reader: ForwardReader, mark: bytes | None) -> Iterator[int]:
        step = self.options.cut if mark is None else self.options.piece_bytes
        end = 0
        while True:
            wanted = end + (step or 1 << 62)
            if mark is None:
                went = reader.skip_to(wanted)
            else:  # from where a mark may begin that overlaps one from there on
                first = max(end, wanted - len(mark) + 1)
                went = reader.skip_to(first) and reader.skip_behind(mark, wanted)
            if reader.position > end or end == 0:
                yield reader.position
            end = reader.position
            if not went:
                return

    def _group(self, parts: Iterable[tuple[AnyPart, int]]) -> list[tuple[AnyPart, ...]]:
        groups: list[tuple[AnyPart, ...]] = []
        pending: list[AnyPart] = []
        size = 0
        for part, nbytes in parts:
            pending.append(part)
            size += nbytes
            if size >= self.options.piece_bytes:
                groups.append(tuple(pending))
                pending, size = [], 0
        return [*groups, tuple(pending)] if pending else groups

    def pieces(self, start: int = 0) -> Iterator[Piece]:
        with closing(_Streams()) as streams:
            for parts in map(self._plan.__getitem__, range(start, len(self))):
                yield TextPiece(tuple(part.loaded(streams) for part in parts))

    def documents_of(self, limit: int) -> Iterator[str]:
        """Yield the texts of pieces spread evenly over the source, ``limit`` bytes or a little more; SourceError."""
        wanted = max(1, limit // self.options.piece_bytes)
        step = max(1, len(self) // wanted)
        for number, piece in enumerate(self.pieces()):
            if number % step == 0:
                yield from texts_of(piece.read())


class _Streams:
    """The compressed file that is being read."""

    def __init__(self) -> None:
        self._reader: ForwardReader | None = None

    def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        """Return a range of a file and up to three bytes behind it."""
        if self._reader is None or self._reader.source is not file:
            self.close()
            self._reader = ForwardReader(file)
            self._reader.skip_to(start)
        return self._reader.read(stop - start) + self._reader.peek(_MAX_CHAR_BYTES - 1)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
