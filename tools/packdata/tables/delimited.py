"""CSV files: cut where rows end, each piece parsed by Arrow into texts.

A quote opens a cell only at its beginning, as in Arrow and in Python's ``csv``; inside quotes, line ends belong to
the cell and two quotes are one. Blank lines are passed over. Arrow's own reader of streams parses one block after the
other: cut here, they are parsed on all cores. A piece that Arrow refuses is read by Python, row by row.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from loaders.checks import as_list
from loaders.errors import SchemaError, SourceError
from loaders.system.regular import regular
from packdata.readers import UTF8_HINT, csv_rows, encoding_hint
from packdata.tables import parts
from packdata.tables.parts import FilePart, Kind, TableRows, read_bytes
from packdata.tables.values import (
    GROUPS,
    GUESSED,
    NO_VALUES,
    Flags,
    are_zoned,
    combined,
    count_codes,
    group_of,
    groups_of_texts,
    without_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from packdata.tables.parts import Text

    Bytes = npt.NDArray[np.uint8]
    Types = Mapping[str, pa.DataType]

_QUOTE, _LINE_ENDS = ord('"'), (10, 13)
_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 1 << 20
_LOOK_BYTES = 1 << 16
_PARSED_BYTES = 1 << 20  # at once: a quarter less time than for a part, as it stays in the cache
_LOOKED_BYTES = 1 << 17
_TAIL_BYTES = 1 << 12
_WORDS = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """How CSV files are read.

    Attributes:
        delimiter: Between cells, one character; None for a comma, or a tab in ``.tsv``.
        header: Whether the first row names the columns.
        names: Names for the columns of files without such a row.
        skip_rows: Lines to pass over at the beginning of each file.
    """

    delimiter: str | None = None
    header: bool = True
    names: tuple[str, ...] = ()
    skip_rows: int = 0

    def __post_init__(self) -> None:
        as_list("names", self.names, "names, such as ['age', 'income']")
        delimiter = self.delimiter
        if delimiter is not None and not (
            len(delimiter) == 1 and delimiter.isascii() and delimiter not in '\0"\r\n'
        ):
            what = "delimiter must be one ASCII character other than a quote or line end"
            raise ValueError(f"{what}, got {delimiter!r}")
        if self.skip_rows < 0:
            raise ValueError(f"skip_rows must be at least 0, got {self.skip_rows}")
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise SchemaError(f"names gives {', '.join(map(repr, twice))} to several columns")

    def to_json(self) -> dict[str, Any]:
        """Return what is said as JSON types, the delimiter always."""
        said: dict[str, Any] = {"delimiter": self.delimiter}
        if not self.header:
            said["header"] = False
        if self.names:
            said["names"] = list(self.names)
        if self.skip_rows:
            said["skip_rows"] = self.skip_rows
        return said


class DelimitedFile:
    """Rows of cells with a separator, below a line of names if there is one.

    Args:
        path: The file, UTF-8.
        options: How to read it.
        missing: Texts that stand for no value, as an empty cell does.
        alike: What columns of the same names seem to hold, by these names, in files that are read with it.

    Attributes:
        unnamed: Columns that are called by their number, for lack of a name.
        header: Whether its first row gave the names.
    """

    unit = "line"
    is_text = True

    def __init__(
        self,
        path: Path,
        options: CsvOptions | None = None,
        missing: Sequence[str] = (),
        alike: dict[tuple[str, ...], Types] | None = None,
    ) -> None:
        options = CsvOptions() if options is None else options
        usual = "\t" if path.suffix.lower() == ".tsv" else ","
        self.path, self.delimiter = path, options.delimiter or usual
        self.header = options.header and not options.names
        self.unnamed: list[str] = []
        self._missing, self._size, self._has_words = missing, path.stat().st_size, bool(missing)
        self._begin, self._line, cells = self._first_row(options.skip_rows)
        self.columns: tuple[str, ...] = options.names or self._named(cells)
        if len(self.columns) != len(cells):
            what = f"its first row has {len(cells)} cells, and names gives {len(self.columns)}"
            raise SourceError(what, f"{path}, line {self._line}")
        self._alike = {} if alike is None else alike

    def guesses(self, column: str) -> frozenset[str]:
        """Return what texts may be: anything, for a CSV file declares nothing."""
        return GUESSED

    def _first_row(self, skip_rows: int) -> tuple[int, int, list[str]]:
        """Read the first row; return offset and line of the first one with values, and its cells."""
        with open(self.path, "rb", opener=regular) as file:
            head = file.read(_HEAD_BYTES)
        if head[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in head[:200]:
            raise SourceError("it is not UTF-8 text", self.path, encoding_hint(head))
        begin = len(_BOM) if head.startswith(_BOM) else 0
        for _ in range(skip_rows):
            begin = head.find(b"\n", begin) + 1 or len(head)
        while head[begin : begin + 1] in (b"\r", b"\n"):
            begin += 1
        if begin == len(head):
            what = f"it has no more than {skip_rows} lines" if skip_rows else "it is empty"
            raise SourceError(what, self.path, "It takes a line of names, and rows below")
        end = first_record_end(head[begin:], ord(self.delimiter)) or len(head) - begin
        try:
            text = head[begin : begin + end].decode()
        except UnicodeDecodeError as error:
            what = f"its first row is not UTF-8 ({error})"
            raise SourceError(what, self.path, UTF8_HINT) from error
        line = head[:begin].count(b"\n") + 1
        cells = csv_rows(text, self.path, delimiter=self.delimiter, first_line=line)[0][2]
        self._check_cells(cells, text, head[begin + end :])
        if not self.header:
            return begin, line, cells
        return begin + end, line + text.count("\n"), cells

    def _named(self, cells: list[str]) -> tuple[str, ...]:
        """Return the names in the first row; of those without one, and where it is none, the number."""
        given = [cell.strip() if self.header else "" for cell in cells]
        self.unnamed = [
            f"column_{i}" for i, name in enumerate(given, 1) if self.header and not name
        ]
        return tuple(name or f"column_{i}" for i, name in enumerate(given, 1))

    def _check_cells(self, cells: list[str], text: str, rest: bytes) -> None:
        if "\r" in text.strip("\r\n"):
            what = "its lines end in carriage returns alone"
            raise SourceError(what, self.path, r"Convert it: tr '\r' '\n' < FILE")
        others = [mark for mark in ";\t|" if mark in text]
        if not others and _is_in_words(text, rest):
            others = [" "]
        if len(cells) == 1 and others:
            what = f"it has one column, {cells[0][:60]!r}"
            hint = f"Is it separated by {others[0]!r}? Say --delimiter"
            if cells[0].startswith("sep="):  # a line that Excel takes for itself
                hint += ", and leave this line out: --skip-rows 1"
            raise SourceError(what, self.path, hint)

    def parts(self, number: int) -> Iterator[FilePart]:
        """List pieces of whole rows."""
        return parts.cut(
            self.path,
            number,
            partial(last_record_end, delimiter=ord(self.delimiter)),
            self._begin,
            self._line,
            check_end=self._check_closed,
            hint="Is there a quote that is never closed?",
        )

    def _check_closed(self, rest: Text, line: int) -> None:
        spans = [*_quoted(rest, ord(self.delimiter))]
        if spans and spans[-1][1] == len(rest):
            opened = line + rest.count(b"\n", 0, spans[-1][0])
            raise SourceError("a quote is opened and never closed", f"{self.path}, line {opened}")

    def read(
        self, part: FilePart, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> Iterator[TableRows]:
        """Parse a piece into texts."""
        data = read_bytes(self.path, part.start, part.stop)
        names = list(self.columns if columns is None else columns)
        table = None
        for of_file in self._guessed_types():
            types = {
                name: kind
                for name, kind in of_file.items()
                if name in names and kinds.get(name) in (None, group_of(kind))
            }
            if (table := self._typed(data, names, types)) is not None:
                break
        else:  # one is something else, or longer than a block: as texts, all can be looked at
            table = self._parsed(data, names, types := {}, block=len(data) + 1)
        if table is None:  # rows of more or less cells, or text that is not UTF-8
            yield self._by_hand(data, part.line, names)
            return
        doubtful = [name for name in types if name not in kinds]
        table = self._respelled(data, without_words(table, self._missing), doubtful)

        @cache
        def written() -> list[tuple[int, int, list[str]]]:
            """Read the part once more, when somebody asks how a row is written."""
            return self._rows(read_bytes(self.path, part.start, part.stop), part.line)

        def cell(row: int, column: str) -> str:
            return written()[row][2][self.columns.index(column)]

        yield TableRows(table, lambda row: written()[row][0], cell=cell)

    def _guessed_types(self) -> Iterator[Types]:
        """Yield what columns seem to hold, in the first of some files that are alike; then in this one."""
        alike = self._alike.get(self.columns)
        if alike is not None:
            yield alike
        if self._types != alike:
            self._alike.setdefault(self.columns, self._types)
            yield self._types

    def _typed(self, data: bytes, names: list[str], types: Types) -> pa.Table | None:
        """Let Arrow parse, with the words for no value once some were seen: they take a tenth of the time."""
        if not self._has_words:
            table = self._parsed(data, names, types, words=())
            if table is not None and not any(map(_has_nan, table.columns)):
                return table
            self._has_words = True
        return self._parsed(data, names, types)

    @cached_property
    def _types(self) -> Types:
        """Return the columns that seem to hold numbers or dates: Arrow parses those at once as what they are."""
        data = read_bytes(self.path, self._begin, min(self._begin + _LOOK_BYTES, self._size))
        data = data[: last_record_end(data, ord(self.delimiter)) or len(data)]
        names = [name for name in self.columns if self.columns.count(name) == 1]
        table = self._parsed(data, names, {})
        return {} if table is None or not names else types_of_texts(table)

    def _respelled(self, data: bytes, table: pa.Table, doubtful: list[str]) -> pa.Table:
        """Return a table with the texts of what may be none: all NA, " nan ", or numbers that begin with zeros."""
        odd = [name for name in doubtful if table[name].null_count == len(table)]
        numbers = [name for name in doubtful if pa.types.is_floating(table[name].type)]
        if self._has_words:
            odd += [name for name in table.column_names if _has_nan(table[name])]
        if numbers and (found := _count_zeros(data, self.delimiter)):
            texts = [column for column in table.columns if pa.types.is_dictionary(column.type)]
            if found != sum(count_codes(combined(column)) for column in texts):
                odd += numbers
        if odd:
            odd = list(dict.fromkeys(odd))
            again = self._parsed(data, odd, {}, len(data) + 1)
            assert again is not None  # all rows were read before
            again = without_words(again, self._missing)
            for name in odd:
                table = table.set_column(table.column_names.index(name), name, again[name])
        return table

    def _parsed(
        self,
        data: bytes,
        names: list[str],
        types: Types,
        block: int | None = None,
        words: Sequence[str] = NO_VALUES,
    ) -> pa.Table | None:
        """Let Arrow parse; None where it refuses a row or value."""
        if b"\r" in data and b'"' in data:
            block = len(data) + 1  # between blocks, Arrow loses the end of "\r\n" in a cell
        unlike = [name if name in names else f"{i}\0" for i, name in enumerate(self.columns)]
        reading = pa.csv.ReadOptions(
            use_threads=False, block_size=block or _PARSED_BYTES, column_names=unlike
        )
        parsing = pa.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        converting = pa.csv.ConvertOptions(
            column_types={**dict.fromkeys(names, _WORDS), **types},
            include_columns=names,
            null_values=["", *words, *self._missing],
            strings_can_be_null=False,  # NA is a country, and Null a name
        )
        try:
            table = pa.csv.read_csv(pa.BufferReader(data), reading, parsing, converting)
        except pa.ArrowInvalid:
            return None
        return table.unify_dictionaries().combine_chunks()

    def _by_hand(self, data: bytes, first_line: int, names: list[str]) -> TableRows:
        """Return the rows of as many cells as there are columns, of text; the others are bad."""
        bad: list[tuple[int, str]] = []
        kept: list[tuple[int, list[str]]] = []
        for line, _, cells in self._rows(data, first_line):
            why = self._why_not(cells)
            if why:
                bad.append((line, why))
            else:
                kept.append((line, cells))
        places = [self.columns.index(name) for name in names]
        arrays = [pa.array([cells[i] or None for _, cells in kept], pa.string()) for i in places]
        table = without_words(pa.Table.from_arrays(arrays, names=names), self._missing)
        return TableRows(table, [line for line, _ in kept].__getitem__, bad)

    def _rows(self, data: bytes, first_line: int) -> list[tuple[int, int, list[str]]]:
        text = data.decode(errors="surrogateescape")
        return csv_rows(text, self.path, delimiter=self.delimiter, first_line=first_line)

    def _why_not(self, cells: list[str]) -> str:
        if len(cells) != len(self.columns):
            named = "line 1 names" if self.header else "the first row has"
            what = f"it has {len(cells)} cells, {named} {len(self.columns)}"
            is_comment = self.header and self.columns[0].startswith("#")
            return (
                f"{what} (--skip-rows leaves comments above the names out)" if is_comment else what
            )
        for name, cell in zip(self.columns, cells, strict=True):
            if not cell.isascii():
                try:
                    cell.encode()
                except UnicodeEncodeError:
                    shown = cell.encode(errors="surrogateescape")[:40]
                    return f"column {name!r} is not UTF-8 ({shown!r}). {UTF8_HINT}"
        return ""


def types_of_texts(table: pa.Table) -> dict[str, pa.DataType]:
    """Return the types as which texts can be read: of columns of numbers, or of dates with or without a zone."""
    words = [combined(column).dictionary for column in table.columns]
    # Of all columns at once, as patterns are compiled at each call.
    codes = np.split(groups_of_texts(pa.concat_arrays(words)), np.cumsum([*map(len, words)])[:-1])
    types = {}
    for name, texts, found in zip(table.column_names, words, codes, strict=True):
        groups = {GROUPS[code] for code in np.unique(found)} - {None}
        if groups == {"number"}:
            types[name] = pa.float64()
        elif groups == {"date"}:
            zoned = are_zoned(texts)
            if zoned.all() or not zoned.any():
                types[name] = pa.timestamp("us", "UTC" if zoned.all() else None)
    return types


def _has_nan(column: pa.ChunkedArray) -> bool:
    """Tell whether a number is none, as where ``nan`` stands in other letters than any list has, or in blanks."""
    return pa.types.is_floating(column.type) and bool(np.isnan(combined(column).drop_null()).any())


def _count_zeros(data: bytes, delimiter: str) -> int:
    """Return how many cells begin with a 0 and another digit, behind blanks and a sign or none; or more than that."""
    opens = _members(f'"\n\r{delimiter}')
    blanks = _members(" \t\f") & ~opens
    text = np.frombuffer(data, np.uint8)
    count = _zeros_in(np.frombuffer(b"\n\n" + data[: _LOOKED_BYTES + 1], np.uint8), opens, blanks)
    for first in range(_LOOKED_BYTES, len(text), _LOOKED_BYTES):
        count += _zeros_in(text[first - 2 : first + _LOOKED_BYTES + 1], opens, blanks)
    return count


def _zeros_in(text: Bytes, opens: Flags, blanks: Flags) -> int:
    """Count cells in a piece that the cache holds; comparisons leave little of dates and fractions to look at."""
    is_low = text < ord(".")  # as separators are, blanks and signs
    if opens[ord(".") :].any():
        is_low |= opens[text]
    may_begin = is_low[1:-2] & (text[2:-1] == ord("0"))
    may_begin &= text[3:] >= ord("0")
    if may_begin.any():
        may_begin &= is_low[:-3] | (text[1:-2] != ord("-"))
    if not may_begin.any():
        return 0
    before = np.flatnonzero(may_begin) + 1
    before = before[text[before + 2] <= ord("9")]
    before -= _SIGNS[text[before]]
    while (is_blank := blanks[text[before]] & (before >= 0)).any():
        before -= is_blank
    return int((opens[text[before]] | (before < 0)).sum())


def _members(characters: str) -> Flags:
    flags = np.zeros(256, bool)
    flags[[*characters.encode()]] = True
    return flags


_SIGNS = _members("+-")


def first_record_end(data: bytes, delimiter: int) -> int:
    """Return where the first row ends, its line end included; 0 if it does not."""
    end = data.find(b"\n")
    for first, last in _quoted(data, delimiter):
        if end < first:
            break
        if end < last:
            end = data.find(b"\n", last)
    return end + 1


def last_record_end(data: Text, delimiter: int) -> int:
    """Return where the last complete row ends, its line end included; 0 if there is none.

    Args:
        data: Text from the beginning of a row on.
        delimiter: Code of the separator.
    """
    end = data.rfind(b"\n")
    if end < 0 or data.find(b'"') < 0:
        return end + 1
    begin = data.rfind(b"\n", 0, max(0, end - _TAIL_BYTES)) + 1
    # If quotes there are the same whether that line begins in a cell or not, those above do not matter.
    found = _last_end(data, delimiter, begin) if begin else 0
    if found and found == _last_end(data, delimiter, begin, is_open=True):
        return found
    text = np.frombuffer(data, np.uint8)
    places = [np.flatnonzero(piece == _QUOTE) + first for first, piece in parts.pieces(text)]
    quotes = np.concatenate(places)
    if not _alternate(data, quotes, delimiter):
        quotes = np.array([*_quoted(data, delimiter)], np.int64).reshape(-1)
    while end >= 0:
        before = int(np.searchsorted(quotes, end))
        if before % 2 == 0:
            return end + 1
        end = data.rfind(b"\n", 0, int(quotes[before - 1]))
    return 0


def _last_end(data: Text, delimiter: int, begin: int, *, is_open: bool = False) -> int:
    """Return where the last row ends that does so behind the beginning of a line; 0 if none does."""
    end = data.rfind(b"\n", begin)
    for first, last in reversed([*_quoted(data, delimiter, begin, is_open=is_open)]):
        if last < end:
            break
        if first < end:
            end = data.rfind(b"\n", begin, max(begin, first))
    return end + 1


def _alternate(data: Text, quotes: npt.NDArray[np.int64], delimiter: int) -> bool:
    """Tell whether every second quote opens a cell (or is the second of two), and no other does."""
    opening = quotes[0::2]
    can_open = np.zeros(256, bool)
    can_open[[delimiter, _QUOTE, *_LINE_ENDS]] = True
    is_right = can_open[np.frombuffer(data, np.uint8)[opening - 1]]
    return bool(is_right[1:].all() and (is_right[:1] | (opening[:1] == 0)).all())


def _quoted(
    data: Text, delimiter: int, begin: int = 0, *, is_open: bool = False
) -> Iterator[tuple[int, int]]:
    """Yield first and last byte of what stands in quotes, quote by quote; the last may be open.

    Args:
        data: Text.
        delimiter: Code of the separator.
        begin: Where a line begins.
        is_open: It does so in quotes, which were opened in front of it.
    """
    openers = (delimiter, *_LINE_ENDS)
    at = begin - 1 if is_open else data.find(b'"', begin)
    while is_open or at >= 0:
        if not is_open and at and data[at - 1] not in openers:
            at = data.find(b'"', at + 1)
            continue
        is_open = False
        close = data.find(b'"', at + 1)
        while close >= 0 and data[close + 1 : close + 2] == b'"':
            close = data.find(b'"', close + 2)
        close = len(data) if close < 0 else close
        yield at, close
        at = data.find(b'"', close + 1)


def _is_in_words(first: str, rest: bytes) -> bool:
    """Tell whether a row of words is followed by one of as many, some of them numbers."""
    words = rest.split(b"\n", 1)[0].split()
    return len(words) == len(first.split()) > 1 and any(map(_is_number, words))


def _is_number(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
