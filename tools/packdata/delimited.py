"""CSV files: cut where rows end, each part parsed by Arrow into texts.

A part that Arrow refuses, as rows have more or fewer cells, is read by Python row by row: only those rows are bad.
"""

from __future__ import annotations

import csv
import io
import re
import threading
from dataclasses import dataclass
from functools import cache, partial
from itertools import starmap
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from loaders.errors import SourceError
from packdata.options import check_options, opt, unescaped
from packdata.parsing import UTF8_HINT
from packdata.rows import MAX_ROW_BYTES, TextRows, open_text, suffix_inside
from packdata.types import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packdata.reading import File
    from packdata.rows import Names, Part

_BOM = b"\xef\xbb\xbf"
_QUOTE = ord('"')
_csv_limit = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """How CSV files are read."""

    delimiter: str | None = opt(
        None,
        r"cell separator: one character, or \t (default: comma; tab in .tsv)",
        "C",
        type=unescaped,
    )
    header: bool = opt(True, "the first row holds values, not names", name="no-header")
    names: tuple[str, ...] = opt(
        (), "column names, for files without a header (to replace a header, add --skip-rows 1)"
    )
    skip_rows: int = opt(0, "lines to skip at the start of a file", "N", within=(0, None))

    def __post_init__(self) -> None:
        check_options(self)
        delimiter = self.delimiter
        if delimiter is not None and not (
            len(delimiter) == 1 and delimiter.isascii() and delimiter not in '\0"\r\n'
        ):
            what = "delimiter must be one ASCII character other than a quote or line end"
            raise ValueError(f"{what}, got {delimiter!r}")


class CsvRows(TextRows):
    """Rows of cells with a separator, below a line of names if there is one.

    A quote opens a cell only at its beginning, as in Arrow and in Python's ``csv``; inside quotes, line ends belong to
    the cell and two quotes are one. Blank lines are skipped. Texts that are ``missing`` stand for no value, as an empty
    cell does. For ``records`` alone: where it is ``strict``, characters behind a cell in quotes are an error of the
    file; where it ``skips_blanks``, those in front of a cell are no part of it.
    """

    guesses = frozenset[Kind](("number", "code", "flag", "date", "zoned"))

    def __init__(
        self,
        file: File,
        options: CsvOptions | None = None,
        missing: Sequence[str] = (),
        *,
        strict: bool = False,
        skips_blanks: bool = False,
    ) -> None:
        options = CsvOptions() if options is None else options
        usual = "\t" if suffix_inside(file.path.name) == ".tsv" else ","
        self.delimiter = options.delimiter or usual
        self.header = options.header and not options.names
        self._missing, self._strict, self._skips_blanks = missing, strict, skips_blanks
        super().__init__(file)
        self._begin, self._line, cells = self._first_row(options)
        given = [cell.strip() if self.header else "" for cell in cells]
        numbered = (name or f"column_{i}" for i, name in enumerate(given, 1))
        self.columns: tuple[str, ...] = options.names or tuple(numbered)
        if len(self.columns) != len(cells):
            what = f"the first row has {len(cells)} cells, names= has {len(self.columns)}"
            raise SourceError(what, f"{file.path}, line {self._line}")

    def _first_row(self, options: CsvOptions) -> tuple[int, int, list[str]]:
        """Read the first row; return offset and line of the first one with values, and its cells."""
        with open_text(self.file) as file:
            row, line = file.readline(MAX_ROW_BYTES), 1
            begin = len(_BOM) if row.startswith(_BOM) else 0
            row = row[begin:]
            while row and (line <= options.skip_rows or not row.strip(b"\r\n")):
                begin, line = begin + len(row), line + 1
                row = file.readline(MAX_ROW_BYTES)
            while (
                not last_record_end(row, ord(self.delimiter))
                and len(row) <= MAX_ROW_BYTES
                and (more := file.readline(MAX_ROW_BYTES))
            ):
                row += more
        if not row:
            what = f"the file has no line of names behind {options.skip_rows} lines"
            raise SourceError(what, self.path, "CSV has a line of names, and rows below")
        place = f"{self.path}, line {line}"
        try:
            (_, cells), *others = self._cells(row.decode(), line)
        except UnicodeDecodeError as error:
            raise SourceError(f"the first row is not UTF-8 ({error})", place, UTF8_HINT) from error
        if others:  # which would be lost
            hint = r"Convert the file: tr '\r' '\n' < FILE"
            raise SourceError(r"lines end in \r alone", self.path, hint)
        is_alone = len(cells) == 1 and options.delimiter is None
        if marks := [mark for mark in ";\t|" if is_alone and mark in cells[0]]:
            what = f"the file has one column, {cells[0][:60]!r}"
            hint = f"Pass delimiter={marks[0]!r}, or {self.delimiter!r} if that is one column"
            hint += "; skip_rows=1 leaves out a line 'sep=;'"
            raise SourceError(what, self.path, hint)
        if not self.header:
            return begin, line, cells
        return begin + len(row), line + row.count(b"\n"), cells

    def parts(self) -> Iterator[Part]:
        """List pieces of whole rows."""
        last_end = partial(last_record_end, delimiter=ord(self.delimiter))
        return self._cut(last_end, self._begin, self._line)

    def _parsed(self, data: bytes, columns: Names) -> pa.Table | None:
        """Let Arrow parse into texts, null where a cell is empty; None where it refuses a row or value."""
        names = [*(columns or ())]
        if data.startswith(_BOM):  # of a cell: the file's is in no part, and Arrow takes one away
            data = _BOM + data
        wanted = set(names)
        unlike = [name if name in wanted else f"{i}\0" for i, name in enumerate(self.columns)]
        size = len(data) + 1
        reading = pa.csv.ReadOptions(use_threads=False, block_size=size, column_names=unlike)
        parsing = pa.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        converting = pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            include_columns=names,
            null_values=["", *self._missing],
            strings_can_be_null=True,
        )
        try:
            return pa.csv.read_csv(pa.BufferReader(data), reading, parsing, converting)
        except pa.ArrowInvalid:
            return None

    def records(self, part: Part) -> Iterator[tuple[int, list[str], str]]:
        """Yield the cells of each row that is not blank."""
        text, num = self._bytes(part).decode(errors="surrogateescape"), len(self.columns)
        for line, cells in self._cells(text, part.line):
            if len(cells) != num:
                yield line, cells, f"the row has {len(cells)} cells, the first row {num}"
                continue
            named_cells = zip(self.columns, cells, strict=True)
            yield line, cells, next(filter(None, starmap(_not_utf8, named_cells)), "")

    def _cells(self, text: str, first_line: int) -> list[tuple[int, list[str]]]:
        """Return the rows of whole lines that are not blank, each with the line on which it begins; SourceError."""
        rows, line = [], first_line
        with _csv_limit:  # the limit is one of the process
            before = csv.field_size_limit(len(text) + 1)
            try:
                reader = csv.reader(
                    io.StringIO(text, newline=""),
                    delimiter=self.delimiter,
                    skipinitialspace=self._skips_blanks,
                    strict=self._strict,
                )
                for cells in reader:
                    if cells:
                        rows.append((line, cells))
                    line = first_line + reader.line_num
            except csv.Error as error:
                raise SourceError(str(error), self.place(line)) from error
            finally:
                csv.field_size_limit(before)
        return rows

    def _table(self, rows: Sequence[list[str]], columns: Names) -> pa.Table:
        """Return the columns of rows as texts, null where a cell is empty."""
        names = [*(columns or ())]
        none, places = {"", *self._missing}, {name: i for i, name in enumerate(self.columns)}
        values = ([cells[places[name]] for cells in rows] for name in names)
        texts = ([None if cell in none else cell for cell in column] for column in values)
        return pa.Table.from_arrays([pa.array(each, pa.string()) for each in texts], names=names)


