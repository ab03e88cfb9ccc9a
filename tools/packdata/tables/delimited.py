"""CSV files: cut where rows end, each piece parsed by Arrow.

A quote opens a cell only at its beginning, as in Arrow and in Python's ``csv``; inside of quotes, line ends belong to
the cell and two quotes are one. Blank lines are passed over.
"""

from __future__ import annotations

import csv
import io
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from loaders.errors import SourceError
from packdata.tables.parts import PART_BYTES, Kind, Part, Rows, read_bytes
from packdata.tables.values import NO_VALUES

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence
    from pathlib import Path

_MAX_ROW_BYTES = 64 << 20
_QUOTE, _LINE_ENDS = ord('"'), (10, 13)
_BOM = b"\xef\xbb\xbf"
_UTF8 = "Convert it: iconv -f LATIN1 -t UTF-8 FILE"
TYPES: dict[Kind, pa.DataType] = {
    "number": pa.float64(),
    "flag": pa.string(),
    "date": pa.timestamp("us"),
    "time": pa.time64("us"),
    "text": pa.string(),
}


class DelimitedFile:
    """Rows of cells with a separator, below a line of names.

    Args:
        path: The file, UTF-8.
        delimiter: One character.

    Attributes:
        unnamed: Columns that are called by their number, for lack of a name.
    """

    unit = "line"

    def __init__(self, path: Path, delimiter: str = ",") -> None:
        self.path, self.delimiter = path, delimiter
        self.columns: tuple[str, ...] = ()
        self.unnamed: list[str] = []
        self._begin, self._line = self._read_header()

    def _read_header(self) -> tuple[int, int]:
        """Read the names; return offset and number of the line behind them."""
        with open(self.path, "rb") as file:
            head = file.read(1 << 20)
        if not head.strip(b"\r\n" + _BOM):
            raise SourceError("it is empty", self.path, "It takes a line of names, and rows below")
        if head[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in head[:200]:
            raise SourceError("it is not UTF-8 text", self.path, _UTF8)
        begin = len(_BOM) if head.startswith(_BOM) else 0
        while head[begin : begin + 1] in (b"\r", b"\n"):
            begin += 1
        length = first_record_end(head[begin:], ord(self.delimiter)) or len(head) - begin
        try:
            text = head[begin : begin + length].decode()
        except UnicodeDecodeError as error:
            raise SourceError(f"its names are not UTF-8 ({error})", self.path, _UTF8) from error
        names = next(csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter))
        named = (name.strip() or f"column_{i}" for i, name in enumerate(names, 1))
        self.columns = tuple(named)
        self.unnamed = [f"column_{i}" for i, name in enumerate(names, 1) if not name.strip()]
        self._check_names(text)
        return begin + length, head[: begin + length].count(b"\n") + 1

    def _check_names(self, header: str) -> None:
        twice = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if twice:
            what = f"line 1 names {', '.join(map(repr, twice[:5]))} more than once"
            raise SourceError(what, self.path, "Rename one of them")
        if "\r" in header.strip("\r\n"):
            what = "its lines end in carriage returns alone"
            raise SourceError(what, self.path, r"Convert it: tr '\r' '\n' < FILE")
        others = [mark for mark in ";\t|" if mark in header]
        if len(self.columns) == 1 and others:
            what = f"it has one column, {self.columns[0][:60]!r}"
            raise SourceError(
                what, self.path, f"Is it separated by {others[0]!r}? Say --delimiter"
            )

    def parts(self, number: int) -> Iterator[Part]:
        """List pieces of whole rows."""
        with open(self.path, "rb") as file:
            file.seek(self._begin)
            start, line, rest = self._begin, self._line, b""
            while block := file.read(PART_BYTES):
                data = rest + block
                length = last_record_end(data, ord(self.delimiter))
                if length:
                    yield Part(number, start, start + length, line)
                    start, line = start + length, line + data.count(b"\n", 0, length)
                elif len(data) > _MAX_ROW_BYTES:
                    what = f"the row has more than {_MAX_ROW_BYTES >> 20} MiB"
                    hint = "Is there a quote that is never closed?"
                    raise SourceError(what, f"{self.path}, line {line}", hint)
                rest = data[length:]
            if rest.strip(b"\r\n"):
                self._check_closed(rest, line)
                yield Part(number, start, start + len(rest), line)

    def _check_closed(self, rest: bytes, line: int) -> None:
        spans = _quoted(rest, ord(self.delimiter))
        if spans and spans[-1][1] == len(rest):
            opened = line + rest.count(b"\n", 0, spans[-1][0])
            raise SourceError("a quote is opened and never closed", f"{self.path}, line {opened}")

    def read(
        self, part: Part, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> Iterator[Rows]:
        """Parse a piece."""
        piece = _Piece(self, part, read_bytes(self.path, part.start, part.stop), columns)
        types = {name: TYPES[kind] for name, kind in kinds.items()}
        try:
            table = piece.parse(types)
        except (
            pa.ArrowInvalid
        ):  # a value that is not of its kind: all as text, so that it is found
            table = piece.parse(dict.fromkeys(types, pa.binary()))
        yield piece.rows(piece.respelled(table, kinds))


class _Piece:
    """The text of a part, parsed in one way or another."""

    def __init__(
        self, file: DelimitedFile, part: Part, data: bytes, columns: Sequence[str] | None
    ) -> None:
        self.file, self.part, self.data = file, part, data
        self._columns = file.columns if columns is None else columns
        self._ragged: list[tuple[int, str]] = []  # row, counted from 0 over all, and why
        self._kept: npt.NDArray[np.int64] | None = None

    def parse(
        self, types: Mapping[str, pa.DataType], columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Parse some columns, or all that are asked for; those without a type as what they seem to be."""
        self._ragged.clear()
        read = pa.csv.ReadOptions(
            use_threads=False,
            block_size=max(len(self.data), 1) + 1,
            column_names=list(self.file.columns),
        )
        layout = pa.csv.ParseOptions(
            delimiter=self.file.delimiter,
            newlines_in_values=True,
            invalid_row_handler=self._skip,
        )
        convert = pa.csv.ConvertOptions(
            column_types=types,
            include_columns=list(self._columns if columns is None else columns),
            null_values=["", *NO_VALUES],
            strings_can_be_null=False,  # NA is a country, and Null a name
            true_values=[],  # flags come as text: True or yes would not be the same everywhere
            false_values=[],
        )
        return pa.csv.read_csv(
            pa.BufferReader(self.data),
            read_options=read,
            parse_options=layout,
            convert_options=convert,
        )

    def respelled(self, table: pa.Table, known: Container[str]) -> pa.Table:
        """Return a table with the texts of columns that are not ``known``, and of which Arrow kept no spelling.

        A column of nothing but NA may be text in other parts; 0x1A is no number to others than Arrow.
        """
        has_hex = _has_hex(self.data)
        lost = [
            field.name
            for field in table.schema
            if field.name not in known
            and (pa.types.is_null(field.type) or (has_hex and pa.types.is_integer(field.type)))
        ]
        texts = self.parse(dict.fromkeys(lost, pa.string()), lost) if lost else table
        for name in lost:
            table = table.set_column(table.column_names.index(name), name, texts[name])
        return table

    def _skip(self, row: Any) -> str:
        why = f"it has {row.actual_columns} cells, line 1 names {row.expected_columns}"
        self._ragged.append((row.number - 1, why))
        return "skip"

    def rows(self, table: pa.Table) -> Rows:
        """Return rows of text that is UTF-8; the others are bad."""
        bad = [(self._lines[row], why) for row, why in self._ragged]
        binary = [name for name in table.column_names if pa.types.is_binary(table[name].type)]
        if binary:
            table, not_text = self._decode(table, binary)
            bad = sorted([*bad, *not_text])
        return Rows(table, self._line, bad)

    def _decode(self, table: pa.Table, names: list[str]) -> tuple[pa.Table, list[tuple[int, str]]]:
        """Turn columns of bytes into text, without the rows where that fails."""
        bad: dict[int, str] = {}
        for name in names:
            for row, value in enumerate(table[name].to_pylist()):
                try:
                    (value or b"").decode()
                except UnicodeDecodeError:
                    bad.setdefault(row, f"column {name!r} is not UTF-8 ({value[:40]!r}). {_UTF8}")
        found = [(self._line(row), why) for row, why in bad.items()]
        if bad:
            self._kept = np.setdiff1d(np.arange(len(table)), list(bad))
            table = table.take(pa.array(self._kept))
        for name in names:
            table = table.set_column(
                table.column_names.index(name), name, table[name].cast(pa.string())
            )
        return table, found

    def _line(self, row: int) -> int:
        """Return the line of a row of the table."""
        ragged = {number for number, _ in self._ragged}
        rows = [i for i in range(len(self._lines)) if i not in ragged] if ragged else None
        row = row if self._kept is None else int(self._kept[row])
        return self._lines[row if rows is None else rows[row]]

    @cached_property
    def _lines(self) -> list[int]:
        """Line of every row, the ragged ones too; found only where something is wrong."""
        text = self.data.decode(errors="replace")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=self.file.delimiter)
        before, lines = csv.field_size_limit(len(text) + 1), []
        try:
            line = 1
            for row in reader:
                if row:
                    lines.append(self.part.line + line - 1)
                line = reader.line_num + 1
        finally:
            csv.field_size_limit(before)
        return lines


def _has_hex(data: bytes) -> bool:
    """Tell whether there is an x, small or capital, behind a 0."""
    codes = np.frombuffer(data, np.uint8)
    return bool((codes[np.flatnonzero(codes | 32 == ord("x")) - 1] == ord("0")).any())


def first_record_end(data: bytes, delimiter: int) -> int:
    """Return where the first row ends, its line end included; 0 if it does not."""
    spans = _quoted(data, delimiter)
    end = data.find(b"\n")
    for first, last in spans:
        if end < 0 or end < first:
            break
        if end < last:
            end = data.find(b"\n", last)
    return end + 1


def last_record_end(data: bytes, delimiter: int) -> int:
    """Return where the last complete row ends, its line end included; 0 if there is none.

    Args:
        data: Text from the beginning of a row on.
        delimiter: Code of the separator.
    """
    end = data.rfind(b"\n")
    if end < 0 or data.find(b'"') < 0:
        return end + 1
    quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == _QUOTE)
    if not _alternate(data, quotes, delimiter):
        quotes = np.array(_quoted(data, delimiter), np.int64).reshape(-1)
    while end >= 0:
        before = int(np.searchsorted(quotes, end))
        if before % 2 == 0:
            return end + 1
        end = data.rfind(b"\n", 0, int(quotes[before - 1]))
    return 0


def _alternate(data: bytes, quotes: npt.NDArray[np.int64], delimiter: int) -> bool:
    """Tell whether every second quote opens a cell (or is the second of two), and no other does."""
    opening = quotes[0::2]
    before = np.frombuffer(data, np.uint8)[np.maximum(opening, 1) - 1]
    known = np.isin(before, np.array([delimiter, _QUOTE, *_LINE_ENDS], np.uint8))
    return bool((known | (opening == 0)).all())


def _quoted(data: bytes, delimiter: int) -> list[tuple[int, int]]:
    """Return first and last byte of what stands in quotes, quote by quote; the last may be open."""
    openers = (delimiter, *_LINE_ENDS)
    spans: list[tuple[int, int]] = []
    at = data.find(b'"')
    while at >= 0:
        if at and data[at - 1] not in openers:
            at = data.find(b'"', at + 1)
            continue
        close = data.find(b'"', at + 1)
        while close >= 0 and data[close + 1 : close + 2] == b'"':
            close = data.find(b'"', close + 2)
        close = len(data) if close < 0 else close
        spans.append((at, close))
        at = data.find(b'"', close + 1)
    return spans
