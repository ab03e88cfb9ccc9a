"""Annotations beside a folder of pictures: COCO JSON, Pascal VOC XML, YOLO labels; each read as what it is.

Boxes become the field ``boxes``, the numbers of their classes ``box_labels``. A picture without annotations has
no boxes. Sources of the forms: cocodataset.org, "Data format"; host.robots.ox.ac.uk/pascal/VOC, the development
kit, section 4; docs.ultralytics.com, "Dataset formats".
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from loaders.errors import SourceError
from loaders.schema import Array, Boxes, Json, Keypoints
from packdata.readers import parse_json
from packdata.sources.base import (
    BOX_LABELS,
    Column,
    FileHash,
    Source,
    file_at,
    read_file,
    suffix_of,
)
from packdata.sources.composed import ExtendedSource
from packdata.sources.folders import files_below, scan
from packdata.sources.layouts import SPLIT_NAMES
from packdata.sources.listed import (
    list_sources,
    place_of_source,
    with_beside,
)
from packdata.sources.objects import fetched_ahead
from packdata.sources.refused import nothing_at
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from packdata.sources.base import Item

BOXES = "boxes"
_NUMBERS = (None,)
_NO_LABELS = frozenset(
    {"classes.txt", "obj.names", "train.txt", "val.txt", "test.txt", "readme.txt"}
)
_WORD = re.compile(r"left|right|[a-z]+|[0-9]+")  # of names such as left_eye, L_Eye, lefteye
_OTHER_SIDE = {"left": "right", "l": "r"}
_POINTS_OF_POLYGON = 6  # numbers of the smallest one
_STILL = "crops and flips do not change: {} of boxes"
Values = dict[str, Any]  # of a picture, by field
Size = tuple[int, int]  # height, width


@dataclass(slots=True)
class Annotations:
    """What is known of pictures, by what they are called."""

    kind: str  # ``COCO``, ``VOC`` or ``YOLO``
    form: str  # how its boxes are written
    classes: tuple[str, ...]  # names of the numbers in ``box_labels``
    more: dict[str, Column]  # what else there is of each box
    # By a picture's path, as far as the annotations have it: with suffix in COCO's, else without. An error is raised
    # for the picture.
    by_name: dict[str, Values | SourceError]
    # Height and width of pictures, by the same names, where the annotations have them.
    sizes: dict[str, Size] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: str = ""  # they are read from, relative; with what they hash to

    @property
    def columns(self) -> dict[str, Column]:
        """What a picture has."""
        numbers = Array(dtype="int64", dims=_NUMBERS, classes=self.classes or None)
        return {
            BOXES: Column("json", form=self.form, field=Boxes()),
            BOX_LABELS: Column("json", field=numbers),
            **self.more,
        }

    def renumber(self, classes: Sequence[str]) -> None:
        """Number the classes as ``classes`` has them, and name those without names; SourceError if that fails."""
        places = {name: i for i, name in enumerate(classes)}
        if missing := [name for name in self.classes if name not in places]:
            raise SourceError(f"classes of boxes that are not given: {few(missing)}", self.kind)
        new = [places[name] for name in self.classes] or [*range(len(classes))]
        for values in _good(self.by_name):
            if (most := max(values[BOX_LABELS], default=0)) >= len(new):
                what = f"class {most} of a box, with {len(new)} classes given"
                raise SourceError(what, self.kind)
            values[BOX_LABELS] = [new[number] for number in values[BOX_LABELS]]
        self.classes = tuple(classes)

    def name_of(self, item: Item) -> str | None:
        """Return what a picture is called here, None if it is not: of names that fit its path, the longest counts."""
        path = PurePath(item.key if item.file is None else item.file.path)
        parts = (path if self.kind == "COCO" else path.with_suffix("")).parts
        names = ("/".join(parts[i:]) for i in range(len(parts)))
        return next((name for name in names if name in self.by_name), None)


def _good(by_name: Mapping[str, Values | SourceError]) -> list[Values]:
    return [values for values in by_name.values() if isinstance(values, dict)]


def annotated(source: Source, found: Annotations) -> Source:
    """Return a source with the annotations of its pictures; folders are no classes then.

    Raises:
        SourceError: None of its pictures has any, or it has a column of the same name.
    """
    labels = {} if source.kind == "classes" else dict(source.labels)
    if twice := labels.keys() & found.columns.keys():
        raise SourceError(f"duplicate column {min(twice)!r}", source.name, "Rename it")
    names = Counter(map(found.name_of, source.items()))
    without = names.pop(None, 0)
    if not names:
        what = f"none of its pictures is called as in the annotations ({found.kind})"
        raise SourceError(what, source.name, "Is it another folder, or another split?")
    for name, num in names.most_common(1):
        if num > 1:
            what = f"{name} of the annotations would be {num} pictures of {source.name}"
            raise SourceError(what, source.name, "Give annotations folders as the pictures have")
    empty: Values = {name: [] for name in found.columns}

    def extend(item: Item) -> Item:
        name = found.name_of(item)
        values = empty if name is None else found.by_name[name]
        if isinstance(values, SourceError):
            raise values
        return replace(
            item, labels={**item.labels, **values}, drawn_on=found.sizes.get(name or "")
        )

    unused = len(found.by_name) - len(names)
    notes = (
        *source.notes,
        *found.notes,
        *[f"without annotations, so without boxes: {without:,}"] * (without > 0),
        *[f"annotations of pictures that are not there: {unused:,}"] * (unused > 0),
    )
    identity = {"annotations": found.files, "classes": list(found.classes)}
    return ExtendedSource(source, labels | found.columns, identity, extend, notes)


def open_annotations(path: Path | str, split: str = "") -> Annotations:
    """Read the annotations from a file or folder: of COCO's files, the one that is of a split, or a folder so called.

    Raises:
        SourceError: There are none, or of several kinds, or they cannot be read.
    """
    list_sources([path])
    path = place_of_source(path)
    files = _files(path)
    kinds = {suffix for file in files if (suffix := suffix_of(file.name)) in _READERS}
    if ".txt" in kinds and len(kinds) > 1:
        kinds.discard(".txt")  # notes, beside JSON or XML
    if len(kinds) != 1:
        what = f"annotations of several kinds ({', '.join(sorted(kinds))})"
        hint = "COCO has .json files, VOC .xml files, YOLO folders of .txt files"
        raise SourceError(what if kinds else "no annotations", path, hint)
    (kind,) = kinds
    chosen = [file for file in files if suffix_of(file.name) == kind]
    if kind == ".json":
        chosen = [_coco_file(path, chosen, split)]
    try:
        found = _READERS[kind](path, chosen)
    except (KeyError, TypeError, AttributeError) as error:
        what = f"not COCO's, VOC's or YOLO's annotations ({type(error).__name__}: {error})"
        raise SourceError(what, path) from error
    hashed = FileHash()
    for file in chosen:
        hashed.add(_inside(path, file), file.stat())
    found.files = hashed.hexdigest()
    return found


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise nothing_at(path)
    return sorted(
        path / relative / entry.name
        for relative, entries in files_below(path)
        for entry in entries or ()
        if not (entry.name.startswith(".") or entry.name.lower() in _NO_LABELS)
    )


def _inside(path: Path, file: Path) -> str:
    """Return what a file is called below a path, or alone."""
    return file.name if file == path else str(PurePath(str(file)).relative_to(str(path)))


def _parsed(
    path: Path, files: Sequence[Path], parse: Callable[[bytes], Values]
) -> dict[str, Values | SourceError]:
    """Return what is read from the file of each picture, by its path; those of a store are fetched ahead."""
    by_name: dict[str, Values | SourceError] = {}
    with closing(fetched_ahead(map(file_at, files))) as ahead:
        for file, read in zip(files, ahead, strict=True):
            # YOLO's labels lie in another folder, beside that of the pictures.
            parts = PurePath(_inside(path, file)).with_suffix("").parts
            name = "/".join("images" if part == "labels" else part for part in parts)
            try:
                by_name[name] = parse(read())
            except (ElementTree.ParseError, ValueError, AttributeError, TypeError) as error:
                by_name[name] = SourceError(f"annotation {file} cannot be read ({error})", file)
    return by_name


# -- COCO ---------------------------------------------------------------------------------------------


def _coco_file(path: Path, files: Sequence[Path], split: str) -> Path:
    """Return the file that is of a split by its name or folder: of several, that of ``instances``."""
    words = re.findall("[a-z]+", split.lower())
    for kind in [word[:3] for word in words if word in SPLIT_NAMES][:1]:
        names = "|".join(name for name in SPLIT_NAMES if name.startswith(kind))
        named = re.compile(rf"(?<![a-z])({names})(?![a-z])")
        of = {file: f"{file.parent.name} {file.stem}".lower() for file in files}
        files = [file for file in files if named.search(of[file])] or files
    files = [file for file in files if file.name.startswith("instances")] or files
    if len(files) > 1:
        what = f"several COCO files ({few([file.name for file in files])})"
        raise SourceError(what, path, "Give the one of these pictures")
    return files[0]


def _read_coco(path: Path, files: Sequence[Path]) -> Annotations:
    (file,) = files
    data = _json_of(file)
    images: dict[Any, Values] = {}
    by_name: dict[str, Values | SourceError] = {}
    sizes: dict[str, Size] = {}
    for image in data["images"]:
        # LVIS has the address in the place of the name.
        name = str(image.get("file_name") or PurePath(str(image["coco_url"])).name)
        if name in by_name or image["id"] in images:
            raise SourceError(f"duplicate image {name} or id {image['id']}", file)
        images[image["id"]] = by_name[name] = {}
        if image.get("height") and image.get("width"):
            sizes[name] = int(image["height"]), int(image["width"])
    categories = {each["id"]: each for each in data.get("categories", ())}
    numbers = {id: i for i, id in enumerate(sorted(categories))}
    boxes = [each for each in data["annotations"] if each.get("bbox")]
    if not boxes:
        raise SourceError("no boxes (bbox) in the annotations", file)
    columns = _coco_columns(boxes, categories.values(), file)
    for values in images.values():
        values |= {name: [] for name in (BOXES, BOX_LABELS, *columns)}
    for each in boxes:
        if each.get("image_id") not in images or each.get("category_id") not in numbers:
            what = f"annotation {each.get('id')} is of an image or a category that is not listed"
            raise SourceError(what, file)
        values = images[each["image_id"]]
        values[BOXES].append(each["bbox"])
        values[BOX_LABELS].append(numbers[each["category_id"]])
        for name in columns:
            values[name].append(each.get(name, _COCO_MISSING[name]))
    _fill_keypoints(images.values(), columns)
    names = tuple(str(categories[id].get("name", id)) for id in numbers)
    if twice := [name for name, num in Counter(names).items() if num > 1]:
        raise SourceError(f"duplicate category {twice[0]!r}", file, "Rename them")
    still = [name for name in ("segmentation", "area") if name in columns]
    without = len(data["annotations"]) - len(boxes)
    notes = (
        *[_STILL.format(" and ".join(still))] * bool(still),
        *[f"annotations without a box, skipped: {without:,}"] * bool(without),
    )
    return Annotations("COCO", "xywh", names, columns, by_name, sizes, notes)


_COCO_MISSING = dict[str, Any](iscrowd=0, area=0.0, segmentation=None, keypoints=None)


def _coco_columns(
    boxes: Iterable[Mapping[str, Any]], categories: Iterable[Mapping[str, Any]], file: Path
) -> dict[str, Column]:
    there = {name for each in boxes for name in _COCO_MISSING if name in each}
    points = [[*map(str, each["keypoints"])] for each in categories if each.get("keypoints")]
    names = points[0] if points else []
    num = len(names) if points and all(len(each) == len(names) for each in points) else None
    if len({_mirrored(each) for each in points}) > 1:
        what = "categories have keypoints whose left and right ones are not at the same places"
        raise SourceError(what, file, "Pack each category by itself")
    known = {
        "iscrowd": Column("json", field=Array(dtype="int64", dims=_NUMBERS)),
        "area": Column("json", field=Array(dtype="float32", dims=_NUMBERS)),
        "segmentation": Column("json", field=Json()),
        "keypoints": Column("json", form="keypoints", field=Keypoints(num, _mirrored(names))),
    }
    return {name: column for name, column in known.items() if name in there}


def _mirrored(names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return the points whose names differ in left and right alone.

    Example:
        >>> _mirrored(["nose", "L_Eye", "R_Eye"]), _mirrored(["left ankle", "right ankle", "lip"])
        (((1, 2),), ((0, 1),))
    """
    words = [_WORD.findall(name.lower()) for name in names]
    places = {tuple(each): i for i, each in enumerate(words)}
    mirrored = (tuple(_OTHER_SIDE.get(word, word) for word in each) for each in words)
    pairs = ((i, places.get(other, i)) for i, other in enumerate(mirrored))
    return tuple(pair for pair in pairs if pair[0] != pair[1] and _is_left(words[pair[0]]))