def _not_utf8(name: str, cell: str) -> str:
    """Return why a cell is no text; "" if it is."""
    try:
        cell.isascii() or cell.encode()
    except UnicodeEncodeError:
        shown = cell.encode(errors="surrogateescape")[:40]
        return f"column {name!r} is not UTF-8 ({shown!r}). {UTF8_HINT}"
    return ""


def last_record_end(data: bytes, delimiter: int) -> int:
    """Return where the last complete row ends, its line end included; 0 if there is none.

    Args:
        data: bytes from the beginning of a row on.
        delimiter: Code of the separator.
    """
    end = data.rfind(b"\n")
    if end < 0 or data.find(b'"') < 0:
        return end + 1
    text = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    if not _alternate(text, quotes, delimiter):
        end = 0
        while found := _row(delimiter).match(data, end):
            end = found.end()
        return end
    while end >= 0:
        before = int(np.searchsorted(quotes, end))
        if before % 2 == 0:
            return end + 1
        end = data.rfind(b"\n", 0, int(quotes[before - 1]))
    return 0


def _alternate(text: npt.NDArray[np.uint8], quotes: npt.NDArray[np.int64], delimiter: int) -> bool:
    """Tell whether every second quote opens a cell (or is the second of two), and no other does."""
    opening = quotes[0::2]
    is_right = np.isin(text[opening - 1], [delimiter, _QUOTE, *b"\r\n"])
    return bool(is_right[1:].all() and (is_right[:1] | (opening[:1] == 0)).all())


@cache
def _row(delimiter: int) -> re.Pattern[bytes]:
    """Match a row that ends; a quote opens a cell only at its beginning, others are characters.

    Without possessive quantifiers, which match too little before Python 3.11.5 where they are nested.
    """
    mark = re.escape(bytes([delimiter])) + rb"\r"  # which ends rows, too
    cell = rb'(?:"[^"]*(?:""[^"]*)*"(?!")|(?!"))[^%b\n]*' % mark
    return re.compile(rb"(?:%b[%b])*%b\n" % (cell, mark, cell))
