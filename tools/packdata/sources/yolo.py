"""Annotations as YOLO's labels, a text file for each picture: boxes, or polygons; labels of poses are refused.

Source: docs.ultralytics.com, "Dataset formats".
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any

from loaders.checks import shown
from loaders.errors import SourceError
from loaders.remote.url import URL, Location, place_of
from loaders.schema import Json
from packdata.reading import LocalFile
from packdata.sources.annotations import BOXES, Annotations
from packdata.sources.columns import BOX_LABELS, Column
from packdata.sources.listed import Listing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packdata.reading import File

_POLYGON = "segmentation"
_POINTS_OF_POLYGON = 6  # numbers of the smallest one
_AS_COCO = "Convert poses to COCO's person_keypoints"


def read_yolo(found: Annotations) -> None:
    """Read all files; SourceError if one cannot be read, or has poses, or what may be poses; or if names differ."""
    beside = _files_beside(place_of(found.place))
    folders = groupby(beside, lambda file: file.path.parent)
    names = ({*map(_names_in_yaml, files)} - {()} for _, files in folders)
    yaml_names = next(filter(None, names), set())  # of the nearest folder
    if len(yaml_names) > 1:
        what = f"YAML files in one folder name different classes, one {shown(min(yaml_names))}"
        raise SourceError(what, found.place, "Move away those of other data sets")
    found.classes = next(iter(yaml_names), ()) or _names_in_text(beside)
    found.read(_add)
    shapes = [each for values in found.pictures.values() for each in values[_POLYGON] if each]
    if shapes and not yaml_names:
        what = "polygons or poses, which look alike, and there is no data.yaml that says which"
        hint = f"Add it: names: of classes, kpt_shape: of poses. {_AS_COCO}"
        raise SourceError(what, found.place, hint)
    if shapes:
        found.more[_POLYGON] = Column("json", field=Json())


def _add(found: Annotations, picture: str, data: bytes) -> None:
    values: dict[str, list[Any]] = {BOXES: [], BOX_LABELS: [], _POLYGON: []}
    found.pictures[picture] = values
    lines = enumerate(map(str.split, data.decode().splitlines()), start=1)
    for line, words in (each for each in lines if each[1]):
        numbers = [float(word) for word in words[1:]]
        is_polygon = len(numbers) >= _POINTS_OF_POLYGON and len(numbers) % 2 == 0
        if not words[0].isdecimal() or (len(numbers) != 4 and not is_polygon):
            raise ValueError(f"line {line} is not 'class x y width height', nor a polygon")
        values[BOX_LABELS].append(int(words[0]))
        values[BOXES].append(_bounds(numbers) if is_polygon else numbers)
        values[_POLYGON].append(numbers if is_polygon else None)


def _bounds(polygon: Sequence[float]) -> list[float]:
    left, right = min(polygon[::2]), max(polygon[::2])
    top, bottom = min(polygon[1::2]), max(polygon[1::2])
    return [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]


# -- the names of classes -----------------------------------------------------------------------------


def _files_beside(folder: Location) -> list[File]:
    """Return the files in the folder of labels and up to two above."""
    if isinstance(folder, URL):
        above = dict.fromkeys((folder, folder.parent, folder.parent.parent))
        listed = (Listing(each, deep=False) for each in above)
        return [file for each in listed for file in each.files(each.names())]
    # What else lies above, such as a link that leads nowhere, is not looked at.
    folders = (folder, *folder.resolve().parents[:2])
    paths = [p for each in folders for p in sorted(each.glob("[!.]*")) if p.is_file()]
    return [LocalFile(str(path), str(path)) for path in paths]


def _names_in_text(files: Sequence[File]) -> list[str]:
    """Return the names of classes in ``classes.txt``, one a line; none where there is no such file."""
    for file in files:
        if file.path.name in ("classes.txt", "obj.names"):
            lines = file().decode("utf-8-sig", errors="replace").splitlines()
            return [line.strip() for line in lines if line.strip()]
    return []


def _names_in_yaml(given: File) -> tuple[str, ...]:
    """Return the names of classes in YOLO's YAML, none of another file; SourceError if they are not numbered from 0."""
    file = given.path
    if not file.name.endswith((".yaml", ".yml")):
        return ()
    text = given().decode("utf-8-sig", errors="replace")
    if not re.search(r"^(names|kpt_shape):", text, re.MULTILINE):  # the YAML of some other tool
        return ()
    try:
        import yaml
    except ImportError as error:
        hint = "'pip install pyyaml', or write the names to classes.txt, one a line, and move this file away"
        raise SourceError("class names in YAML need PyYAML", file, hint) from error
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also of dates and numbers
        reason = " ".join(str(error).split())
        raise SourceError(f"cannot be read as YAML ({reason})", file, "Mend the file") from error
    if "kpt_shape" in data:
        what = "labels of poses (kpt_shape), which would be read as polygons"
        raise SourceError(what, file, _AS_COCO)
    names = data.get("names") or []
    numbered = dict(enumerate(names)) if isinstance(names, list) else names
    if not isinstance(numbered, dict) or {*numbered} != {*range(len(numbered))}:
        what = f"class names are {shown(names)}: no list, nor numbered from 0 without gaps"
        raise SourceError(what, file, "Write them as names: [cat, dog]")
    return tuple(str(numbered[number]) for number in range(len(numbered)))