def _is_left(words: Sequence[str]) -> bool:
    return "left" in words or "l" in words


def _fill_keypoints(images: Iterable[Values], columns: Mapping[str, Column]) -> None:
    """Give objects without keypoints the same number of unlabelled ones."""
    if "keypoints" not in columns:
        return
    lengths = Counter(len(each) for v in images for each in v["keypoints"] if each is not None)
    nothing = [0] * (lengths.most_common(1)[0][0] if lengths else 3)
    for values in images:
        values["keypoints"] = [nothing if each is None else each for each in values["keypoints"]]


def _json_of(file: Path) -> Any:
    try:
        data = parse_json(read_file(file, str(file)))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"not JSON ({error})", file) from error
    if not isinstance(data, dict) or not {"images", "annotations"} <= data.keys():
        raise SourceError("not a COCO file: no 'images' or 'annotations'", file)
    return data


# -- VOC ----------------------------------------------------------------------------------------------


def _read_voc(path: Path, files: Sequence[Path]) -> Annotations:
    by_name = _parsed(path, files, _voc_values)
    good = _good(by_name)
    sizes = {n: v.pop("size") for n, v in by_name.items() if isinstance(v, dict)}
    names = tuple(sorted({name for values in good for name in values[BOX_LABELS]}))
    numbers = {name: i for i, name in enumerate(names)}
    for values in good:
        values[BOX_LABELS] = [numbers[name] for name in values[BOX_LABELS]]
    flags = {"difficult": Column("json", field=Array(dtype="int64", dims=_NUMBERS))}
    return Annotations("VOC", "xyxy", names, flags, by_name, sizes)


