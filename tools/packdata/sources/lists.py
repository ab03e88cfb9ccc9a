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
from collections import Counter
from functools import partial
from itertools import repeat
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from loaders.data.formats import hash_file
from loaders.errors import SourceError
from loaders.remote.url import URL
from packdata.delimited import CsvOptions, CsvRows
from packdata.jsonl import JsonRows
from packdata.reading import File, LocalFile
from packdata.rows import DELIMITED, HEAD_BYTES, JSON_LINES, open_text, suffix_inside
from packdata.sources.base import (
    OWN_KEYS,
    PICTURES,
    ColumnsSource,
    FileKind,
    Item,
    check_unique,
    column_of,
    fail,
    field_names,
    first_named,
    hash_of_files,
    is_missing,
    key_of,
    shared_keys,
)
from packdata.sources.listed import Listing
from packdata.types import NO_VALUES, type_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LIST_SUFFIXES = (*DELIMITED, *JSON_LINES)
_SIDES = frozenset({"xmin", "ymin", "xmax", "ymax"})
ROWS_OF_BOXES = (
    "Group the rows by picture, with a list of boxes each: docs/masks.md has ten lines for it"
)
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

    def __init__(
        self,
        file: File,
        kind: FileKind = PICTURES,
        *,
        image_column: str | None = None,
        mask_column: str | None = None,
        label_column: str | None = None,
    ) -> None:
        self.path = path = file.path
        self.name, self._folder = path.name, str(path.parent.absolute())
        self._is_json = suffix_inside(path.name) in JSON_LINES
        # Arrow's columns, of texts in JSON: dictionaries of tens of millions of rows would take all memory.
        self._lines, self._rows = _read_rows(JsonRows(file) if self._is_json else _open_csv(file))
        columns = self._rows.column_names
        self._image = image_column or first_named(columns, kind.columns) or kind.columns[0]
        self._mask = mask_column or ("mask" if "mask" in columns else None)
        for name in filter(None, (self._image, self._mask)):
            if name not in columns:
                hint = f"Name the column of paths with {kind.option}"
                raise SourceError(f"no column {name!r} among {columns}", path, hint)
        plain = [name for name in columns if name not in (self._image, self._mask, "key")]
        if kind is PICTURES and {name.lower() for name in plain} >= _SIDES:
            what = "columns xmin, ymin, xmax and ymax, which no crop would move"
            raise SourceError(what, path, ROWS_OF_BOXES)
        self._fields = field_names(plain, path, label_column, columns)
        if not self._is_json:
            fields = [self._fields.get(name, "key") for name in columns]
            self._rows = pa.table([*map(_typed, self._rows.columns, fields)], columns)
        self._has_keys = "key" in columns
        self.has_several = kind is PICTURES and any(
            isinstance(cell, list) for cell in self._values(self._image)
        )
        self.labels = {
            field: column_of(field, self._values(name)) for name, field in self._fields.items()
        }
        self.has_masks = self._mask is not None
        self._beside = Listing(path.parent) if isinstance(path, URL) else None
        has_names = not self._has_keys and not self.has_several
        files = lambda: (self._inside(path) for _, _, (path,) in self._named())  # noqa: E731
        self._shared = shared_keys(files) if has_names else frozenset()
        keys = lambda: ((self._key(*row), f"line {row[0]}") for row in self._named())  # noqa: E731
        check_unique(keys, path, f"{OWN_KEYS}. A row a box: {ROWS_OF_BOXES}")
        self.identity = {
            "kind": self.kind,
            "list": hash_file(file.local()),
            "columns": [self._image, self._mask],
            "files": hash_of_files(self._states()),
        }

    def _named(self) -> Iterator[tuple[int, Any, list[Any]]]:
        """Yield line, key and paths of each row; SourceError where a path is missing, or a key that others have."""
        keys = self._values("key") if self._has_keys else repeat("")
        for line, key, cell in zip(self._lines, keys, self._values(self._image), strict=False):
            paths = self._listed(cell)
            if key is None or not all(isinstance(path, str) for path in paths):
                column = "key" if key is None else self._image
                raise SourceError(f"no value in column {column!r}", f"{self.path}, line {line}")
            yield line, key, paths

    def _values(self, name: str) -> Iterator[Any]:
        """Yield the values of a column, None where one is missing."""
        for chunk in self._rows[name].chunks:
            yield from map(_json, chunk.to_pylist()) if self._is_json else chunk.to_pylist()

    def _listed(self, cell: Any) -> list[Any]:
        """Return the paths of a row: where it may have any number, nothing is none."""
        if not self.has_several:
            return [cell]
        return cell if isinstance(cell, list) else [] if cell is None else [cell]

    def __len__(self) -> int:
        return len(self._lines)

    def items(self, start: int = 0) -> Iterator[Item]:
        for line, row in self._numbered(start):
            values = {name: _json(cell) for name, cell in row.items()} if self._is_json else row
            cell, where = values[self._image], f"{self.path}, line {line}"
            paths = self._listed(cell)
            key = self._key(line, values.get("key"), paths)
            if self.has_several:
                values = {**values, self._image: paths}
            else:
                where = f"{where} ({cell})"
            yield self._item(key, where, values, self.path.parent)

    def _numbered(self, start: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield lines and cells of rows, few at first: in another order each item is asked for by itself."""
        num = 1
        while rows := self._rows.slice(start, num).to_pylist():
            yield from zip(self._lines[start : start + num], rows, strict=True)
            start, num = start + num, min(2 * num, _AT_ONCE)

    def _file(self, value: Any, where: str, what: str, folder: Path) -> Any:
        if value is None:
            hint = f"Give each row a path in column {self._mask!r}, or leave the column out"
            return partial(fail, f"the {what} is missing, others have one", where, hint)
        return self._at(str(value), where if what == "picture" else f"{where} ({what} {value})")

    def _at(self, cell: str, where: str) -> File:
        """Return the file at the path or URL in a cell."""
        if self._beside is not None and (found := self._beside.find(self._inside(cell))):
            return found.placed(where)
        return LocalFile(os.path.join(self._folder, cell), where)

    def _key(self, line: int, key: Any, paths: Sequence[str]) -> str:
        if self._has_keys:
            return str(key)
        if self.has_several:
            return f"{self.path.stem}/{line:08d}"
        return key_of(self._inside(paths[0]), self._shared)

    def _inside(self, cell: str) -> str:
        """Return a path or URL, from the list's folder on."""
        name = cell.removeprefix(f"{self._folder}/")
        if os.path.isabs(name):
            return os.path.relpath(name, self._folder)
        return str(PurePosixPath(name)) if "./" in name or "//" in name else name

    def _states(self) -> Iterator[tuple[str, int, int]]:
        """Yield path, size and mark of each picture and mask."""
        masks = map(str, self._values(self._mask)) if self._mask else repeat("")
        for (_, _, paths), mask in zip(self._named(), masks, strict=False):
            for cell in [*paths, mask] if self._mask else paths:
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
    """Open CSV, the list's own way to write cells: by commas, tabs or semicolons, with a blank behind each or none."""
    with open_text(given) as file:
        head = file.read(HEAD_BYTES).decode(errors="replace")
    first = head.lstrip("\ufeff\r\n").partition("\n")[0]
    delimiter = max(",\t;", key=first.count)  # the comma where none occurs
    has_blanks = f"{delimiter} " in first
    rows = CsvRows(
        given, CsvOptions(delimiter=delimiter), skipinitialspace=has_blanks, strict=True
    )
    if duplicates := [name for name, num in Counter(rows.columns).items() if num > 1]:
        raise SourceError(f"duplicate columns {duplicates}", given.path)
    return rows


def _read_rows(file: CsvRows | JsonRows) -> tuple[array[int], pa.Table]:
    """Return the lines of rows, and their cells as texts, part by part: beside them all of the text has no room."""
    lines, tables = array("Q"), []
    for part in file.parts():
        rows = list[dict[str, str | None]]()
        for line, row, why in file.records(part):
            if why:
                raise SourceError(why, f"{file.path}, line {line}")
            lines.append(line)
            if isinstance(row, dict):
                rows.append(_texts(row))
            else:
                rows.append(dict(zip(file.columns or (), row, strict=True)))
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
        tables.append(pa.table({n: pa.array(c, pa.string()) for n, c in columns.items()}))
    if not lines:
        raise SourceError("the list has no rows", file.path)
    return lines, pa.concat_tables(tables, promote_options="default")


def _texts(row: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: None if is_missing(value) else _encode(value) for name, value in row.items()}


def _json(cell: str | None) -> Any:
    if cell is None:
        return None
    return cell[1:-1] if cell[0] == '"' and "\\" not in cell else json.loads(cell)


def _typed(texts: pa.ChunkedArray, field: str) -> pa.ChunkedArray:
    """Return a column of CSV by the rules of ``packdata.types``; that of a path or key is ``key``."""
    kind = "text" if field == "key" else type_of(texts)
    if kind == "text" and field not in ("key", "label"):
        return texts
    texts = pc.utf8_trim_whitespace(texts)  # blanks around what names something do not count
    if kind != "text":
        texts = pc.utf8_ltrim(texts, "+")
        nothing = pc.is_in(texts, value_set=pa.array(["", *NO_VALUES]))
    else:
        nothing = pc.match_substring_regex(texts, _NO_LABEL if field == "label" else "^$")
    texts = pc.if_else(nothing, pa.scalar(None, pa.string()), texts)
    return pc.cast(pc.cast(texts, pa.bool_()) if kind == "flag" else texts, _STORED[kind])
