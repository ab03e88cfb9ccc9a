"""Annotations in Pascal VOC's XML, a file for each picture.

Source: host.robots.ox.ac.uk/pascal/VOC, the development kit, section 4.
"""

from __future__ import annotations

from xml.etree import ElementTree

from packdata.sources.annotations import BOXES, NUMBERS, Annotations
from packdata.sources.columns import BOX_LABELS, SIDES, Column


def read_voc(found: Annotations) -> None:
    """Read all files; SourceError if one cannot be read. Classes are numbered as their names are sorted."""
    found.more["difficult"] = Column("json", field=NUMBERS)
    found.read(_add)
    found.unread -= {"name", "bndbox", "difficult"}
    found.classes = sorted({n for values in found.pictures.values() for n in values[BOX_LABELS]})


def _add(found: Annotations, picture: str, data: bytes) -> None:
    root = ElementTree.fromstring(data)
    if root.tag != "annotation":
        raise ValueError(f"the root is {root.tag!r}")
    things = root.findall(".//object")
    sides = [[t.findtext(f"bndbox/{side}") for side in SIDES] for t in things]
    names = [(thing.findtext("name") or "").strip() for thing in things]
    if any(None in box for box in sides) or "" in names:
        raise ValueError("an object has no whole bndbox, or no name")
    found.pictures[picture] = {
        BOXES: [[float(text) for text in box] for box in sides],  # type: ignore[arg-type]
        BOX_LABELS: names,
        "difficult": [int(thing.findtext("difficult") or 0) for thing in things],
    }
    height, width = (int(root.findtext(f"size/{name}") or 0) for name in ("height", "width"))
    if height and width:
        found.sizes[picture] = height, width
    found.unread.update(each.tag for thing in things for each in thing)