def _voc_values(data: bytes) -> Values:
    root = ElementTree.fromstring(data)
    if root.tag != "annotation":
        raise ValueError(f"the root is {root.tag!r}")
    height, width = (int(root.findtext(f"size/{name}") or 0) for name in ("height", "width"))
    size = (height, width) if height and width else None
    values: Values = {BOXES: [], BOX_LABELS: [], "difficult": [], "size": size}
    for thing in root.iter("object"):
        texts = [thing.findtext(f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
        if None in texts:
            raise ValueError("an object has no whole bndbox")
        values[BOXES].append([float(text) for text in texts])  # type: ignore[arg-type]
        values[BOX_LABELS].append((thing.findtext("name") or "").strip())
        values["difficult"].append(int(thing.findtext("difficult") or 0))
    return values


# -- YOLO ---------------------------------------------------------------------------------------------


def _read_yolo(path: Path, files: Sequence[Path]) -> Annotations:
    by_name = _parsed(path, files, _yolo_values)
    good = _good(by_name)
    has_polygons = any(any(values["segmentation"]) for values in good)
    for values in good if not has_polygons else ():
        del values["segmentation"]
    names = _yolo_names(path)
    most = max((number for values in good for number in values[BOX_LABELS]), default=-1)
    if names and most >= len(names):
        raise SourceError(f"class {most} is not among the {len(names)} names of its classes", path)
    more = {"segmentation": Column("json", field=Json())} if has_polygons else {}
    notes = (_STILL.format("segmentation"),) * has_polygons
    return Annotations("YOLO", "yolo", names, more, by_name, notes=notes)


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


def _yolo_names(path: Path) -> tuple[str, ...]:
    """Read the names of classes from ``data.yaml`` or ``classes.txt``, in the folder or up to two above."""
    folders = (path, *map(with_beside, path.resolve().parents[:2]))
    files = [f / entry.name for f in folders if f.is_dir() for entry in scan(f)[0]]
    for file in files:
        if file.suffix in (".yaml", ".yml") and (names := _yaml_names(file)):
            return names
    for file in files:
        if file.name in ("classes.txt", "obj.names"):
            lines = read_file(file, str(file)).decode(errors="replace").splitlines()
            return tuple(line.strip() for line in lines if line.strip())
    return ()


def _yaml_names(file: Path) -> tuple[str, ...]:
    """Return the names of classes in YOLO's YAML, () if there are none; SourceError if they are not numbered from 0."""
    text = read_file(file, str(file)).decode(errors="replace")
    if not re.search(r"^(names|kpt_shape):", text, re.MULTILINE):  # the YAML of some other tool
        return ()
    try:
        import yaml
    except ImportError as error:
        hint = "'pip install pyyaml', or write the names to classes.txt, one a line, and move this file away"
        raise SourceError("class names in YAML need PyYAML", file, hint) from error
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return ()
    if "kpt_shape" in data:
        what = "labels of poses (kpt_shape), which would be read as polygons"
        raise SourceError(what, file, "Convert them to COCO's person_keypoints")
    names = data.get("names") or ()
    numbered = names if isinstance(names, dict) else dict(enumerate(names))
    if {*numbered} != {*range(len(numbered))}:
        what = f"class names are not numbered from 0 to {len(numbered) - 1}: {few([*map(str, numbered)], 8)}"
        raise SourceError(what, file, "Number them from 0 on, without gaps")
    return tuple(str(numbered[number]) for number in range(len(numbered)))


_READERS = {".json": _read_coco, ".xml": _read_voc, ".txt": _read_yolo}
