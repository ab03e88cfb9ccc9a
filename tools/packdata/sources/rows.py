"""Files of rows, such as Parquet, with encoded pictures.

Pictures are a binary column, or Hugging Face's struct of ``bytes`` and ``path``; or lists of either: any
number of pictures a row.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loaders.errors import SourceError
from packdata.reading import read_file
from packdata.sources.base import (
    OWN_KEYS,
    Column,
    ColumnsSource,
    Item,
    check_unique,
    column_of,
    fail,
    field_names,
    files_identity,
    first_named,
    relative_names,
)
from packdata.sources.row_kinds import TypedRows, open_row_file, row_kind
from packdata.types import is_text

if TYPE_CHECKING:
    from pathlib import Path

    from packdata.reading import File
    from packdata.rows import Part

_IMAGE_NAMES = ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp", "bytes")
_IMAGES_NAMES = ("images", "imgs", "pictures", "photos", "frames", *_IMAGE_NAMES)


class RowsSource(ColumnsSource):
    """The rows of files that share a schema, in order.

    Columns that are None are that of pictures which looks like it, ``mask`` if there is one, and the first usual one
    for labels.
    """

    def __init__(
        self,
        files: Sequence[File],
        name: str,
        *,
        image_column: str | None = None,
        mask_column: str | None = None,
        label_column: str | None = None,
    ) -> None:
        self.paths, self.name = [file.path for file in files], name
        first = self.paths[0]
        self.kind = str(row_kind(first.name))
        self.identity = files_identity(self.kind, files)
        self._files = [open_row_file(file) for file in files]
        for file in self._files[1:]:
            _check_alike(file, self._files[0])
        schema = self._files[0].schema
        if twice := [name for name, num in Counter(schema.names).items() if num > 1]:
            raise SourceError(f"duplicate columns {twice}", first, "Rename one of them")
        self._image = _find_image(schema, image_column, first)
        self.has_several = _are_pictures(schema.field(self._image).type)
        self._mask = _find_mask(schema, mask_column, first)
        self.has_masks = self._mask is not None
        if not len(self):
            raise SourceError("no rows", first)
        self._stems = dict(zip(self.paths, _stems(self.paths), strict=True))
        self._has_keys = "key" in schema.names and _is_key(schema.field("key").type)
        taken = [self._image, self._mask, "key" if self._has_keys else None]
        plain = [column for column in schema.names if column not in taken]
        self._fields = field_names(plain, first, label_column, schema.names)
        self.labels = {field: self._label(name, field) for name, field in self._fields.items()}
        if self._has_keys:
            check_unique(self._read_keys, first, OWN_KEYS)

    def __len__(self) -> int:
        return sum(file.num_rows for file in self._files)

    def items(self, start: int = 0) -> Iterator[Item]:
        for file in self._files:
            for group in file.groups:
                if start < group.stop:
                    yield from self._rows(file, group, start)
            start = max(0, start - file.num_rows)

    def keys(self) -> Iterator[str]:
        for file in self._files:
            if self._has_keys:
                yield from map(str, _read_column(file, "key").to_pylist())
            else:
                yield from (self._row_key(file.path, row) for row in range(file.num_rows))

    def _row_key(self, path: Path, row: int) -> str:
        return f"{self._stems[path]}/{row:08d}"

    def _rows(self, file: TypedRows, group: Part, start: int) -> Iterator[Item]:
        number, folder = group.line, file.path.parent
        for batch in file.batches(group):
            rest = batch.slice(max(0, start - number))
            for i, row in enumerate(rest.to_pylist(), number + len(batch) - len(rest)):
                key = str(row["key"]) if self._has_keys else self._row_key(file.path, i)
                yield self._item(key, f"{file.path}, row {i}", row, folder)
            number += len(batch)

    def _file(self, value: Any, where: str, what: str, folder: Path) -> Any:
        path = value.get("path") if isinstance(value, Mapping) else None
        data = value.get("bytes") if isinstance(value, Mapping) else value
        if data is not None:
            return partial(bytes, data)
        if path:
            return partial(read_file, folder / path, f"{where} ({path})")
        return partial(fail, f"the {what} is missing", where)

    def _label(self, name: str, field: str) -> Column:
        file, types = self._files[0], pa.types
        kind = _plain(file.schema.field(name).type)
        is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        if name in file.classes and types.is_integer(kind):
            return Column("class", file.classes[name], numbered=True)
        if is_number or (field == "label" and is_text(kind)):
            values = (_read_column(file, name).to_pylist() for file in self._files)
            found = column_of(field, chain.from_iterable(values))
            if not is_number:
                return found
            is_empty = found.kind == "text" and field != "label"
            missing = len(self) if is_empty else found.num_missing
            return Column("float" if types.is_floating(kind) else "int", num_missing=missing)
        if _is_binary(kind):
            return Column("bytes")
        # Text: strings, dates, decimals, maps as Python shows them.
        return Column("json" if types.is_nested(kind) and not types.is_map(kind) else "text")

    def _read_keys(self) -> Iterator[tuple[str, str]]:
        for file, name in zip(self._files, relative_names(self.paths), strict=True):
            for row, key in enumerate(_read_column(file, "key").to_pylist()):
                if key is None:
                    raise SourceError("no value in column 'key'", f"{file.path}, row {row}")
                yield str(key), f"{name}, row {row}"


def _read_column(file: TypedRows, name: str) -> pa.ChunkedArray:
    chunks = [chunk for group in file.groups for chunk in file.table(group, [name])[name].chunks]
    return pa.chunked_array(chunks, file.schema.field(name).type)


def _check_alike(file: TypedRows, first: TypedRows) -> None:
    """Raise SourceError for a file whose columns or classes are not those of the first."""
    if not file.schema.equals(first.schema):
        what = f"columns differ from those of {first.path}"
        raise SourceError(what, file.path, "Pack files of different columns one by one")
    mine, others = file.classes, first.classes
    if differ := [name for name in {**mine, **others} if mine.get(name) != others.get(name)]:
        what = f"classes of column {differ[0]!r} differ from those of {first.path}"
        hint = "Pack them one by one, with the same classes=, then 'packdata merge' them"
        raise SourceError(what, file.path, hint)


def _stems(paths: Sequence[Path]) -> list[str]:
    """Return what the keys of each file's rows begin with: its name, or as much of its path as differs."""
    files = relative_names(paths)
    ways = [path.stem for path in paths], [os.path.splitext(file)[0] for file in files]
    return next((way for way in ways if len(set(way)) == len(paths)), files)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    is_any = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(is_any or types.is_fixed_size_binary(kind))


