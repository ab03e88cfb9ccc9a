"""Files of rows, such as Parquet, with encoded pictures.

Pictures are a binary column, or Hugging Face's struct of ``bytes`` and ``path``; or lists of either: any
number of pictures a row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError
from packdata.rows import class_names
from packdata.sources.base import (
    FLOAT64_WHOLE,
    OWN_KEYS,
    Column,
    Item,
    Source,
    broken_item,
    check_unique,
    column_of,
    field_names,
    files_identity,
    first_named,
    read_each,
    read_file,
    relative_names,
)
from packdata.sources.row_kinds import open_row_file, row_kind

if TYPE_CHECKING:
    from pathlib import Path

    from packdata.rows import TypedRows

_IMAGE_NAMES = ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp", "bytes")
_IMAGES_NAMES = ("images", "imgs", "pictures", "photos", "frames", *_IMAGE_NAMES)


class RowsSource(Source):
    """The rows of files that share a schema, in order.

    Columns that are None are that of pictures which looks like it, ``mask`` if there is one, and the first usual one
    for labels.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        name: str,
        *,
        image_column: str | None = None,
        mask_column: str | None = None,
        label_column: str | None = None,
    ) -> None:
        self.paths, self.name = list(paths), name
        self.kind = str(row_kind(paths[0].name))
        self.identity = files_identity(self.kind, self.paths)
        self._files = [open_row_file(path) for path in self.paths]
        schema = self._files[0].schema
        for file in self._files:
            _check_alike(file.path, file.schema, self.paths[0], schema)
        self._image = _find_image(schema, image_column, self.paths[0])
        self.has_several = _are_pictures(schema.field(self._image).type)
        self._mask = _find_mask(schema, mask_column, self.paths[0])
        self._lengths = [sum(file.groups) for file in self._files]
        if not sum(self._lengths):
            raise SourceError("no rows", self.paths[0])
        self.has_masks = self._mask is not None
        self._stems = dict(zip(self.paths, _stems(self.paths), strict=True))
        self._has_keys = "key" in schema.names and _is_key(schema.field("key").type)
        taken = [self._image, self._mask, "key" if self._has_keys else None]
        plain = [column for column in schema.names if column not in taken]
        self._fields = field_names(plain, self.paths[0], label_column, schema.names)
        self.labels = self._find_labels(schema)
        if self._has_keys:
            check_unique(self._read_keys, self.paths[0], OWN_KEYS)

    def __len__(self) -> int:
        return sum(self._lengths)

    def items(self, start: int = 0) -> Iterator[Item]:
        for file, length in zip(self._files, self._lengths, strict=True):
            if start < length:
                yield from self._rows(file, start)
            start = max(0, start - length)

    def keys(self) -> Iterator[str]:
        for file, length in zip(self._files, self._lengths, strict=True):
            keys = _read_column(file, "key").to_pylist() if self._has_keys else [None] * length
            for row, key in enumerate(keys):
                yield self._row_key(file.path, row) if key is None else str(key)

    def _row_key(self, path: Path, row: int) -> str:
        return f"{self._stems[path]}/{row:08d}"

    def _rows(self, file: TypedRows, start: int) -> Iterator[Item]:
        first = 0
        for group, length in enumerate(file.groups):
            if first + length > start:
                yield from self._group_rows(file, group, first, start)
            first += length

    def _group_rows(self, file: TypedRows, group: int, row: int, start: int) -> Iterator[Item]:
        for batch in file.batches(group):
            for i in range(max(0, start - row), len(batch)):
                yield self._item(batch, i, file.path, row + i)
            row += len(batch)

    def _item(self, batch: pa.RecordBatch, i: int, path: Path, row: int) -> Item:
        where = f"{path}, row {row}"
        key = batch.column("key")[i].as_py() if self._has_keys else self._row_key(path, row)
        if key is None:
            return broken_item(self._row_key(path, row), "the key is missing", where)
        labels = {
            field: self._value(field, batch.column(name)[i].as_py())
            for name, field in self._fields.items()
        }
        value = batch.column(self._image)[i].as_py()
        if self.has_several:
            named = ((f"picture {n}", each) for n, each in enumerate(value or ()))
            read = partial(read_each, [_reader(v, path.parent, where, what) for what, v in named])
        else:
            read = _reader(value, path.parent, where, "picture")
        mask = name = None
        if self._mask is not None:
            value = batch.column(self._mask)[i].as_py()
            mask = _reader(value, path.parent, where, "mask")
            name = value.get("path") if isinstance(value, Mapping) else None
        return Item(str(key), where, read, labels, mask, mask_name=name)

    def _value(self, field: str, value: Any) -> Any:
        kind = self.labels[field].kind
        if kind == "text":
            return "" if value is None else str(value)
        return value

    def _find_labels(self, schema: pa.Schema) -> dict[str, Column]:
        named = class_names(schema)
        labels = {}
        for name, field in self._fields.items():
            kind = schema.field(name).type
            if name in named and pa.types.is_integer(kind):
                labels[field] = Column("class", named[name], numbered=True)
            elif field == "label" and _is_text(kind):
                labels[field] = column_of(field, self._distinct(name))
            else:
                labels[field] = _column(kind)
            if field != "label" and labels[field].kind in ("int", "float"):
                labels[field] = replace(labels[field], num_missing=self._num_missing(name))
        return labels

    def _num_missing(self, name: str) -> int:
        """Count the numbers that are missing in a column; 0 if float64, with its NaN, may round others."""
        total, largest = 0, 0
        for file in self._files:
            column = _read_column(file, name)
            total += column.null_count
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            if pa.types.is_integer(column.type):
                ends = pc.min_max(column).as_py()
                largest = max(largest, abs(ends["min"] or 0), abs(ends["max"] or 0))
        return total if largest <= FLOAT64_WHOLE else 0

    def _distinct(self, name: str) -> list[str | None]:
        values: set[str | None] = set()
        for file in self._files:
            values.update(_read_column(file, name).unique().to_pylist())
        return list(values - {None})

    def _read_keys(self) -> Iterator[tuple[str, str]]:
        for file, name in zip(self._files, relative_names(self.paths), strict=True):
            for row, key in enumerate(_read_column(file, "key").to_pylist()):
                if key is not None:
                    yield str(key), f"{name}, row {row}"


