"""Annotations of pictures, and how they come to the items of a source.

Boxes become the field ``boxes``, the numbers of their classes ``box_labels``. A picture without annotations has
no boxes.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias
from xml.etree.ElementTree import ParseError

from loaders.errors import SourceError
from loaders.schema import Array, Boxes
from packdata.ahead import fetched_ahead
from packdata.describe import few
from packdata.sources.base import ExtendedSource, Source
from packdata.sources.columns import BOX_LABELS, Column
from packdata.sources.listed import hash_of_files
from packdata.sources.names import PICTURE_SUFFIXES, SPLIT_NAMES, key_of, suffix_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from loaders.remote.url import Location
    from packdata.reading import File
    from packdata.sources.base import Item

# How many pictures an annotation is of, by its file and name, in this split and those before it.
Used: TypeAlias = Counter[tuple[str, str]]
BOXES = "boxes"
# Text files beside YOLO's labels.
NO_LABELS = re.compile(r"(classes|train|val|test|readme.*)\.txt", re.IGNORECASE)
_FORMS = {"COCO": "xywh", "VOC": "xyxy", "YOLO": "yolo"}  # how boxes are written
NUMBERS = Array(dtype="int64", dims=(None,))  # one a box
_BAD = (
    *(ParseError, ValueError, LookupError, TypeError, AttributeError),
    *(OverflowError, RecursionError),
)


@dataclass(slots=True)
class Annotations:
    """What is known of pictures; of several files each has a picture of its own."""

    kind: str  # ``COCO``, ``VOC`` or ``YOLO``
    place: Location | str  # as it was given
    split: str  # whose pictures are annotated
    files: Mapping[str, File]  # those that are read, by their paths in a folder
    classes: Sequence[str] = ()  # names by number; none where labels are numbers alone
    # By the path of the picture, as far as it is known (with its suffix in COCO's): by field a list with a value a box.
    # ``boxes`` and ``box_labels``, numbers or names of classes, are always there.
    pictures: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    # (height, width) of the pictures that were annotated, where that is said.
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    more: dict[str, Column] = field(default_factory=dict)  # of the other fields
    unread: set[str] = field(default_factory=set)  # what else there is of each box
    notes: list[str] = field(default_factory=list)

    def read(self, parse: Callable[[Annotations, str, bytes], None]) -> None:
        """Let ``parse`` add what each file says, given the path of its picture; files of a store are fetched ahead."""
        with closing(fetched_ahead(iter(self.files.values()))) as ahead:
            for name, file in zip(self.files, ahead, strict=True):
                # Labels lie in another folder, beside that of the pictures.
                parts = PurePath(key_of(name)).parts
                picture = "/".join("images" if part == "labels" else part for part in parts)
                if picture in self.pictures:
                    raise SourceError("a second file of one picture", file.path, "Remove one")
                data = file()
                try:
                    parse(self, picture, data)
                except _BAD as error:
                    what = f"cannot be read as {self.kind} ({type(error).__name__}: {error})"
                    raise SourceError(what, file.path, "Mend or remove the file") from error


def annotated(source: Source, found: Annotations, classes: Sequence[str], used: Used) -> Source:
    """Return a source with the annotations of its pictures; folders are no classes then.

    ``classes`` are all names by number.

    Raises:
        SourceError: None is of a picture of the source, or one of several; it has a column of the same name; a class
            is not given.
    """
    is_sorted = found.kind == "VOC" and not classes
    _number(found, classes)
    numbers = replace(NUMBERS, classes=tuple(found.classes) or None)
    columns = {
        BOXES: Column("json", form=_FORMS[found.kind], field=Boxes()),
        BOX_LABELS: Column("json", numbered=not is_sorted, field=numbers),
        **found.more,
    }
    labels = {} if source.kind == "classes" else dict(source.labels)
    if taken := labels.keys() & columns.keys():
        raise SourceError(f"duplicate column {min(taken)!r}", source.name, "Rename the column")
    names = Counter(_name_of(item, found) for item in source.items())
    without = names.pop("", 0)
    if not names:
        what = f"no picture is called as in the annotations ({found.kind})"
        raise SourceError(what, source.name, "Another folder, or another split?")
    file = min(found.files)  # names the annotations: COCO's one file, or the first of the folder
    used.update({(file, name): num for name, num in names.items()})
    (_, name), num = used.most_common(1)[0]
    if num > 1:
        what = f"{name} of the annotations would be {num} pictures, of this split or several"
        hint = "Give annotations folders as the pictures have, or each split its COCO file"
        raise SourceError(what, source.name, hint)

    def extend(item: Item) -> Item:
        name = _name_of(item, found)
        values = found.pictures.get(name, {})
        own = {column: values.get(column, []) for column in columns}
        return replace(item, labels={**item.labels, **own}, drawn_on=found.sizes.get(name))

    of_others = {*SPLIT_NAMES} - {found.split}
    absent = (PurePath(name).parts for name in found.pictures if name not in names)
    counts = {
        "without annotations, so without boxes": without,
        "annotations of pictures that are not there": sum(map(of_others.isdisjoint, absent)),
    }
    notes = [*found.notes, *(f"{what}: {n:,} ({found.split})" for what, n in counts.items() if n)]
    if found.unread:
        notes.append(f"of the annotations not read: {few(sorted(found.unread), 8)}")
    states = ((name, file.size, file.mark) for name, file in found.files.items())
    identity = {"annotations": hash_of_files(states), "classes": [*found.classes]}
    return ExtendedSource(source, labels | columns, identity, extend, notes)


def class_numbers(
    declared: Sequence[str], classes: Sequence[str], place: Location | str
) -> dict[int | str, int]:
    """Return the number of each class of boxes, by its name, and by the number that a source gives it.

    The names ``declared`` by the source are numbered as in ``classes``, if there are any; where it declares none its
    numbers are those of ``classes``.

    Raises:
        SourceError: A name is declared twice, or is not in ``classes``.
    """
    if repeated := [name for name, num in Counter(declared).items() if num > 1]:
        raise SourceError(f"duplicate category {repeated[0]!r}", place, "Rename them")
    known = classes or declared
    numbers: dict[int | str, int] = {name: number for number, name in enumerate(known)}
    if missing := [name for name in declared if name not in numbers]:
        raise SourceError(f"classes of boxes that are not given: {few(missing)}", place)
    return numbers | {number: numbers[name] for number, name in enumerate(declared or known)}


def _number(found: Annotations, classes: Sequence[str]) -> None:
    """Number the classes of boxes as ``classes`` are, if there are any; SourceError if that fails."""
    numbers = class_numbers(found.classes, classes, found.place)
    for picture, values in found.pictures.items() if numbers else ():
        if wrong := {*values[BOX_LABELS]} - numbers.keys():
            what = f"class {min(wrong)} of a box of {picture} is none of {few(classes or found.classes)}"
            raise SourceError(what, found.place, "Name all classes in their order")
        values[BOX_LABELS] = [numbers[label] for label in values[BOX_LABELS]]
    found.classes = classes or found.classes


def _name_of(item: Item, found: Annotations) -> str:
    """Return what a picture is called in annotations, "" if it is not: the longest of names in which its path ends."""
    path = PurePath(item.key if item.file is None else str(item.file.path.absolute()))
    is_stem = found.kind == "COCO" or suffix_of(path.name) not in PICTURE_SUFFIXES
    parts = (path if is_stem else path.with_suffix("")).parts
    if found.kind == "YOLO" and NO_LABELS.fullmatch(f"{parts[-1]}.txt"):
        what = f"{parts[-1]}.txt is not read as labels of a picture"
        raise SourceError(what, item.where, "Rename the picture and its labels")
    names = ("/".join(parts[i:]) for i in range(len(parts)))
    return next((name for name in names if name in found.pictures), "")
