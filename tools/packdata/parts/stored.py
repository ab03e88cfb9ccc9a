"""Parts of a packing at a URL, and the joining of them.

1. A part is packed in a folder of this machine below ``$TMPDIR``, where the same command continues it; a second
   process that packs it meanwhile takes another.
2. Its shards are sent, each when it is finished, and then deleted here, under names that hold the part's number and
   their hash: every process that packs it sends the same. When all are there, its journal is put as
   ``URL/.parts/part-00003-of-00010``, only where none is.
3. ``finish`` lists the journals, reads them, asks whether all shards are there, and puts the manifests, each under a
   condition. Then it deletes the journals. Killed, the same command finishes: where manifests are there that say
   that the same plan made them, deleting is all that is left.
4. Nothing that a manifest may have named is deleted but by ``delete_old``.
5. Unfinished uploads of the shards that it publishes are aborted: these are complete, so a process that still sends
   one finds it there and is done.
   Others may belong to another packing: ``delete_old`` aborts them.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loaders.data.manifest import Manifest
from loaders.errors import PackError, RemoteError, SourceError
from loaders.remote.origin import origin_of
from loaders.remote.url import URL
from loaders.schema import Schema
from packdata.describe import counted
from packdata.packing.journal import JOURNAL_NAME, named, parse_journal, read_journal
from packdata.packing.provenance import PLAN
from packdata.packing.summary import summary_of
from packdata.packing.target import (
    PACKING_NAME,
    PARTS_NAME,
    REJECTED_NAME,
    STAGED_NAME,
    digest_of,
    parse_rejects,
    rejects_bytes,
)
from packdata.packing.upload import (
    ShardSender,
    as_file,
    end_uploads,
    lost_at,
    manifest_at,
    name_at,
    publish_at,
    put_shards,
    seen_at,
)
from packdata.parts.joining import (
    Complete,
    Found,
    PartPlace,
    all_parts,
    check_alike,
    first_folders,
    found_parts,
    joined_provenance,
    nothing_done,
    nothing_left,
    reached,
    whole,
)
from packdata.parts.part import Part
from packdata.sources.objects import RemoteFile, fetched_ahead

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from loaders.remote.origin import Origin
    from packdata.packing.summary import Summary

_TRIES = 3
_SHARD = re.compile(r"shard-[0-9-]+-[0-9a-f]{32}\.\w+")


class _Gone(PackError):
    """Something of the parts is not there any more."""


class StoredPart(PartPlace[URL]):
    """A part below a URL."""

    __slots__ = ()

    @property
    def _origin(self) -> Origin:
        return origin_of(self.dst)

    def found(self) -> Complete | None:
        """Return the part at the URL, if it is complete."""
        name = f"{PARTS_NAME}/{self.part.name}"
        data, _ = self._origin.read(name)
        return None if data is None else _complete(data, self.dst / name)

    def is_made(self, folders: Sequence[str], digest: str) -> bool:
        """Tell whether the plan with this hash has made the datasets already."""
        if self.overwrite and self.part.of == 1:  # of all that is packed by one command
            return False
        return _is_made(self._origin, folders, digest)

    def drop_to_repeat(self) -> None:
        """Drop a complete part that has lost shards, or left items out: they may be readable now."""
        PartPlace.drop_to_repeat(self)
        found = self.found()
        shards = {} if found is None else found.state.shards
        named = {folder: map(self.part.stored, each) for folder, each in shards.items()}
        if any(lost_at(self._origin, folder, each) for folder, each in named.items()):
            self.remove()

    def make_room(self, folders: Sequence[str]) -> None:
        """Make room for the part; PackError if something else is there."""
        there = [below for below in {"", *folders} if manifest_at(self._origin, below) is not None]
        for below in there:
            if below not in folders:
                raise PackError(
                    "another packed dataset is there", self.dst / below, "Choose another URL"
                )
            if not self.overwrite:
                hint = "Pass overwrite=True to replace its manifest; its shards stay"
                raise PackError(
                    "a packed dataset is there, and is complete", self.dst / below, hint
                )
        others = [path for path, part in _found(self._origin) if part.of != self.part.of]
        if self.check_others(others):
            self.remove()
        self._origin.delete(*(f"{PARTS_NAME}/{path.name}" for path in others))

    def sending(self) -> ShardSender:
        """Return what sends shards when they are finished."""
        return ShardSender(self._origin, self.part.stored)

    def complete(self) -> None:
        """Send the shards that are not there yet, then the journal; PackError if another packed it differently."""
        staged, origin = self.own / PACKING_NAME, self._origin
        found = read_journal(staged / JOURNAL_NAME)
        if found is None:
            raise PackError(
                "it was removed while it was packed", self.own, "Run the same command again"
            )
        for folder, shards in found[1].shards.items():
            places = ((staged / STAGED_NAME / folder / shard.file, shard) for shard in shards)
            left = [(path, self.part.stored(shard)) for path, shard in places if path.exists()]
            put_shards(origin, folder, left)
        for folder, content in (found[1].done or {}).items():
            for name, digest in Schema.from_json(content["schema"]).files.items():
                origin.put(_kept(digest), staged / STAGED_NAME / folder / name)
        if not origin.put(f"{PARTS_NAME}/{self.part.name}", staged / JOURNAL_NAME, {}):
            self.check_others([])
        self.drop()

    def remove(self) -> None:
        """Remove what is complete."""
        self._origin.delete(f"{PARTS_NAME}/{self.part.name}")


def _kept(digest: str) -> str:
    """Return where a file that lies beside a manifest is, until there is one."""
    return f"{PARTS_NAME}/files/{digest}"


def _complete(data: bytes, path: Path) -> Complete | None:
    found = parse_journal(data, path)
    return None if found is None or found[1].done is None else Complete(path, *found)


def _found(origin: Origin) -> Found:
    entries, _ = origin.in_folder(PARTS_NAME)
    names = [entry.name.rpartition("/")[2] for entry in entries]
    return found_parts(origin.url / PARTS_NAME, names)


def manifests_below(origin: Origin) -> dict[str, Manifest]:
    """Return the dataset at a URL, or those of splits, of sizes or of both below it."""
    found: dict[str, Manifest] = {}
    level = [""]
    for _ in range(3):
        for below in level:
            if (there := manifest_at(origin, below)) is not None:
                found[below] = there
        if found:
            break
        inside = [name for below in level for name in origin.in_folder(below)[1]]
        level = [name for name in inside if not name.rpartition("/")[2].startswith(".")]
    return found


def _is_made(origin: Origin, folders: Iterable[str], digest: str) -> bool:
    for folder in folders:
        there = manifest_at(origin, folder)
        if there is None or there.provenance.get(PLAN) != digest:
            return False
        if lost_at(origin, folder, there.shards):
            return False
    return True


def finish_stored(dst: URL, *, overwrite: bool, delete_old: bool, digest: str = "") -> Summary:
    """Join the parts at a URL; see ``packdata.parts.local.finish``.

    Args:
        dst: The URL.
        overwrite: Replace the manifests that are there.
        delete_old: Delete the shards that no manifest names any more, and end uploads.
        digest: Of the plan that the parts are to be of; where none is, what is there: then all is well.
    """
    began, origin = time.monotonic(), origin_of(dst)
    for tries in range(1, _TRIES + 1):
        try:
            if not (parts := _all_parts(origin)):
                break
            check_alike(dst, parts, digest)
            summary = _join(origin, parts, began, overwrite=overwrite)
            return _note_deleted(origin, summary) if delete_old else summary
        except _Gone:  # another finishes at the same time, and deletes what was listed
            if tries == _TRIES:
                raise
    there = manifests_below(origin)
    rejects = parse_rejects(origin.read(REJECTED_NAME)[0] or b"")
    if delete_old and there:
        return _note_deleted(origin, nothing_done(dst, "no part lies there", rejects))
    return nothing_left(dst, [each.provenance for each in there.values()], rejects, digest)


def _note_deleted(origin: Origin, summary: Summary) -> Summary:
    """Delete the shards beside datasets that they do not have, end uploads, and tell of it."""
    old: list[str] = []
    for folder, manifest in manifests_below(origin).items():
        named = {name_at(folder, shard.file) for shard in manifest.shards}
        names = [entry.name for entry in origin.in_folder(folder)[0]]
        shards = [name for name in names if _SHARD.fullmatch(name.rpartition("/")[2])]
        old += [name for name in shards if name not in named]
    origin.delete(*old)
    deleted = f"{counted(len(old), 'shard')} that no manifest names deleted"
    try:
        ended = f"{counted(origin.end_uploads(), 'unfinished upload')} ended"
    except RemoteError as error:
        ended = str(error)
    return replace(summary, notes=(*summary.notes, deleted, ended))


def _all_parts(origin: Origin) -> list[Complete]:
    """Return all parts in order, none if there are none, or they were joined; PackError if some are missing."""
    entries, _ = origin.in_folder(PARTS_NAME)
    by_name = {entry.name.rpartition("/")[2]: entry for entry in entries}
    found = found_parts(origin.url / PARTS_NAME, by_name)
    if not found:
        return []
    files = (RemoteFile(origin, by_name[path.name], str(path)) for path, _ in found)
    try:
        complete = {
            part.number: _complete(file(), path)
            for (path, part), file in zip(found, fetched_ahead(files), strict=True)
        }
    except SourceError as error:
        what = "parts went away while they were read"
        raise _Gone(what, origin.url, "Run the same command again") from error
    first = next((part for part in complete.values() if part is not None), None)
    try:
        return all_parts(origin.url, found, complete)
    except PackError:
        if first is None:
            raise
        plan = whole(first.header.plan, found[0][1].of)
        if not _is_made(origin, first.header.first, digest_of(plan)):
            raise
        _clear(origin)  # killed while it deleted them, or one came late
        return []


def _join(origin: Origin, parts: Sequence[Complete], began: float, *, overwrite: bool) -> Summary:
    joined = _joined(parts)
    seen = {
        folder: seen_at(origin, folder, manifest, overwrite=overwrite)
        for folder, manifest in joined.items()
    }
    for folder, manifest in joined.items():
        if lost := lost_at(origin, folder, manifest.shards):
            what = (
                f"{counted(len(lost), 'shard')} of the parts are not there, the first: {lost[0]}"
            )
            raise PackError(what, origin.url / folder, "Pack the parts again, with overwrite=True")
        _put_files(origin, folder, manifest.schema.files)
    is_there = all(there is None for there in seen.values())
    notes = ["the parts were joined earlier"] if is_there else []
    for folder, manifest in joined.items():
        if (there := seen[folder]) is not None:
            publish_at(origin, folder, manifest, there)
    states = [part.state for part in parts]
    ends = [reached(split, states) for split in states[0].ended]
    rejects = [reject for end in ends for reject in end.rejects]
    if rejects:  # behind the manifests: one of them may be refused
        with as_file(rejects_bytes(rejects)) as path:
            origin.put(REJECTED_NAME, path)
    elif origin.read(REJECTED_NAME)[0] is not None:  # of what was replaced
        origin.delete(REJECTED_NAME)
    end_uploads(origin, joined)
    _clear(origin)
    made = origin.url, joined, named(rejects), [end.counts for end in ends]
    firsts = first_folders([*joined], parts[0].header.plan)
    summary = summary_of(*made, firsts, time.monotonic() - began, 0, notes)
    return replace(summary, amount=counted(len(parts), "part"))


def _joined(parts: Sequence[Complete]) -> dict[str, Manifest]:
    """Return what becomes of parts, by its folder."""
    done: Mapping[str, Any] = parts[0].state.done or {}
    digest = digest_of(whole(parts[0].header.plan, len(parts)))
    return {
        folder: Manifest(
            Schema.from_json(content["schema"]),
            tuple(
                Part(number, len(parts)).stored(shard)
                for number, part in enumerate(parts)
                for shard in part.state.shards.get(folder, ())
            ),
            joined_provenance(content, len(parts)) | {PLAN: digest},
        )
        for folder, content in done.items()
    }


def _put_files(origin: Origin, folder: str, files: Mapping[str, str]) -> None:
    for name, digest in files.items():
        data, _ = origin.read(_kept(digest))
        if data is None:
            what = f"its file {name} is not there"
            raise _Gone(what, origin.url / folder, "Pack a part again, with overwrite=True")
        with as_file(data) as path:
            origin.put(name_at(folder, name), path)


def _clear(origin: Origin) -> None:
    """Delete what is kept of parts, journals last: by them a command that was killed sees what it has done."""
    names = [entry.name for some in origin.below(PARTS_NAME) for entry in some]
    journals = [
        name for name in names if found_parts(origin.url, [name.removeprefix(f"{PARTS_NAME}/")])
    ]
    origin.delete(*({*names} - {*journals}))
    origin.delete(*journals)