def _is_picture(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return "bytes" in fields and _is_binary(fields["bytes"])
    return _is_binary(kind)


def _are_pictures(kind: pa.DataType) -> bool:
    types = pa.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and _is_picture(kind.value_type)


def _is_key(kind: pa.DataType) -> bool:
    """Keys are texts, or whole numbers as in CSV lists."""
    return is_text(_plain(kind)) or bool(pa.types.is_integer(_plain(kind)))


def _find_image(schema: pa.Schema, wanted: str | None, path: Path, *, several: bool = True) -> str:
    """Return the column of pictures: the one that is wanted, or looks like it; SourceError if there is none."""
    pictures: list[str] = [name for name in schema.names if _is_picture(schema.field(name).type)]
    lists = [n for n in schema.names if several and _are_pictures(schema.field(n).type)]
    found = wanted or first_named(pictures, _IMAGE_NAMES) or first_named(lists, _IMAGES_NAMES)
    for names in (pictures, lists):
        found = found or (names[0] if len(names) == 1 else None)
    if found is None or found not in (*pictures, *lists):
        what = f"no column {wanted or 'of pictures'}; of pictures: {pictures + lists}, all: {schema.names}"
        hint = "Pictures are binary, or a struct of bytes and path; image_column= chooses one. Is it a table? See "
        raise SourceError(what, path, f"{hint}'packdata tables'")
    return found


def _find_mask(schema: pa.Schema, wanted: str | None, path: Path) -> str | None:
    if wanted is not None:
        return _find_image(schema, wanted, path, several=False)
    has_mask = "mask" in schema.names and _is_picture(schema.field("mask").type)
    return "mask" if has_mask else None
