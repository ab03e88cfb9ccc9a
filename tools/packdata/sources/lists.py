"""Lists: a CSV or JSONL file with a path and labels in each row; in JSONL also a list of any number of paths.

Paths are relative to the list's folder. A cell that is empty, a name that a JSON line lacks, and
``nan`` for a label or a number are missing values: nothing for text, NaN for numbers, an error for
labels when the row is packed. Blanks around paths, keys and labels in a table do not count. What the cells of a
table are is told by ``packdata.types``, as for ``packdata tables``.
"""

from __future__ import annotations

import io
import json
import os
import re
from array import array
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loaders.data.formats import hash_file
from loaders.errors import SourceError
from packdata.readers import each_csv_row, encoding_hint, json_object
from packdata.rows import DELIMITED, JSON_LINES, compression_of, suffix_inside
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
    open_file,
    read_each,
    read_file,
    read_heads,
    shared_keys,
)
from packdata.sources.listed import ListedURL, objects_beside, stat_of
from packdata.sources.names import Names, appended, sent
from packdata.sources.objects import RemoteFile
from packdata.types import NO_VALUES, typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    _Reads = Callable[[str], Any]

LIST_SUFFIXES = (*DELIMITED, *JSON_LINES)
_MISSING = frozenset(("", *NO_VALUES))
_MAX_CELL = (1 << 31) - 1  # bytes, where a list is compressed
_SIDES = frozenset({"xmin", "ymin", "xmax", "ymax"})
ROWS_OF_BOXES = (
    "Group the rows by picture, with a list of boxes each: docs/masks.md has ten lines for it"
)
_NAN = re.compile(r"[+-]?nan", re.IGNORECASE)  # of a label, a missing one


