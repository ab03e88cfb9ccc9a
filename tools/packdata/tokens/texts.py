"""Sources of documents: text files, lines, JSON lines, CSV, Parquet and Arrow columns, cut into pieces when listed.

A piece is whole documents of about 4 MB together; a longer document is a piece of its own, unless
the tokenizer lets files be cut anywhere. Where the cuts lie follows from the files alone.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from codecs import utf_8_decode
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

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
from packdata.tokens.documents import Documents, Piece, TokenSource, joined, not_utf8, texts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from packdata.sources.objects import RemoteFile
    from packdata.tokens.contents import DocumentForm
    from packdata.tokens.files import SourceFile

PIECE_BYTES = 4 << 20
_MAX_CHAR_BYTES = 4
_CHECKED_BYTES = 64 << 10
_MAX_NUL_SHARE = 10  # one in so many bytes
_BOM = b"\xef\xbb\xbf"
_WINDOW_BYTES = 64 << 10  # looked at for a separator first
_AT_ONCE = 16  # objects that are looked at
NEWLINE = b"\n"


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How documents are told apart.

    Attributes:
        documents: ``file``, ``line``, or the text that separates documents of a text file.
        content: What rows hold.
        cut: Files may be cut at multiples of so many bytes; None: only where a document ends.
        piece_bytes: Size of a piece.
    """

    documents: str = "file"
    content: DocumentForm = field(default_factory=lambda: Texts("text"))
    cut: int | None = None
    piece_bytes: int = PIECE_BYTES

    def __post_init__(self) -> None:
        if not self.documents:
            raise ValueError("documents must be 'file', 'line' or a separator, got ''")

    @property
    def separator(self) -> bytes | None:
        """The bytes between documents, unless these are files or lines."""
        return None if self.documents in ("file", "line") else self.documents.encode()


class Range(NamedTuple):
    """A range of one file, which a thread reads by itself."""

    file: DocumentFile
    where: str  # for messages
    start: int  # bytes, or rows of the group
    stop: int
    nbytes: int
    is_last: bool = True  # of a file of text
    group: Any = None  # of rows
    run: object = None  # what ranges share that are best read one after the other


class Recent:
    """Keeps the last two of what several threads read: unpacked files, groups of rows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Any, Any] = {}

    def __reduce__(self) -> tuple[type[Recent], tuple[()]]:
        return Recent, ()

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what is kept by a key, made first if there is none."""
        with self._lock:
            if key not in self._kept:
                self._kept = dict([*self._kept.items()][-1:])
                self._kept[key] = make()
            return self._kept[key]


class DocumentFile(ABC):
    """One file, whose documents are read range by range."""

    def __init__(self, file: SourceFile, options: TextOptions, recent: Recent) -> None:
        self.file, self.options, self.recent = file, options, recent

    @abstractmethod
    def ranges(self) -> Iterator[Range]:
        """Yield ranges of about one piece; SourceError if the file cannot be read, or lacks a column."""

    @abstractmethod
    def read(self, given: Range, stored: RemoteFile | None = None) -> Documents:
        """Return the documents of a range, from ``stored`` if its bytes are fetched ahead."""

    def ahead(self, given: Range) -> RemoteFile | None:
        """Return what fetches a range ahead, if it lies in a store."""
        return None


