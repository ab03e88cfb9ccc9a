"""A source of documents: its files are cut into ranges, where documents end, and read by these on any thread."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import LoadersError, SourceError
from loaders.system.limits import usable_cores
from packdata.delimited import CsvRows
from packdata.describe import counted
from packdata.packing.pool import OrderedPool
from packdata.reading import RemoteFile
from packdata.rows import Part, PlainText
from packdata.sources.row_kinds import open_row_file
from packdata.tokens.contents import BESIDE_IDS, INPUT_IDS, Ids, Texts
from packdata.tokens.documents import Documents, Refusal, Where, joined
from packdata.tokens.files import BOM, COLUMN_KINDS, IDS_KINDS, columns_of
from packdata.tokens.ids import open_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    import numpy.typing as npt

    from packdata.tokens.contents import Content
    from packdata.tokens.documents import Place
    from packdata.tokens.files import SourceFile
    from packdata.tokens.options import TokenOptions

_T = TypeVar("_T")
_PIECE_BYTES = 4 << 20  # of a range, and of what is packed together
_PIECE_TOKENS = 2 << 20  # of files of ids
_AT_ONCE = 16  # objects that are looked at
_CHECKED_BYTES = 64 << 10
_MAX_NUL_SHARE = 10  # one in so many bytes
_WINDOW_BYTES = 64 << 10  # looked at for a separator first
_SCAN = 1 << 16  # ids


class Range(NamedTuple):
    """The part of a file that is read at once."""

    file: DocumentFile
    where: str  # for messages
    start: int  # bytes, ids, or rows
    stop: int
    nbytes: int  # about what it holds: pieces get as much
    # Where that begins which is read as a whole for it, once for many: an unpacked file, a group of rows.
    begin: int | None = None
    rows: Part | None = None  # a part of CSV, or the group that it is of
    stored: RemoteFile | None = None  # what has its bytes, if it lies in a store

    def continues(self, other: Range) -> bool:
        """Tell whether both are read of the same beginning."""
        return self.begin is not None and (self.file, self.begin) == (other.file, other.begin)

    def fetchable(self) -> Range:
        """Return it for a piece, in which what is fetched is kept: a plan lasts longer."""
        stored = self.stored and replace(self.stored, start=self.start, end=self.stop)
        return self._replace(stored=stored)


@dataclass(frozen=True, slots=True)
class Piece:
    """Ranges of files that are packed together: one thread reads them."""

    parts: Sequence[Range]

    @property
    def where(self) -> str:
        """Its place, for messages."""
        more = len(self.parts) - 1
        return self.parts[0].where + (f" and {counted(more, 'more file')}" if more else "")

    @property
    def reads(self) -> list[RemoteFile]:
        """What fetches the ranges that are in a store."""
        return [part.stored for part in self.parts if part.stored is not None]

    def read(self) -> Documents:
        """Return what it holds; SourceError if that is damaged."""
        return joined([part.file.read(part) for part in self.parts])


class TokenSource:
    """The documents of files, all of text or all of ids, in pieces in a fixed order.

    SourceError if a file cannot be read, or lacks a column.

    Attributes:
        content: What rows hold; None without files of rows.
        kind: ``text``, ``chat``, ``lists`` (of ids, by document), or ``ids`` (files of them).
        itemsize: Bytes of its widest ids.
        cut: Files of ids may be cut at multiples of so many; None: only where a document ends.
        runs: As of a recipe: of each piece, where what it is read from begins.
    """

    def __init__(
        self, files: Sequence[SourceFile], options: TokenOptions, *, may_cut: bool = False
    ) -> None:
        self.files, self.options, self._recent = files, options, _Recent()
        rows = [file for file in files if file.kind in COLUMN_KINDS]
        self.content = content_of(rows, options) if rows else None
        others = {file.kind for file in files} - COLUMN_KINDS
        kinds = {"ids" if kind in IDS_KINDS else "text" for kind in others}
        kinds |= {self.content.kind} if self.content else set()
        if len(kinds) > 1:
            what = "text, ids and conversations cannot be mixed"
            raise SourceError(what, files[0].path, "Pack them one after the other")
        (self.kind,) = kinds
        self.has_ids = self.kind in ("ids", "lists")
        self.has_labels = self.content is not None and self.content.has_labels
        row = options.row_tokens
        # Then all rows but a file's last are full.
        self.cut = max(1, _PIECE_TOKENS // row) * row if may_cut and self.kind == "ids" else None
        self._plan: list[list[Range]] = []
        self.runs: list[int] = []
        self._list_pieces()
        read = (parts[0].file for parts in self._plan)
        self.itemsize = max((f.itemsize for f in read if isinstance(f, IdsFile)), default=4)

    def _list_pieces(self) -> None:
        """List the ranges of all files: many are looked at where that is waiting for answers of a store."""
        are_stored = any(isinstance(file.file, RemoteFile) for file in self.files)
        num_threads, size = _AT_ONCE if are_stored else usable_cores(), 0
        with OrderedPool(self._ranges, num_threads) as pool:
            for part in chain.from_iterable(pool.map(self.files)):
                if not self._plan or size >= _PIECE_BYTES:
                    goes_on = self._plan and part.continues(self._plan[-1][0])
                    self.runs.append(self.runs[-1] if goes_on else len(self._plan))
                    self._plan.append([])
                    size = 0
                self._plan[-1].append(part)
                size += part.nbytes

    def _ranges(self, file: SourceFile) -> list[Range]:
        return [*self._open(file).ranges()]

    def _open(self, file: SourceFile) -> DocumentFile:
        options, content = self.options, self.content
        if file.kind in IDS_KINDS:
            eod = options.eod if isinstance(options.eod, int) else None
            return IdsFile(file, options.bin_dtype, eod, self.cut)
        if file.kind == "text":
            return TextFile(file, options.documents, None, self._recent)
        assert content is not None
        if file.kind == "jsonl":
            if self.has_ids:  # of texts and conversations each row is looked at
                content.check_unused(columns_of(file), file.path)
            return TextFile(file, "line", content, self._recent)
        if file.kind == "csv":
            return CsvFile(file, content, self._recent)
        return TableFile(file, content, self._recent)

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self._plan)

    def pieces(self, start: int = 0, step: int = 1) -> Iterator[Piece]:
        """Yield the pieces from number ``start`` on."""
        for number in range(start, len(self), step):
            yield Piece([part.fetchable() for part in self._plan[number]])

    def texts(self, limit: int) -> Iterator[str]:
        """Yield the texts of pieces spread evenly over it, ``limit`` to twice as many bytes; SourceError."""
        wanted = max(1, limit // _PIECE_BYTES)
        for piece in self.pieces(step=max(1, len(self) // wanted)):
            yield from map(bytes.decode, piece.read().slices())


def content_of(files: Sequence[SourceFile], options: TokenOptions) -> Content:
    """Return what the rows of files hold, by the columns of the first; SourceError if not all that matter are used."""
    pa.array([])  # imports pandas, where that is installed: not on a thread that packs
    if options.chat_template is not None:
        try:
            from packdata.tokens.chat import chat_of
        except ImportError as error:
            what = "a chat template needs the package 'jinja2': pip install 'loaders[text]'"
            raise LoadersError(what) from error
        return chat_of(options)
    columns, path = columns_of(files[0]), files[0].path
    names, is_chosen = {*columns.names} - {*options.drop}, options.text_column is not None
    column = options.ids_column
    if column is None and not is_chosen and INPUT_IDS in names:
        if "text" in names and (options.tokenizer or options.train_bpe) is not None:
            hint = "Pass text_column= or ids_column="
            raise SourceError("'text' beside 'input_ids': which is to be packed?", path, hint)
        column = INPUT_IDS
    if column is None and not is_chosen and "text" not in names and "messages" in names:
        what = "the rows are conversations (column 'messages')"
        raise SourceError(what, path, "Pass chat_template=")
    content: Content = Texts(options.text_column or "text", drop=options.drop)
    if column is not None:
        beside = tuple(name for name in BESIDE_IDS if name in names)
        content = Ids(column, beside, drop=options.drop)
    content.check_unused(columns, path)
    return content


class _Recent:
    """Keeps the last two of what several threads read: unpacked files, groups of rows."""

    def __init__(self) -> None:
        self._lock, self._kept = threading.Lock(), dict[Any, Any]()

    def __reduce__(self) -> tuple[type[_Recent], tuple[()]]:
        return _Recent, ()

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return what is kept by a key, made first if there is none."""
        with self._lock:
            if key not in self._kept:
                self._kept = dict([*self._kept.items()][-1:])  # before more memory is taken
                self._kept[key] = make()
            kept: _T = self._kept[key]
            return kept