class _Rows:
    """The rows of a list, by column: no dictionaries are made, of which tens of millions take all memory.

    Args:
        reads: Returns the value that the text of a cell stands for, None if that is a missing one.
    """

    def __init__(self, reads: _Reads) -> None:
        self.lines: Any = array("I")  # from 1
        self.columns: dict[str, Names] = {}  # texts of the cells, "" where there is none
        self._reads = reads
        self._reads_of: dict[str, _Reads] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "lines": sent(self.lines)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, lines=memoryview(state["lines"]))

    def __len__(self) -> int:
        return len(self.lines)

    def add(self, line: int, texts: Mapping[str, str]) -> None:
        """Add a row; columns that it names first are empty in those before."""
        if not texts.keys() <= self.columns.keys():
            new = [name for name in texts if name not in self.columns]
            self.columns |= {name: Names("" for _ in self.lines) for name in new}
        for name, column in self.columns.items():
            column.append(texts.get(name, ""))
        self.lines = appended(self.lines, line)

    def read_as(self, column: str, reads: _Reads) -> None:
        """Let the cells of a column be read otherwise."""
        self._reads_of[column] = reads

    def values(self, column: str | None) -> Iterator[Any]:
        """Yield the values of a column, None where one is missing."""
        reads = self._reads_of.get(column or "", self._reads)
        texts: Iterable[str] = self.columns[column or ""]
        return (reads(text) if text else None for text in texts)

    def row(self, number: int) -> dict[str, Any]:
        """Return the values of a row, by column, None where one is missing."""
        return {
            name: self._reads_of.get(name, self._reads)(text) if text else None
            for name, column in self.columns.items()
            for text in (column[number],)
        }


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
        self._rows = rows = _read_rows(path)
        columns = [*rows.columns]
        self._image = _find_column(columns, image_column, path, kind)
        self._mask = _find_mask(columns, mask_column, path)
        plain = [name for name in columns if name not in (self._image, self._mask, "key")]
        if kind is PICTURES and {name.lower() for name in plain} >= _SIDES:
            what = "columns xmin, ymin, xmax and ymax, which no crop would move"
            raise SourceError(what, path, ROWS_OF_BOXES)
        self._fields = field_names(plain, path, label_column, columns)
        if suffix_inside(path.name) in DELIMITED:
            for name in columns:
                rows.read_as(name, _stripped)
            for name in plain:
                rows.read_as(name, _cell_of(rows.columns[name], self._fields[name]))
        self.has_several = kind is PICTURES and any(
            isinstance(cell, list) for cell in rows.values(self._image)
        )
        for line, cell in zip(rows.lines, rows.values(self._image), strict=True):
            self._check_paths(line, cell)
        self.labels = {
            field: column_of(field, rows.values(name)) for name, field in self._fields.items()
        }
        self.has_masks = self._mask is not None
        self._beside = objects_beside(path) if isinstance(path, ListedURL) else None
        self._has_keys = "key" in columns
        has_names = not self._has_keys and not self.has_several
        self._shared = shared_keys(self._files) if has_names else frozenset()
        check_unique(self._given_keys, path, f"{OWN_KEYS}. A row a box: {ROWS_OF_BOXES}")
        self.identity = self._identity()

    def __getstate__(self) -> dict[str, Any]:
        """Send of what lies beside the list no more than it names."""
        named = self._beside and self._beside.only(self._cells())
        return {**vars(self), "_beside": named}

    def _check_paths(self, line: int, cell: Any) -> None:
        if self.has_several:
            if not all(isinstance(each, str) for each in _listed(cell)):
                what = f"column {self._image!r} is no list of paths"
                raise SourceError(what, f"{self.path}, line {line}")
        elif not isinstance(cell, str):
            what = f"it has no path in column {self._image!r}"
            raise SourceError(what, f"{self.path}, line {line}")

    def __len__(self) -> int:
        return len(self._rows)

    def items(self, start: int = 0) -> Iterator[Item]:
        for i in range(start, len(self._rows)):
            line, values = self._rows.lines[i], self._rows.row(i)
            key = self._key(line, values.get("key"), values[self._image])
            if key is None:
                where = f"{self.path}, line {line}"
                yield broken_item(self._key_of_line(line), "the key is missing", where)
                continue
            place, path, read = self._files_of(line, values[self._image])
            labels = {
                field: self._value(field, values[name]) for name, field in self._fields.items()
            }
            yield Item(key, place, read, labels, path=path, **self._mask_of(values, place))

    def _files_of(self, line: int, cell: Any) -> tuple[str, str | None, Any]:
        """Return place, path and reader of what a row lists."""
        where = f"{self.path}, line {line}"
        if not self.has_several:
            place, path = f"{where} ({cell})", self._path_of(cell)
            return place, path if self._beside is None else None, self._reader(cell, place)
        reads = [self._reader(each, f"{where} ({each})") for each in _listed(cell)]
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
        for name in filter(None, (self._image, self._mask)):
            for cell in self._rows.values(name):
                cells = _listed(cell) if name == self._image and self.has_several else [str(cell)]
                yield from map(self._name, cells)

    def keys(self) -> Iterator[str]:
        for line, key in self._each_key():
            yield self._key_of_line(line) if key is None else key

    def _given_keys(self) -> Iterator[tuple[str, str]]:
        """Yield key and place of the rows that have one."""
        return ((key, f"line {line}") for line, key in self._each_key() if key is not None)

    def _each_key(self) -> Iterator[tuple[int, str | None]]:
        """Yield line and key of each row; a key is None where it is missing."""
        keys = self._rows.values("key" if self._has_keys else self._image)
        paths = self._rows.values(self._image)
        for line, key, cell in zip(self._rows.lines, keys, paths, strict=True):
            yield line, self._key(line, key, cell)

    def _key(self, line: int, key: Any, cell: Any) -> str | None:
        """Return the key of a row, None where it is missing."""
        if self._has_keys:
            return None if key is None else str(key)
        return (
            self._key_of_line(line)
            if self.has_several
            else key_of(self._inside(cell), self._shared)
        )

    def _key_of_line(self, line: int) -> str:
        return f"{self.path.stem}/{line:08d}"

    def _files(self) -> Iterator[str]:
        return map(self._inside, self._rows.values(self._image))

    def mask_heads(self) -> Iterator[bytes]:
        cells = self._rows.values(self._mask) if self._mask is not None else ()
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

    def _inside(self, cell: str) -> str:
        """Return a path, from the list's folder on."""
        name = self._name(cell)
        return os.path.relpath(name, self._folder) if os.path.isabs(name) else name

    def _path_of(self, cell: str) -> str:
        return os.path.join(self._folder, cell)

    def _identity(self) -> dict[str, Any]:
        files = FileHash()
        names = [name for name in (self._image, self._mask) if name is not None]
        for image, *cells in zip(*map(self._rows.values, names), strict=True):
            for cell in [*(_listed(image) if self.has_several else [image]), *cells]:
                files.add(str(cell), None if cell is None else self._stat(str(cell)))
        text, columns = hash_file(self.path), [self._image, self._mask]
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


def _read_rows(path: Path) -> _Rows:
    """Read a list line by line: beside the rows there is no room for all of its text."""
    is_table = suffix_inside(path.name) in DELIMITED
    try:
        rows = _read_csv(path) if is_table else _read_jsonl(path)
    except UnicodeDecodeError:
        data = read_file(path, str(path))
        try:
            data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SourceError(f"it is not UTF-8 ({error})", path, encoding_hint(data)) from error
        raise
    if not len(rows):
        raise SourceError("the list has no rows", path)
    return rows


