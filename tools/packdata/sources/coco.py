"""Annotations in COCO's JSON, one file for all pictures.

Source: cocodataset.org, "Data format".
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from loaders.schema import Array, Json, Keypoints
from packdata.describe import counted, few
from packdata.parsing import parse_json
from packdata.sources.annotations import BOXES, NUMBERS, Annotations
from packdata.sources.columns import BOX_LABELS, Column

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_KEYPOINTS = "keypoints"
_MORE = {
    "iscrowd": Column("json", field=NUMBERS),
    "area": Column("json", field=Array(dtype="float32", dims=(None,))),
    "segmentation": Column("json", field=Json()),
}
_NOTHING = {"iscrowd": 0, "area": 0.0}  # defaults of a box; other keys default to None
_READ = {*_MORE, "id", "image_id", "category_id", "bbox", _KEYPOINTS, "num_keypoints"}
# Of names such as left_eye, L_Eye, lefteye, eyeLeft, LEye.
_WORD = re.compile(
    r"(?i:left|right)|[A-Z]?[a-z]+?(?=[Ll]eft|[Rr]ight|[^a-z]|$)|[A-Z]+(?![a-z])|[0-9]+"
)
_OTHER_SIDE = {"left": "right", "l": "r"}


def read_coco(found: Annotations) -> None:
    """Read the file whose path has the name of the split; of several, that of ``instances``.

    Raises:
        SourceError: There is still more than one, or the file cannot be read.
    """
    called = re.compile(rf"(?<![a-z]){re.escape(found.split.lower())}(?![a-z])")
    files, paths = found.files, [path for path in found.files if called.search(path.lower())]
    names = {path: PurePath(path).name for path in paths or files}
    chosen = [path for path in names if names[path].startswith("instances")] or [*names]
    if len(chosen) > 1:
        what = f"several COCO files ({few(names[path] for path in chosen)})"
        raise SourceError(what, found.place, "Give the one of these pictures")
    found.files = {chosen[0]: files[chosen[0]]}
    found.read(_add)
    del names[chosen[0]]
    if names:
        found.notes.append(f"files of annotations that are not read: {few(names.values())}")


def _add(found: Annotations, _: str, data: bytes) -> None:
    content = parse_json(data)
    if not (boxes := [each for each in content["annotations"] if each.get("bbox")]):
        raise ValueError("no annotation has a box: bbox")
    if without := len(content["annotations"]) - len(boxes):
        found.notes.append(f"annotations without a box, skipped: {without:,}")
    categories = {each["id"]: each for each in content.get("categories", ())}
    if len(categories) < len(content.get("categories", ())):
        raise ValueError("two categories have the same id")
    numbers = {id: number for number, id in enumerate(sorted(categories))}
    found.classes = [str(categories[id].get("name", id)) for id in numbers]
    by_image: dict[Any, list[dict[str, Any]]] = {image["id"]: [] for image in content["images"]}
    for each in boxes:
        if each.get("image_id") not in by_image or each.get("category_id") not in numbers:
            what = f"annotation {each.get('id')} is of an image or a category that is not listed"
            raise ValueError(what)
        by_image[each["image_id"]].append(each)
    members = set[str]().union(*boxes)
    found.unread = members - _READ
    found.more = {name: column for name, column in _MORE.items() if name in members}
    if _KEYPOINTS in members:
        points = _fill_keypoints(boxes, categories.values())
        found.more[_KEYPOINTS] = Column("json", form=_KEYPOINTS, field=points)
        num = len(points.flip_pairs)
        pairs = counted(num, "pair") if num else "none"
        found.notes.append(
            f"keypoints called left_eye, right_eye and so on: a flip exchanges {pairs}"
        )
    for image in content["images"]:
        # LVIS has the address in the place of the name.
        name = str(image.get("file_name") or PurePath(str(image["coco_url"])).name)
        if name in found.pictures or image["id"] not in by_image:
            raise ValueError(f"duplicate image {name} or id {image['id']}")
        own = by_image.pop(image["id"])
        found.pictures[name] = {
            BOXES: [each["bbox"] for each in own],
            BOX_LABELS: [numbers[each["category_id"]] for each in own],
            **{n: [each.get(n, _NOTHING.get(n)) for each in own] for n in found.more},
        }
        if image.get("height") and image.get("width"):
            found.sizes[name] = int(image["height"]), int(image["width"])


def _fill_keypoints(
    boxes: Iterable[dict[str, Any]], categories: Iterable[Mapping[str, Any]]
) -> Keypoints:
    """Return the field of keypoints; boxes without any get the same number of unlabelled ones."""
    names = {tuple(map(str, each[_KEYPOINTS])) for each in categories if each.get(_KEYPOINTS)}
    if len(names) > 1:
        raise ValueError("keypoints differ by category: pack each category by itself")
    points = names.pop() if names else ()
    given = (each[_KEYPOINTS] for each in boxes if each.get(_KEYPOINTS))
    num = len(points) or len(next(given, ())) // 3 or 1
    for each in boxes:
        each[_KEYPOINTS] = each.get(_KEYPOINTS) or [0] * 3 * num
        if len(each[_KEYPOINTS]) != 3 * num:
            what = f"{len(each[_KEYPOINTS])} numbers of keypoints: x, y and v of {num}"
            raise ValueError(f"{what} are {3 * num}")
    return Keypoints(num, _mirrored(points))


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