class TextFile(DocumentFile):
    """A file of text, or of JSON lines."""

    @property
    def _mark(self) -> bytes | None:
        """The bytes behind which a document ends, and the file may be cut."""
        is_lines = self.file.kind == "jsonl" or self.options.documents == "line"
        return NEWLINE if is_lines else self.options.separator

    def ranges(self) -> Iterator[Range]:
        size, read, run = self.file.size, self.file.read, None
        if self.file.compression is not None:
            data, run = self.file.unpacked(), self.file.path
            size, read = len(data), lambda start, stop: data[start:stop]
        mark, start = self._mark, 0
        if self.file.kind == "text" and self.options.separator is not None:
            self._check_line_ends(read(0, _WINDOW_BYTES), self.options.separator)
        while start < size:
            stop = start + self.options.piece_bytes
            if mark is not None:
                stop = _end_behind(read, start, stop, size, mark)
            else:
                stop = min(start + (self.options.cut or size), size)
            name, is_last = self.file.name, stop == size
            where = name if start == 0 and is_last else f"{name}, bytes {start} to {stop}"
            yield Range(self, where, start, stop, stop - start, is_last, run=run)
            start = stop

    def _check_line_ends(self, head: bytes, separator: bytes) -> None:
        is_windows = 0 < head.count(NEWLINE) == head.count(b"\r\n")
        if is_windows and NEWLINE in separator and b"\r" not in separator:
            wanted = separator.replace(NEWLINE, b"\r\n").decode()
            raise SourceError(r"lines end in \r\n", self.file.path, f"Pass documents={wanted!r}")

    def ahead(self, given: Range) -> RemoteFile | None:
        if self.file.stored is None or self.file.compression is not None:
            return None
        return self.file.stored.part(given.start, given.stop + _MAX_CHAR_BYTES - 1)

    def read(self, given: Range, stored: RemoteFile | None = None) -> Documents:
        """Return the documents of a range, less those that are not UTF-8, or not JSON.

        Raises:
            SourceError: A range out of a document is not UTF-8: it cannot be left out by itself.
        """
        stop = given.stop + _MAX_CHAR_BYTES - 1  # a cut may go through a character
        blob = stored() if stored is not None else self._bytes(given.start, stop)
        if len(blob) < given.nbytes:
            raise SourceError("the file became shorter while it was read", self.file.name)

        @cache
        def lines_before() -> int:
            steps = range(0, given.start, PIECE_BYTES)
            parts = (self._bytes(at, min(at + PIECE_BYTES, given.start)) for at in steps)
            return 1 + sum(part.count(NEWLINE) for part in parts)

        def line(at: int) -> str:
            return f"{self.file.name}, line {lines_before() + blob.count(NEWLINE, 0, at)}"

        if blob.count(0, 0, _CHECKED_BYTES) > min(len(blob), _CHECKED_BYTES) // _MAX_NUL_SHARE:
            hint = "UTF-16 becomes UTF-8 by iconv; ids are read from .npy or .bin"
            error = SourceError("the file is full of NUL bytes, not text", given.where, hint)
            return replace(_NONE, rejects=((given.where, error),))
        begin = len(_BOM) if given.start == 0 and blob.startswith(_BOM) else 0
        text = blob[begin : given.nbytes]
        if self.file.kind == "jsonl":
            return self.options.content.of_lines(text, lambda at: line(begin + at))
        is_whole = self._mark is not None or (given.start == 0 and given.is_last)
        first, last = 0, given.nbytes
        if not is_whole:  # characters that go on behind it are checked here, and not there
            first = 0 if given.start == 0 else _num_continued(blob[: _MAX_CHAR_BYTES - 1])
            last += _num_continued(blob[last:])
        bad = _first_not_utf8(memoryview(blob)[first:last], first)
        if bad is not None and not is_whole:
            raise not_utf8(blob[bad], line(bad))[1]
        documents = self._split(np.frombuffer(text, np.uint8), given)
        place = documents.place
        documents = replace(documents, place=lambda at: line(begin + int(place(at))))
        return documents if bad is None else documents.only_utf8()

    def _bytes(self, start: int, stop: int) -> bytes:
        if self.file.compression is None:
            return self.file.read(start, stop)
        data: bytes = self.recent.get(self.file.path, self.file.unpacked)[start:stop]
        return data

    def _split(self, data: npt.NDArray[np.uint8], given: Range) -> Documents:
        """Return the documents; ``place`` gives offsets, as text."""
        if self._mark is not None:
            return split_at(data, self._mark, is_line=self.options.documents == "line")
        return Documents(data, np.array([len(data)] if given.is_last else [], np.int64), str)


_NONE = Documents(np.empty(0, np.uint8), np.empty(0, np.int64), str)


