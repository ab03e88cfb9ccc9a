"""Folders that are no sources, or no classes: packed datasets, tables with a log, splits, pictures beside masks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from loaders.data.manifest import MANIFEST_NAME
from loaders.errors import SourceError
from packdata.sources.listed import Listing
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SPLIT_NAMES = ("train", "training", "val", "valid", "validation", "test", "testing")
_SPLIT = re.compile(rf"({'|'.join(SPLIT_NAMES)})[-_.]?v?[0-9.]*", re.IGNORECASE)  # train2017
_BESIDE_IMAGES = frozenset({"masks", "labels", "annotations"})
# Of Delta Lake, Iceberg and Hudi, by how a file in them ends: files of rows that were deleted since stay in the folder.
_LOGS = {"_delta_log": ".json", "metadata": ".metadata.json", ".hoodie": "hoodie.properties"}


def check_folder(listing: Listing) -> None:
    """Raise SourceError for a dataset that is packed already, or a table that has a log of its files."""
    if listing.find(MANIFEST_NAME) is not None:
        hint = "'packdata copy', 'split', 'merge' and 'extend' work on packed datasets"
        raise SourceError("a packed dataset cannot be a source", listing.root, hint)
    for folder in listing.folders:
        end, log = _LOGS.get(folder.rpartition("/")[2]), listing.root / folder
        if end and any(name.endswith(end) for name in Listing(log, deep=False).names()):
            what = f"the table has a log ({log}): rows that were deleted or replaced may lie in its files"
            hint = "Write the rows that it has to a Parquet file; a pattern such as '*.parquet' takes all of them"
            raise SourceError(what, log.parent, hint)


def check_name(name: str, path: Path | str) -> None:
    """Raise SourceError for a file name that is not text: keys are stored as UTF-8, and pyarrow opens nothing else."""
    try:
        name.encode()
    except UnicodeEncodeError:
        what = f"the name {name!r} is not UTF-8"
        raise SourceError(what, ascii(str(path)), "Rename the file (see 'convmv')") from None


def check_classes(
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