def _lines_of(path: Path, newline: str) -> Iterator[str]:
    file: Any = open_file(path, str(path))
    if compression := compression_of(path.name):
        file = pa.CompressedInputStream(pa.PythonFile(file, "r"), compression)
    try:
        with io.TextIOWrapper(file, "utf-8-sig", newline=newline) as lines:
            yield from lines
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"the list cannot be read ({error})", path, "Is it complete?") from error


def _read_csv(path: Path) -> _Rows:
    first = next((line for line in _lines_of(path, "\n") if line.strip("\r\n ")), "").lstrip(
        "\r\n "
    )
    delimiter = max(",\t;", key=first.count)  # the comma where none occurs
    rows, columns = _Rows(str), list[str]()

    def take(_: int, line: int, cells: list[str]) -> None:
        if not any(map(str.strip, cells)):
            return
        if not columns:
            columns.extend(_check_columns([cell.strip() for cell in cells], path))
            rows.columns = {name: Names() for name in columns}
            return
        if len(cells) > len(columns):
            what = f"{len(cells)} cells in a list of {len(columns)} columns"
            raise SourceError(what, f"{path}, line {line + 1}", "Quote cells with commas")
        rows.add(line + 1, dict(zip(columns, cells, strict=False)))

    each_csv_row(
        _lines_of(path, ""),
        path.stat().st_size if compression_of(path.name) is None else _MAX_CELL,
        take,
        path,
        delimiter=delimiter,
        skipinitialspace=f"{delimiter} " in first,  # the list's own way to write them
        strict=True,
    )
    return rows


def _check_columns(columns: list[str], path: Path) -> list[str]:
    if duplicates := sorted(name for name, num in Counter(columns).items() if num > 1):
        raise SourceError(f"duplicate columns {duplicates}", f"{path}, line 1")
    return columns


def _stripped(cell: str) -> str | None:
    """Read what names something: blanks around it do not count."""
    return cell.strip() or None


def _label(cell: str) -> str | None:
    name = cell.strip()
    return None if not name or _NAN.fullmatch(name) else name


def _cell_of(cells: Sequence[str], field: str) -> _Reads:
    """Return how the cells of a column are read, by the rules of ``packdata.types`` for the whole column."""
    kind = typed(pa.array(cells, pa.string())).type
    if pa.types.is_boolean(kind):
        return partial(_value, _flag)
    if pa.types.is_integer(kind):
        return partial(_value, int)
    if pa.types.is_floating(kind):
        return partial(_value, float)
    return _label if field == "label" else str


def _value(read: Callable[[str], Any], cell: str) -> Any:
    return None if (text := cell.strip()) in _MISSING else read(text)


def _flag(text: str) -> int:
    return int(text.lower() == "true")


def _read_jsonl(path: Path) -> _Rows:
    rows, encode = _Rows(_json), json.JSONEncoder(ensure_ascii=False).encode
    for line, part in enumerate(_lines_of(path, "\n"), start=1):
        if not part.strip():
            continue
        try:
            values = json_object(part.rstrip("\n"))
        except ValueError as error:
            raise SourceError(str(error), f"{path}, line {line}") from error
        texts = {
            name: "" if is_missing(value) else encode(value) for name, value in values.items()
        }
        rows.add(line, texts)
    return rows


def _json(cell: str) -> Any:
    return cell[1:-1] if cell[0] == '"' and "\\" not in cell else json.loads(cell)


def _listed(cell: Any) -> list[Any]:
    """Return the paths of a row with any number of pictures: a path alone is one, and nothing is none."""
    return cell if isinstance(cell, list) else [] if cell is None else [cell]


def _find_column(columns: Sequence[str], wanted: str | None, path: Path, kind: FileKind) -> str:
    names = kind.columns if wanted is None else (wanted,)
    found = first_named(columns, names) if wanted is None else wanted
    if found is None or found not in columns:
        what = f"no column {' or '.join(names[:4])} among {list(columns)}"
        raise SourceError(what, path, f"Name the column of paths with {kind.option}")
    return found


def _find_mask(columns: Sequence[str], wanted: str | None, path: Path) -> str | None:
    if wanted is not None and wanted not in columns:
        raise SourceError(f"no column {wanted!r} among {list(columns)}", path)
    return wanted or ("mask" if "mask" in columns else None)
