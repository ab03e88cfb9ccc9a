"""Parts joined where they lie, in a folder or at a URL.

``finish`` lists the journals, reads them, asks whether all shards are there, and puts the manifests. Then it deletes
the journals. Killed, the same command finishes: where manifests are there that say that the same plan made them,
deleting is all that is left. At a URL nothing that a manifest may have named is deleted but by ``delete_old``.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from loaders.data.manifest import Manifest
from loaders.errors import PackError
from loaders.remote.url import is_url
from loaders.schema import Schema
from packdata.bucket import target_at
from packdata.describe import counted
from packdata.packing.engine import why_rejected
from packdata.packing.journal import (
    State,
    differences,
    named,
    parse_journal,
    parse_rejects,
    rejects_bytes,
)
from packdata.packing.packing import check_target
from packdata.packing.provenance import PLAN
from packdata.packing.publish import (
    datasets_below,
    is_made,
    manifest_at,
    publish,
    unnamed,
)
from packdata.packing.store import Store, store_of
from packdata.packing.summary import Summary, summary_of
from packdata.packing.target import (
    PARTS_NAME,
    REJECTED_NAME,
    digest_of,
    locked,
)
from packdata.parts.part import Part
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


NUM_PARTS = "num_parts"  # in the provenance of a dataset that was joined of several
OF = "part."  # prefix of what the plan of a part has, and that of the whole has not
_NAME = re.compile(r"part-(\d+)-of-(\d+)(?:\..+)?")
_JOINED = "the parts were joined earlier"
_SHOWN = 10
_THREADS = 16  # that wait for a store, or a network drive


def finish(dst: Path | str, *, overwrite: bool = False, delete_old: bool = False) -> Summary:
    """Join the parts of a packing to the dataset, or the datasets, that they are of.

    Args:
        dst: Where the parts were packed.
        overwrite: Replace the datasets that are there.
        delete_old: At a URL, delete the shards that no manifest names any more.

    Raises:
        PackError: Parts are missing, or were made of other sources, with other options or versions; the target
            holds something else, or cannot be written; or there is neither a part nor a dataset.
    """
    place, began = target_at(dst), time.monotonic()
    if delete_old and not is_url(place):
        raise ValueError("delete_old is for URLs: in a folder nothing of an earlier dataset stays")
    store = store_of(place)
    with nullcontext() if is_url(place) else locked(place):
        if parts := _all_parts(store):
            _check_alike(place, parts)
            summary = _join(store, parts, began, overwrite=overwrite)
        else:
            summary = _nothing_left(store)
    return _note_deleted(store, summary) if delete_old else summary


def whole(plan: Mapping[str, str], of: int) -> dict[str, str]:
    """Return the plan of all parts together; of one alone it is that of a packing without parts."""
    found = {name: value for name, value in plan.items() if not name.startswith(OF)}
    return found if of == 1 else found | {f"{OF}of": str(of)}


def kept_file(digest: str) -> str:
    """Return where a file that lies beside a manifest is, until there is one."""
    return f"{PARTS_NAME}/files/{digest}"


def part_at(store: Store, name: str) -> State | None:
    """Return a part by the name of its journal; None if it is not complete."""
    data, _ = store.read(f"{PARTS_NAME}/{name}")
    state = parse_journal(data or b"", store.url / PARTS_NAME / name)
    return state if state is not None and state.done is not None else None


def found_parts(store: Store) -> list[tuple[Path, Part]]:
    """Return what lies there of parts: journals, and in a folder also what is being packed."""
    entries, folders = store.in_folder(PARTS_NAME)
    names = sorted(name.rpartition("/")[2] for name in (*(e.name for e in entries), *folders))
    matches = ((name, _NAME.fullmatch(name)) for name in names)
    numbers = ((name, int(m[1]), int(m[2])) for name, m in matches if m is not None)
    place = store.url / PARTS_NAME
    return [(place / name, Part(number, of)) for name, number, of in numbers if number < of]


def _all_parts(store: Store) -> list[State]:
    """Return all parts in order, none if there are none, or they were joined; PackError if some are missing."""
    found = found_parts(store)
    if not found:
        return []
    dst, counts = store.url, sorted({part.of for _, part in found})
    if len(counts) > 1:
        what = f"there are parts of {' and of '.join(map(str, counts))}"
        raise PackError(what, dst, f"Remove those that are not meant from {found[0][0].parent}")
    names = [Part(number, counts[0]).name for number in range(counts[0])]
    put = [path.name for path, part in found if path.name == part.name]
    with ThreadPoolExecutor(_THREADS) as pool:
        read = dict(zip(put, pool.map(partial(part_at, store), put), strict=True))
    there = {name: part for name, part in read.items() if part is not None}
    missing = [number for number, name in enumerate(names) if name not in there]
    if not missing:
        return [there[name] for name in names]
    for first in islice(there.values(), 1):
        if is_made(store, first.folders, digest_of(whole(first.plan, counts[0]))):
            _clear(store)  # killed while it deleted them, or one came late
            return []
    what = f"{len(missing):,} of {counted(counts[0], 'part')} missing: {few(map(str, missing), _SHOWN)}"
    raise PackError(what, dst, "Run the command that packs each again, then this one")


def _check_alike(dst: Path, parts: Sequence[State]) -> None:
    """Raise PackError if parts are not of one packing, or have nothing in them.

    What their sources are called may differ: the dataset has the name that the first part saw.
    """
    first, of = parts[0], len(parts)
    for number, part in enumerate(parts):
        if differs := differences(first.plan, part.plan):
            what = f"{Part(number, of).name} is of another packing: {'; '.join(differs[:4])}"
            raise PackError(what, dst, "Pack one of them again as the other, with overwrite=True")
    for folder in first.folders:
        if not any(part.shards.get(folder) for part in parts):
            rejects = [reject for part in parts for reject in part.all_rejects]
            raise PackError("no sample that could be packed", dst / folder, why_rejected(rejects))


def _join(store: Store, parts: Sequence[State], began: float, *, overwrite: bool) -> Summary:
    joined = _joined(parts)
    check_target(store.url, [*joined], overwrite=True)
    files = {folder: _kept_files(store, m.schema.files) for folder, m in joined.items()}
    splits = parts[0].ended
    rejects = [r for split in splits for part in parts for r in part.rejects.get(split, ())]
    about = store, joined, files, {"": rejects_bytes(rejects)}
    notes = [] if publish(*about, overwrite=overwrite) else [_JOINED]
    _clear(store)
    made = store.url, joined, named(rejects), _first_folders([*joined], parts[0].plan)
    ends = [end for part in parts for end in part.ended.values()]
    summary = summary_of(*made, time.monotonic() - began, 0, notes, ends)
    return replace(summary, amount=counted(len(parts), "part"))


def _joined(parts: Sequence[State]) -> dict[str, Manifest]:
    """Return what becomes of parts, by its folder; of one part it is what a packing without parts makes."""
    done: Mapping[str, Any] = parts[0].done or {}
    of: dict[str, Any] = {NUM_PARTS: len(parts)} if len(parts) > 1 else {}
    of[PLAN] = digest_of(whole(parts[0].plan, len(parts)))
    return {
        folder: Manifest(
            Schema.from_json(content["schema"]),
            tuple(shard for part in parts for shard in part.shards.get(folder, ())),
            {**content["provenance"], **of},
        )
        for folder, content in done.items()
    }


def _kept_files(store: Store, files: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files beside a manifest, by the names that its schema has."""
    found = {name: store.read(kept_file(digest))[0] for name, digest in files.items()}
    for name, data in found.items():
        if data is None:
            hint = "Pack a part again, with overwrite=True"
            raise PackError(f"the file {name} is missing", store.url, hint)
    return {name: data for name, data in found.items() if data is not None}


