"""Parts of a packing at their target, a folder or a URL, and the joining of them.

1. A part is packed in a folder of its own, where the same command continues it: of a URL below ``$TMPDIR``, of a folder
   in ``DST/.parts/part-00003-of-00010.HERE``, where HERE is the running kernel, as far as its locks reach.
2. Its shards are sent, each when it is finished, under names that hold the part's number and their hash: every process
   that packs it sends the same. When all are there, its journal is put as ``DST/.parts/part-00003-of-00010``, if none
   is: of two that made the same part, the second drops its own.
3. ``finish`` lists the journals, reads them, asks whether all shards are there, and puts the manifests, each only in
   place of the one that it saw. Then it deletes the journals. Killed, the same command finishes: where manifests are
   there that say that the same plan made them, deleting is all that is left.
4. At a URL nothing that a manifest may have named is deleted but by ``delete_old``. In a folder the files of a dataset
   that was replaced are deleted after that, by a list that is written before.
"""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loaders.data.manifest import MANIFEST_NAME, Manifest, parse_manifest
from loaders.errors import ManifestError, PackError
from loaders.remote.url import is_url
from loaders.schema import Schema
from packdata.describe import counted
from packdata.packing.journal import JOURNAL_NAME, named, parse_journal, read_journal
from packdata.packing.lock import LOCK_NAME, TargetLock, lock_owner
from packdata.packing.provenance import PLAN
from packdata.packing.store import Store, store_of
from packdata.packing.summary import summary_of
from packdata.packing.target import (
    PACKING_NAME,
    PARTS_NAME,
    REJECTED_NAME,
    STAGED_NAME,
    STORED_SHARD,
    check_unclaimed,
    digest_of,
    files_of,
    find_datasets,
    is_there,
    is_unfinished,
    parse_rejects,
    rejects_bytes,
)
from packdata.packing.upload import (
    ShardSender,
    as_file,
    is_made,
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from packdata.packing.summary import Summary

_TRIES = 3
_THREADS = 16  # that wait for a store, or a network drive
_REPLACED = f"{PARTS_NAME}/replaced.json"  # files of datasets that are replaced in a folder


class _Gone(PackError):
    """Something of the parts is not there any more."""


@dataclass(frozen=True, slots=True)
class PartPlace:
    """The places of one part, and what is to become of it there.

    Attributes:
        dst: The destination of all parts, a folder or a URL.
        part: The part.
        plan: All that decides the output.
        overwrite: Replace what is there.
        own: Where it is packed, on this machine alone.
    """

    dst: Path
    part: Part
    plan: Mapping[str, str]
    overwrite: bool
    own: Path

    @property
    def _store(self) -> Store:
        return store_of(self.dst)

    @property
    def _record(self) -> str:
        return f"{PARTS_NAME}/{self.part.name}"

    def found(self) -> Complete | None:
        """Return the part, if it is complete."""
        data, _ = self._store.read(self._record)
        return None if data is None else _complete(data, self.dst / self._record)

    def is_done(self, folders: Sequence[str]) -> bool:
        """Tell whether the part is packed, or all of them are finished."""
        found = self.found()
        if found is not None:
            return not found.header.differences(self.plan) and not self._lost(found)
        if self.overwrite and self.part.of == 1 and is_url(self.dst):  # all, by one command
            return False
        return is_made(self._store, folders, digest_of(whole(self.plan, self.part.of)))

    def drop_to_repeat(self) -> None:
        """Drop a complete part that has lost shards, or left items out: they may be readable now."""
        found = self.found()
        if found is not None and (found.state.all_rejects or self._lost(found)):
            self._store.delete(self._record)

    def _lost(self, found: Complete) -> bool:
        named = {f: map(self.part.stored, each) for f, each in found.state.shards.items()}
        return any(lost_at(self._store, folder, each) for folder, each in named.items())

    def make_room(self, folders: Sequence[str]) -> None:
        """Make room for the part; PackError if something else is there."""
        self._check_target(folders)
        others = [path for path, part in _found(self._store) if part.of != self.part.of]
        if self.check_others(others):
            self._store.delete(self._record)
        for path in others:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
        self._store.delete(*(f"{PARTS_NAME}/{path.name}" for path in others))

    def _check_target(self, folders: Sequence[str]) -> None:
        if not is_url(self.dst):
            if self.overwrite:
                return
            if find_datasets(self.dst, folders):
                raise is_there(self.dst)
            if is_unfinished(self.dst):
                hint = "Finish it with the command that began it, or pass overwrite=True"
                raise PackError("packing into it was not finished", self.dst, hint)
            return
        there = [below for below in {"", *folders} if manifest_at(self._store, below) is not None]
        for below in there:
            if below not in folders:
                what = "another packed dataset is there"
                raise PackError(what, self.dst / below, "Choose another URL")
            if not self.overwrite:
                raise is_there(self.dst / below)

    def sending(self) -> ShardSender:
        """Return what sends shards when they are finished."""
        return ShardSender(self._store, self.part.stored)

    def complete(self) -> None:
        """Send the shards that are not there yet, then the journal; PackError if another packed it differently."""
        staged, store = self.own / PACKING_NAME, self._store
        found = read_journal(staged / JOURNAL_NAME)
        if found is None:  # all parts were joined, and removed, meanwhile
            what = "the part was removed while it was packed"
            raise PackError(what, self.own, "Run the same command again")
        for folder, shards in found[1].shards.items():
            places = ((staged / STAGED_NAME / folder / shard.file, shard) for shard in shards)
            left = [(path, self.part.stored(shard)) for path, shard in places if path.exists()]
            put_shards(store, folder, left)
        for folder, content in (found[1].done or {}).items():
            for name, digest in Schema.from_json(content["schema"]).files.items():
                store.put(_kept(digest), staged / STAGED_NAME / folder / name)
        if not store.put(self._record, staged / JOURNAL_NAME, {}):
            self.check_others([])
        self.drop()

    def drop(self) -> None:
        """Remove what was packed here, unless a process is packing it."""
        if lock_owner(self.own / PACKING_NAME / LOCK_NAME) is None:
            shutil.rmtree(self.own, ignore_errors=True)
            if not is_url(self.dst):
                with suppress(OSError):  # there are other parts, or none
                    self.own.parent.rmdir()

    def nothing_done(self, why: str) -> Summary:
        """Return the summary of a part that was packed before, with its rejects."""
        found = self.found()
        rejects = [] if found is None else found.state.all_rejects
        return nothing_done(self.dst / self._record, f"part {self.part} {why}", named(rejects))

    def check_others(self, others: Sequence[Path]) -> list[str]:
        """Return how the part that is there differs; PackError for it, and for ``others``, that may not be dropped."""
        found = self.found()
        differs = [] if found is None else found.header.differences(self.plan)
        if found is not None and not differs and self._lost(found):
            return ["some of its shards are gone"]
        if (others or differs) and not self.overwrite:
            what = "; ".join(differs[:4])
            what = what or f"{others[0].name} is there, of another number of parts"
            hint = "Pass what they were packed with, or overwrite=True to drop them"
            raise PackError(f"other parts were packed there: {what}", self.dst, hint)
        return differs


def _kept(digest: str) -> str:
    """Return where a file that lies beside a manifest is, until there is one."""
    return f"{PARTS_NAME}/files/{digest}"


def _complete(data: bytes, path: Path) -> Complete | None:
    found = parse_journal(data, path)
    return None if found is None or found[1].done is None else Complete(path, *found)


def _found(store: Store) -> Found:
    """Return what lies there of parts: journals, and in a folder also what is being packed."""
    entries, folders = store.in_folder(PARTS_NAME)
    names = [name.rpartition("/")[2] for name in (*(entry.name for entry in entries), *folders)]
    return found_parts(store.url / PARTS_NAME, names)


def manifests_below(store: Store) -> dict[str, Manifest]:
    """Return the dataset at a place, or those of splits, of sizes or of both below it."""
    found: dict[str, Manifest] = {}
    level = [""]
    for _ in range(3):
        for below in level:
            with suppress(ManifestError):
                if (there := manifest_at(store, below)) is not None:
                    found[below] = there
        if found:
            break
        inside = [name for below in level for name in store.in_folder(below)[1]]
        level = [name for name in inside if not name.rpartition("/")[2].startswith(".")]
    return found


def finish_parts(dst: Path, *, overwrite: bool, delete_old: bool, digest: str = "") -> Summary:
    """Join the parts at a place; see ``packdata.parts.local.finish``.

    Args:
        dst: The folder or URL.
        overwrite: Replace the datasets that are there.
        delete_old: At a URL, delete the shards that no manifest names any more.
        digest: Of the plan that the parts are to be of; where none is, what is there: then nothing is left to do.
    """
    began, store = time.monotonic(), store_of(dst)
    for tries in range(1, _TRIES + 1):
        try:
            if not (parts := _all_parts(store)):
                break
            check_alike(dst, parts, digest)
            with _locked(dst, [*parts[0].header.first], overwrite):
                summary = _join(store, parts, began, overwrite=overwrite)
            return _note_deleted(store, summary) if delete_old else summary
        except _Gone:  # another finishes at the same time, and deletes what was listed
            if tries == _TRIES:
                raise
    there = manifests_below(store)
    rejects = parse_rejects(store.read(REJECTED_NAME)[0] or b"")
    if delete_old and there:
        return _note_deleted(store, nothing_done(dst, "no part lies there", rejects))
    return nothing_left(dst, [each.provenance for each in there.values()], rejects, digest)


@contextmanager
def _locked(dst: Path, folders: Sequence[str], overwrite: bool) -> Iterator[None]:
    """Keep other packings out of a folder; PackError if it holds something else."""
    if is_url(dst):
        yield
        return
    if is_unfinished(dst) and not overwrite:
        hint = "Run the command that began it again, or pass overwrite=True"
        raise PackError("packing into it was not finished", dst, hint)
    find_datasets(dst, folders)
    check_unclaimed(dst)
    lock = TargetLock(dst / PACKING_NAME / LOCK_NAME)
    try:
        for folder in filter(None, folders):
            owner = lock_owner(dst / folder / PACKING_NAME / LOCK_NAME)
            if owner is not None:
                raise PackError(f"{owner} is packing into it", dst / folder, "Wait for it")
        yield
    finally:
        shutil.rmtree(dst / PACKING_NAME, ignore_errors=True)
        lock.release()


def _note_deleted(store: Store, summary: Summary) -> Summary:
    """Delete the shards beside datasets that they do not have, and note how many."""
    old = [*_unnamed(store, manifests_below(store))]
    store.delete(*old)
    deleted = f"deleted {counted(len(old), 'unreferenced shard')}"
    return replace(summary, notes=(*summary.notes, deleted))


def _unnamed(store: Store, datasets: Mapping[str, Manifest]) -> Iterator[str]:
    """Yield the shards beside datasets that these do not have."""
    for folder, manifest in datasets.items():
        named = {name_at(folder, shard.file) for shard in manifest.shards}
        for entry in store.in_folder(folder)[0]:
            is_shard = STORED_SHARD.fullmatch(entry.name.rpartition("/")[2])
            if is_shard and entry.name not in named:
                yield entry.name


def _all_parts(store: Store) -> list[Complete]:
    """Return all parts in order, none if there are none, or they were joined; PackError if some are missing."""
    found = _found(store)
    if not found:
        return []
    journals = {part.number: path for path, part in found if path.name == part.name}
    with ThreadPoolExecutor(_THREADS) as pool:
        names = (f"{PARTS_NAME}/{path.name}" for path in journals.values())
        read = dict(zip(journals, pool.map(store.read, names), strict=True))
    if any(data is None for data, _ in read.values()):
        what = "parts went away while they were read"
        raise _Gone(what, store.url, "Run the same command again")
    complete = {n: _complete(data or b"", journals[n]) for n, (data, _) in read.items()}
    first = next((part for part in complete.values() if part is not None), None)
    try:
        return all_parts(store.url, found, complete)
    except PackError:
        if first is None:
            raise
        plan = whole(first.header.plan, found[0][1].of)
        if not is_made(store, first.header.first, digest_of(plan)):
            raise
        _clear(store)  # killed while it deleted them, or one came late
        return []


def _join(store: Store, parts: Sequence[Complete], began: float, *, overwrite: bool) -> Summary:
    joined = _joined(parts)
    seen = {
        folder: seen_at(store, folder, manifest, overwrite=overwrite)
        for folder, manifest in joined.items()
    }
    for folder, manifest in joined.items():
        if lost := lost_at(store, folder, manifest.shards):
            what = f"{counted(len(lost), 'shard')} of the parts missing, the first: {lost[0]}"
            hint = "Pack the parts again, with overwrite=True"
            raise PackError(what, store.url / folder, hint)
        _put_files(store, folder, manifest.schema.files)
    is_published = all(there is None for there in seen.values())
    notes = ["the parts were joined earlier"] if is_published else []
    _note_replaced(store, {f for f, there in seen.items() if there is not None})
    for folder, manifest in joined.items():
        if (there := seen[folder]) is not None:
            publish_at(store, folder, manifest, there)
    states = [part.state for part in parts]
    ends = [reached(split, states) for split in states[0].ended]
    rejects = [reject for end in ends for reject in end.rejects]
    if rejects:  # behind the manifests: one of them may be refused
        with as_file(rejects_bytes(rejects)) as path:
            store.put(REJECTED_NAME, path)
    elif store.read(REJECTED_NAME)[0] is not None:  # of what was replaced
        store.delete(REJECTED_NAME)
    _delete_replaced(store, joined)
    _clear(store)
    made = store.url, joined, named(rejects), [end.counts for end in ends]
    firsts = first_folders([*joined], parts[0].header.plan)
    summary = summary_of(*made, firsts, time.monotonic() - began, 0, notes)
    return replace(summary, amount=counted(len(parts), "part"))


def _note_replaced(store: Store, folders: Iterable[str]) -> None:
    """Write which files of a folder go with the datasets that are replaced; at a URL all stay for their readers."""
    if is_url(store.url):
        return
    old: list[str] = []
    for folder in folders:
        data, _ = store.read(name_at(folder, MANIFEST_NAME))
        if data is not None:
            manifest = parse_manifest(data, store.url / folder / MANIFEST_NAME)
            old += [name_at(folder, name) for name in files_of(manifest)]
    if old:
        with as_file(json.dumps(old).encode()) as path:
            store.put(_REPLACED, path)


def _delete_replaced(store: Store, joined: Mapping[str, Manifest]) -> None:
    """Delete, in a folder, the files of what was replaced, and shards that others have given up."""
    if is_url(store.url):
        return
    data, _ = store.read(_REPLACED)
    kept = {name_at(f, name) for f, manifest in joined.items() for name in files_of(manifest)}
    store.delete(*(name for name in json.loads(data or b"[]") if name not in kept))
    store.delete(*_unnamed(store, joined))


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


def _put_files(store: Store, folder: str, files: Mapping[str, str]) -> None:
    for name, digest in files.items():
        data, _ = store.read(_kept(digest))
        if data is None:
            what = f"its file {name} is missing"
            raise _Gone(what, store.url / folder, "Pack a part again, with overwrite=True")
        with as_file(data) as path:
            store.put(name_at(folder, name), path)


def _clear(store: Store) -> None:
    """Delete what is kept of parts, journals last: by them a command that was killed sees what it has done."""
    names = [entry.name for some in store.below(PARTS_NAME) for entry in some]
    journals = [n for n in names if found_parts(store.url, [n.removeprefix(f"{PARTS_NAME}/")])]
    store.delete(*({*names} - {*journals}))
    store.delete(*journals)
    if not is_url(store.url):  # folders of twins, which find out
        shutil.rmtree(store.url / PARTS_NAME, ignore_errors=True)