# -- text, and JSON lines --------------------------------------------------------------------------


class TextFile:
    """A file of text, or of JSON lines, read in ranges that end where a document does."""

    def __init__(
        self, file: SourceFile, documents: str, content: Content | None, recent: _Recent
    ) -> None:
        self._file, self._documents, self._recent = file, documents, recent
        # The bytes behind which a document ends; none where the file is one.
        self._mark = {"file": b"", "line": b"\n"}.get(documents, documents.encode())
        split = partial(split_at, separator=self._mark, is_line=documents == "line")
        self._split = split if content is None else content.of_lines

    def ranges(self) -> Iterator[Range]:
        file, documents, start = self._file, self._documents, 0
        stored = file.file if isinstance(file.file, RemoteFile) else None
        read, size, begin = file.read, file.size, None
        if file.is_compressed:
            text, stored, begin = self._text, None, 0
            with text.open() as opened:
                read, size = text.read, opened.seek(0, os.SEEK_END)
        if "\n" in documents and "\r" not in documents:
            head = read(0, _WINDOW_BYTES)
            if 0 < head.count(b"\n") == head.count(b"\r\n"):
                wanted = documents.replace("\n", "\r\n")
                what = r"lines end in \r\n, so the separator never matches"
                hint = f"Pass documents={wanted!r}"
                raise SourceError(what, file.path, hint)
        while start < size:
            least = start + _PIECE_BYTES if self._mark else size
            stop = _end_behind(read, start, least, size, self._mark)
            where = file.name if stop - start == size else f"{file.name}, bytes {start} to {stop}"
            yield Range(self, where, start, stop, stop - start, begin, stored=stored)
            start = stop

    def read(self, part: Range) -> Documents:
        """Return the documents of a range, less those that are not UTF-8, or not JSON."""
        blob = part.stored() if part.stored else self._bytes(part.start, part.stop)
        if len(blob) < part.nbytes:
            raise SourceError("the file became shorter while it was read", self._file.name)
        text = blob.removeprefix(BOM) if part.start == 0 else blob

        @cache
        def lines() -> tuple[int, npt.NDArray[np.int64]]:
            """Return the number of the first line, and where lines end: all before is read once more."""
            starts = range(0, part.start, _PIECE_BYTES)
            before = (self._bytes(at, min(at + _PIECE_BYTES, part.start)) for at in starts)
            number = 1 + sum(data.count(b"\n") for data in before)
            return number, np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))

        def place(at: int) -> Where:
            first, ends = lines()
            return Where(self._file.name, "line", first + int(np.searchsorted(ends, at)))

        return self._split(text, place)

    @property
    def _text(self) -> PlainText:
        return self._recent.get(self, lambda: PlainText(self._file.file))

    def _bytes(self, start: int, stop: int) -> bytes:
        return (self._text if self._file.is_compressed else self._file).read(start, stop)