def _first_folders(folders: Sequence[str], plan: Mapping[str, str]) -> Sequence[str]:
    """Return the folders that hold each sample once between them, by a part's plan."""
    with suppress(KeyError, ValueError):  # of very many it is a hash
        found: list[str] = json.loads(plan[f"{OF}counted"])
        return found
    return folders


def _clear(store: Store) -> None:
    """Delete what is kept of parts, journals last: by them a command that was killed sees what it has done."""
    names = {entry.name for some in store.below(PARTS_NAME) for entry in some}
    journals = {f"{PARTS_NAME}/{path.name}" for path, _ in found_parts(store)} & names
    store.delete(*(names - journals))
    store.delete(*journals)
    if not is_url(store.url):  # folders of twins, which find out
        shutil.rmtree(store.url / PARTS_NAME, ignore_errors=True)


def _nothing_left(store: Store) -> Summary:
    """Return the summary where no part is left; PackError unless there is a dataset."""
    if not _manifests_below(store):
        hint = "'packdata images SRC... DST --part I/N' packs one, and so do tokens, tables and arrays"
        raise PackError("no parts found, and no dataset", store.url, hint)
    rejected = parse_rejects(store.read(REJECTED_NAME)[0] or b"")
    return nothing_done(store.url, "no parts found; nothing was written", rejected)


def nothing_done(dst: Path | str, why: str, rejected: Sequence[tuple[str, str]]) -> Summary:
    """Return the summary of what was done before."""
    return Summary(str(dst), 0, 0, 0, tuple(rejected), 0, 0, (), (why,))


def _manifests_below(store: Store) -> dict[str, Manifest]:
    """Return the dataset at a place, or those below it, by their folder."""
    there = {folder: manifest_at(store, folder) for folder in datasets_below(store)}
    return {folder: each for folder, each in there.items() if each is not None}


def _note_deleted(store: Store, summary: Summary) -> Summary:
    """Delete the shards beside datasets that they do not have, and note how many."""
    old = [*unnamed(store, _manifests_below(store))]
    store.delete(*old)
    deleted = f"deleted {counted(len(old), 'unreferenced shard')}"
    return replace(summary, notes=(*summary.notes, deleted))
