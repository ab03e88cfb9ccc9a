"""Datasets put together without reading records: shards are linked or copied, and listed anew."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.errors import PackError, SchemaError, ShardError
from loaders.formats import hash_file
from loaders.manifest import read_manifest
from packdata.compare import key_hashes, schema_differences
from packdata.describe import counted
from packdata.journal import JOURNAL_NAME, read_journal
from packdata.plan import check_outside
from packdata.provenance import origin
from packdata.reader import PackedReader
from packdata.rewrite import (
    Staging,
    cannot_write,
    check_target,
    command_text,
    finished_before,
)
from packdata.target import PACKING_NAME, find_datasets
from packdata.verify import size_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loaders.manifest import Manifest, ShardInfo
    from packdata.rewrite import Note

    OnLink = Callable[[Path], object]

_ENCODE = "'packdata copy --codec' encodes the pictures of one as those of the other"
_REMEDIES = {  # by the option of a field that differs
    **dict.fromkeys(("codec", "quality", "subsampling", "compression"), _ENCODE),
    "size": "packing with the same --size and --fit gives pictures the same size",
}
_REMEDY = (
    "'packdata copy --fields' chooses fields; packing with --classes fixes classes, with --like the "
    "columns of a table"
)


def merge(
    dst: Path | str,
    sources: Sequence[Path | str],
    *,
    link: bool = True,
    overwrite: bool = False,
    on_link: OnLink = str,
    note: Note = str,
) -> Manifest:
    """Make one dataset of several with the same fields and classes; the sources stay as they are.

    Args:
        dst: Folder of the new dataset.
        sources: Folders of the datasets, in the order in which their samples follow.
        link: Use hard links where the file system has them: no byte is copied. Shards are never
            changed once published, so sharing them is safe; but what damages one damages the
            other, and what is linked is not read. Copies are verified.
        overwrite: Replace a dataset at ``dst`` that ``merge`` has made.
        on_link: Called with each shard that was linked.
        note: Called with what is no error and deserves a look: it was killed before, and is finished.

    Raises:
        SchemaError: The sources differ in fields or classes, or share a key.
        PackError: The target is taken or cannot be written, is a source, lies inside of one or holds one.
    """
    check_outside(dst, sources)
    readers = [PackedReader(path) for path in sources]
    command = command_text("merge", dst, readers)
    finished = finished_before(dst, command, note)
    if finished is not None:
        return finished
    _check_merged_before(Path(dst))
    check_target(Path(dst), overwrite=overwrite)
    _check_alike(readers)
    with Staging(dst, command, overwrite=overwrite) as staging:
        staged = _stage(staging, readers, link=link, on_link=on_link)
        made_from = [origin(reader.path, reader.manifest) for reader in readers]
        provenance = {"command": "merge", "sources": made_from}
        manifest = staging.prepare(staged, readers[0].schema, provenance, readers[0].path)
        staging.publish()
        return manifest


def extend(
    dst: Path | str,
    sources: Sequence[Path | str],
    *,
    link: bool = True,
    on_link: OnLink = str,
    note: Note = str,
) -> Manifest:
    """Add the samples of other datasets to one; readers see the old one or the new one whole.

    Args:
        dst: Folder of the dataset that grows.
        sources: Folders of the datasets to add; they stay as they are.
        link: As for ``merge``.
        on_link: As for ``merge``.
        note: As for ``merge``.

    Raises:
        SchemaError: They differ in fields or classes, or share a key.
        PackError: The target is a source, lies inside of one or holds one, or cannot be written.
    """
    check_outside(dst, sources)
    read_manifest(dst)  # says what is there instead, before anything is touched
    added = [PackedReader(path) for path in sources]
    command = command_text("append", dst, added)  # as records of killed commands have it
    finished = finished_before(dst, command, note)
    if finished is not None:
        return finished
    with Staging(dst, command, extend=True) as staging:
        grown = PackedReader(dst)
        _check_alike([grown, *added])
        staged = _stage(staging, added, link=link, on_link=on_link)
        before = dict(grown.manifest.provenance)
        made_from = [origin(reader.path, reader.manifest) for reader in added]
        provenance: dict[str, Any] = before | {
            "appended": [*before.get("appended", ()), *made_from]
        }
        manifest = staging.prepare(staged, grown.schema, provenance, grown.path)
        staging.publish()
        return manifest


def _check_merged_before(folder: Path) -> None:
    """Raise PackError for a target that ``merge`` did not make: it may be meant as one more source."""
    hint = "The target comes last: choose a folder that is new or empty"
    there = find_datasets(folder, [""]).get("")
    if there is not None and there.provenance.get("command") != "merge":
        what = (
            "a packed dataset is there, which 'packdata merge' did not make and does not replace"
        )
        raise PackError(what, folder, hint)
    begun = read_journal(folder / PACKING_NAME / JOURNAL_NAME)
    if begun is not None and (begun[0].resumable or begun[1].done is not None):
        raise PackError("packing into it was not finished", folder, hint)


def _check_alike(readers: Sequence[PackedReader]) -> None:
    """Raise SchemaError unless the samples of all can stand in one dataset."""
    first = readers[0]
    for reader in readers[1:]:
        different = schema_differences(first.schema, reader.schema, defaults=False)
        if different:
            what = "; ".join(different[:5])
            raise SchemaError(
                f"{reader.path} (B) does not match {first.path} (A): {what}. {_remedy(different)}"
            )
    if first.has_keys:
        _check_keys(readers)


def _remedy(different: Sequence[str]) -> str:
    def of(what: str) -> str:
        return next((hint for o, hint in _REMEDIES.items() if f": {o} is " in what), _REMEDY)

    return "; ".join(dict.fromkeys(map(of, different)))


def _check_keys(readers: Sequence[PackedReader]) -> None:
    hashes = [key_hashes(reader) for reader in readers]
    every = np.concatenate(hashes)
    source = np.repeat(np.arange(len(readers)), [len(part) for part in hashes])
    order = np.argsort(every, kind="stable")
    twice = np.flatnonzero(every[order][1:] == every[order][:-1])
    if len(twice):
        first = twice[order[twice + 1].argmin()]
        one, other = int(order[first]), int(order[first + 1])
        start = sum(len(readers[i]) for i in range(int(source[other])))
        key = readers[source[other]].key(other - start)
        where = f"{readers[source[one]].path} and {readers[source[other]].path}"
        raise SchemaError(
            f"{counted(len(twice), 'key')} would stand twice: {key!r} is in {where}. "
            "'packdata copy --where' leaves samples out"
        )


def _stage(
    staging: Staging, readers: Sequence[PackedReader], *, link: bool, on_link: OnLink
) -> list[ShardInfo]:
    staged: list[ShardInfo] = []
    for reader in readers:
        for info in reader.manifest.shards:
            suffix = Path(info.file).suffix
            new = replace(info, file=f"staged-{len(staged):05d}{suffix}")
            source = reader.path / info.file
            if _link_or_copy(source, staging.path / new.file, info, link=link):
                on_link(source)
            staged.append(new)
    return staged


def _link_or_copy(source: Path, target: Path, info: ShardInfo, *, link: bool) -> bool:
    """Return whether it is linked: then nobody has read it."""
    what = size_fault(source, info)
    if what is not None:
        raise ShardError(what, source, hint="Run 'packdata verify'; 'packdata repair' restores it")
    if link:
        try:
            os.link(source.resolve(), target)
        except OSError:  # another file system, or one without links
            pass
        else:
            return True
    copy_shard(source, target, info)
    return False


def copy_shard(source: Path, target: Path, info: ShardInfo) -> None:
    """Copy a shard durably, and make sure that what was copied is what the manifest says.

    Raises:
        ShardError: The source is damaged; the target is gone again.
        PackError: The target cannot be written.
    """
    try:
        shutil.copyfile(source, target)
        with open(target, "rb+") as file:
            os.fsync(file.fileno())
        digest = hash_file(target)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise cannot_write(error, target) from error
    if digest != info.xxh3_128:
        target.unlink()
        what = f"its xxh3-128 is {digest}, the manifest says {info.xxh3_128}"
        raise ShardError(what, source, hint="Run 'packdata verify' on it")
