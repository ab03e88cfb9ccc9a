"""Rows with a column of files; those of Parquet and Arrow, with encoded pictures.

Pictures are a binary column, or Hugging Face's struct of ``bytes`` and ``path``; or lists of either: any
number of pictures a row.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loaders.errors import SourceError
from loaders.schema import Array
from packdata.reading import LocalFile
from packdata.sources.base import Item, Source, fail
from packdata.sources.columns import (
    LABEL,
    ROWS_OF_BOXES,
    Column,
    ColumnNames,
    check_distinct,
    column_of,
    field_names,
    first_named,
    sides_in,
)
from packdata.sources.duplicates import check_unique
from packdata.sources.listed import files_identity, relative_names
from packdata.sources.row_kinds import FEW_ROWS, PART_ROWS, open_row_file, row_kind
from packdata.types import is_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.remote.url import Location
    from packdata.reading import File
    from packdata.rows import RowFile
    from packdata.sources.row_kinds import TypedRows

    Row = tuple[RowFile, int, tuple[Any, ...]]
    Read = Callable[[], bytes]

_OWN_KEYS = f"Give each row a key of its own, in a column 'key', or remove one. A row a box: {ROWS_OF_BOXES}"
_IMAGE_NAMES = ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp", "bytes")
_IMAGES_NAMES = ("images", "imgs", "pictures", "photos", "frames", *_IMAGE_NAMES)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_BINARY = (
    *(pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_binary_view, pa.types.is_fixed_size_binary),
)


class ColumnsSource(Source):
    """Rows with a column of files, or of lists of them, and others of keys, masks and labels.

    A subclass says how rows come, and what reads the file of a cell.
    """

    def __init__(
        self,
        files: Sequence[RowFile],
        image: str,
        mask: str | None,
        keyed_by: str,  # the column of keys; "" where rows are numbered
        fields: Mapping[str, str],  # of the columns of labels, by name
    ) -> None:
        paths = [file.path for file in files]
        self._stems = dict(zip(paths, _stems(paths), strict=True))
        self._image, self._mask, self._keyed_by, self._fields = image, mask, keyed_by, fields
        self.has_masks = mask is not None
        self.labels = {field: self._column(name, field) for name, field in fields.items()}
        if keyed_by:
            check_unique(self._keyed, paths[0], _OWN_KEYS)

    @abstractmethod
    def _rows(self, names: Sequence[str], start: int = 0) -> Iterator[Row]:
        """Yield rows from ``start`` on: the file, the number in it, and the values of columns, None if missing."""

    @abstractmethod
    def _file(self, value: Any, where: str, what: str, rows: RowFile) -> Read | None:
        """Return what reads the picture or mask (``what``) of a cell; None if there is none."""

    def _column(self, name: str, field: str) -> Column:
        return column_of(field, self._values(name))

    def _values(self, name: str) -> Iterator[Any]:
        return (value for _, _, (value,) in self._rows([name]))

    def _keyed(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the place of each row."""
        for file, number, (value,) in self._rows([self._keyed_by]):
            yield self._key(file, number, value), file.place(number)

    def _key(self, file: RowFile, number: int, value: Any) -> str:
        if not self._keyed_by:
            return f"{self._stems[file.path]}/{number:08d}"
        if value is None:
            raise SourceError(f"no value in column {self._keyed_by!r}", file.place(number))
        return str(value)

    def items(self, start: int = 0) -> Iterator[Item]:
        used = filter(None, (self._image, self._mask, self._keyed_by))
        names = [*dict.fromkeys([*used, *self._fields])]
        for file, number, values in self._rows(names, start):
            row, where = dict(zip(names, values, strict=True)), file.place(number)
            key = self._key(file, number, row.get(self._keyed_by))
            labels = {field: row[name] for name, field in self._fields.items()}
            cells = self._cells(row[self._image])
            if self.has_several:
                each = [self._read(f"picture {n}", c, where, file) for n, c in enumerate(cells)]
                yield Item(key, where, partial(_read_each, each), labels)
                continue
            where += f" ({cells[0]})" if isinstance(cells[0], str) else ""
            mask = self._mask and self._read("mask", row[self._mask], where, file)
            yield Item(
                key, where, self._read("picture", cells[0], where, file), labels, mask or None
            )

    def _cells(self, value: Any) -> list[Any]:
        """Return the cells with pictures of a row: any number where there may be several."""
        if self.has_several:
            return value if isinstance(value, list) else [] if value is None else [value]
        return [value]

    def _read(self, what: str, cell: Any, where: str, file: RowFile) -> Read:
        if (read := self._file(cell, where, what, file)) is not None:
            return read
        hint = "Fill the column in, or leave the sample or column out of the source"
        return partial(fail, SourceError(f"the {what} is missing", where, hint))


def _read_each(reads: Sequence[Read]) -> list[bytes]:
    return [read() for read in reads]


def _stems(paths: Sequence[Location]) -> list[str]:
    """Return what the keys of each file's rows begin with: its name, or as much of its path as differs."""
    files = relative_names(paths)
    ways = (
        [os.path.splitext(path.name)[0] for path in paths],
        [os.path.splitext(file)[0] for file in files],
    )
    return next((way for way in ways if len(set(way)) == len(paths)), files)