def _end_behind(
    read: Callable[[int, int], bytes], start: int, wanted: int, size: int, mark: bytes
) -> int:
    """Return where the first ``mark`` ends that begins at ``wanted`` or later, or else the file.

    It overlaps no earlier one: blank lines in a row are a mark from every second on, and which those are, only their
    first can tell.
    """
    first, window = max(start, wanted - len(mark) + 1), _WINDOW_BYTES
    while True:
        data, earlier = read(first, first + window), -len(mark)
        at = data.find(mark)
        while at >= 0:
            if first + at >= wanted and at - earlier >= len(mark):
                return first + at + len(mark)
            earlier, at = at, data.find(mark, at + 1)
        if first + window >= size:
            return size
        window *= 4


def _first_not_utf8(data: memoryview, offset: int) -> int | None:
    """Check window by window: a string of all of it would take fresh memory."""
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


class CsvFile(DocumentFile):
    """A CSV file, of which a column holds texts."""

    def ranges(self) -> Iterator[Range]:
        content = self.options.content
        if not isinstance(content, Texts):
            hint = "Save lists and conversations as Parquet or JSON lines"
            raise SourceError("the cells of CSV are texts", self.file.path, hint)
        self._rows = CsvRows(self.file.path)
        content.check(
            pa.schema([(name, pa.string()) for name in self._rows.columns]), self.file.path
        )
        for part in self._rows.parts():
            where, nbytes = f"{self.file.name}, from line {part.line}", part.stop - part.start
            yield Range(self, where, part.start, part.stop, nbytes, group=part)

    def read(self, given: Range, stored: RemoteFile | None = None) -> Documents:
        """Return each row as a document, less those of more or fewer cells."""
        (name,) = self.options.content.types
        (rows,) = self._rows.read(given.group, [name])
        texts = pc.fill_null(rows.table[name], "").cast(pa.large_string())

        def place(row: int) -> str:
            return f"{self.file.name}, line {rows.line(row)}"

        found = self.options.content.of_table(pa.table({name: texts}), place)
        places = ((f"{self.file.name}, line {line}", why) for line, why in rows.bad)
        bad = [(place, SourceError(why, place)) for place, why in places]
        return replace(found, rejects=(*found.rejects, *bad))


