"""Files of rows, such as Parquet, with encoded pictures.

Pictures are a binary column, or Hugging Face's struct of ``bytes`` and ``path``; or lists of either: any
number of pictures a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loaders.errors import SourceError
from loaders.schema import Array
from packdata.reading import read_file
from packdata.sources.base import (
    ROWS_OF_BOXES,
    Column,
    ColumnsSource,
    check_distinct,
    column_of,
    field_names,
    files_identity,
    first_named,
    sides_in,
)
from packdata.sources.row_kinds import FEW_ROWS, PART_ROWS, open_row_file, row_kind
from packdata.types import is_text

if TYPE_CHECKING:
    from loaders.remote.url import Location
    from packdata.reading import File
    from packdata.rows import RowFile
    from packdata.sources.base import Row
    from packdata.sources.row_kinds import TypedRows

_IMAGE_NAMES = ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp", "bytes")
_IMAGES_NAMES = ("images", "imgs", "pictures", "photos", "frames", *_IMAGE_NAMES)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_BINARY = (
    *(pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_binary_view, pa.types.is_fixed_size_binary),
)


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
        self.name, first = name, files[0].path
        self.kind = str(row_kind(first.name))
        self._files = self._typed = opened = [open_row_file(file) for file in files]
        for file in opened[1:]:
            _check_alike(file, opened[0])
        self._schema, self.classes = opened[0].schema, opened[0].classes
        schema = self._schema
        check_distinct(schema.names, first)
        self._image, self._mask = _find_columns(schema, image_column, mask_column, first)
        columns = {"columns": [self._image, self._mask]} if self._mask else {}
        self.identity = files_identity(self.kind, files) | columns
        self.has_several = _are_pictures(schema.field(self._image).type)
        if not len(self):
            raise SourceError("no rows", first)
        if sides := sides_in(schema.names):
            self.notes = [f"{sides}. {ROWS_OF_BOXES}"]
        key = _plain(schema.field("key").type) if "key" in schema.names else pa.null()
        # Texts, or whole numbers as in CSV lists.
        self._keyed_by = "key" if is_text(key) or pa.types.is_integer(key) else ""
        taken = (self._image, self._mask, self._keyed_by)
        self._fields = field_names(schema.names, taken, first, label_column)
        self._describe()

    def __len__(self) -> int:
        return sum(file.num_rows for file in self._typed)

    def _rows(self, names: Sequence[str], start: int = 0) -> Iterator[Row]:
        at_once = FEW_ROWS if self._image in names else PART_ROWS
        for file in self._typed:
            for group in file.groups:
                number = group.line
                for batch in file.batches(group, names, at_once) if start < group.stop else ():
                    rest = batch.slice(max(0, start - number))
                    number += len(batch)
                    numbers = range(number - len(rest), number)
                    columns = (column.to_pylist() for column in rest.columns)
                    yield from zip(repeat(file), numbers, zip(*columns, strict=True), strict=False)
            start = max(0, start - file.num_rows)

    def keys(self) -> Iterator[str]:
        if self._keyed_by:
            return super().keys()
        return (self._key(file, n, None) for file in self._typed for n in range(file.num_rows))

    def _file(self, value: Any, where: str, what: str, rows: RowFile) -> Any:
        cell = value if isinstance(value, Mapping) else {"bytes": value}
        data, path = cell.get("bytes"), cell.get("path")
        if data is not None:
            return partial(bytes, data)
        if not path:
            return None
        return partial(read_file, rows.path.parent / path, f"{where} ({path})")

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
        if field == "label" and is_text(kind):
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