def _read_column(file: TypedRows, name: str) -> pa.ChunkedArray:
    parts = [file.table(group, [name]).column(0) for group in range(len(file.groups))]
    chunks = [chunk for part in parts for chunk in part.chunks]
    return pa.chunked_array(chunks, file.schema.field(name).type)


def _check_alike(path: Path, schema: pa.Schema, first: Path, wanted: pa.Schema) -> None:
    """Raise SourceError for a file whose columns or classes are not those of the first."""
    if not schema.equals(wanted):
        what = f"its columns differ from those of {first}"
        raise SourceError(what, path, "Pack files of different columns one by one")
    names, others = class_names(schema), class_names(wanted)
    differ = [column for column in names | others if names.get(column) != others.get(column)]
    if differ:
        what = f"classes of column {differ[0]!r} differ from those of {first}"
        hint = "Pack them one by one, with the same classes=, then 'packdata merge' them"
        raise SourceError(what, path, hint)


def _stems(paths: Sequence[Path]) -> list[str]:
    """Return what the keys of each file's rows begin with: its name, or as much of its path as differs."""
    files = relative_names(paths)
    ways = [path.stem for path in paths], [os.path.splitext(file)[0] for file in files]
    return next((way for way in ways if len(set(way)) == len(paths)), files)


def _reader(value: Any, folder: Path, where: str, what: str) -> Any:
    data, path = _content(value, folder)
    if data is None and path:
        return partial(read_file, path, f"{where} ({value['path']})")
    return partial(_given, data, where, what)


def _content(value: Any, folder: Path) -> tuple[bytes | None, Path | None]:
    """Return the bytes of a picture or mask, and the path of its file."""
    if not isinstance(value, Mapping):
        return value, None
    path = value.get("path")
    return value.get("bytes"), folder / path if path else None


def _given(data: bytes | None, where: str, what: str) -> bytes:
    if data is None:
        raise SourceError(f"the {what} is missing", where)
    return data


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _is_picture(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        return "bytes" in names and _is_binary(kind.field(names.index("bytes")).type)
    return _is_binary(kind)


def _are_pictures(kind: pa.DataType) -> bool:
    types = pa.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and _is_picture(kind.value_type)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_key(kind: pa.DataType) -> bool:
    """Keys are texts, or whole numbers as in CSV lists."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return _is_text(kind) or bool(pa.types.is_integer(kind))


def _column(kind: pa.DataType) -> Column:
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_integer(kind) or types.is_boolean(kind):
        return Column("int")
    if types.is_floating(kind):
        return Column("float", is_double=types.is_float64(kind))
    if _is_binary(kind):
        return Column("bytes")
    nested = types.is_nested(kind) and not types.is_map(kind)
    # Text: strings, dates, decimals, maps as Python shows them.
    return Column("json" if nested else "text")


def _find_image(schema: pa.Schema, wanted: str | None, path: Path, *, several: bool = True) -> str:
    if wanted is not None:
        if wanted not in schema.names:
            raise SourceError(f"no column {wanted!r} among {schema.names}", path)
        kind = schema.field(wanted).type
        if not _is_picture(kind) and not (several and _are_pictures(kind)):
            what = f"column {wanted!r} holds {kind}"
            hint = "Pictures are binary, or a struct of bytes and path"
            raise SourceError(what, path, hint + (", or lists of either" if several else ""))
        return wanted
    pictures: list[str] = [name for name in schema.names if _is_picture(schema.field(name).type)]
    lists: list[str] = [name for name in schema.names if _are_pictures(schema.field(name).type)]
    found = first_named(pictures, _IMAGE_NAMES) or first_named(lists, _IMAGES_NAMES)
    for names in (pictures, lists):
        found = found or (names[0] if len(names) == 1 else None)
    if found is None:
        pictures += lists
        hint = "Choose one: image_column=" if pictures else "Is it a table? See 'packdata tables'"
        what = f"no column is known to hold pictures; binary: {pictures}, all: {schema.names}"
        raise SourceError(what, path, hint)
    return found


def _find_mask(schema: pa.Schema, wanted: str | None, path: Path) -> str | None:
    if wanted is not None:
        return _find_image(schema, wanted, path, several=False)
    has_mask = "mask" in schema.names and _is_picture(schema.field("mask").type)
    return "mask" if has_mask else None
