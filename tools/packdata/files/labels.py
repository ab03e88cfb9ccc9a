"""Label columns of a source as fields of a dataset, with one list of classes for all splits."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.checks import shown
from loaders.codecs import codec_for
from loaders.data.manifest import MANIFEST_NAME, read_manifest
from loaders.errors import CodecError, SourceError
from loaders.remote.url import Location, place_of
from loaders.schema import Array, Bytes, Field, Json, Label, MultiLabel, Text
from packdata.describe import few
from packdata.reading import read_text
from packdata.sources.columns import LABEL, Column, is_missing
from packdata.sources.listed import is_file, is_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packdata.sources.base import Item, Source

_WHOLE = re.compile(r"[+-]?[0-9]+")


class LabelField:
    """One column: its field, and the way of a value into it; ``separator`` is between names in a cell."""

    def __init__(self, name: str, column: Column, field: Field, separator: str = "") -> None:
        self.name, self.column, self.field, self.separator = name, column, field, separator
        self.codec = codec_for(field)
        classes = (field.classes if isinstance(field, Label | MultiLabel) else None) or ()
        # Whole numbers count classes; where a class is called by one, as '7', they are names.
        counted = () if any(map(_WHOLE.fullmatch, classes)) else classes
        if column.kind == "class":
            counted = column.classes if column.numbered else ()
        numbers = {name: number for number, name in enumerate(classes)}
        # By name, and by the number that the source gives a class.
        self._numbers = numbers | {i: numbers[name] for i, name in enumerate(counted)}

    def encode(self, item: Item) -> bytes:
        """Return the record of an item's label; SourceError if it is missing, no class, or does not fit."""
        value = item.labels.get(self.name)
        value = None if is_missing(value) else value
        if isinstance(self.field, MultiLabel):
            value = self._flags(value, item.where)
        if self.column.kind == "text":
            value = "" if value is None else str(value)
        elif value is None and self.column.kind != "json":
            value = self._stand_in(item.where)
        if isinstance(self.field, Label):
            value = self._number(value, item.where)
        try:
            return self.codec.encode(value)
        except CodecError as error:
            what = f"the {self.name} is {shown(value)}: {error}"
            hint = "Change or leave out the column; mask_column= is for masks"
            raise SourceError(what, item.where, hint) from error

    def _stand_in(self, where: str) -> float:
        """Return NaN, where that can stand for what is missing."""
        if self.name != LABEL and self.field.dtype in ("float32", "float64"):
            return math.nan
        hint = "Fill the value in, or leave the sample or column out of the source"
        raise SourceError(f"the {self.name} is missing", where, hint)

    def _flags(self, value: Any, where: str) -> npt.NDArray[np.uint8]:
        """Return a 1 for each class that a cell names."""
        flags = np.zeros(len(self._numbers), np.uint8)
        for name in parts_of("" if value is None else str(value), self.separator):
            flags[self._number(name, where)] = 1
        return flags

    def _number(self, value: Any, where: str) -> int:
        """Return the number of a class: of its name, or of the number that the source gives it."""
        # -1 is Hugging Face's mark for "not labelled", in test splits.
        if not self._numbers or (value == -1 and self.column.numbered):
            return int(value)
        number = self._numbers.get(value, self._numbers.get(str(value)))
        if number is None:
            raise SourceError(f"class {value!r} is not known", where)
        return number


class Split(NamedTuple):
    """A source with the fields of its columns."""

    name: str  # its own; ``""`` where the source has none
    source: Source
    labels: tuple[LabelField, ...]


def labelled(
    sources: Mapping[str, Source], classes: Sequence[str] | Location | str | None, separator: str
) -> list[Split]:
    """Return the source of each split with its label fields.

    Whole numbers in the column ``label`` become ``Label``, elsewhere ``Array`` of int64; other
    numbers ``Array`` of float32, as float64 are whole numbers of which some are missing: NaN stands
    for those; strings in ``label`` become ``Label`` with the sorted names,
    elsewhere ``Text``; lists and objects ``Json``. Sources that name classes share the list:
    theirs if all have the same, else all names together, sorted. A whole number is a class's number,
    but where classes are named by such numbers it is a name: in a list, the two look the same.
    ``classes`` fix those of ``label``: names, a file with one a line, or a packed dataset. With a ``separator`` a cell
    of ``label`` holds any number of names: ``MultiLabel``.

    Raises:
        SourceError: A class is not in ``classes``, there are no labels for them, or they cannot be
            read.
    """
    by_split = {split: _split_classes(source, separator) for split, source in sources.items()}
    columns = [pair for labels in by_split.values() for pair in labels.items()]
    lists = {name: _shared_classes(name, columns) for name, c in columns if c.kind == "class"}
    if classes is not None:
        lists[LABEL] = read_classes(classes)
        _check_fixed(sources, by_split, lists[LABEL])
    gaps = {name for name, column in columns if column.num_missing}

    def label(name: str, column: Column) -> LabelField:
        if separator and name == LABEL:
            return LabelField(name, column, MultiLabel(lists[name]), separator)
        return LabelField(name, column, _field(name, column, lists.get(name), name in gaps))

    return [
        Split(split, sources[split], tuple(starmap(label, found.items())))
        for split, found in by_split.items()
    ]


