"""Boxes and keypoints of pictures: which columns hold them, and how they follow a picture to its size."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loaders.augment.pixels import move_boxes, move_keypoints
from loaders.errors import CodecError, SchemaError, SourceError
from loaders.remote.url import place_of
from loaders.schema import Array, Boxes, Keypoints
from packdata.geometry import BOX_FORMATS, to_boxes, to_keypoints
from packdata.options import check_options, opt, parse_target
from packdata.readers import parse_json
from packdata.sources.annotations import annotated
from packdata.sources.base import BOX_LABELS, Column, Item, Source, identifier_of
from packdata.sources.composed import ExtendedSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from loaders.schema import Field
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
    annotations: Path | str | None = opt(
        None,
        "COCO JSON, or a folder of YOLO labels or VOC XML: boxes, box_labels and other fields",
        "FILE|FOLDER",
        type=parse_target,
    )
    box_classes: tuple[str, ...] | None = (
        None  # names by number; ``classes`` of the source where there are boxes
    )

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "flip_pairs", _pairs(self.flip_pairs or ()))
        if self.box_labels is not None and not self.boxes:
            raise SchemaError("box_labels are of boxes in a column: give boxes, too")
        if self.flip_pairs and not self.keypoints:
            raise SchemaError("flip_pairs are of keypoints in a column: give keypoints, too")
        for text in self.boxes:
            _, _, form = text.rpartition(":")
            if ":" in text and form not in BOX_FORMATS:
                raise SchemaError(f"boxes {text!r}: the format is one of {', '.join(BOX_FORMATS)}")

    def absolute(self) -> ShapeOptions:
        """Return the same for whatever folder is the working folder."""
        there = None if self.annotations is None else place_of(self.annotations).absolute()
        return replace(self, annotations=there)

    def extend(self, source: Source, split: str) -> Source:
        """Return a split of a source with its annotations, and with the columns of boxes and keypoints known.

        Raises:
            SourceError: There is no such column, or the annotations cannot be read or are of other pictures.
        """
        if self.annotations is not None:
            source = annotated(source, self.annotations, split, self.box_classes or ())
        points = Keypoints(flip_pairs=self.flip_pairs)  # type: ignore[arg-type]
        declared: list[tuple[str, str, Field]]
        declared = [(*_split_format(text), Boxes()) for text in self.boxes]
        declared += [(text, _KEYPOINTS, points) for text in self.keypoints]
        if not declared:
            return source
        found = [(*_find(text, source), form, field) for text, form, field in declared]
        labels = {name: Column("json", form=form, field=field) for name, _, form, field in found}
        members = {name: path for name, path, *_ in found if len(path) > 1}
        identity = {
            "boxes": list(self.boxes),
            _KEYPOINTS: list(self.keypoints),
            "flip_pairs": list(points.flip_pairs),
        }
        notes = [*source.notes]
        if self.keypoints and not self.flip_pairs:
            notes.append(
                "keypoints without flip_pairs: a horizontal flip exchanges no left and right ones"
            )

        def extend(item: Item) -> Item:
            values = {name: _value(item, path) for name, path in members.items()}
            return replace(item, labels={**item.labels, **values})

        extended = ExtendedSource(source, {**source.labels, **labels}, identity, extend, notes)
        return extended if self.box_labels is None else self._with_box_labels(extended)

    def _with_box_labels(self, source: Source) -> Source:
        """Add the classes of boxes as numbers; SourceError if they are neither numbers nor names."""
        name, path = _find(str(self.box_labels), source)
        boxes, _ = _find(_split_format(self.boxes[0])[0], source)
        classes = self.box_classes or source.labels[path[0]].classes or None
        if classes is None:
            every = (each for item in source.items() for each in _value(item, path) or ())
            classes = tuple(sorted({each for each in every if isinstance(each, str)})) or None
        numbers = {word: number for number, word in enumerate(classes or ())}

        def extend(item: Item) -> Item:
            given = [*(_value(item, path) or ())]
            found = [numbers.get(each) if isinstance(each, str) else each for each in given]
            if any(not isinstance(each, int) for each in found):
                raise SourceError(f"box_labels are {given[:3]}, not classes", item.where)
            num = len(_rows_of(item.labels.get(boxes)))
            if len(found) != num:
                raise SourceError(f"{len(found)} box_labels for {num} boxes", item.where)
            return replace(item, labels={**item.labels, BOX_LABELS: found})

        field = Array(dtype="int64", dims=(None,), classes=classes)
        labels = {n: c for n, c in source.labels.items() if n != name}
        labels |= {BOX_LABELS: Column("json", field=field)}
        identity = {BOX_LABELS: self.box_labels, "classes": classes and list(classes)}
        return ExtendedSource(source, labels, identity, extend, source.notes)


def _rows_of(value: Any) -> Any:
    """Return the boxes of a cell: four numbers alone are one."""
    value = parse_json(value) if isinstance(value, str) and value.strip() else value or ()
    return [value] if len(value) == 4 and not isinstance(value[0], list | tuple) else value


def _pairs(given: Sequence[tuple[int, int]] | str) -> tuple[tuple[int, int], ...]:
    """Return pairs of points; of a text such as ``1-2,3-4`` those in it."""
    if not isinstance(given, str):
        return tuple((int(one), int(other)) for one, other in given)
    if not re.fullmatch(r"\d+-\d+(,\d+-\d+)*", given):
        raise SchemaError(f"flip_pairs are pairs of points such as 1-2,3-4, got {given!r}")
    pairs = (pair.split("-") for pair in given.split(","))
    return tuple((int(one), int(other)) for one, other in pairs)


def _split_format(text: str) -> tuple[str, str]:
    column, _, form = text.rpartition(":")
    return (column, form) if column else (text, BOX_FORMATS[0])


def _find(text: str, source: Source) -> tuple[str, list[str]]:
    """Return the field of a column or member, and the way to its values from the column that holds them."""
    column, *path = text.split(".")
    for name in (text, identifier_of(text)):
        if name in source.labels:
            return name, [name]
    for name in (column, identifier_of(column)):
        if path and name in source.labels:
            return identifier_of(text.replace(".", "_")), [name, *path]
    what = f"no column {text!r} for boxes or keypoints among {list(source.labels)}"
    raise SourceError(what, source.name)


def _value(item: Item, path: Sequence[str]) -> Any:
    """Return the value of a column, or of a member of a struct in it; of a list of structs, that of each."""
    return _member(item.labels.get(path[0]), path[1:], item)


def _member(value: Any, path: Sequence[str], item: Item) -> Any:
    if isinstance(value, str) and value.strip():
        try:
            value = parse_json(value)
        except (ValueError, RecursionError) as error:
            what = f"no JSON in which {'.'.join(path) or 'a list'} could be ({error})"
            raise SourceError(what, item.where) from error
    if not path or not value:
        return value or None
    if isinstance(value, list):
        return [_member(each, path, item) for each in value]
    if not isinstance(value, dict) or path[0] not in value:
        raise SourceError(f"no member {path[0]!r}", item.where)
    return _member(value[path[0]], path[1:], item)


def check_same_classes(sources: Mapping[str, Source]) -> None:
    """Raise SourceError if the numbers of the classes of boxes differ between splits."""
    fields = {
        name: source.labels[BOX_LABELS].field
        for name, source in sources.items()
        if BOX_LABELS in source.labels
    }
    if len({str(field and field.to_json()) for field in fields.values()}) > 1:
        what = f"the classes of boxes are not the same in {', '.join(fields)}"
        raise SourceError(
            what, next(iter(sources.values())).name, "Give the same list to all, by classes="
        )


def _check_drawn_on(item: Item, size: Size) -> None:
    """Raise CodecError for annotations of a picture of another size."""
    if item.drawn_on in (None, size):
        return
    (height, width), (own_height, own_width) = item.drawn_on or size, size
    what = f"its annotations are of a picture of {width} x {height}, it has {own_width} x {own_height} (width x height)"
    is_turned = (width, height) == size
    how = "they were made before it was turned upright, as its Exif data say"
    raise CodecError(f"{what}: {how if is_turned else 'was one of them resized?'}")


def encode_shape(label: LabelField, item: Item, size: Size, resize: SizeOption | None) -> bytes:
    """Return the record of an item's boxes or keypoints in a picture of a size, once it is resized.

    Raises:
        CodecError: They are none, or lie beyond the picture.
    """
    value, field = item.labels.get(label.name), label.field
    _check_drawn_on(item, size)
    try:
        move: Callable[..., Any]
        if isinstance(field, Keypoints):
            shapes, move = to_keypoints(value, field.num, size), move_keypoints
        else:
            shapes, move = to_boxes(value, label.column.form, size), move_boxes
        if resize is not None:
            shapes = move(shapes, *resize.window(size), (False, False))
        return label.codec.encode(shapes)
    except CodecError as error:
        raise CodecError(f"its {label.name}: {error}") from error
