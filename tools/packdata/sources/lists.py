"""Lists: a CSV or JSONL file with a path and labels in each row; in JSONL also a list of any number of paths.

Paths are relative to the list's folder. A cell that is empty, a name that a JSON line lacks, and
``nan`` for a label or a number are missing values: nothing for text, NaN for numbers, an error for
labels when the row is packed. Blanks around paths, keys and labels in a table do not count. What the cells of a
table are is told by ``packdata.types``, as for ``packdata tables``.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections import Counter
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

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
    FileHash,
    FileKind,
    Item,
    Source,
    broken_item,
    check_unique,
    column_of,
    field_names,
    first_named,
    is_missing,
    key_of,
    read_each,
    shared_keys,
)
from packdata.sources.listed import Listing
from packdata.sources.names import Names
from packdata.types import NO_VALUES, type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    _Reads = Callable[[str], Any]

LIST_SUFFIXES = (*DELIMITED, *JSON_LINES)
_MISSING = frozenset(("", *NO_VALUES))
_SIDES = frozenset({"xmin", "ymin", "xmax", "ymax"})
ROWS_OF_BOXES = (
    "Group the rows by picture, with a list of boxes each: docs/masks.md has ten lines for it"
)
_encode = json.JSONEncoder(ensure_ascii=False).encode
_NAN = re.compile(r"[+-]?nan", re.IGNORECASE)  # of a label, a missing one


class _Rows:
    """The rows of a list, by column: no dictionaries are made, of which tens of millions take all memory.

    Args:
        reads: Returns the value that the text of a cell stands for, None if that is a missing one.
    """

    def __init__(self, reads: _Reads) -> None:
        self.lines = array("Q")  # from 1
        self.columns: dict[str, Names] = {}  # texts of the cells, "" where there is none
        self.reads: dict[str, _Reads] = {}  # of columns that are read otherwise
        self._reads = reads

    def add_cells(self, line: int, cells: list[str]) -> str:
        """Add a row of a table, of which the first has the names of columns; return why it is none, if so."""
        if not any(map(str.strip, cells)):
            return ""
        if not self.columns:
            names = [cell.strip() for cell in cells]
            self.columns = {name: Names() for name in names}
            duplicates = sorted(name for name, num in Counter(names).items() if num > 1)
            return f"duplicate columns {duplicates}" if duplicates else ""
        if len(cells) > len(self.columns):
            return f"{len(cells)} cells in a list of {len(self.columns)} columns. Quote cells with commas"
        self._add(line, dict(zip(self.columns, cells, strict=False)))
        return ""

    def add_object(self, line: int, row: Mapping[str, Any]) -> str:
        """Add a line of JSON."""
        texts = {name: "" if is_missing(value) else _encode(value) for name, value in row.items()}
        self._add(line, texts)
        return ""

    def _add(self, line: int, texts: Mapping[str, str]) -> None:
        """Add a row; columns that it names first are empty in those before."""
        for name in [name for name in texts if name not in self.columns]:
            self.columns[name] = Names("" for _ in self.lines)
        for name, column in self.columns.items():
            column.append(texts.get(name, ""))
        self.lines.append(line)

    def _value(self, column: str, text: str) -> Any:
        return self.reads.get(column, self._reads)(text) if text else None

    def values(self, column: str) -> Iterator[Any]:
        """Yield the values of a column, None where one is missing."""
        return (self._value(column, text) for text in self.columns[column])

    def row(self, number: int) -> dict[str, Any]:
        """Return the values of a row, by column, None where one is missing."""
        return {name: self._value(name, texts[number]) for name, texts in self.columns.items()}


class ListSource(Source):
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
        self._rows = rows = _read_rows(file)
        columns = [*rows.columns]
        self._image = _find_column(columns, image_column, path, kind)
        self._mask = _find_mask(columns, mask_column, path)
        plain = [name for name in columns if name not in (self._image, self._mask, "key")]
        if kind is PICTURES and {name.lower() for name in plain} >= _SIDES:
            what = "columns xmin, ymin, xmax and ymax, which no crop would move"
            raise SourceError(what, path, ROWS_OF_BOXES)
        self._fields = field_names(plain, path, label_column, columns)
        if suffix_inside(path.name) in DELIMITED:
            rows.reads |= dict.fromkeys(columns, _stripped)
            for name in plain:
                rows.reads[name] = _cell_of(rows.columns[name], self._fields[name])
        self.has_several = kind is PICTURES and any(
            isinstance(cell, list) for cell in rows.values(self._image)
        )
        for line, cell in zip(rows.lines, rows.values(self._image), strict=True):
            if not all(isinstance(each, str) for each in self._listed(cell)):
                what = f"no path in column {self._image!r}"
                raise SourceError(what, f"{path}, line {line}")
        self.labels = {
            field: column_of(field, rows.values(name)) for name, field in self._fields.items()
        }
        self.has_masks = self._mask is not None
        self._beside = Listing(path.parent) if isinstance(path, URL) else None
        self._has_keys = "key" in columns
        has_names = not self._has_keys and not self.has_several
        self._shared = shared_keys(self._files) if has_names else frozenset()
        check_unique(self._placed_keys, path, f"{OWN_KEYS}. A row a box: {ROWS_OF_BOXES}")
        self.identity = self._identity(hash_file(file.local()))

    def _listed(self, cell: Any) -> list[Any]:
        """Return the paths of a row: where it may have any number, nothing is none."""
        if not self.has_several:
            return [cell]
        return cell if isinstance(cell, list) else [] if cell is None else [cell]

    def __len__(self) -> int:
        return len(self._rows.lines)

    def items(self, start: int = 0) -> Iterator[Item]:
        for i in range(start, len(self)):
            line, values = self._rows.lines[i], self._rows.row(i)
            where, cell = f"{self.path}, line {line}", values[self._image]
            key = self._key(line, values.get("key"), cell)
            if self._has_keys and values["key"] is None:
                yield broken_item(key, "the key is missing", where)
                continue
            if self.has_several:
                paths = self._listed(cell)
                read: Any = partial(read_each, [self._file(p, f"{where} ({p})") for p in paths])
            else:
                where = f"{where} ({cell})"
                read = self._file(cell, where)
            labels = {
                field: self._value(field, values[name]) for name, field in self._fields.items()
            }
            yield Item(key, where, read, labels, **self._mask_of(values, where))

    def _file(self, cell: str, where: str) -> File:
        """Return what reads the file of a cell."""
        if self._beside is not None and (found := self._beside.find(self._name(cell))):
            return found.placed(where)
        return LocalFile(os.path.join(self._folder, cell), where)

    def _name(self, cell: str) -> str:
        """Return what a cell calls an object, from the list's folder on."""
        return cell.removeprefix(f"{self._folder}/")

    def keys(self) -> Iterator[str]:
        cells = self._rows.values(self._image)
        keys = self._rows.values("key") if self._has_keys else repeat(None)
        return map(self._key, self._rows.lines, keys, cells)

    def _placed_keys(self) -> Iterator[tuple[str, str]]:
        return zip(self.keys(), (f"line {line}" for line in self._rows.lines), strict=True)

    def _key(self, line: int, key: Any, cell: Any) -> str:
        if key is not None:
            return str(key)
        if self._has_keys or self.has_several:
            return f"{self.path.stem}/{line:08d}"
        return key_of(self._inside(cell), self._shared)

    def _files(self) -> Iterator[str]:
        return map(self._inside, self._rows.values(self._image))

    def _inside(self, cell: str) -> str:
        """Return a path, from the list's folder on."""
        name = self._name(cell)
        return os.path.relpath(name, self._folder) if os.path.isabs(name) else name

    def _mask_of(self, values: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return what an item says of its mask; ``where`` is the place of its picture."""
        if self._mask is None:
            return {}
        if (cell := values.get(self._mask)) is None:
            return {"read_mask": partial(_no_mask, self._mask, where)}
        name = str(cell)
        return {"read_mask": self._file(name, f"{where} (mask {name})"), "mask_name": name}

    def _value(self, field: str, value: Any) -> Any:
        if value is None:
            return "" if self.labels[field].kind == "text" else None
        return str(value) if self.labels[field].kind in ("class", "text") else value

    def _identity(self, digest: str) -> dict[str, Any]:
        files = FileHash()
        names = [name for name in (self._image, self._mask) if name is not None]
        for image, *cells in zip(*map(self._rows.values, names), strict=True):
            for cell in [*self._listed(image), *cells]:
                files.add(
                    str(cell), *(0, 0) if cell is None else _state(self._file(str(cell), ""))
                )
        columns = [self._image, self._mask]
        return {"kind": self.kind, "list": digest, "columns": columns, "files": files.hexdigest()}


def _state(file: File) -> tuple[int, int]:
    """Return the size of a file, and its mark, which changes when it does."""
    if not isinstance(file, LocalFile):
        return file.size, file.mark
    try:
        found = os.stat(file.name)
    except (OSError, ValueError):  # it is rejected when it is read
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _no_mask(column: str, where: str) -> bytes:
    hint = f"Give each row a path in column {column!r}, or leave the column out"
    raise SourceError("the mask is missing, others have one", where, hint)


def _read_rows(given: File) -> _Rows:
    """Read a list part by part: beside the rows there is no room for all of its text."""
    is_table = suffix_inside(given.path.name) in DELIMITED
    file = _open_table(given) if is_table else JsonRows(given)
    rows = _Rows(str if is_table else _json)
    add: Callable[[int, Any], str] = rows.add_cells if is_table else rows.add_object
    for part in file.parts():
        for line, row, why in file.records(part):
            if not why:
                why = add(line, row)
            if why:
                raise SourceError(why, f"{file.path}, line {line}")
    if not rows.lines:
        raise SourceError("the list has no rows", file.path)
    return rows


def _open_table(given: File) -> CsvRows:
    """Open CSV, the list's own way to write cells: by commas, tabs or semicolons, with a blank behind each or none."""
    with open_text(given) as file:
        lines = file.read(HEAD_BYTES).decode(errors="replace").split("\n")
    first = next((line for line in lines if line.strip("\ufeff\r ")), "")
    delimiter = max(",\t;", key=first.count)  # the comma where none occurs
    options = CsvOptions(delimiter=delimiter, header=False)
    return CsvRows(given, options, skipinitialspace=f"{delimiter} " in first, strict=True)


def _stripped(cell: str) -> str | None:
    """Read what names something: blanks around it do not count."""
    return cell.strip() or None


def _label(cell: str) -> str | None:
    name = cell.strip()
    return None if not name or _NAN.fullmatch(name) else name


def _cell_of(cells: Names, field: str) -> _Reads:
    """Return how the cells of a column are read, by the rules of ``packdata.types`` for the whole column."""
    reads: dict[str, _Reads] = {"int": int, "float": float, "flag": _flag}
    if (kind := type_of(cells.to_arrow())) != "text":
        return partial(_value, reads[kind])
    return _label if field == "label" else str


def _value(read: Callable[[str], Any], cell: str) -> Any:
    return None if (text := cell.strip()) in _MISSING else read(text)


def _flag(text: str) -> int:
    return int(text.lower() == "true")


def _json(cell: str) -> Any:
    return cell[1:-1] if cell[0] == '"' and "\\" not in cell else json.loads(cell)


def _find_column(columns: Sequence[str], wanted: str | None, path: Path, kind: FileKind) -> str:
    found = first_named(columns, kind.columns) if wanted is None else wanted
    if found is None or found not in columns:
        names = " or ".join(kind.columns[:4]) if wanted is None else repr(wanted)
        what = f"no column {names} among {list(columns)}"
        raise SourceError(what, path, f"Name the column of paths with {kind.option}")
    return found


def _find_mask(columns: Sequence[str], wanted: str | None, path: Path) -> str | None:
    if wanted is not None and wanted not in columns:
        raise SourceError(f"no column {wanted!r} among {list(columns)}", path)
    return wanted or ("mask" if "mask" in columns else None)
