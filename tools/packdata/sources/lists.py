"""Lists: a CSV or JSONL file with a path and labels in each row; in JSONL also a list of any number of paths.

Paths are relative to the list's folder. A cell that is empty, a name that a JSON line lacks, and
``nan`` for a label or a number are missing values: nothing for text, NaN for numbers, an error for
labels when the row is packed. Blanks around paths, keys and labels in a table do not count. The types of
a table's cells follow the rules of ``packdata.types``, as for ``packdata tables``.
"""

from __future__ import annotations

import json
import os
from array import array
from dataclasses import replace
from itertools import repeat
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from loaders.checks import shown
from loaders.data.formats import hash_file
from loaders.errors import SourceError
from loaders.remote.url import URL
from packdata.delimited import CsvOptions, CsvRows
from packdata.jsonl import JsonRows
from packdata.reading import File, LocalFile
from packdata.rows import DELIMITED, HEAD_BYTES, JSON_LINES, open_text, suffix_inside
from packdata.sources.columns import (
    LABEL,
    ROWS_OF_BOXES,
    ColumnNames,
    check_distinct,
    field_names,
    first_named,
    is_missing,
    sides_in,
)
from packdata.sources.listed import Listing, hash_of_files
from packdata.sources.names import PICTURES, FileKind, key_of, shared_keys
from packdata.sources.rows import ColumnsSource
from packdata.types import NO_VALUES, type_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packdata.rows import RowFile
    from packdata.sources.rows import Row

LIST_SUFFIXES = (*DELIMITED, *JSON_LINES)
_encode = json.JSONEncoder(ensure_ascii=False).encode
_AT_ONCE = 1024  # rows
_NO_LABEL = r"(?i)^([+-]?nan)?$"
_STORED = {"int": pa.int64(), "flag": pa.int64(), "float": pa.float64(), "text": pa.string()}


class ListSource(ColumnsSource):
    """The pictures that a list names, in its order.

    Columns that are None are the first usual one of the kind for paths, ``mask`` if there is one, and the first
    usual one for labels.
    """

    kind = "list"

    def __init__(self, file: File, kind: FileKind, names: ColumnNames) -> None:
        path = file.path
        self.name, self._folder = path.name, str(path.parent.absolute())
        self._is_json = suffix_inside(path.name) in JSON_LINES
        self._list = JsonRows(file) if self._is_json else _open_csv(file)
        # Arrow's columns, of texts in JSON: dictionaries of tens of millions of rows would take all memory.
        self._lines, self._table = _read_rows(self._list)
        columns = self._table.column_names
        image = names.file or first_named(columns, kind.columns) or kind.columns[0]
        mask = names.mask or ("mask" if "mask" in columns else None)
        for name in filter(None, (image, mask)):
            if name not in columns:
                hint = f"Name the column of paths with {kind.option}"
                raise SourceError(f"no column {name!r} among {columns}", path, hint)
        if kind is PICTURES and (sides := sides_in(columns)):
            if "xmin" in sides:
                raise SourceError(sides, path, ROWS_OF_BOXES)
            # Beside a label of the whole picture they do no harm.
            self.notes = [f"{sides}. {ROWS_OF_BOXES}"]
        fields = field_names(columns, (image, mask, "key"), path, names.label)
        if not self._is_json:
            roles = [fields.get(name, "key") for name in columns]
            self._table = pa.table([*map(_typed, self._table.columns, roles)], columns)
        cells = self._values(image) if kind is PICTURES and self._is_json else ()
        self.has_several = any(isinstance(cell, list) for cell in cells)
        self._beside = Listing(path.parent) if isinstance(path, URL) else None
        # What several files would have as key; None where keys are no paths.
        self._shared: frozenset[str] | None = None
        keyed_by = "key" if "key" in columns else ""
        if not keyed_by and not self.has_several:
            keyed_by = image
            self._shared = shared_keys(lambda: map(self._inside, map(str, self._values(image))))
        super().__init__([self._list], image, mask, keyed_by, fields)
        self.identity = {
            "kind": self.kind,
            "list": hash_file(file.local()),
            "columns": [image, mask],
            "files": hash_of_files(self._states()),
        }

    def __len__(self) -> int:
        return len(self._lines)

    def _rows(self, names: Sequence[str], start: int = 0) -> Iterator[Row]:
        num = 1  # few at first: in another order each item is asked for by itself
        while start < len(self):
            lists = (c.to_pylist() for c in self._table.slice(start, num).select(names).columns)
            columns = (map(_json, each) for each in lists) if self._is_json else lists
            lines = self._lines[start : start + num]
            yield from zip(repeat(self._list), lines, zip(*columns, strict=True), strict=False)
            start, num = start + num, min(2 * num, _AT_ONCE)

    def _key(self, file: RowFile, number: int, value: Any) -> str:
        key = super()._key(file, number, value)
        return key if self._shared is None else key_of(self._inside(key), self._shared)

    def _file(self, value: Any, where: str, what: str, rows: RowFile) -> File | None:
        if value is None:
            return None
        return self._at(str(value), where if what == "picture" else f"{where} ({what} {value})")

    def _at(self, cell: str, where: str) -> File:
        """Return the file at the path or URL in a cell."""
        if self._beside is not None and (found := self._beside.find(self._inside(cell))):
            return replace(found, where=where)
        return LocalFile(os.path.join(self._folder, cell), where)

    def _inside(self, cell: str) -> str:
        """Return a path or URL, from the list's folder on."""
        name = cell.removeprefix(f"{self._folder}/")
        if os.path.isabs(name):
            return os.path.relpath(name, self._folder)
        return str(PurePosixPath(name)) if "./" in name or "//" in name else name

    def _states(self) -> Iterator[tuple[str, int, int]]:
        """Yield path, size and mark of each picture and mask; SourceError where a path is missing."""
        for file, line, (value, *masks) in self._rows([*filter(None, (self._image, self._mask))]):
            cells = self._cells(value)
            if not all(isinstance(cell, str) for cell in cells):
                what = f"column {self._image!r} holds {shown(value)}, not a path"
                hint = "packdata.pack takes values themselves, and lists in columns"
                raise SourceError(what, file.place(line), hint)
            for cell in (*cells, *map(str, masks)):
                yield cell, *_state(self._at(cell, ""))


