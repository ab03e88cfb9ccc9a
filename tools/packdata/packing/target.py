"""The folder that is packed into: what is ours in it, and what is there already."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import xxhash

from loaders.errors import PackError
from loaders.system.publish import sync_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

PACKING_NAME = ".packing"
STAGED_NAME = "shards"  # inside of PACKING_NAME
PARTS_NAME = ".parts"
REJECTED_NAME = "rejected.jsonl"
JOURNAL_NAME = "journal.jsonl"
_NEVER_OURS = frozenset({PACKING_NAME, PARTS_NAME, "lost+found"})
# Of a shard that was brought to its place before a manifest names it: it holds its hash.
STORED_SHARD = re.compile(r"shard-[0-9-]+-[0-9a-f]{32}\.\w+")


def is_unfinished(dst: Path | str) -> bool:
    """Tell whether a packing into ``dst`` has begun and can be continued."""
    return os.path.exists(os.path.join(dst, PACKING_NAME, JOURNAL_NAME))


def missing_folders(folder: Path) -> list[Path]:
    """Return the folders that would have to be made for one, innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def make_folder(folder: Path) -> None:
    """Make a folder durably."""
    missing = missing_folders(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        with suppress(PermissionError):  # a folder may be writable below one that cannot be read
            sync_folder(path.parent)


def check_empty(dst: Path, folders: Collection[str]) -> None:
    """Raise PackError for files of others where datasets are to be made below a destination."""
    if dst.exists() and not dst.is_dir():
        raise PackError("it is a file", dst, "Choose a folder that is new or empty")
    # Without one of these they may be all that is left of a dataset whose manifest was lost.
    is_begun = any((dst / name).exists() for name in (PACKING_NAME, PARTS_NAME))
    for folder in folders:
        inner = {f.removeprefix(f"{folder}/").split("/")[0] for f in folders if f != folder}
        for name in sorted(os.listdir(dst / folder)) if (dst / folder).is_dir() else ():
            is_ours = name in _NEVER_OURS or name in inner
            if not is_ours and not (is_begun and STORED_SHARD.fullmatch(name)):
                hint = "Choose a folder that is new or empty; nothing here was touched"
                raise PackError(f"it is not empty (it holds {name!r})", dst / folder, hint)


def size_of(path: Path) -> int | None:
    """Return the bytes of a file; None if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def digest_of(plan: Mapping[str, str]) -> str:
    """Return the hash by which a dataset knows the plan that made it."""
    return xxhash.xxh3_128_hexdigest(json.dumps(plan, sort_keys=True).encode())
