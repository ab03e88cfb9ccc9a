"""Files of documents: text and JSON lines, cut where documents end, and columns of CSV, Parquet and Arrow."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError
from packdata.delimited import CsvRows
from packdata.reading import RemoteFile
from packdata.sources.row_kinds import open_row_file
from packdata.tokens.documents import DocumentFile, Documents, Range, rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from packdata.tokens.contents import DocumentForm
    from packdata.tokens.documents import Place, Recent, Reject
    from packdata.tokens.files import SourceFile

BOM = b"\xef\xbb\xbf"
_CHECKED_BYTES = 64 << 10
_MAX_NUL_SHARE = 10  # one in so many bytes
_WINDOW_BYTES = 64 << 10  # looked at for a separator first


class TextFile(DocumentFile):
    """A file of text, or of JSON lines, read in ranges that end where a document does."""

    def __init__(
        self, file: SourceFile, documents: str, content: DocumentForm | None, recent: Recent
    ) -> None:
        # ``content`` is of lines of JSON.
        self._file, self._content, self._recent = file, content, recent
        self._is_line = documents == "line"
        # The bytes behind which a document ends; none where the file is one.
        self._mark = {"file": b"", "line": b"\n"}.get(documents, documents.encode())

    def ranges(self) -> Iterator[Range]:
        name, data = self._file.name, self._file.unpacked()
        read = self._file.read if data is None else lambda start, stop: data[start:stop]
        size = self._file.size if data is None else len(data)
        if self._mark and not self._is_line:
            _check_line_ends(read(0, _WINDOW_BYTES), self._mark, self._file)
        start = 0
        while start < size:
            wanted, mark = start + self.piece_bytes, self._mark
            stop = _end_behind(read, start, wanted, size, mark) if mark else size
            where = name if stop - start == size else f"{name}, bytes {start} to {stop}"
            key = None if data is None else self._file.path
            yield Range(self, where, start, stop, stop - start, key)
            start = stop

    def ahead(self, given: Range) -> Range:
        file = self._file.file
        if not isinstance(file, RemoteFile) or given.key is not None:
            return given
        return given._replace(stored=file.part(given.start, given.stop))

    def read(self, given: Range) -> Documents:
        """Return the documents of a range, less those that are not UTF-8, or not JSON."""
        blob = given.stored() if given.stored else self._bytes(given.start, given.stop)
        if len(blob) < given.nbytes:
            raise SourceError("the file became shorter while it was read", self._file.name)
        rejects: tuple[Reject, ...] = ()
        if blob.count(0, 0, _CHECKED_BYTES) > min(len(blob), _CHECKED_BYTES) // _MAX_NUL_SHARE:
            hint = "UTF-16 becomes UTF-8 by iconv; ids are read from .npy or .bin"
            what = "the file is full of NUL bytes, not text"
            blob, rejects = b"", (rejected(given.where, what, hint),)
        begin = len(BOM) if given.start == 0 and blob.startswith(BOM) else 0

        @cache
        def lines_before() -> int:
            starts = range(0, given.start, self.piece_bytes)
            stops = (min(start + self.piece_bytes, given.start) for start in starts)
            return 1 + sum(
                self._bytes(*each).count(b"\n") for each in zip(starts, stops, strict=True)
            )

        def place(at: int) -> str:
            number = lines_before() + blob.count(b"\n", 0, begin + at)
            return f"{self._file.name}, line {number}"

        if self._content is not None:
            found = self._content.of_lines(blob[begin:], place)
        else:
            found = split_at(blob[begin:], self._mark, place, is_line=self._is_line).only_utf8()
        return replace(found, rejects=(*found.rejects, *rejects))

    def _bytes(self, start: int, stop: int) -> bytes:
        if not self._file.is_compressed:
            return self._file.read(start, stop)
        data: bytes = self._recent.get(self._file.path, self._file.unpacked)[start:stop]
        return data


def _check_line_ends(head: bytes, separator: bytes, file: SourceFile) -> None:
    is_windows = 0 < head.count(b"\n") == head.count(b"\r\n")
    if is_windows and b"\n" in separator and b"\r" not in separator:
        wanted = separator.replace(b"\n", b"\r\n").decode()
        raise SourceError(r"lines end in \r\n", file.path, f"Pass documents={wanted!r}")


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


def split_at(data: bytes, separator: bytes, place: Place, *, is_line: bool = False) -> Documents:
    r"""Make what lies between separators documents, without these, and lines without the rest of ``\r\n``.

    Without a separator all is one document.
    """
    parts = data.split(separator) if separator else [data]
    starts = np.cumsum([0, *map(len, parts)]) + len(separator) * np.arange(len(parts) + 1)
    if is_line:
        parts[:-1] = [part.removesuffix(b"\r") for part in parts[:-1]]
    if not parts[-1]:  # nothing follows the last separator
        parts.pop()
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    ends = np.cumsum(lengths)

    def place_of(at: int) -> str:
        number = int(np.searchsorted(ends, at, "right"))
        return place(int(starts[number] + at - ends[number] + lengths[number]))

    return Documents(np.frombuffer(b"".join(parts), np.uint8), ends, place_of)


class CsvFile(DocumentFile):
    """A CSV file, of which a column holds texts; an empty cell is an empty document."""

    def __init__(self, file: SourceFile, content: DocumentForm) -> None:
        self._name, self._content, self._rows = file.name, content, CsvRows(file.file)
        content.check(pa.schema(dict.fromkeys(self._rows.columns, pa.string())), file.path)

    def ranges(self) -> Iterator[Range]:
        for part in self._rows.parts():
            where, nbytes = f"{self._name}, from line {part.line}", part.stop - part.start
            yield Range(self, where, part.start, part.stop, nbytes, (self._name, part))

    def read(self, given: Range) -> Documents:
        name = self._content.column
        (rows,) = self._rows.read(given.key[1], [name])
        texts = pa.table({name: pc.fill_null(rows.table[name], "").cast(pa.large_string())})
        found = self._content.of_table(texts, lambda row: f"{self._name}, line {rows.line(row)}")
        bad = [rejected(f"{self._name}, line {line}", why) for line, why in rows.bad]
        return replace(found, rejects=(*found.rejects, *bad))


class TableFile(DocumentFile):
    """A file of columns with types; its groups of rows are read as a whole."""

    def __init__(self, file: SourceFile, content: DocumentForm, recent: Recent) -> None:
        self._file, self._content, self._recent = file, content, recent
        self._rows = open_row_file(file.file)
        content.check(self._rows.schema, file.path)
        self._columns = [name for name in content.types if name in self._rows.columns]

    def ranges(self) -> Iterator[Range]:
        for group in self._rows.groups:
            rows = group.stop - group.line
            size = max(1, self._rows.nbytes(group, self._columns))
            step = max(1, rows * self.piece_bytes // size)
            for start in range(group.line, group.stop, step):
                stop = min(start + step, group.stop)
                where = f"{self._file.name}, rows {start} to {stop - 1}"
                nbytes = size * (stop - start) // rows
                yield Range(self, where, start, stop, nbytes, (self._file.path, group))

    def read(self, given: Range) -> Documents:
        _, group = given.key
        table = self._recent.get(given.key, partial(self._rows.table, group, self._columns))
        table = table.slice(given.start - group.line, given.stop - given.start)
        try:
            for number, name in enumerate(self._columns):
                if (kind := self._content.types[name]) is not None:
                    table = table.set_column(number, name, table[name].cast(kind))
        except pa.ArrowException as error:
            raise SourceError(f"values cannot be read ({error})", given.where) from error
        place = f"{self._file.name}, row "
        return self._content.of_table(table, lambda row: f"{place}{given.start + row}")