def _end_behind(
    read: Callable[[int, int], bytes], start: int, wanted: int, size: int, mark: bytes
) -> int:
    """Return where the first ``mark`` ends that begins at ``wanted`` or later, or else the file.

    It overlaps no earlier one: blank lines in a row are a mark from every second on, and which those are, only their
    first can tell.
    """
    first, window = max(start, wanted - len(mark) + 1), _WINDOW_BYTES
    while wanted < size:
        data, earlier = read(first, first + window), -len(mark)
        at = data.find(mark)
        while at >= 0:
            if first + at >= wanted and at - earlier >= len(mark):
                return first + at + len(mark)
            earlier, at = at, data.find(mark, at + 1)
        if first + window >= size:
            break
        window *= 4
    return size


def split_at(data: bytes, place: Place, separator: bytes, *, is_line: bool = False) -> Documents:
    r"""Make what lies between separators documents, without these, and lines without the rest of ``\r\n``.

    Without a separator all is one document. What is not UTF-8 is left out, and all where much of it is NULs.
    """
    if data.count(0, 0, _CHECKED_BYTES) > min(len(data), _CHECKED_BYTES) // _MAX_NUL_SHARE:
        what = "the file is full of NUL bytes, not text"
        hint = "UTF-16 becomes UTF-8 by iconv; ids are read from .npy or .bin"
        none, reject = np.empty(0, np.int64), Refusal(place(0), what, hint)
        return Documents(none.astype(np.uint8), none, place, (reject,))
    stops = stored = _stops(data, separator)
    if is_line and b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
        stops = _stops(data, separator)
    ends = stops - len(separator) * np.arange(len(stops))
    if ends[-1] == ends[-2:-1].sum():  # nothing follows the last separator
        ends = ends[:-1]

    def place_of(at: int) -> Where:
        number = int(np.searchsorted(ends, at, "right"))
        behind = at - int(ends[number - 1]) + len(separator) if number else at
        return place(behind + int(stored[number - 1] if number else 0))

    text = data.replace(separator, b"") if separator else data
    return Documents(np.frombuffer(text, np.uint8), ends, place_of).only_utf8()


def _stops(data: bytes, separator: bytes) -> npt.NDArray[np.int64]:
    """Return where the parts between separators stop."""
    if len(separator) == 1:  # without an object a line
        return np.append(np.flatnonzero(np.frombuffer(data, np.uint8) == separator[0]), len(data))
    parts = data.split(separator) if separator else [data]
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    return np.cumsum(sizes + len(separator)) - len(separator)


# -- columns ---------------------------------------------------------------------------------------


