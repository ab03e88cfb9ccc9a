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
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from loaders.errors import SourceError
from loaders.remote.url import URL
from loaders.schema import Array, Boxes, Json, Keypoints
from packdata.readers import parse_json
from packdata.reading import fetched_ahead
from packdata.sources.base import BOX_LABELS, Column, ExtendedSource, FileHash, Source, suffix_of
from packdata.sources.listed import Listing, look_at
from packdata.sources.refused import SPLIT_NAMES
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from packdata.reading import File
    from packdata.sources.base import Item

BOXES, _SIZE = "boxes", "size"
_NO_LABELS = frozenset({"classes.txt", "train.txt", "val.txt", "test.txt", "readme.txt"})
_WORD = re.compile(r"left|right|[a-z]+|[0-9]+")  # of names such as left_eye, L_Eye, lefteye
_OTHER_SIDE = {"left": "right", "l": "r"}
_POINTS_OF_POLYGON = 6  # numbers of the smallest one
_STILL = "crops and flips do not change: {} of boxes"
_NUMBERS = Array(dtype="int64", dims=(None,))
# Of a picture, by field; ``size`` is the (height, width) of the picture that was annotated, if that is said.
Values = dict[str, Any]
Pictures = dict[
    str, Values
]  # by path, as far as the annotations have it: with suffix in COCO's, else without


@dataclass(slots=True)
class Annotations:
    """What is known of pictures, by what they are called."""

    kind: str  # ``COCO``, ``VOC`` or ``YOLO``
    form: str  # how its boxes are written
    classes: Sequence[str]  # names by number
    more: dict[str, Column]  # what else there is of each box
    pictures: Pictures  # labels are names of classes, or numbers
    notes: tuple[str, ...] = ()

    def name_of(self, item: Item) -> str | None:
        """Return what a picture is called here, None if it is not: of names that fit its path, the longest counts."""
        path = PurePath(item.key if item.file is None else item.file.path)
        parts = (path if self.kind == "COCO" else path.with_suffix("")).parts
        names = ("/".join(parts[i:]) for i in range(len(parts)))
        return next((name for name in names if name in self.pictures), None)

    def number(self, classes: Sequence[str], path: Path | str) -> None:
        """Number the classes, as ``classes`` has them if there are any; SourceError if that fails."""
        new = {name: i for i, name in enumerate(classes or self.classes)}
        if twice := [name for name, num in Counter(self.classes).items() if num > 1]:
            raise SourceError(f"duplicate category {twice[0]!r}", path, "Rename them")
        if missing := [name for name in self.classes if name not in new]:
            raise SourceError(f"classes of boxes that are not given: {few(missing)}", path)
        old = self.classes or [*new]  # whose numbers YOLO's labels are; without any they stay
        for values in self.pictures.values():
            numbers = [n for n in values[BOX_LABELS] if isinstance(n, int)]
            if old and max(numbers, default=0) >= len(old):
                what = f"class {max(numbers)} of a box, with {len(old)} classes"
                raise SourceError(what, path)
            named = (old[n] if old and isinstance(n, int) else n for n in values[BOX_LABELS])
            values[BOX_LABELS] = [new.get(name, name) for name in named]
        self.classes = [*new]