class RowsSource(ColumnsSource):
    """The rows of files that share a schema, in order.

    Columns that are None are that of pictures which looks like it, ``mask`` if there is one, and the first usual one
    for labels.
    """

    def __init__(self, files: Sequence[File], name: str, names: ColumnNames) -> None:
        self.name, self.files, first = name, files, files[0].path
        self.kind = row_kind(first.name)
        self._files = [open_row_file(file) for file in files]
        for file in self._files[1:]:
            _check_alike(file, self._files[0])
        self._schema, self.classes = self._files[0].schema, self._files[0].classes
        schema = self._schema
        check_distinct(schema.names, first)
        image, mask = _find_columns(schema, names.file, names.mask, first)
        columns = {"columns": [image, mask]} if mask else {}
        self.identity = files_identity(self.kind, files) | columns
        self.has_several = _are_pictures(schema.field(image).type)
        if not len(self):
            raise SourceError("no rows", first)
        if sides := sides_in(schema.names):
            self.notes = [f"{sides}. {ROWS_OF_BOXES}"]
        key = _plain(schema.field("key").type) if "key" in schema.names else pa.null()
        # Texts, or whole numbers as in CSV lists.
        keyed_by = "key" if is_text(key) or pa.types.is_integer(key) else ""
        fields = field_names(schema.names, (image, mask, keyed_by), first, names.label)
        super().__init__(self._files, image, mask, keyed_by, fields)

    def __len__(self) -> int:
        return sum(file.num_rows for file in self._files)

    def _rows(self, names: Sequence[str], start: int = 0) -> Iterator[Row]:
        at_once = FEW_ROWS if self._image in names else PART_ROWS
        for file in self._files:
            for group in file.groups:
                number = group.line
                for batch in file.batches(group, names, at_once) if start < group.stop else ():
                    rest = batch.slice(max(0, start - number))
                    number += len(batch)
                    numbers = range(number - len(rest), number)
                    try:
                        columns = [column.to_pylist() for column in rest.columns]
                    except (ValueError, OverflowError) as error:  # also of Arrow, and of UTF-8
                        where = f"{file.path}, rows {number - len(rest)} to {number - 1}"
                        raise SourceError(f"a value cannot be read ({error})", where) from error
                    yield from zip(repeat(file), numbers, zip(*columns, strict=True), strict=False)
            start = max(0, start - file.num_rows)

    def _file(self, value: Any, where: str, what: str, rows: RowFile) -> Read | None:
        cell = value if isinstance(value, Mapping) else {"bytes": value}
        data, path = cell.get("bytes"), cell.get("path")
        if data is not None:
            return partial(bytes, data)
        if not path:
            return None
        return LocalFile(str(rows.path.parent / path), f"{where} ({path})")

    def _column(self, name: str, field: str) -> Column:
        classes, types = self.classes, pa.types
        kind = _plain(self._schema.field(name).type)
        if name in classes and types.is_integer(kind):
            return Column("class", classes[name], numbered=True)
        if name in classes and types.is_integer(getattr(kind, "value_type", pa.null())):
            several = Array(dtype="int64", dims=(None,), classes=classes[name])
            return Column("json", numbered=True, field=several)
        if types.is_integer(kind) or types.is_boolean(kind):
            return column_of(field, self._values(name), "int")
        if types.is_floating(kind):
            return column_of(field, self._values(name), "float")
        if field == LABEL and is_text(kind):
            return super()._column(name, field)
        if _is_binary(kind):
            return Column("bytes")
        # Text: strings, dates, decimals, maps as Python shows them.
        return Column("json" if types.is_nested(kind) and not types.is_map(kind) else "text")


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


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_binary(kind: pa.DataType) -> bool:
    return any(test(kind) for test in _BINARY)


def _is_picture(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        kind = {field.name: field.type for field in kind}.get("bytes", pa.null())
    return _is_binary(kind)


def _are_pictures(kind: pa.DataType) -> bool:
    return any(test(kind) for test in _LISTS) and _is_picture(kind.value_type)


def _find_columns(
    schema: pa.Schema, image: str | None, mask: str | None, path: Location
) -> tuple[str, str | None]:
    """Return the columns of pictures and masks: those that are wanted, or look like it; SourceError if one is none."""
    pictures: list[str] = [name for name in schema.names if _is_picture(schema.field(name).type)]
    lists = [name for name in schema.names if _are_pictures(schema.field(name).type)]
    image = image or first_named(pictures, _IMAGE_NAMES) or first_named(lists, _IMAGES_NAMES)
    image = image or next((each[0] for each in (pictures, lists) if len(each) == 1), None)
    mask = mask or ("mask" if "mask" in pictures else None)
    for name, known in ((image, pictures + lists), (mask, [*pictures, None])):
        if name not in known:
            what = f"no column {name or 'of pictures'}; of pictures: {pictures + lists}, all: {schema.names}"
            hint = "Pictures are binary, or a struct of bytes and path; image_column= chooses one. For tables see "
            raise SourceError(what, path, f"{hint}'packdata tables'")
    return str(image), mask