class TableFile(DocumentFile):
    """A file of columns with types; its groups of rows are read as a whole.

    Raises:
        SourceError: It is not what its name says, or lacks a column.
    """

    def __init__(self, file: SourceFile, options: TextOptions, recent: Recent) -> None:
        super().__init__(file, options, recent)
        self._rows = open_row_file(file.path)
        options.content.check(self._rows.schema, file.path)
        named = {*self._rows.schema.names}
        self._columns = [name for name in options.content.types if name in named]

    def ranges(self) -> Iterator[Range]:
        for group in self._rows.groups:
            rows, before = group.stop - group.line, group.line
            size = max(1, self._rows.nbytes(group, self._columns))
            step = max(1, rows * self.options.piece_bytes // size)
            for first in range(0, rows, step):
                last = min(first + step, rows)
                where = f"{self.file.name}, rows {before + first} to {before + last - 1}"
                nbytes, run = size * (last - first) // rows, (self.file.path, group)
                yield Range(self, where, first, last, nbytes, group=group, run=run)

    def read(self, given: Range, stored: RemoteFile | None = None) -> Documents:
        """Return each row as a document, less those that cannot be one."""
        content, group = self.options.content, given.group
        make = partial(self._rows.table, group, self._columns)
        table = self.recent.get(given.run, make)
        table = table.slice(given.start, given.stop - given.start)
        none = pa.nulls(len(table))  # of tools, which some files lack
        columns = (
            (table[name] if name in self._columns else none, kind)
            for name, kind in content.types.items()
        )
        try:
            arrays = [column if kind is None else column.cast(kind) for column, kind in columns]
        except pa.ArrowException as error:
            raise SourceError(f"values cannot be read ({error})", given.where) from error
        first = group.line + given.start
        return content.of_table(
            pa.Table.from_arrays(arrays, names=[*content.types]),
            lambda row: f"{self.file.name}, row {first + row}",
        )


def split_at(data: npt.NDArray[np.uint8], separator: bytes, *, is_line: bool = False) -> Documents:
    r"""Make what lies between separators documents, without these, and lines without the rest of ``\r\n``."""
    parts = data.tobytes().split(separator)
    starts = np.cumsum([0, *map(len, parts)]) + len(separator) * np.arange(len(parts) + 1)
    if is_line:
        parts[:-1] = [part.removesuffix(b"\r") for part in parts[:-1]]
    if not parts[-1]:  # nothing follows the last separator
        parts.pop()
    ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), dtype=np.int64)

    def place(at: int) -> str:
        number = int(np.searchsorted(ends, at, "right"))
        return str(starts[number] + at - (ends[number - 1] if number else 0))

    return Documents(np.frombuffer(b"".join(parts), np.uint8), ends, place)


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Ranges that are packed together, each with what fetches it ahead."""

    parts: Sequence[tuple[Range, RemoteFile | None]]

    @property
    def where(self) -> str:
        first, more = self.parts[0][0], len(self.parts) - 1
        return first.where + (f" and {counted(more, 'more file')}" if more else "")

    @property
    def reads(self) -> list[RemoteFile]:
        """What fetches the ranges that are in a store."""
        return [stored for _, stored in self.parts if stored is not None]

    def read(self) -> Documents:
        return joined([part.file.read(part, stored) for part, stored in self.parts])


class TextSource(TokenSource):
    """Pieces of text files, JSON lines, CSV, Parquet and Arrow columns, in a fixed order.

    Raises:
        SourceError: A file cannot be read, or lacks the column.
    """

    def __init__(self, files: Sequence[SourceFile], options: TextOptions) -> None:
        self.options, self._recent = options, Recent()
        self.kind, self.has_labels = options.content.kind, options.content.has_labels
        self.cut, self.has_ids = options.cut, self.kind == "lists"
        self.empty_files: list[str] = []
        self._plan = self._group(self._found(files))
        self.runs = [*self._runs()]

    def _found(self, files: Sequence[SourceFile]) -> Iterator[Range]:
        """Yield the ranges of all files: many are looked at where that is waiting for answers of a store."""
        are_stored = any(file.stored is not None for file in files)
        with OrderedPool(self._ranges, _AT_ONCE if are_stored else usable_cores()) as pool:
            for file, ranges in zip(files, pool.map(files), strict=True):
                if not ranges:
                    self.empty_files.append(file.name)
                yield from ranges

    def _ranges(self, file: SourceFile) -> list[Range]:
        kinds = {"csv": CsvFile, **dict.fromkeys(ROW_KINDS, TableFile)}
        return [*kinds.get(file.kind, TextFile)(file, self.options, self._recent).ranges()]

    def _group(self, found: Iterable[Range]) -> list[list[Range]]:
        groups: list[list[Range]] = [[]]
        size = 0
        for part in found:
            if size >= self.options.piece_bytes:
                groups.append([])
                size = 0
            groups[-1].append(part)
            size += part.nbytes
        return groups if groups[0] else []

    def _runs(self) -> Iterator[int]:
        """Yield of each piece the number of the first that begins in the same compressed file, or group of rows."""
        first, last = 0, None
        for number, (part, *_) in enumerate(self._plan):
            first = first if last is not None and part.run == last else number
            last = part.run
            yield first

    def pieces(self, start: int = 0) -> Iterator[Piece]:
        for parts in map(self._plan.__getitem__, range(start, len(self))):
            yield TextPiece([(part, part.file.ahead(part)) for part in parts])

    def documents_of(self, limit: int) -> Iterator[str]:
        """Yield the texts of pieces spread evenly over the source, ``limit`` bytes or a little more; SourceError."""
        wanted = max(1, limit // self.options.piece_bytes)
        step = max(1, len(self) // wanted)
        for number in range(0, len(self), step):
            yield from texts_of(next(self.pieces(number)).read())