def _state(file: File) -> tuple[int, int]:
    """Return the size of a file, and its mark, which changes when it does."""
    if not isinstance(file, LocalFile):
        return file.size, file.mark
    try:
        found = os.stat(file.name)
    except (OSError, ValueError):  # it is rejected when it is read
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _open_csv(given: File) -> CsvRows:
    """Open a CSV list: of cells between commas, tabs (as in .tsv) or semicolons, a blank behind each or none."""
    with open_text(given) as file:
        head = file.read(HEAD_BYTES).decode(errors="replace")
    first = head.lstrip("\ufeff\r\n").partition("\n")[0]
    marks = "\t" if suffix_inside(given.path.name) == ".tsv" else ",\t;"
    delimiter = max(marks, key=first.count)
    options = CsvOptions(delimiter=delimiter if delimiter in first else None)
    skips_blanks = f"{delimiter} " in first
    rows = CsvRows(given, options, strict=True, skips_blanks=skips_blanks)
    check_distinct(rows.columns, given.path)
    return rows


def _read_rows(file: CsvRows | JsonRows) -> tuple[array[int], pa.Table]:
    """Return the lines of rows, and their cells as texts, part by part: beside them all of the text has no room."""
    lines, tables = array("Q"), []
    for part in file.parts():
        rows = list[dict[str, str | None]]()
        for line, row, why in file.records(part):
            if why:
                raise SourceError(why, file.place(line))
            lines.append(line)
            if isinstance(row, dict):
                rows.append({n: None if is_missing(v) else _encode(v) for n, v in row.items()})
            else:
                rows.append(dict(zip(file.columns or (), row, strict=True)))
        names = dict.fromkeys(name for row in rows for name in row)
        schema = pa.schema([(name, pa.string()) for name in names])
        tables.append(pa.Table.from_pylist(rows, schema))
    if not lines:
        raise SourceError("the list has no rows", file.path)
    return lines, pa.concat_tables(tables, promote_options="default")


def _json(cell: str | None) -> Any:
    if cell is None:
        return None
    return cell[1:-1] if cell[0] == '"' and "\\" not in cell else json.loads(cell)


def _typed(texts: pa.ChunkedArray, field: str) -> pa.ChunkedArray:
    """Return a column of CSV by the rules of ``packdata.types``; that of a path or key is ``key``."""
    kind = "text" if field == "key" else type_of(texts)
    if kind == "text" and field not in ("key", LABEL):
        return texts
    texts = pc.utf8_trim_whitespace(texts)  # blanks around what names something do not count
    if kind != "text":
        texts = pc.utf8_ltrim(texts, "+")
        nothing = pc.is_in(texts, value_set=pa.array(["", *NO_VALUES]))
    else:
        nothing = pc.match_substring_regex(texts, _NO_LABEL if field == LABEL else "^$")
    texts = pc.if_else(nothing, pa.scalar(None, pa.string()), texts)
    return pc.cast(pc.cast(texts, pa.bool_()) if kind == "flag" else texts, _STORED[kind])
