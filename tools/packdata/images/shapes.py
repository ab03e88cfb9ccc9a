"""Boxes and keypoints of pictures: which columns hold them, and how they follow a picture to its size."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loaders.augment.pixels import move_boxes, move_keypoints
from loaders.checks import shown
from loaders.errors import CodecError, SchemaError, SourceError
from loaders.schema import Array, Boxes, Keypoints
from packdata.describe import few
from packdata.geometry import BOX_FORMATS, to_boxes, to_keypoints
from packdata.options import check_options, opt, parse_target
from packdata.parsing import parse_json
from packdata.sources.annotations import Used, annotated, class_numbers
from packdata.sources.base import ExtendedSource, Item, Source
from packdata.sources.columns import BOX_LABELS, Column, identifier_of
from packdata.sources.opening import read_annotations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from loaders.remote.url import Location
    from packdata.files.labels import LabelField
    from packdata.images.fit import Size, SizeOption

_KEYPOINTS = "keypoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOptions:
    """What lies in the pictures."""

    boxes: Sequence[str] = opt(
        (),
        "column of boxes, or member of a struct (objects.bbox); FORMAT is xyxy (pixels, default), xywh, cxcywh, or "
        "yolo (fractions of the picture); may be repeated",
        "COLUMN[:FORMAT]",
        action="append",
    )
    box_labels: str | None = opt(
        None, "column with a class for each box, numbers or names (objects.category)", "COLUMN"
    )
    keypoints: Sequence[str] = opt(
        (),
        "column of keypoints, (x, y) or (x, y, visibility), in pixels; may be repeated",
        "COLUMN",
        action="append",
    )
    flip_pairs: Sequence[tuple[int, int]] | str | None = opt(
        None, "points that a horizontal flip exchanges, counted from 0: 1-2,3-4", "PAIRS"
    )
    annotations: Location | str | None = opt(
        None,
        "COCO JSON, or a folder of YOLO labels or VOC XML: boxes, box_labels and other fields",
        "FILE|FOLDER",
        type=parse_target,
    )

    def __post_init__(self) -> None:
        check_options(self)
        given = self.flip_pairs or ()
        pairs = _pairs(given) if isinstance(given, str) else given
        points = Keypoints(flip_pairs=tuple(pairs))
        object.__setattr__(self, "flip_pairs", points.flip_pairs)
        if (self.box_labels and not self.boxes) or (self.flip_pairs and not self.keypoints):
            raise SchemaError("box_labels go with boxes=, flip_pairs with keypoints=: pass both")
        if self.annotations is not None and (self.boxes or self.keypoints):
            raise SchemaError("boxes= and keypoints= are columns: leave them out, or annotations=")
        for text in self.boxes:
            if _split_format(text)[1] not in BOX_FORMATS:
                raise SchemaError(f"boxes {text!r}: the format is one of {', '.join(BOX_FORMATS)}")

    def extend(self, source: Source, split: str, classes: Sequence[str], used: Used) -> Source:
        """Return a split of a source with its annotations, and with the columns of boxes and keypoints known.

        ``classes`` are those of boxes, where they are given: names by number. ``used`` is one for all splits.

        Raises:
            SourceError: There is no such column, or the annotations cannot be read or are of other pictures.
        """
        if self.annotations is not None:
            found = read_annotations(self.annotations, split or source.name)
            return annotated(source, found, classes, used)
        points = Keypoints(flip_pairs=self.flip_pairs)  # type: ignore[arg-type]
        columns, members = dict[str, Column](), dict[str, list[str]]()
        boxes = map(_split_format, self.boxes)
        for column, form in (*boxes, *((column, _KEYPOINTS) for column in self.keypoints)):
            name, path = _find(column, source)
            field = points if form == _KEYPOINTS else Boxes()
            columns[name] = Column("json", form=form, field=field)
            if len(path) > 1:
                members[name] = path
        if not columns:
            return source
        identity = {"shapes": [*map(list, (self.boxes, self.keypoints, points.flip_pairs))]}
        note = "keypoints without flip_pairs: a flip exchanges no left and right ones"
        notes = [note] if self.keypoints and not self.flip_pairs else []

        def extend(item: Item) -> Item:
            if not members:
                return item
            values = {name: _value(item, path) for name, path in members.items()}
            return replace(item, labels={**item.labels, **values})

        labels = {**source.labels, **columns}
        extended = ExtendedSource(source, labels, identity, extend, notes)
        return extended if self.box_labels is None else self._with_box_labels(extended, classes)

    def _with_box_labels(self, source: Source, classes: Sequence[str]) -> Source:
        """Add the classes of boxes as numbers; names are those given, or declared by the source."""
        name, path = _find(str(self.box_labels), source)
        boxes, _ = _find(_split_format(self.boxes[0])[0], source)
        declared = source.classes.get(str(self.box_labels), ())
        names = classes or declared
        # Whole numbers count what is given; where a class is called by one, as '7', they are names, as of labels.
        is_counted = bool(declared) or not any(map(str.isdecimal, names))
        numbers = class_numbers(declared, names, source.name)

        def extend(item: Item) -> Item:
            given, rows = _list(item, path), _list(item, [boxes])
            found: list[Any] = [each for each in given if type(each) in (int, str)]
            if names:
                found = [numbers.get(each if is_counted else str(each)) for each in found]
            num = len(rows) if not rows or isinstance(rows[0], list | tuple) else 1
            if len(found) != num or not all(isinstance(each, int) for each in found):
                kind = f"one of {few(names)}" if names else "a number"
                what = f"box_labels {given[:3]} are not {kind} for each of {num} boxes"
                hint = "Class names need classes=: a file with one name a line"
                raise SourceError(what, item.where, "" if names else hint)
            return replace(item, labels={**item.labels, BOX_LABELS: found})

        field = Array(dtype="int64", dims=(None,), classes=tuple(names) or None)
        labels = {n: c for n, c in source.labels.items() if n != name}
        labels |= {BOX_LABELS: Column("json", numbered=bool(names), field=field)}
        identity = {BOX_LABELS: self.box_labels, "classes": list(names) or None}
        return ExtendedSource(source, labels, identity, extend)


def _pairs(text: str) -> list[tuple[int, int]]:
    """Return the pairs of points in a text such as ``1-2,3-4``."""
    if not re.fullmatch(r"\d+-\d+(,\d+-\d+)*", text):
        raise SchemaError(f"flip_pairs are pairs of points such as 1-2,3-4, got {text!r}")
    pairs = (pair.split("-") for pair in text.split(","))
    return [(int(one), int(other)) for one, other in pairs]


def _split_format(text: str) -> tuple[str, str]:
    column, _, form = text.rpartition(":")
    return (column, form) if column else (text, BOX_FORMATS[0])


def _find(text: str, source: Source) -> tuple[str, list[str]]:
    """Return the field of a column or member, and the way to its values from the column that holds them."""
    is_whole = {text, identifier_of(text)} & {*source.labels}
    column, *path = [text] if is_whole else text.split(".")
    for name in (column, identifier_of(column)):
        if name in source.labels:
            return identifier_of(text.replace(".", "_")) if path else name, [name, *path]
    what = f"no column {text!r} for boxes or keypoints among {list(source.labels)}"
    raise SourceError(what, source.name)


def _value(item: Item, path: Sequence[str]) -> Any:
    """Return the value of a column, or of a member of a struct in it; of a list of structs, that of each."""
    value: Any = item.labels.get(path[0])
    try:
        if isinstance(value, str) and value.strip():
            value = parse_json(value)
        for name in path[1:]:
            is_list = isinstance(value, list)
            value = [each[name] for each in value] if is_list else value and value[name]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        what = f"no value {'.'.join(path)} in the JSON of the sample ({error!r})"
        raise SourceError(what, item.where) from error
    return value or None


def _list(item: Item, path: Sequence[str]) -> list[Any]:
    """Return a value that is a list; SourceError if it is none."""
    value = _value(item, path)
    if not isinstance(value, list | None):
        raise SourceError(f"{'.'.join(path)} is {shown(value)}, not a list", item.where)
    return value or []


def check_same_classes(sources: Iterable[Source]) -> None:
    """Raise SourceError if the numbers of the classes of boxes differ between splits."""
    having = [source for source in sources if BOX_LABELS in source.labels]
    if len({str(source.labels[BOX_LABELS].field) for source in having}) > 1:
        hint = "Give the same list to all, by classes="
        raise SourceError("the classes of boxes differ between splits", having[0].name, hint)


def encode_shape(label: LabelField, item: Item, size: Size, resize: SizeOption) -> bytes:
    """Return the record of an item's boxes or keypoints in a picture of a size, once it is resized.

    Raises:
        CodecError: They are none, or lie beyond the picture.
    """
    if item.drawn_on not in (None, size):
        what = f"the annotations are for {item.drawn_on} pixels (height, width), the picture has {size}"
        raise CodecError(f"{what}, once turned upright as its Exif data say")
    value, field = item.labels.get(label.name), label.field
    try:
        move = resize.move(size)
        if isinstance(field, Keypoints):
            shapes = to_keypoints(value, field, size)
            moved = shapes if resize.keeps(size) else move_keypoints(shapes, move)
        else:
            shapes = to_boxes(value, label.column.form, size)
            moved = shapes if resize.keeps(size) else move_boxes(shapes, move)
        return label.codec.encode(moved)
    except CodecError as error:
        raise CodecError(f"{label.name}: {error}") from error
