"""Folders that are no classes: splits, pictures beside their masks, one folder around all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from loaders.errors import SourceError
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SPLIT_NAMES = ("train", "training", "val", "valid", "validation", "test", "testing")
_SPLIT = re.compile(rf"({'|'.join(SPLIT_NAMES)})[-_.]?v?[0-9.]*", re.IGNORECASE)  # train2017
_BESIDE_IMAGES = frozenset({"masks", "labels", "annotations"})


def check_layout(
    root: Path, folders: Sequence[str], others: Sequence[str], *, is_all: bool
) -> None:
    """Raise SourceError if folders that would be classes are something else.

    Args:
        root: The source.
        folders: Those directly in it that hold files of the source's kind, also further below.
        others: Those that hold none.
        is_all: True if no split may have more classes.
    """
    names = {name.lower(): name for name in (*folders, *others)}
    splits = [name for name in folders if _SPLIT.fullmatch(name)]
    beside = sorted(names[name] for name in _BESIDE_IMAGES & names.keys())
    if splits:
        what, hint = f"splits ({few(splits)}) are not classes", "Pack each split by itself"
    elif "images" in names and beside:
        what = f"{few([names['images'], *beside])} are not classes"
        hint = f"Pack {root / names['images']}, with masks= or annotations="
    elif is_all and len(folders) == 1:
        what, hint = f"{folders[0]} would be the only class", f"Pack {root / folders[0]}"
    else:
        return
    raise SourceError(what, root, f"{hint}; if these are classes, name them with classes=")