def annotated(
    source: Source, path: Path | str, split: str = "", classes: Sequence[str] = ()
) -> Source:
    """Return a source with the annotations of its pictures from a file or folder; folders are no classes then.

    Of COCO's files the one that is of a split is read, or in a folder so called. ``classes`` are all names by number.

    Raises:
        SourceError: There are no annotations, or of several kinds, or they cannot be read; none is of a picture of the
            source, or it has a column of the same name.
    """
    found, files = _open(path, split or source.name)
    found.number(classes, path)
    columns = {
        BOXES: Column("json", form=found.form, field=Boxes()),
        BOX_LABELS: Column("json", field=replace(_NUMBERS, classes=tuple(found.classes) or None)),
        **found.more,
    }
    labels = {} if source.kind == "classes" else dict(source.labels)
    if twice := labels.keys() & columns.keys():
        raise SourceError(f"duplicate column {min(twice)!r}", source.name, "Rename the column")
    names = Counter(map(found.name_of, source.items()))
    without = names.pop(None, 0)
    if not names:
        what = f"none of its pictures is called as in the annotations ({found.kind})"
        raise SourceError(what, source.name, "Is it another folder, or another split?")
    name, num = names.most_common(1)[0]
    if num > 1:
        what = f"{name} of the annotations would be {num} pictures of {source.name}"
        raise SourceError(what, source.name, "Give annotations folders as the pictures have")

    def extend(item: Item) -> Item:
        values = found.pictures.get(found.name_of(item) or "", {})
        own = {name: values.get(name, []) for name in columns}
        return replace(item, labels={**item.labels, **own}, drawn_on=values.get(_SIZE))

    counts = {
        "without annotations, so without boxes": without,
        "annotations of pictures that are not there": len(found.pictures) - len(names),
    }
    notes = [*source.notes, *found.notes, *(f"{what}: {n:,}" for what, n in counts.items() if n)]
    identity = {"annotations": files, "classes": list(found.classes)}
    return ExtendedSource(source, labels | columns, identity, extend, notes)


def _open(path: Path | str, split: str) -> tuple[Annotations, str]:
    """Read annotations; return also a hash of their files."""
    found = look_at(path)
    if isinstance(found, Listing):
        paths = (path for path in found if PurePath(path).name.lower() not in _NO_LABELS)
        root, folder, files = found.root, found.root, found.files(sorted(paths))
    else:
        root, folder, files = found[0].path, found[0].path.parent, found
    kinds = {suffix for file in files if (suffix := suffix_of(file.path.name)) in _READERS}
    if len(kinds) != 1:
        what = f"annotations of several kinds ({', '.join(sorted(kinds))})"
        hint = "COCO has .json files, VOC .xml files, YOLO folders of .txt files"
        raise SourceError(what if kinds else "no annotations", root, hint)
    chosen = [file for file in files if suffix_of(file.path.name) in kinds]
    if kinds == {".json"}:
        chosen = [_coco_file(root, chosen, split)]
    hashed = FileHash()
    names = {file: os.path.relpath(str(file.path), str(folder)) for file in chosen}
    for file, name in names.items():
        hashed.add(name, file.size, file.mark)
    try:
        return _READERS[kinds.pop()](root, names), hashed.hexdigest()
    except (KeyError, TypeError, AttributeError) as error:
        what = f"not COCO's, VOC's or YOLO's annotations ({type(error).__name__}: {error})"
        raise SourceError(what, root) from error


def _parsed(files: Mapping[File, str], parse: Callable[[bytes], Values]) -> Pictures:
    """Return what is read from the file of each picture, by its path; those of a store are fetched ahead."""
    pictures: Pictures = {}
    with closing(fetched_ahead(iter(files))) as ahead:
        for (file, name), read in zip(files.items(), ahead, strict=True):
            # YOLO's labels lie in another folder, beside that of the pictures.
            parts = PurePath(name).with_suffix("").parts
            name = "/".join("images" if part == "labels" else part for part in parts)
            try:
                pictures[name] = parse(read())
            except (ElementTree.ParseError, ValueError, AttributeError, TypeError) as error:
                hint = "Mend or remove the file"
                raise SourceError(f"cannot be read ({error})", file.path, hint) from error
    return pictures


# -- COCO ---------------------------------------------------------------------------------------------

_COCO: dict[str, tuple[Any, Column]] = {  # what a box without it gets, and how it is stored
    "iscrowd": (0, Column("json", field=_NUMBERS)),
    "area": (0.0, Column("json", field=Array(dtype="float32", dims=(None,)))),
    "segmentation": (None, Column("json", field=Json())),
    "keypoints": (None, Column("json", form="keypoints")),
}


