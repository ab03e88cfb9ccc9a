"""What every source gives: items in a fixed order, each read only when it is packed."""

from __future__ import annotations

import keyword
import math
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.errors import SourceError
from packdata.reading import File
from packdata.sources.names import duplicates

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from loaders.remote.url import Location
    from loaders.schema import Field
    from packdata.rows import RowFile

    Row = tuple[RowFile, int, tuple[Any, ...]]

Pixels = npt.NDArray[np.uint8]
PICTURE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".avif", ".jp2", ".heic", ".heif", ".hif", ".jxl"}
)
BOX_LABELS = "box_labels"
SPLIT_NAMES = ("train", "training", "val", "valid", "validation", "test", "testing")
SIDES = ("xmin", "ymin", "xmax", "ymax")  # of a box, as VOC calls them
LABEL_NAMES = ("label", "class", "target")  # the first that a list has becomes the field "label"
_RESERVED = frozenset(
    {"image", "array", "mask", "key", "original_size", "sample_id", "count", "index", "label"}
)
_SYSTEM_FILES = frozenset({"thumbs.db", "desktop.ini", "__macosx"})

_OWN_LIBRARY = "The format has a library, whose samples packdata.pack takes: examples/from_{}.py"
STREAMING_HINT = _OWN_LIBRARY.format("mds.py and examples/from_litdata")
# By what is in the name of a file that is not read.
_FOREIGN = {
    ".tar.gz": "Members of a compressed tar cannot be read one by one: gunzip the tar first",
    ".tgz": "Members of a compressed tar cannot be read one by one: gunzip the tar first",
    ".mds": _OWN_LIBRARY.format("mds"),
    ".tfrecord": _OWN_LIBRARY.format("tfrecord"),
}
ROWS_OF_BOXES = "Group the rows by picture, with a list of boxes each: docs/masks.md shows how"
_OWN_KEYS = f"Give each row a key of its own, in a column 'key', or remove one. A row a box: {ROWS_OF_BOXES}"
_RENAME = "Keys are names, mostly without suffix: rename or remove one"
_FLOAT64_WHOLE = 1 << 53  # up to here it holds every whole number

