"""What a command leaves in a dataset's folder if it is killed while it publishes, and its removal.

Before a command renames its first file into the folder, it writes down which files will come and
which will go (``record_changes``). The manifest, replaced in one step, then tells which of them
are left over: the old ones if it lists the new ones, else the new ones. Only a file with the
recorded size and time is taken for one that came.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from loaders.errors import ManifestError
from loaders.manifest import MANIFEST_NAME, publish_bytes, read_manifest
from loaders.regular import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

RECORD_NAME = "publishing.json"


def record_changes(work: Path, command: str, new: Mapping[str, Path], old: Iterable[str]) -> None:
    """Write down what is about to happen in a dataset's folder.

    Args:
        work: Where the record lies.
        command: What tells the command from others.
        new: Staged file by the name that it will get; no file there has the name.
        old: Names of files that are deleted once the new manifest is there.
    """
    marks = {name: _mark(path) for name, path in new.items()}
    record = {"command": command, "new": marks, "old": sorted(old)}
    publish_bytes(work / RECORD_NAME, json.dumps(record).encode())


def leftovers(folder: Path, work: Path) -> frozenset[str]:
    """Return the names of files in a folder that a command should have removed, or has to undo.

    Args:
        folder: The dataset's folder.
        work: Where the record lies, if there is one.
    """
    record = _read_record(work)
    listed = _listed(folder)
    if record is None or listed is None:
        return frozenset()
    if listed & record.new.keys():
        left = (name for name in record.old if name not in listed and (folder / name).exists())
        return frozenset(left)
    return frozenset(name for name, mark in record.new.items() if _mark(folder / name) == mark)


def published_by(folder: Path, work: Path) -> str | None:
    """Return the command that is on record if the dataset in the folder is what it made."""
    record = _read_record(work)
    listed = _listed(folder)
    return record.command if record and listed and listed & record.new.keys() else None


def remove_leftovers(folder: Path, work: Path) -> None:
    """Delete what a command left; call it with the lock on the folder in hand."""
    for name in leftovers(folder, work):
        (folder / name).unlink(missing_ok=True)
    (work / RECORD_NAME).unlink(missing_ok=True)


class _Record(NamedTuple):
    command: str
    new: Mapping[str, Any]
    old: list[str]


def _read_record(work: Path) -> _Record | None:
    """Return what was written down, as far as it can be followed."""
    try:
        record = json.loads(read_regular(work / RECORD_NAME))
        new = {name: mark for name, mark in record["new"].items() if _is_plain(name)}
        old = [name for name in record["old"] if _is_plain(name)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return _Record(str(record.get("command")), new, old)


def _listed(folder: Path) -> set[str] | None:
    """Return the files of the dataset that is there; None if they are not known."""
    if not (folder / MANIFEST_NAME).exists():
        return set()
    try:
        manifest = read_manifest(folder)
    except ManifestError:
        return None
    return {*(shard.file for shard in manifest.shards), *manifest.schema.files}


def _is_plain(name: str) -> bool:
    return os.path.basename(name) == name


def _mark(path: Path) -> list[int] | None:
    """Return what stays of a file where it is renamed, and differs in another."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns]