def _coco_file(root: Path, files: Sequence[File], split: str) -> File:
    """Return the file that is of a split by its name or folder: of several, that of ``instances``."""
    for word in [each for each in re.findall("[a-z]+", split.lower()) if each in SPLIT_NAMES][:1]:
        begins = re.compile(rf"(?<![a-z]){word[:3]}")  # train of training, too
        of = {f: f"{f.path.parent.name} {f.path.stem}".lower() for f in files}
        files = [file for file in files if begins.search(of[file])] or files
    files = [file for file in files if file.path.name.startswith("instances")] or files
    if len(files) > 1:
        what = f"several COCO files ({few([file.path.name for file in files])})"
        raise SourceError(what, root, "Give the one of these pictures")
    return files[0]


def _read_coco(root: Path, files: Mapping[File, str]) -> Annotations:
    (file,) = files
    path = file.path
    try:
        data = parse_json(file())
        images_of, annotations = data["images"], data["annotations"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        what = f"not a COCO file of 'images' and 'annotations' ({error})"
        raise SourceError(what, path) from error
    boxes = [each for each in annotations if each.get("bbox")]
    if not boxes:
        raise SourceError("no boxes (bbox) in the annotations", path)
    categories = {each["id"]: each for each in data.get("categories", ())}
    names = {id: str(categories[id].get("name", id)) for id in sorted(categories)}
    columns = {n: c for n, (_, c) in _COCO.items() if any(n in each for each in boxes)}
    images: dict[Any, Values] = {}
    pictures: Pictures = {}
    for image in images_of:
        # LVIS has the address in the place of the name.
        name = str(image.get("file_name") or PurePath(str(image["coco_url"])).name)
        if name in pictures or image["id"] in images:
            raise SourceError(f"duplicate image {name} or id {image['id']}", path)
        images[image["id"]] = pictures[name] = {n: [] for n in (BOXES, BOX_LABELS, *columns)}
        if image.get("height") and image.get("width"):
            images[image["id"]][_SIZE] = int(image["height"]), int(image["width"])
    for each in boxes:
        if each.get("image_id") not in images or each.get("category_id") not in names:
            what = f"annotation {each.get('id')} is of an image or a category that is not listed"
            raise SourceError(what, path)
        values = images[each["image_id"]]
        values[BOXES].append(each["bbox"])
        values[BOX_LABELS].append(names[each["category_id"]])
        for name in columns:
            values[name].append(each.get(name, _COCO[name][0]))
    if "keypoints" in columns:
        field = _keypoints(images.values(), categories.values(), path)
        columns["keypoints"] = replace(columns["keypoints"], field=field)
    still = [name for name in ("segmentation", "area") if name in columns]
    without = len(annotations) - len(boxes)
    notes = [_STILL.format(" and ".join(still))] * bool(still)
    notes += [f"annotations without a box, skipped: {without:,}"] * bool(without)
    return Annotations("COCO", "xywh", [*names.values()], columns, pictures, tuple(notes))


def _keypoints(
    images: Iterable[Values], categories: Iterable[Mapping[str, Any]], file: Path
) -> Keypoints:
    """Return the field of keypoints; objects without any get the same number of unlabelled ones."""
    given = (points for values in images for points in values["keypoints"] if points is not None)
    nothing = [0] * len(next(given, [0] * 3))
    for values in images:
        values["keypoints"] = [nothing if each is None else each for each in values["keypoints"]]
    points = [[*map(str, each["keypoints"])] for each in categories if each.get("keypoints")]
    if len({_mirrored(each) for each in points}) > 1:
        what = "categories have keypoints whose left and right ones are not at the same places"
        raise SourceError(what, file, "Pack each category by itself")
    is_one = len({len(each) for each in points}) == 1
    return Keypoints(len(points[0]) if is_one else None, _mirrored(points[0] if points else ()))


def _mirrored(names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return the points whose names differ in left and right alone, the left one first.

    Example:
        >>> _mirrored(["nose", "L_Eye", "R_Eye"]), _mirrored(["left ankle", "right ankle", "lip"])
        (((1, 2),), ((0, 1),))
    """
    words = [_WORD.findall(name.lower()) for name in names]
    places = {tuple(each): i for i, each in enumerate(words)}
    others = [tuple(_OTHER_SIDE.get(word, word) for word in each) for each in words]
    return tuple(
        (i, places[other])
        for i, other in enumerate(others)
        if other in places and other != tuple(words[i])
    )


# -- VOC ----------------------------------------------------------------------------------------------


def _read_voc(root: Path, files: Mapping[File, str]) -> Annotations:
    pictures = _parsed(files, _voc_values)
    classes = sorted({name for values in pictures.values() for name in values[BOX_LABELS]})
    more = {"difficult": Column("json", field=_NUMBERS)}
    return Annotations("VOC", "xyxy", classes, more, pictures)


def _voc_values(data: bytes) -> Values:
    root = ElementTree.fromstring(data)
    if root.tag != "annotation":
        raise ValueError(f"the root is {root.tag!r}")
    height, width = (int(root.findtext(f"size/{name}") or 0) for name in ("height", "width"))
    size = (height, width) if height and width else None
    values: Values = {BOXES: [], BOX_LABELS: [], "difficult": [], _SIZE: size}
    for thing in root.iter("object"):
        texts = [thing.findtext(f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
        if None in texts:
            raise ValueError("an object has no whole bndbox")
        values[BOXES].append([float(text) for text in texts])  # type: ignore[arg-type]
        values[BOX_LABELS].append((thing.findtext("name") or "").strip())
        values["difficult"].append(int(thing.findtext("difficult") or 0))
    return values


# -- YOLO ---------------------------------------------------------------------------------------------


def _read_yolo(root: Path, files: Mapping[File, str]) -> Annotations:
    classes, pictures = _yolo_names(root), _parsed(files, _yolo_values)
    has_polygons = any(any(values["segmentation"]) for values in pictures.values())
    more = {"segmentation": Column("json", field=Json())} if has_polygons else {}
    notes = (_STILL.format("segmentation"),) * has_polygons
    return Annotations("YOLO", "yolo", classes, more, pictures, notes)


def _yolo_values(data: bytes) -> Values:
    values: Values = {BOXES: [], BOX_LABELS: [], "segmentation": []}
    for line, text in enumerate(data.decode().splitlines(), start=1):
        words = text.split()
        if not words:
            continue
        numbers = [float(word) for word in words[1:]]
        is_polygon = len(numbers) >= _POINTS_OF_POLYGON and len(numbers) % 2 == 0
        if is_polygon and len(numbers) % 3 == 1 and {*numbers[6::3]} <= {0.0, 1.0, 2.0}:
            raise ValueError(f"line {line} has keypoints: convert it to COCO's person_keypoints")
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


def _yolo_names(root: Path) -> Sequence[str]:
    """Read the names of classes from ``data.yaml`` or ``classes.txt``, in the folder or up to two above."""
    is_url = isinstance(root, URL)
    folders = (root, *(root if is_url else root.resolve()).parents[:2])
    listed = (Listing(f, deep=False) for f in folders if (f.parent.name if is_url else f.is_dir()))
    files = [file for folder in listed for file in folder.files(folder.names())]
    for file in files:
        if file.path.suffix in (".yaml", ".yml") and (names := _yaml_names(file)):
            return names
    for file in files:
        if file.path.name in ("classes.txt", "obj.names"):
            lines = file().decode(errors="replace").splitlines()
            return [line.strip() for line in lines if line.strip()]
    return []


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
    except yaml.YAMLError:
        return []
    if "kpt_shape" in data:
        what = "labels of poses (kpt_shape), which would be read as polygons"
        raise SourceError(what, file, "Convert them to COCO's person_keypoints")
    names = data.get("names") or ()
    numbered = names if isinstance(names, dict) else dict(enumerate(names))
    if {*numbered} != {*range(len(numbered))}:
        what = f"class names are not numbered from 0 to {len(numbered) - 1}: {few([*map(str, numbered)], 8)}"
        raise SourceError(what, file, "Number them from 0 on, without gaps")
    return [str(numbered[number]) for number in range(len(numbered))]


_READERS = {".json": _read_coco, ".xml": _read_voc, ".txt": _read_yolo}
