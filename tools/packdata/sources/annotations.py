"""Annotations beside a folder of pictures: COCO JSON, Pascal VOC XML, YOLO labels; each read as what it is.

Boxes become the field ``boxes``, the numbers of their classes ``box_labels``. A picture without annotations has
no boxes. Sources of the forms: cocodataset.org, "Data format"; host.robots.ox.ac.uk/pascal/VOC, the development
kit, section 4; docs.ultralytics.com, "Dataset formats".
"""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar
from xml.etree import ElementTree

import numpy as np

from loaders.errors import SourceError
from loaders.remote.url import URL, Location
from loaders.schema import Array, Boxes, Json, Keypoints
from packdata.ahead import fetched_ahead
from packdata.describe import counted, few
from packdata.parsing import parse_json
from packdata.reading import LocalFile
from packdata.sources.base import ExtendedSource, Source
from packdata.sources.columns import BOX_LABELS, SIDES, Column
from packdata.sources.listed import Listing, hash_of_files, look_at
from packdata.sources.names import SPLIT_NAMES, key_of, suffix_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from packdata.reading import File
    from packdata.sources.base import Item

_T = TypeVar("_T")
BOXES, _SIZE, _TAGS = "boxes", "size", "tags"
_NO_LABELS = re.compile(r"(classes|train|val|test|readme.*)\.txt", re.IGNORECASE)
# Of names such as left_eye, L_Eye, lefteye, eyeLeft, LEye.
_WORD = re.compile(
    r"(?i:left|right)|[A-Z]?[a-z]+?(?=[Ll]eft|[Rr]ight|[^a-z]|$)|[A-Z]+(?![a-z])|[0-9]+"
)
_OTHER_SIDE = {"left": "right", "l": "r"}
_POINTS_OF_POLYGON = 6  # numbers of the smallest one
_NUMBERS_OF_POSE, _ALMOST_ALL = 10, 0.9  # from where poses are told from polygons
_AS_COCO = "Convert poses to COCO's person_keypoints"
_NUMBERS = Array(dtype="int64", dims=(None,))
# Of a picture, by field: a list with a value for each box. ``size`` is the (height, width) of the picture that was
# annotated, if that is said.
Values = dict[str, Any]
_BAD = (ElementTree.ParseError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(slots=True)
class Annotations:
    """What is known of pictures; the labels of boxes are names of classes, or numbers."""

    kind: str  # ``COCO``, ``VOC`` or ``YOLO``
    form: str  # how its boxes are written
    classes: Sequence[str]  # names by number
    more: dict[str, Column]  # what else there is of each box
    # By path, as far as it is known: with its suffix in COCO's, else without.
    pictures: dict[str, Values]
    notes: list[str] = field(default_factory=list)

    def name_of(self, item: Item) -> str | None:
        """Return what a picture is called here, None if it is not: of names that fit its path, the longest counts."""
        path = PurePath(item.key if item.file is None else str(item.file.path))
        parts = (path if self.kind == "COCO" else path.with_suffix("")).parts
        names = ("/".join(parts[i:]) for i in range(len(parts)))
        return next((name for name in names if name in self.pictures), None)


def annotated(source: Source, path: Location | str, split: str, classes: Sequence[str]) -> Source:
    """Return a source with the annotations of its pictures from a file or folder; folders are no classes then.

    Of several COCO files the one is read whose name or folder has the name of the split. ``classes`` are all names by
    number.

    Raises:
        SourceError: There are no annotations, or of several kinds, or they cannot be read; none is of a picture of the
            source, or it has a column of the same name.
    """
    found, digest = _read(path, split or source.name)
    is_sorted = found.kind == "VOC" and not classes
    classes = _number(found, classes, path)
    numbers = replace(_NUMBERS, classes=tuple(classes) or None)
    columns = {
        BOXES: Column("json", form=found.form, field=Boxes()),
        BOX_LABELS: Column("json", numbered=not is_sorted, field=numbers),
        **found.more,
    }
    labels = {} if source.kind == "classes" else dict(source.labels)
    if taken := labels.keys() & columns.keys():
        raise SourceError(f"duplicate column {min(taken)!r}", source.name, "Rename the column")
    names = Counter(map(found.name_of, source.items()))
    without = names.pop(None, 0)
    if not names:
        what = f"no picture is called as in the annotations ({found.kind})"
        raise SourceError(what, source.name, "Another folder, or another split?")
    name, num = names.most_common(1)[0]
    if num > 1:
        what = f"{name} of the annotations would be {num} pictures of {source.name}"
        raise SourceError(what, source.name, "Give annotations folders as the pictures have")

    def extend(item: Item) -> Item:
        values = found.pictures.get(found.name_of(item) or "", {})
        own = {name: values.get(name, []) for name in columns}
        return replace(item, labels={**item.labels, **own}, drawn_on=values.get(_SIZE))

    of_others = {*SPLIT_NAMES} - {split or source.name}
    absent = (PurePath(name).parts for name in found.pictures if name not in names)
    counts = {
        "without annotations, so without boxes": without,
        "annotations of pictures that are not there": sum(map(of_others.isdisjoint, absent)),
    }
    notes = [*found.notes, *(f"{what}: {n:,}" for what, n in counts.items() if n)]
    identity = {"annotations": digest, "classes": classes}
    return ExtendedSource(source, labels | columns, identity, extend, notes)


def _read(path: Location | str, split: str) -> tuple[Annotations, str]:
    """Read annotations; return also a hash of their files."""
    found = look_at(path)
    if isinstance(found, Listing):
        paths = (path for path in found if not _NO_LABELS.fullmatch(PurePath(path).name))
        root, folder, files = found.root, found.root, found.files(sorted(paths))
    else:
        root, folder, files = found[0].path, found[0].path.parent, found
    kinds = {suffix for file in files if (suffix := suffix_of(file.path.name)) in _READERS}
    if len(kinds) != 1:
        what = f"annotations of several kinds ({', '.join(sorted(kinds))})"
        hint = "COCO has .json files, VOC .xml files, YOLO folders of .txt files"
        raise SourceError(what if kinds else "no annotations", root, hint)
    (kind,) = kinds
    files = [file for file in files if suffix_of(file.path.name) == kind]
    others: list[File] = []
    if kind == ".json":
        chosen, others = _coco_files(root, files, split)
        files = [chosen]
    names = {file: os.path.relpath(str(file.path), str(folder)) for file in files}
    digest = hash_of_files((name, file.size, file.mark) for file, name in names.items())
    annotations = _READERS[kind](names, root)
    if others:
        unread = few(file.path.name for file in others)
        annotations.notes.append(f"files of annotations that are not read: {unread}")
    return annotations, digest


def _parsed(names: Mapping[File, str], kind: str, parse: Callable[[bytes], _T]) -> dict[str, _T]:
    """Return what is read from each file, by the path of its picture; files of a store are fetched ahead."""
    found: dict[str, _T] = {}
    with closing(fetched_ahead(iter(names))) as ahead:
        for (file, name), read in zip(names.items(), ahead, strict=True):
            # YOLO's labels lie in another folder, beside that of the pictures.
            parts = PurePath(name).with_suffix("").parts
            name = "/".join("images" if part == "labels" else part for part in parts)
            try:
                found[name] = parse(read())
            except SourceError:  # of a store
                raise
            except _BAD as error:
                what = f"cannot be read as {kind} ({type(error).__name__}: {error})"
                raise SourceError(what, file.path, "Mend or remove the file") from error
    return found


def _number(found: Annotations, classes: Sequence[str], path: Location | str) -> list[str]:
    """Number the classes of boxes as ``classes`` are, if there are any, and return them; SourceError if that fails."""
    new = {name: number for number, name in enumerate(classes or found.classes)}
    old = found.classes or [*new]  # whose numbers YOLO's labels are; without any they stay
    if repeated := [name for name, num in Counter(found.classes).items() if num > 1]:
        raise SourceError(f"duplicate category {repeated[0]!r}", path, "Rename them")
    if missing := [name for name in found.classes if name not in new]:
        raise SourceError(f"classes of boxes that are not given: {few(missing)}", path)
    for values in found.pictures.values():
        labels = values[BOX_LABELS]
        try:
            named = [old[label] if old and isinstance(label, int) else label for label in labels]
        except IndexError:
            what = f"class {max(labels)} of a box, with {len(old)} classes"
            raise SourceError(what, path) from None
        values[BOX_LABELS] = [new.get(name, name) for name in named]
    return [*new]


# -- COCO ---------------------------------------------------------------------------------------------

_COCO: dict[str, tuple[Any, Column]] = {  # what a box without it gets, and how it is stored
    "iscrowd": (0, Column("json", field=_NUMBERS)),
    "area": (0.0, Column("json", field=Array(dtype="float32", dims=(None,)))),
    "segmentation": (None, Column("json", field=Json())),
    "keypoints": (None, Column("json", form="keypoints")),
}
_COCO_READ = ("id", "image_id", "category_id", "bbox", "num_keypoints")


def _coco_files(root: Location, files: Sequence[File], split: str) -> tuple[File, list[File]]:
    """Return the file that is of a split by its name or folder: of several, that of ``instances``; and the others."""
    for word in [each for each in re.findall("[a-z]+", split.lower()) if each in SPLIT_NAMES][:1]:
        begins = re.compile(rf"(?<![a-z]){word[:3]}")  # train of training, too
        of = {f: f"{f.path.parent.name} {key_of(f.path.name)}".lower() for f in files}
        files = [file for file in files if begins.search(of[file])] or files
    chosen = [file for file in files if file.path.name.startswith("instances")] or files
    if len(chosen) > 1:
        what = f"several COCO files ({few([file.path.name for file in chosen])})"
        raise SourceError(what, root, "Give the one of these pictures")
    return chosen[0], [file for file in files if file is not chosen[0]]


def _read_coco(names: Mapping[File, str], root: Location) -> Annotations:
    (annotations,) = _parsed(names, "COCO", _coco).values()
    return annotations


def _coco(data: bytes) -> Annotations:
    found = parse_json(data)
    if not (boxes := [each for each in found["annotations"] if each.get("bbox")]):
        raise ValueError("no annotation has a box: bbox")
    categories = {each["id"]: each for each in found.get("categories", ())}
    names = {id: str(categories[id].get("name", id)) for id in sorted(categories)}
    by_image: dict[Any, list[Values]] = {image["id"]: [] for image in found["images"]}
    for each in boxes:
        if each.get("image_id") not in by_image or each.get("category_id") not in names:
            what = f"annotation {each.get('id')} is of an image or a category that is not listed"
            raise ValueError(what)
        by_image[each["image_id"]].append(each)
    columns = {n: c for n, (_, c) in _COCO.items() if any(n in each for each in boxes)}
    pictures: dict[str, Values] = {}
    for image in found["images"]:
        # LVIS has the address in the place of the name.
        name = str(image.get("file_name") or PurePath(str(image["coco_url"])).name)
        if name in pictures or image["id"] not in by_image:
            raise ValueError(f"duplicate image {name} or id {image['id']}")
        own = by_image.pop(image["id"])
        values: Values = {n: [each.get(n, _COCO[n][0]) for each in own] for n in columns}
        values[BOXES] = [each["bbox"] for each in own]
        values[BOX_LABELS] = [names[each["category_id"]] for each in own]
        if image.get("height") and image.get("width"):
            values[_SIZE] = int(image["height"]), int(image["width"])
        pictures[name] = values
    without = len(found["annotations"]) - len(boxes)
    notes = [f"annotations without a box, skipped: {without:,}"] * bool(without)
    if more := sorted(set[str]().union(*boxes) - {*_COCO, *_COCO_READ}):
        notes.append(f"of the annotations not read: {few(more, 8)}")
    if "keypoints" in columns:
        points = _keypoints(pictures.values(), categories.values())
        columns["keypoints"] = replace(columns["keypoints"], field=points)
        num = len(points.flip_pairs)
        pairs = counted(num, "pair") if num else "none"
        notes.append(f"keypoints called left_eye, right_eye and so on: a flip exchanges {pairs}")
    return Annotations("COCO", "xywh", [*names.values()], columns, pictures, notes)


def _keypoints(images: Iterable[Values], categories: Iterable[Values]) -> Keypoints:
    """Return the field of keypoints; objects without any get the same number of unlabelled ones."""
    given = (points for values in images for points in values["keypoints"] if points)
    nothing = [0] * len(next(given, [0] * 3))
    for values in images:
        values["keypoints"] = [each or nothing for each in values["keypoints"]]
    points = [[*map(str, each["keypoints"])] for each in categories if each.get("keypoints")]
    if len({_mirrored(each) for each in points}) > 1:
        raise ValueError("left and right keypoints differ by category: pack each by itself")
    num = len(points[0]) if len({len(each) for each in points}) == 1 else None
    for each in chain.from_iterable(values["keypoints"] for values in images):
        if num is not None and len(each) != 3 * num:
            raise ValueError(
                f"{len(each)} numbers of keypoints: x, y and v of {num} are {3 * num}"
            )
    return Keypoints(num, _mirrored(points[0] if points else ()))


def _mirrored(names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return the points whose names differ in left and right alone, the left one first.

    Example:
        >>> _mirrored(["nose", "L_Eye", "R_Eye"]), _mirrored(["ankleLeft", "ankleRight", "lip"])
        (((1, 2),), ((0, 1),))
    """
    words = [[word.lower() for word in _WORD.findall(name)] for name in names]
    places = {tuple(each): i for i, each in enumerate(words)}
    others = [tuple(_OTHER_SIDE.get(word, word) for word in each) for each in words]
    pairs = zip(words, others, strict=True)
    return tuple((i, places[o]) for i, (w, o) in enumerate(pairs) if o != tuple(w) and o in places)


# -- VOC ----------------------------------------------------------------------------------------------

_VOC_READ = {"name", "bndbox", "difficult"}


def _voc(data: bytes) -> Values:
    root = ElementTree.fromstring(data)
    if root.tag != "annotation":
        raise ValueError(f"the root is {root.tag!r}")
    height, width = (int(root.findtext(f"size/{name}") or 0) for name in ("height", "width"))
    things = root.findall(".//object")
    sides = [[t.findtext(f"bndbox/{side}") for side in SIDES] for t in things]
    names = [(thing.findtext("name") or "").strip() for thing in things]
    if any(None in box for box in sides) or "" in names:
        raise ValueError("an object has no whole bndbox, or no name")
    return {
        BOXES: [[float(text) for text in box] for box in sides],  # type: ignore[arg-type]
        BOX_LABELS: names,
        "difficult": [int(thing.findtext("difficult") or 0) for thing in things],
        _SIZE: (height, width) if height and width else None,
        _TAGS: {each.tag for thing in things for each in thing},
    }


def _read_voc(names: Mapping[File, str], root: Location) -> Annotations:
    pictures = _parsed(names, "VOC", _voc)
    classes = sorted({name for values in pictures.values() for name in values[BOX_LABELS]})
    more = {"difficult": Column("json", field=_NUMBERS)}
    unread = set[str]().union(*(values[_TAGS] for values in pictures.values())) - _VOC_READ
    notes = [f"of the objects not read: {few(sorted(unread), 8)}"] * bool(unread)
    return Annotations("VOC", "xyxy", classes, more, pictures, notes)


# -- YOLO ---------------------------------------------------------------------------------------------


def _yolo(data: bytes) -> Values:
    values: Values = {BOXES: [], BOX_LABELS: [], "segmentation": []}
    lines = enumerate(map(str.split, data.decode().splitlines()), start=1)
    for line, words in (each for each in lines if each[1]):
        numbers = [float(word) for word in words[1:]]
        is_polygon = len(numbers) >= _POINTS_OF_POLYGON and len(numbers) % 2 == 0
        if not words[0].isdecimal() or (len(numbers) != 4 and not is_polygon):
            raise ValueError(f"line {line} is not 'class x y width height', nor a polygon")
        values[BOX_LABELS].append(int(words[0]))
        values[BOXES].append(_bounds(numbers) if is_polygon else numbers)
        values["segmentation"].append(numbers if is_polygon else None)
    return values


def _bounds(polygon: Sequence[float]) -> list[float]:
    left, right = min(polygon[::2]), max(polygon[::2])
    top, bottom = min(polygon[1::2]), max(polygon[1::2])
    return [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]


def _read_yolo(names: Mapping[File, str], root: Location) -> Annotations:
    classes, has_yaml = _yolo_names(root)  # which refuses labels of poses by their YAML
    pictures = _parsed(names, "YOLO", _yolo)
    shapes = [each for values in pictures.values() for each in values["segmentation"] if each]
    if shapes and not has_yaml:
        what = "polygons or poses, which look alike, and there is no data.yaml that says which"
        raise SourceError(
            what, root, f"Add it: names: of classes, kpt_shape: of poses. {_AS_COCO}"
        )
    if _have_visibilities(shapes):
        raise SourceError("polygons look like poses, a box and points", root, _AS_COCO)
    more = {"segmentation": Column("json", field=Json())} if shapes else {}
    return Annotations("YOLO", "yolo", classes, more, pictures)


def _have_visibilities(shapes: Sequence[Sequence[float]]) -> bool:
    """Tell whether, behind a box, every third number is 0, 1 or 2, in almost all and all are alike: as in poses."""
    if (
        len({*map(len, shapes)}) != 1
        or len(shapes[0]) < _NUMBERS_OF_POSE
        or len(shapes[0]) % 3 != 1
    ):
        return False
    return bool(np.isin(np.array(shapes)[:, 6::3], (0, 1, 2)).all(1).mean() > _ALMOST_ALL)


def _yolo_names(root: Location) -> tuple[Sequence[str], bool]:
    """Read the names of classes from a YAML or ``classes.txt``, in the folder or up to two above; is it a YAML?"""
    if isinstance(root, URL):
        above = root, root.parent, root.parent.parent
        listed = (Listing(folder, deep=False) for folder in dict.fromkeys(above))
        files = [file for folder in listed for file in folder.files(folder.names())]
    else:  # what else lies above, such as a link that leads nowhere, is not looked at
        folders = (root, *root.resolve().parents[:2])
        paths = [p for folder in folders for p in sorted(folder.glob("[!.]*")) if p.is_file()]
        files = [LocalFile(str(path), str(path)) for path in paths]
    for file in files:
        if file.path.name.endswith((".yaml", ".yml")) and (names := _yaml_names(file)):
            return names, True
    for file in files:
        if file.path.name in ("classes.txt", "obj.names"):
            lines = file().decode(errors="replace").splitlines()
            return [line.strip() for line in lines if line.strip()], False
    return [], False


def _yaml_names(given: File) -> Sequence[str]:
    """Return the names of classes in YOLO's YAML, none of another; SourceError if they are not numbered from 0."""
    text, file = given().decode(errors="replace"), given.path
    if not re.search(r"^(names|kpt_shape):", text, re.MULTILINE):  # the YAML of some other tool
        return []
    try:
        import yaml
    except ImportError as error:
        hint = "'pip install pyyaml', or write the names to classes.txt, one a line, and move this file away"
        raise SourceError("class names in YAML need PyYAML", file, hint) from error
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise SourceError(f"cannot be read as YAML ({reason})", file, "Mend the file") from error
    if "kpt_shape" in data:
        what = "labels of poses (kpt_shape), which would be read as polygons"
        raise SourceError(what, file, _AS_COCO)
    names = data.get("names") or ()
    if not isinstance(names, list | tuple | dict):
        raise SourceError(f"class names are {names!r}, no list", file, "Write them as [cat, dog]")
    numbered = names if isinstance(names, dict) else dict(enumerate(names))
    if {*numbered} != {*range(len(numbered))}:
        what = f"class names are not numbered from 0 to {len(numbered) - 1}: {few([*map(str, numbered)], 8)}"
        raise SourceError(what, file, "Number them from 0 on, without gaps")
    return [str(numbered[number]) for number in range(len(numbered))]


# By suffix; each takes files with their paths in the folder of annotations, and that.
_READERS = {".json": _read_coco, ".xml": _read_voc, ".txt": _read_yolo}