class CsvFile:
    """A CSV file, of which a column holds texts; an empty cell is an empty document."""

    def __init__(self, file: SourceFile, content: Content, recent: _Recent) -> None:
        self._file, self._content, self._recent = file, content, recent
        content.check(columns_of(file), file.path)

    @property
    def _rows(self) -> CsvRows:
        """The rows, of which a compressed file keeps a copy below ``TMPDIR``."""
        return self._recent.get(self, lambda: CsvRows(self._file.file))

    def ranges(self) -> Iterator[Range]:
        begin = 0 if self._file.is_compressed else None
        for part in self._rows.parts():
            where = f"{self._file.name}, from line {part.line}"
            yield Range(self, where, part.start, part.stop, part.stop - part.start, begin, part)

    def read(self, part: Range) -> Documents:
        assert part.rows is not None
        name, column = self._file.name, self._content.column
        (rows,) = self._rows.read(part.rows, [column])
        texts = pc.fill_null(rows.table[column], "").cast(pa.large_string())
        table = pa.table({column: texts})
        found = self._content.of_table(table, lambda row: Where(name, "line", rows.line(row)))
        bad = [Refusal(Where(name, "line", line), why) for line, why in rows.bad]
        return replace(found, rejects=(*found.rejects, *bad))


class TableFile:
    """A file of columns with types; its groups of rows are read as a whole."""

    def __init__(self, file: SourceFile, content: Content, recent: _Recent) -> None:
        self._file, self._content, self._recent = file, content, recent
        self._rows = open_row_file(file.file)
        content.check(self._rows.schema, file.path)
        self._columns = [name for name in content.columns if name in self._rows.columns]

    def ranges(self) -> Iterator[Range]:
        for group in self._rows.groups:
            rows = group.stop - group.line
            size = max(1, self._rows.nbytes(group, self._columns))
            step = max(1, rows * _PIECE_BYTES // size)
            for start in range(group.line, group.stop, step):
                stop = min(start + step, group.stop)
                where = f"{self._file.name}, rows {start} to {stop - 1}"
                nbytes = size * (stop - start) // rows
                yield Range(self, where, start, stop, nbytes, group.line, group)

    def read(self, part: Range) -> Documents:
        assert part.rows is not None
        group = part.rows
        read = partial(self._rows.table, group, self._columns)
        table = self._recent.get((self, group), read)
        table = table.slice(part.start - group.line, part.stop - part.start)
        try:
            if (kind := self._content.type) is not None:
                table = table.cast(pa.schema(dict.fromkeys(self._columns, kind)))
        except pa.ArrowException as error:
            raise SourceError(f"values cannot be read ({error})", part.where) from error
        name = self._file.name
        return self._content.of_table(table, lambda row: Where(name, "row", part.start + row))


# -- ids -------------------------------------------------------------------------------------------


class IdsFile:
    """A file of ids; it may be cut at multiples of ``cut`` of them, None: only where a document ends."""

    def __init__(
        self, file: SourceFile, bin_dtype: str | None, eod: int | None, cut: int | None
    ) -> None:
        self._name, self._cut, self._eod = file.name, cut, eod
        self._ids = open_ids(file, bin_dtype)
        self.itemsize = self._ids.dtype.itemsize

    def ranges(self) -> Iterator[Range]:
        start, size = 0, self._ids.length
        while start < size:
            stop = min(start + (self._cut or _PIECE_TOKENS), size)
            stop = stop if self._cut else self._next_end(stop)
            where = f"{self._name}, ids {start} to {stop - 1}"
            yield Range(self, where, start, stop, _PIECE_BYTES)  # a piece by itself
            start = stop

    def _next_end(self, position: int) -> int:
        """Return the first position from ``position`` on behind which no document goes on."""
        # An end right before it will do.
        for first in range(position - 1, self._ids.length, _SCAN):
            if len(found := self._ends_behind(first, first + _SCAN)):
                return int(found[0])
        return self._ids.length

    def _ends_behind(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the positions behind the documents that end with an id from ``start`` to before ``stop``."""
        if (ends := self._ids.ends) is not None:
            first, last = np.searchsorted(ends, [start, stop], "right")
            return ends[first:last]
        if self._eod is not None:
            return start + 1 + np.flatnonzero(self._ids.read(start, stop) == self._eod)
        return np.empty(0, np.int64)

    def read(self, part: Range) -> Documents:
        """Return the ids of a range, and where documents end among them."""
        ends = self._ends_behind(part.start, part.stop) - part.start
        if part.stop == self._ids.length:
            ends = np.append(ends, part.stop - part.start)
        ids = self._ids.read(part.start, part.stop)
        return Documents(ids, np.unique(ends), lambda at: Where(self._name, "id", part.start + at))


# Each yields its ranges, which are read on any thread; SourceError where it cannot be read, or lacks a column.
DocumentFile = TextFile | CsvFile | TableFile | IdsFile