def parts_of(cell: str, separator: str) -> list[str]:
    """Return the names in a cell."""
    return [part.strip() for part in cell.split(separator) if part.strip()]


def _split_classes(source: Source, separator: str) -> Mapping[str, Column]:
    """Return the columns of a source, with each name in the cells of ``label`` a class; SourceError without texts."""
    if not separator:
        return source.labels
    column = source.labels.get(LABEL)
    if column is None or column.kind != "class" or column.numbered:
        hint = "multi_label= is for texts of several names, such as 'cat|dog'"
        raise SourceError("no texts in the column of labels", source.name, hint)
    names = {part for cell in column.classes for part in parts_of(cell, separator)}
    return {**source.labels, LABEL: dataclasses.replace(column, classes=tuple(sorted(names)))}


def _shared_classes(name: str, columns: Sequence[tuple[str, Column]]) -> tuple[str, ...]:
    """Return the classes of a column: those that all sources have, or else all of them together, sorted."""
    lists = {column.classes for n, column in columns if n == name and column.kind == "class"}
    return lists.pop() if len(lists) == 1 else tuple(sorted({*chain(*lists)}))


def _field(name: str, column: Column, classes: tuple[str, ...] | None, has_gaps: bool) -> Field:
    if column.field is not None:
        return column.field
    if column.kind == "class" or (name == LABEL and column.kind == "int"):
        return Label(classes=classes)
    if column.kind in ("int", "float"):
        whole = "float64" if has_gaps else "int64"
        return Array(dtype=whole if column.kind == "int" else "float32")
    return {"text": Text(), "json": Json(), "bytes": Bytes()}[column.kind]


def _check_fixed(
    sources: Mapping[str, Source],
    columns: Mapping[str, Mapping[str, Column]],
    fixed: tuple[str, ...],
) -> None:
    labels = [(sources[n].name, each[LABEL]) for n, each in columns.items() if LABEL in each]
    if not labels:
        names = ", ".join(source.name for source in sources.values())
        raise SourceError("no labels for the classes given", names, "Leave classes= out")
    known = set(fixed)
    for name, column in labels:
        if column.kind in ("float", "text", "json"):
            raise SourceError("labels are not classes", name)
        if unknown := [each for each in column.classes if each not in known]:
            what = f"classes that are not given: {few(unknown)}"
            raise SourceError(what, name, "Add them to classes=, or remove their pictures")


def read_classes(classes: Sequence[str] | Location | str, field: str = LABEL) -> tuple[str, ...]:
    """Return the names of classes: those given, of a file with one a line, or of a field of a packed dataset.

    Raises:
        SourceError: They cannot be read, or there are duplicates.
    """
    if isinstance(classes, str | Location):
        path = place_of(classes)
        if (isinstance(path, Path) and is_folder(path)) or is_file(path / MANIFEST_NAME):
            return _classes_of_dataset(path, field)
        lines, place = read_text(path).removeprefix("\ufeff").splitlines(), str(path)
        names = tuple(filter(None, map(str.strip, lines)))
    else:
        names, place = tuple(classes), "classes"
    duplicates = [name for name, count in Counter(names).items() if count > 1]
    if duplicates or not names:
        what = f"duplicate classes {few(duplicates)}" if duplicates else "no class names"
        raise SourceError(what, place, "Give one class name a line")
    return names


def _classes_of_dataset(folder: Location, name: str) -> tuple[str, ...]:
    field = read_manifest(folder).schema.fields.get(name)
    if not isinstance(field, Label | Array) or field.classes is None:
        raise SourceError(f"{name} has no class names", folder, "Give a file with one name a line")
    return field.classes
