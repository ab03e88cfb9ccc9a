"""Files of documents: text and JSON lines, cut where documents end, and columns of CSV, Parquet and Arrow."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError
from packdata.delimited import CsvRows
from packdata.reading import RemoteFile
from packdata.sources.row_kinds import open_row_file
from packdata.tokens.contents import Texts
from packdata.tokens.documents import DocumentFile, Documents, Range, rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from packdata.tokens.contents import DocumentForm
    from packdata.tokens.documents import Place, Recent
    from packdata.tokens.files import SourceFile

_MORE_BYTES = 3  # of a character, behind its first
_CHECKED_BYTES = 64 << 10
_MAX_NUL_SHARE = 10  # one in so many bytes
_BOM = b"\xef\xbb\xbf"
_WINDOW_BYTES = 64 << 10  # looked at for a separator first


class TextFile(DocumentFile):
    """A file of text, or of JSON lines; it may be cut at multiples of ``cut`` bytes, None: where a document ends."""

    def __init__(
        self,
        file: SourceFile,
        documents: str,
        content: DocumentForm,
        cut: int | None,
        recent: Recent,
    ) -> None:
        self._file, self._content, self._cut, self._recent = file, content, cut, recent
        self._is_json, self._is_line = file.kind == "jsonl", documents == "line"
        # The bytes behind which a document ends, and the file may be cut.
        self._mark = None if documents == "file" else documents.encode()
        if self._is_json or self._is_line:
            self._mark = b"\n"

    def ranges(self) -> Iterator[Range]:
        name, data = self._file.name, self._file.unpacked()
        read = self._file.read if data is None else lambda start, stop: data[start:stop]
        self._size = size = self._file.size if data is None else len(data)
        key = None if data is None else self._file.path
        if self._mark is not None and not (self._is_json or self._is_line):
            _check_line_ends(read(0, _WINDOW_BYTES), self._mark, self._file)
        start = 0
        while start < size:
            stop = min(start + (self._cut or size), size)
            if self._mark is not None:
                stop = _end_behind(read, start, start + self.piece_bytes, size, self._mark)
            where = name if stop - start == size else f"{name}, bytes {start} to {stop}"
            yield Range(self, where, start, stop, stop - start, key)
            start = stop

    def ahead(self, given: Range) -> Range:
        file = self._file.file
        if not isinstance(file, RemoteFile) or given.key is not None:
            return given
        stored = file.part(given.start, given.stop + _MORE_BYTES)
        return given._replace(stored=stored)

    def read(self, given: Range) -> Documents:
        """Return the documents of a range, less those that are not UTF-8, or not JSON.

        Raises:
            SourceError: A range out of a document is not UTF-8: it cannot be left out by itself.
        """
        stop = given.stop + _MORE_BYTES  # a cut may go through a character
        blob = given.stored() if given.stored else self._bytes(given.start, stop)
        if len(blob) < given.nbytes:
            raise SourceError("the file became shorter while it was read", self._file.name)
        begin = len(_BOM) if given.start == 0 and blob.startswith(_BOM) else 0

        @cache
        def lines_before() -> int:
            steps = range(0, given.start, self.piece_bytes)
            parts = (self._bytes(at, min(at + self.piece_bytes, given.start)) for at in steps)
            return 1 + sum(part.count(b"\n") for part in parts)

        def place(at: int) -> str:
            number = lines_before() + blob.count(b"\n", 0, begin + at)
            return f"{self._file.name}, line {number}"

        if blob.count(0, 0, _CHECKED_BYTES) > min(len(blob), _CHECKED_BYTES) // _MAX_NUL_SHARE:
            hint = "UTF-16 becomes UTF-8 by iconv; ids are read from .npy or .bin"
            reject = rejected(given.where, "the file is full of NUL bytes, not text", hint)
            return Documents(np.empty(0, np.uint8), np.empty(0, np.int64), str, (reject,))
        text, is_last = blob[begin : given.nbytes], given.stop == self._size
        if self._is_json:
            return self._content.of_lines(text, place)
        if self._mark is not None:
            return split_at(text, self._mark, place, is_line=self._is_line).only_utf8()
        documents = _whole(text, place)
        if given.start == 0 and is_last:
            return documents.only_utf8()
        # Characters that go on behind it are checked here, and not there.
        first = 0 if given.start == 0 else _num_continued(blob)
        last = given.nbytes + _num_continued(blob[given.nbytes :])
        checked = _whole(memoryview(blob)[first:last], lambda at: place(first - begin + at))
        for _, error in checked.only_utf8().rejects:
            raise error
        return documents if is_last else Documents(documents.data, documents.ends[:0], place)

    def _bytes(self, start: int, stop: int) -> bytes:
        if self._file.compression is None:
            return self._file.read(start, stop)
        data: bytes = self._recent.get(self._file.path, self._file.unpacked)[start:stop]
        return data


def _whole(data: bytes | memoryview, place: Place) -> Documents:
    return Documents(np.frombuffer(data, np.uint8), np.array([len(data)]), place)


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


def _num_continued(data: bytes) -> int:
    """Return how many bytes at the beginning continue a character."""
    more = data[:_MORE_BYTES]
    return next((i for i, byte in enumerate(more) if byte & 0xC0 != 0x80), len(more))


def split_at(data: bytes, separator: bytes, place: Place, *, is_line: bool = False) -> Documents:
    r"""Make what lies between separators documents, without these, and lines without the rest of ``\r\n``."""
    parts = data.split(separator)
    starts = np.cumsum([0, *map(len, parts)]) + len(separator) * np.arange(len(parts) + 1)
    if is_line:
        parts[:-1] = [part.removesuffix(b"\r") for part in parts[:-1]]
    if not parts[-1]:  # nothing follows the last separator
        parts.pop()
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    ends: npt.NDArray[np.int64] = np.cumsum(lengths)

    def place_of(at: int) -> str:
        number = int(np.searchsorted(ends, at, "right"))
        return place(int(starts[number] + at - ends[number] + lengths[number]))

    return Documents(np.frombuffer(b"".join(parts), np.uint8), ends, place_of)


class CsvFile(DocumentFile):
    """A CSV file, of which a column holds texts."""

    def __init__(self, file: SourceFile, content: DocumentForm) -> None:
        if not isinstance(content, Texts):
            hint = "Save lists and conversations as Parquet or JSON lines"
            raise SourceError("the cells of CSV are texts", file.path, hint)
        self._name, self._content, self._rows = file.name, content, CsvRows(file.file)
        schema = pa.schema([(name, pa.string()) for name in self._rows.columns])
        content.check(schema, file.path)

    def ranges(self) -> Iterator[Range]:
        for part in self._rows.parts():
            where, nbytes = f"{self._name}, from line {part.line}", part.stop - part.start
            yield Range(self, where, part.start, part.stop, nbytes, (self._name, part))

    def read(self, given: Range) -> Documents:
        name = self._content.column
        _, part = given.key
        (rows,) = self._rows.read(part, [name])
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
        named = {*self._rows.schema.names}
        self._columns = [name for name in content.types if name in named]

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
        none = pa.nulls(len(table))  # of tools, which some files lack
        try:
            columns = {
                name: table[name].cast(kind or table[name].type) if name in self._columns else none
                for name, kind in self._content.types.items()
            }
        except pa.ArrowException as error:
            raise SourceError(f"values cannot be read ({error})", given.where) from error
        place = f"{self._file.name}, row "
        return self._content.of_table(pa.table(columns), lambda row: f"{place}{given.start + row}")