ColumnKind = Literal["class", "int", "float", "text", "json", "bytes"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of labels."""

    # ``class``: values are names of ``classes``, or their numbers.
    kind: ColumnKind
    classes: tuple[str, ...] = ()  # the names by number, for ``class``
    numbered: bool = False  # True if the source itself fixes the order of the classes
    # How many of its numbers are missing, if NaN can stand for them: not in the field ``label``, nor beside whole
    # numbers that float64 may round.
    num_missing: int = 0
    field: Field | None = None  # what a dataset says of it, where that is known
    # How boxes in it are written (``packdata.geometry.BOX_FORMATS``), or ``keypoints``.
    form: str = ""


@dataclass(frozen=True, slots=True)
class FileKind:
    """Which files a folder or list is made of."""

    names: str  # what they are called, in the plural
    suffixes: frozenset[str]  # how they end, in lower case; masks too
    # Names that the column of their paths in a list may have, the first found is taken.
    columns: tuple[str, ...]
    option: str  # the option that names another column


_PATHS = ("path", "file", "filename", "image", "file_name", "filepath", "image_path", "images")
PICTURES = FileKind("pictures", PICTURE_SUFFIXES, _PATHS, "image_column=")
_ARRAY_PATHS = ("array", "volume", *_PATHS)
ARRAYS = FileKind("arrays", frozenset({".npy", ".npz"}), _ARRAY_PATHS, "array_column=")


@dataclass(frozen=True, slots=True)
class Item:
    """One picture of a source with what is known of it."""

    # Its name, unique in the source: where there are paths a relative one, without suffix unless another file
    # differs in nothing else.
    key: str
    where: str  # its place: ``cats/1.jpg``, ``a.tar: 1.jpg``, ``list.csv, line 12 (1.jpg)``
    # Returns the bytes of the file, or the pixels (H x W) where the source holds those; where items have several
    # pictures, the bytes of each file; SourceError.
    read: Callable[[], Any]
    # Value by field name; None where it is missing.
    labels: Mapping[str, Any] = field(default_factory=dict)
    # Returns the bytes of the mask, if the source has masks; SourceError.
    read_mask: Callable[[], bytes] | None = None
    # Height and width of the picture that its boxes were drawn on, where that is said.
    drawn_on: tuple[int, int] | None = None

    @property
    def file(self) -> File | None:
        """The file; None where the picture is a part of one."""
        return self.read if isinstance(self.read, File) else None


class Source(ABC):
    """Lists pictures (or other files) in a fixed order."""

    kind: str  # what it is: ``classes``, ``folder``, ``list``, ``tar``, ``parquet``, ``idx``, ...
    name: str  # its last path component
    # JSON: changes when the files do (names, sizes, modification times); no absolute paths.
    identity: Mapping[str, Any]
    labels: Mapping[str, Column]  # the label columns by field name; the same for every item
    has_masks: bool = False  # True if items come with ``read_mask``
    has_several: bool = False  # True if items have any number of pictures each
    # (height, width) of every item, where ``read`` gives pixels; else None.
    pixels: tuple[int, int] | None = None
    # Names of classes by column, or by member of a column: ``objects.category``.
    classes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    # How many other files were skipped, by suffix.
    ignored: Mapping[str, int] = MappingProxyType({})
    notes: Sequence[str] = ()
    listing: Any = None  # the ``Listing`` of the folder that it is, if it is one

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items."""

    @abstractmethod
    def items(self, start: int = 0) -> Iterator[Item]:
        """Yield items from number ``start`` on, always in the same order."""

    def keys(self) -> Iterator[str]:
        """Yield the keys of all items; nothing else is read where that takes long."""
        return (item.key for item in self.items())


class ColumnsSource(Source):
    """Rows with a column of files, or of lists of them, and others of keys, masks and labels.

    A subclass says how rows come, and what reads the file of a cell.
    """

    _files: Sequence[RowFile]
    _image: str
    _mask: str | None
    _keyed_by: str  # the column of keys; "" where rows are numbered
    _fields: Mapping[str, str]  # of the columns of labels, by name

    @abstractmethod
    def _rows(self, names: Sequence[str], start: int = 0) -> Iterator[Row]:
        """Yield rows from ``start`` on: the file, the number in it, and the values of columns, None if missing."""

    @abstractmethod
    def _file(self, value: Any, where: str, what: str, rows: RowFile) -> Any:
        """Return what reads the picture or mask (``what``) of a cell; None if there is none."""

    def _describe(self) -> None:
        """Say what the columns of labels hold, and check the keys."""
        paths = [file.path for file in self._files]
        self._stems = dict(zip(paths, _stems(paths), strict=True))
        self.has_masks = self._mask is not None
        self.labels = {field: self._column(name, field) for name, field in self._fields.items()}
        if self._keyed_by:
            check_unique(self._keyed, paths[0], _OWN_KEYS)

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

    def keys(self) -> Iterator[str]:
        return (key for key, _ in self._keyed()) if self._keyed_by else super().keys()

    def items(self, start: int = 0) -> Iterator[Item]:
        used = filter(None, (self._image, self._mask, self._keyed_by))
        names = [*dict.fromkeys([*used, *self._fields])]
        for file, number, values in self._rows(names, start):
            row, where = dict(zip(names, values, strict=True)), file.place(number)
            key = self._key(file, number, row.get(self._keyed_by))
            cells = self._cells(row[self._image])
            if self.has_several:
                named = ((f"picture {n}", cell) for n, cell in enumerate(cells))
                read: Any = partial(_read_each, [self._read(*each, where, file) for each in named])
            else:
                where += f" ({cells[0]})" if isinstance(cells[0], str) else ""
                read = self._read("picture", cells[0], where, file)
            mask = self._mask and self._read("mask", row[self._mask], where, file)
            labels = {field: self._value(field, row[name]) for name, field in self._fields.items()}
            yield Item(key, where, read, labels, mask or None)

    def _cells(self, value: Any) -> list[Any]:
        """Return the cells with pictures of a row: any number where there may be several."""
        if self.has_several:
            return value if isinstance(value, list) else [] if value is None else [value]
        return [value]

    def _read(self, what: str, cell: Any, where: str, file: RowFile) -> Any:
        if (read := self._file(cell, where, what, file)) is not None:
            return read
        hint = "Fill the column in, or leave the sample or column out of the source"
        return partial(fail, SourceError(f"the {what} is missing", where, hint))

    def _value(self, field: str, value: Any) -> Any:
        column = self.labels[field]
        if column.kind == "text":
            return "" if value is None else str(value)
        is_name = column.kind == "class" and not column.numbered and value is not None
        return str(value) if is_name else value


def _read_each(reads: Sequence[Callable[[], bytes]]) -> list[bytes]:
    return [read() for read in reads]


class ExtendedSource(Source):
    """The items of a source, with columns added or said to be something else."""

    def __init__(
        self,
        source: Source,
        labels: Mapping[str, Column],
        identity: Mapping[str, Any],  # what they depend on, beside the source
        # Returns an item with the values of the columns that the source does not have; SourceError rejects it.
        extend: Callable[[Item], Item],
        notes: Sequence[str] = (),
    ) -> None:
        self.source, self.labels, self._extend = source, labels, extend
        self.kind, self.name, self.listing = source.kind, source.name, source.listing
        is_second = isinstance(source, ExtendedSource)
        columns = [source.identity["columns"], identity] if is_second else identity
        self.identity = {**source.identity, "columns": columns}
        self.has_masks, self.has_several = source.has_masks, source.has_several
        self.pixels, self.ignored, self.classes = source.pixels, source.ignored, source.classes
        self.notes = [*source.notes, *notes]

    def __len__(self) -> int:
        return len(self.source)

    def keys(self) -> Iterator[str]:
        return self.source.keys()

    def items(self, start: int = 0) -> Iterator[Item]:
        for item in self.source.items(start):
            try:
                yield self._extend(item)
            except SourceError as error:
                yield Item(item.key, item.where, partial(fail, error))


def fail(error: SourceError) -> Any:
    """Raise an error in the place of a file that an item lacks: it is rejected in its turn."""
    raise error


def is_hidden(name: str) -> bool:
    """Tell whether a file or folder is the system's own: dot files, Thumbs.db and the like."""
    if name == ".hoodie":  # says that the files beside it are those of a table
        return False
    return name.startswith(".") or name.lower() in _SYSTEM_FILES


def suffix_of(name: str) -> str:
    """Return the last suffix in lower case, dot included; '' if there is none."""
    return os.path.splitext(name)[1].lower()


def check_name(name: str, path: Location | str) -> None:
    """Raise SourceError for a file name that is not text: keys are stored as UTF-8, and pyarrow opens nothing else."""
    try:
        name.encode()
    except UnicodeEncodeError:
        what = f"the name {name!r} is not UTF-8"
        raise SourceError(what, ascii(str(path)), "Rename the file (see 'convmv')") from None


def foreign_hint(name: str) -> str:
    """Return how to pack a file that is not read; "" for others."""
    return next((hint for mark, hint in _FOREIGN.items() if mark in name.lower()), "")


def key_of(relative: str, shared: Container[str] = ()) -> str:
    """Return a relative path with forward slashes, without its suffix where that is not ``shared``."""
    stem = os.path.splitext(relative)[0]
    return relative if stem in shared else stem


def shared_keys(files: Callable[[], Iterable[str]]) -> frozenset[str]:
    """Return what several files would have as key, such as ``a`` of ``a.jpg`` and ``a.png``.

    ``files`` gives their names, each time the same.
    """
    return frozenset(duplicates(lambda: map(key_of, files())))


def hash_of_files(files: Iterable[tuple[str, int, int]]) -> str:
    """Return 32 hexadecimal digits of names, sizes and marks, which change when one of the files does."""
    state = xxhash.xxh3_128()
    for name, size, mark in files:
        state.update(f"{name}\0{size},{mark}\n".encode(errors="surrogateescape"))
    return state.hexdigest()


def files_identity(kind: str, files: Sequence[File]) -> dict[str, Any]:
    """Return the identity of a source made of a few large files."""
    names = relative_names([file.path for file in files])
    states = [(name, file.size, file.mark) for file, name in zip(files, names, strict=True)]
    return {"kind": kind, "num_files": len(files), "files": hash_of_files(states)}


def relative_names(paths: Sequence[Location]) -> list[str]:
    """Return the paths of files from the last folder on that holds all of them."""
    folder = os.path.commonpath([os.path.abspath(str(path.parent)) for path in paths])
    return [os.path.relpath(str(path), folder) for path in paths]


def _stems(paths: Sequence[Location]) -> list[str]:
    """Return what the keys of each file's rows begin with: its name, or as much of its path as differs."""
    files = relative_names(paths)
    ways = [key_of(path.name) for path in paths], [*map(key_of, files)]
    return next((way for way in ways if len(set(way)) == len(paths)), files)


def check_unique(
    keys: Callable[[], Iterable[tuple[str, str]]], path: Location | str, hint: str = _RENAME
) -> None:
    """Raise SourceError if two items share a key; ``keys`` yields pairs of key and place, each time the same."""
    if found := duplicates(lambda: (key for key, _ in keys())):
        first = min(found)
        one, other, *_ = (where for key, where in keys() if key == first)
        raise SourceError(f"two samples have the key {first!r}: {one} and {other}", path, hint)


def first_named(columns: Sequence[str], names: Iterable[str]) -> str | None:
    """Return the column that has the first of some names, in any case."""
    by_lower = {name.strip().lower(): name for name in reversed(columns)}
    return next((by_lower[name] for name in names if name in by_lower), None)


def sides_in(columns: Iterable[str]) -> str:
    """Say which columns are boxes, such as ``bbox_x_min`` and three others; "" if none are."""
    plain = [re.sub(r"[\W_]", "", name).lower() for name in columns]
    for sides in (SIDES, ("x1", "y1", "x2", "y2"), ("left", "top", "width", "height")):
        if all(any(name.endswith(side) for name in plain) for side in sides):
            return f"columns {', '.join(sides)}, which no crop moves"
    return ""


def check_distinct(columns: Iterable[str], path: Location | str) -> None:
    """Raise SourceError for duplicate columns."""
    if repeated := [name for name, num in Counter(columns).items() if num > 1]:
        raise SourceError(f"duplicate columns {repeated}", path, "Rename one of them")


def field_names(
    columns: Sequence[str], taken: Container[str | None], path: Location | str, label: str | None
) -> dict[str, str]:
    """Return the field name of each column that is not ``taken``: an identifier that no other field has.

    The column ``label``, by default the first called ``label``, ``class`` or ``target``, becomes ``label``; other
    characters than letters, digits and underscores become underscores; a name that is taken (``image``, ``key``,
    ``class``) gets one behind it.
    """
    known, columns = [*columns], [name for name in columns if name not in taken]
    if label is None:
        label = first_named(columns, LABEL_NAMES)
    elif label not in columns:
        what = f"no column {label!r} for labels, but {known}"
        raise SourceError(what, path, "Columns of paths and keys cannot be labels")
    fields: dict[str, str] = {}
    for column in columns:
        name = "label" if column == label else identifier_of(column)
        if name in fields.values():
            other = next(first for first, taken in fields.items() if taken == name)
            what = f"columns {other!r} and {column!r} would both be the field {name!r}"
            raise SourceError(what, path, "Rename one of them")
        fields[column] = name
    return fields


def identifier_of(column: str, taken: Container[str] = _RESERVED) -> str:
    """Return the name of a field that a column may have: letters, digits and underscores, and none that is taken."""
    name = re.sub(r"\W", "_", column.strip())
    name = re.sub(r"__+", "_", name).lstrip("_") or "column"
    if not name.isidentifier():
        name = f"column_{name}"
    return f"{name.rstrip('_')}_" if name in taken or keyword.iskeyword(name) else name


def is_missing(value: Any) -> bool:
    """Tell whether a value is None or NaN, with which tables are filled where they have none."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def column_of(field: str, values: Iterable[Any], declared: ColumnKind | None = None) -> Column:
    """Say what a column of plain Python values holds; None is a value that is missing.

    Whole numbers are ``int``, numbers ``float``, strings ``text``, anything else ``json``, unless the source has
    ``declared`` what they are. In the field ``label``, strings (also among numbers) are the names of classes, sorted.
    """
    kinds, names = set[ColumnKind](), set[str]()
    largest, num_missing, is_label = 0, 0, field == "label"
    for value in values:
        if value is None:
            num_missing += not is_label
            continue
        kinds.add(kind := declared or _kind_of(value))
        if kind == "int":
            largest = max(largest, abs(value))
        if is_label:
            names.add(str(value))
    if is_label and "text" in kinds and "json" not in kinds:
        return Column("class", tuple(sorted(names)))
    kinds = kinds or {declared or "text"}
    if "float" in kinds and kinds <= {"float", "int"}:
        return Column("float", num_missing=num_missing)
    if kinds == {"int"}:
        return Column("int", num_missing=num_missing if largest <= _FLOAT64_WHOLE else 0)
    return Column(kinds.pop() if len(kinds) == 1 else "json")


def _kind_of(value: Any) -> ColumnKind:
    if isinstance(value, int):  # bool too: 0 or 1
        return "int" if -(1 << 63) <= value < 1 << 63 else "json"
    if isinstance(value, float):
        return "float"
    return "text" if isinstance(value, str) else "json"
