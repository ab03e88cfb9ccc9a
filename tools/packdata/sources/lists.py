"""Lists: a CSV or JSONL file with a path and labels in each row; in JSONL also a list of any number of paths.

Paths are relative to the list's folder. A cell that is empty, a name that a JSON line lacks, and
``nan`` for a label or a number are missing values: nothing for text, NaN for numbers, an error for
labels when the row is packed. Blanks around paths, keys and labels in a table do not count.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.errors import SourceError
from packdata.sources.base import (
    OWN_KEYS,
    PICTURES,
    FileHash,
    FileKind,
    Item,
    Source,
    broken_item,
    check_unique,
    column_of,
    field_names,
    is_missing,
    key_of,
    read_each,
    read_file,
    read_heads,
    shared_keys,
)
from packdata.sources.listed import ListedURL, objects_beside, stat_of
from packdata.sources.objects import RemoteFile
from packdata.sources.readers import csv_rows, encoding_hint, json_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

TABLE_SUFFIXES = frozenset({".csv", ".tsv"})
LIST_SUFFIXES = TABLE_SUFFIXES | {".jsonl", ".ndjson"}
_INT = re.compile(r"[+-]?[0-9]+")
_NAME = re.compile(r"[+-]?(0[0-9]|[0-9]{19})")
_NO_NUMBER = re.compile(r"([+-]?nan)?", re.IGNORECASE)
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

Row = tuple[int, dict[str, Any]]  # line number, from 1; value by column


class ListSource(Source):
    """The pictures that a list names, in its order.

    Columns that are None are the first usual one of the kind for paths, ``mask`` if there is one, and the first
    usual one for labels.
    """

    kind = "list"

    def __init__(
        self,
        path: Path,
        kind: FileKind = PICTURES,
        *,
        image_column: str | None = None,
        mask_column: str | None = None,
        label_column: str | None = None,
    ) -> None:
        self.path, self.name = path, path.name
        self._folder = str(path.parent.absolute())  # files are read when they are packed
        columns, self._rows = _read_rows(path)
        self._image = _find_column(columns, image_column, path, kind)
        self._mask = _find_mask(columns, mask_column, path)
        plain = [name for name in columns if name not in (self._image, self._mask, "key")]
        self._fields = field_names(plain, path, label_column, columns)
        if path.suffix.lower() in TABLE_SUFFIXES:
            labels = {name for name, field in self._fields.items() if field == "label"}
            _strip({self._image, self._mask, "key", *labels}, labels, self._rows)
            _convert_numbers(plain, self._rows)
        cells = (values.get(self._image) for _, values in self._rows)
        self.has_several = kind is PICTURES and any(isinstance(cell, list) for cell in cells)
        if self.has_several:
            _settle_paths(self._rows, self._image, path)
        for line, values in [] if self.has_several else self._rows:
            if not isinstance(values.get(self._image), str):
                what = f"it has no path in column {self._image!r}"
                raise SourceError(what, f"{path}, line {line}")
        self.labels = {
            field: column_of(field, (row.get(name) for _, row in self._rows))
            for name, field in self._fields.items()
        }
        self.has_masks = self._mask is not None
        self._beside = objects_beside(path, self._cells()) if isinstance(path, ListedURL) else None
        self._has_keys = "key" in columns
        has_names = not self._has_keys and not self.has_several
        files = [self._inside(values) for _, values in self._rows] if has_names else []
        self._shared = shared_keys(list(dict.fromkeys(files)))
        self.suffixed = tuple(f for f in files if self._shared and key_of(f) in self._shared)
        check_unique(self._given_keys, path, OWN_KEYS)
        self.identity = self._identity()

    def __len__(self) -> int:
        return len(self._rows)

    def items(self, start: int = 0) -> Iterator[Item]:
        for i in range(start, len(self._rows)):
            row = line, values = self._rows[i]
            if self._lacks_key(row):
                where = f"{self.path}, line {line}"
                yield broken_item(self._key(row), "the key is missing", where)
                continue
            place, path, read = self._files_of(line, values[self._image])
            labels = {
                field: self._value(field, values.get(name)) for name, field in self._fields.items()
            }
            key, mask = self._key(row), self._mask_of(values, place)
            yield Item(key, place, read, labels, path=path, **mask)

    def _files_of(self, line: int, cell: Any) -> tuple[str, str | None, Any]:
        """Return place, path and reader of what a row lists."""
        where = f"{self.path}, line {line}"
        if not isinstance(cell, list):
            place, path = f"{where} ({cell})", self._path_of(cell)
            return place, path if self._beside is None else None, self._reader(cell, place)
        reads = [self._reader(each, f"{where} ({each})") for each in cell]
        return where, None, partial(read_each, reads)

    def _reader(self, cell: str, where: str) -> Callable[[], bytes]:
        """Return what reads the file of a cell."""
        entry = None if self._beside is None else self._beside.find(self._name(cell))
        if self._beside is None or entry is None:
            return partial(_read_listed, self._path_of(cell), where)
        return RemoteFile(self._beside.origin, entry, where)

    def _name(self, cell: str) -> str:
        """Return what a cell calls an object, from the list's folder on."""
        return cell.removeprefix(f"{self._folder}/")

    def _cells(self) -> Iterator[str]:
        """Yield what all cells call objects."""
        for _, values in self._rows:
            for name in filter(None, (self._image, self._mask)):
                cell = values.get(name)
                yield from map(self._name, cell if isinstance(cell, list) else [str(cell)])

    def keys(self) -> Iterator[str]:
        return map(self._key, self._rows)

    def _given_keys(self) -> Iterator[tuple[str, str]]:
        """Yield key and place of the rows that have one."""
        given = (row for row in self._rows if not self._lacks_key(row))
        return ((self._key(row), f"line {row[0]}") for row in given)

    def mask_heads(self) -> Iterator[bytes]:
        cells = (values.get(self._mask) for _, values in self._rows if self._mask is not None)
        masks = (str(cell) for cell in cells if cell is not None)
        readers = ((mask, self._reader(mask, mask)) for mask in masks)
        return read_heads(
            read if isinstance(read, RemoteFile) else self._path_of(mask) for mask, read in readers
        )

    def _mask_of(self, values: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return what an item says of its mask; ``where`` is the place of its picture."""
        if self._mask is None:
            return {}
        cell = values.get(self._mask)
        if cell is None:
            return {"read_mask": partial(_no_mask, self._mask, where)}
        name = str(cell)
        path = None if self._beside is not None else self._path_of(name)
        read = self._reader(name, f"{where} (mask {name})")
        return {"read_mask": read, "mask_path": path, "mask_name": name}

    def _value(self, field: str, value: Any) -> Any:
        if value is None:
            return "" if self.labels[field].kind == "text" else None
        return str(value) if self.labels[field].kind in ("class", "text") else value

    def _key(self, row: Row) -> str:
        line, values = row
        if not self._has_keys and not self.has_several:
            return key_of(self._inside(values), self._shared)
        is_given = self._has_keys and not self._lacks_key(row)
        return str(values["key"]) if is_given else f"{self.path.stem}/{line:08d}"

    def _lacks_key(self, row: Row) -> bool:
        return self._has_keys and row[1].get("key") is None

    def _inside(self, values: Mapping[str, Any]) -> str:
        """Return the path in a row, from the list's folder on."""
        cell: str = self._name(values[self._image])
        return os.path.relpath(cell, self._folder) if os.path.isabs(cell) else cell

    def _path_of(self, cell: str) -> str:
        return os.path.join(self._folder, cell)

    def _identity(self) -> dict[str, Any]:
        files = FileHash()
        names = [name for name in (self._image, self._mask) if name is not None]
        for _, values in self._rows:
            cells = [values.get(name) for name in names]
            cells[:1] = cells[0] if isinstance(cells[0], list) else cells[:1]
            for cell in cells:
                files.add(str(cell), None if cell is None else self._stat(str(cell)))
        text = xxhash.xxh3_128_hexdigest(read_file(self.path, str(self.path)))
        columns = [self._image, self._mask]
        return {"kind": self.kind, "list": text, "columns": columns, "files": files.hexdigest()}

    def _stat(self, cell: str) -> os.stat_result | None:
        if self._beside is None:
            return _stat(self._path_of(cell))
        entry = self._beside.find(self._name(cell))
        return None if entry is None else stat_of(entry)


def _no_mask(column: str, where: str) -> bytes:
    hint = f"Give each row a path in column {column!r}, or leave the column out"
    raise SourceError("it has no mask, others have", where, hint)


def _read_listed(path: str, where: str) -> bytes:
    if re.search(r"[a-z0-9]{2,}:/+", path):
        what = "it is a URL outside the folder of the list"
        raise SourceError(what, where, "Download it first")
    return read_file(path, where)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (OSError, ValueError):  # it is rejected when it is read
        return None


def _read_rows(path: Path) -> tuple[list[str], list[Row]]:
    try:
        text = read_file(path, str(path)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(
            f"it is not UTF-8 ({error})", path, encoding_hint(error.object)
        ) from error
    is_table = path.suffix.lower() in TABLE_SUFFIXES
    columns, rows = _read_csv(text, path) if is_table else _read_jsonl(text, path)
    if not rows:
        raise SourceError("the list has no rows", path)
    return columns, rows


def _read_csv(text: str, path: Path) -> tuple[list[str], list[Row]]:
    first = text.lstrip("\r\n ").split("\n", 1)[0]
    delimiter = max(",\t;", key=first.count)  # the comma where none occurs
    found = csv_rows(
        text,
        path,
        delimiter=delimiter,
        skipinitialspace=f"{delimiter} " in first,  # the list's own way to write them
        strict=True,
    )
    full = [(line, cells) for _, line, cells in found if any(map(str.strip, cells))]
    if not full:
        return [], []
    columns = _check_columns([cell.strip() for cell in full[0][1]], path)
    rows: list[Row] = []
    for line, cells in full[1:]:
        if len(cells) > len(columns):
            what = f"{len(cells)} cells in a list of {len(columns)} columns"
            raise SourceError(what, f"{path}, line {line}", "Quote cells with commas")
        named = zip(columns, cells, strict=False)
        rows.append((line, {name: cell for name, cell in named if cell != ""}))
    return columns, rows


def _check_columns(columns: list[str], path: Path) -> list[str]:
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise SourceError(f"the header has {twice} more than once", f"{path}, line 1")
    return columns


def _strip(columns: set[str | None], labels: set[str], rows: list[Row]) -> None:
    """Take the blanks off cells that name something; leave out what names nothing."""
    for _, values in rows:
        for name in values.keys() & columns:
            values[name] = cell = values[name].strip()
            if not cell or (name in labels and _NO_NUMBER.fullmatch(cell)):
                del values[name]


def _convert_numbers(columns: Sequence[str], rows: list[Row]) -> None:
    """Turn columns of numbers into numbers; ``007`` and 19 digits and more stay text."""
    for name in columns:
        cells = {i: row[name].strip() for i, (_, row) in enumerate(rows) if name in row}
        known = [cell for cell in cells.values() if not _NO_NUMBER.fullmatch(cell)]
        if not known or not all(map(_FLOAT.fullmatch, known)) or any(map(_NAME.match, known)):
            continue
        convert = int if all(map(_INT.fullmatch, known)) else float
        for i, cell in cells.items():
            if _NO_NUMBER.fullmatch(cell):
                del rows[i][1][name]
            else:
                rows[i][1][name] = convert(cell)


def _read_jsonl(text: str, path: Path) -> tuple[list[str], list[Row]]:
    rows: list[Row] = []
    columns: dict[str, None] = {}
    for line, part in enumerate(text.split("\n"), start=1):
        if not part.strip():
            continue
        try:
            values = json_object(part)
        except ValueError as error:
            raise SourceError(str(error), f"{path}, line {line}") from error
        rows.append((line, {n: value for n, value in values.items() if not is_missing(value)}))
        columns.update(dict.fromkeys(values))
    return list(columns), rows


def _find_column(columns: Sequence[str], wanted: str | None, path: Path, kind: FileKind) -> str:
    by_lower = {name.lower(): name for name in reversed(columns)}
    names = kind.columns if wanted is None else (wanted,)
    found = wanted if wanted in columns else None
    if wanted is None:
        found = next((by_lower[name] for name in kind.columns if name in by_lower), None)
    if found is None:
        what = f"it has no column {' or '.join(names[:4])}, but {list(columns)}"
        raise SourceError(what, path, f"Name the column of paths with {kind.option}")
    return found


def _settle_paths(rows: Sequence[Row], image: str, path: Path) -> None:
    """Make a list of each cell: a path alone is one picture, and nothing is none."""
    for line, values in rows:
        cell = values.get(image)
        values[image] = cell = [] if cell is None else [cell] if isinstance(cell, str) else cell
        if not isinstance(cell, list) or not all(isinstance(each, str) for each in cell):
            what = f"column {image!r} is no list of paths"
            raise SourceError(what, f"{path}, line {line}")


def _find_mask(columns: Sequence[str], wanted: str | None, path: Path) -> str | None:
    if wanted is not None and wanted not in columns:
        raise SourceError(f"it has no column {wanted!r}, but {list(columns)}", path)
    return wanted or ("mask" if "mask" in columns else None)
