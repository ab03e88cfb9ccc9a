"""Restoring damaged or missing shards of a dataset from a copy of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.data.manifest import (
    MANIFEST_NAME,
    Manifest,
    publish_bytes,
    publish_file,
    publish_manifest,
    read_manifest,
)
from loaders.errors import ManifestError, PackError, ShardError
from loaders.system.regular import read_regular
from packdata.packing.disk import explained
from packdata.packing.links import copy_shard, file_fault, size_fault
from packdata.packing.lock import LOCK_NAME, TargetLock
from packdata.packing.target import PACKING_NAME, check_unclaimed

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.data.manifest import ShardInfo


@dataclass(slots=True)
class Repair:
    """What was done."""

    restored: list[str] = field(default_factory=list)  # files that are whole again
    # File by what stands in the way: the copy is damaged too.
    failed: dict[str, str] = field(default_factory=dict)
    num_whole: int = 0  # shards that needed nothing

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as JSON types."""
        return {"restored": self.restored, "failed": self.failed, "num_whole": self.num_whole}


def repair(
    path: Path | str,
    source: Path | str,
    *,
    manifest: bool = False,
    tick: Callable[[int], object] = int,
) -> Repair:
    """Replace each shard that is missing or damaged by that of a copy, after checking that one.

    ``source`` has the same fingerprint; with ``manifest`` also its manifest is taken, where the dataset's own cannot be
    read. ``tick`` is called with the size of each shard once it is done.

    Raises:
        ManifestError: A manifest cannot be read.
        PackError: The copy is of another dataset, or the dataset cannot be written.
    """
    folder, other = Path(path), Path(source)
    wanted, copy, restored = _manifests(folder, other, may_restore=manifest)
    work = folder / PACKING_NAME
    done = Repair([MANIFEST_NAME] if restored else [])
    with explained(folder):
        work.mkdir(exist_ok=True)
        lock = TargetLock(work / LOCK_NAME)
        try:
            check_unclaimed(folder)
            for info, twin in zip(wanted.shards, copy.shards, strict=True):
                _repair_shard(folder, info, other / twin.file, work / f"{info.file}.tmp", done)
                tick(info.size_bytes)
            for name, digest in wanted.schema.files.items():
                _repair_file(folder / name, digest, other / name, done)
            if restored and not done.failed:
                publish_manifest(folder, wanted)
        finally:
            (work / LOCK_NAME).unlink(missing_ok=True)
            lock.release()
            with suppress(OSError):  # another command has left something there
                work.rmdir()
    if restored and done.failed:
        done.restored.remove(MANIFEST_NAME)
        done.failed[MANIFEST_NAME] = "it is restored once all shards are"
    return done


def _manifests(folder: Path, other: Path, *, may_restore: bool) -> tuple[Manifest, Manifest, bool]:
    """Return what should be there, what the copy has, and whether the former is the latter."""
    copy = read_manifest(other)
    if folder.is_dir() and folder.samefile(other):
        raise PackError("it is the dataset itself", other, "Give a copy of it")
    try:
        wanted = read_manifest(folder)
    except ManifestError as error:
        if may_restore and folder.is_dir():
            return copy, copy, True
        hint = "If the copy surely is of this dataset, --manifest takes its manifest too"
        raise ManifestError(error.what, error.path, hint) from error
    if wanted.fingerprint != copy.fingerprint:
        what = f"its fingerprint is {copy.fingerprint}, that of {folder} is {wanted.fingerprint}"
        raise PackError(what, other, "It is another dataset: give a copy of this one")
    return wanted, copy, False


def _repair_shard(folder: Path, info: ShardInfo, good: Path, beside: Path, done: Repair) -> None:
    path = folder / info.file
    if size_fault(path, info) is None and file_fault(path, info.xxh3_128) is None:
        done.num_whole += 1
        return
    try:
        if (what := size_fault(good, info)) is None:
            copy_shard(good, beside, info)
    except ShardError as error:
        what = error.what
    if what is not None:
        done.failed[info.file] = f"in the copy, {what}"
        return
    publish_file(beside, path)
    done.restored.append(info.file)


def _repair_file(path: Path, digest: str, good: Path, done: Repair) -> None:
    if file_fault(path, digest) is None:
        return
    if (what := file_fault(good, digest)) is not None:
        done.failed[path.name] = f"in the copy, {what}"
        return
    publish_bytes(path, read_regular(good))
    done.restored.append(path.name)
