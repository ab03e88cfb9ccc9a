"""A packing in parts, on as many machines as there are, and the joining of them.

Part I of N has the items from ``I * items // N`` to ``(I + 1) * items // N`` of all splits together.

1. A part is packed by the engine in ``DST/.parts/part-00003-of-00010.HERE``, where HERE is the running
   kernel: only processes of one machine meet there, which its lock keeps apart. The same command continues
   what another has left there.
2. Complete, it becomes ``DST/.parts/part-00003-of-00010`` by one rename. Of two that made the same part on
   two machines, the second finds the name taken, and drops its own: their bytes are the same.
3. ``finish`` compares what decided the output of all parts, links their shards into one dataset in their
   order, and publishes it as every packing is. What is left of the parts goes with its journal: killed, the
   same command finishes.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.data.manifest import MANIFEST_NAME, read_manifest, sync_folder
from loaders.data.shards import FileShard
from loaders.errors import ManifestError, PackError
from loaders.remote.origin import origin_of, target_at
from loaders.remote.url import URL
from loaders.schema import Schema
from packdata.claimed import claimed_folder, on_the_way
from packdata.describe import counted
from packdata.packing.disk import GO_ON, explained
from packdata.packing.engine import counted_folders, pack_recipes, plan_of, target_folders
from packdata.packing.journal import JOURNAL_NAME, read_journal
from packdata.packing.packing import Packing
from packdata.packing.shards import DEFAULT_SHARD_BYTES
from packdata.packing.summary import Summary, summarize
from packdata.packing.target import (
    PACKING_NAME,
    PARTS_NAME,
    STAGED_NAME,
    digest_of,
    find_datasets,
    is_made,
    is_there,
    is_unfinished,
    rejects_at,
    size_of,
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
    nothing_left,
    reached,
    whole,
)
from packdata.parts.part import Part, versions
from packdata.parts.stored import StoredPart, finish_stored, manifests_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from packdata.packing.shards import Format
    from packdata.packing.upload import ShardSender
    from packdata.recipe import Recipe

_THREADS = 16  # that wait for a network drive


def pack_part(
    recipes: Sequence[tuple[str, Recipe]],
    dst: Path | str,
    part: Part,
    *,
    format: Format,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    overwrite: bool = False,
    **settings: Any,
) -> Summary:
    """Pack one part of recipes below ``dst``; the arguments beside ``part`` are those of ``pack_recipes``.

    Raises:
        SourceError: An item cannot be packed, and is not to be left out.
        PackError: The target cannot be written, or holds something else: also parts made with other options.
    """
    share = {"of": part.of, "counted": counted_folders(recipes), "versions": versions()}
    plan = plan_of(recipes, format, shard_bytes, share)
    folders = [folder for split, recipe in recipes for folder in target_folders(split, recipe)]

    def pack(own: Path, sender: ShardSender | None) -> Summary:
        return pack_recipes(
            part.cut(recipes),
            own,
            format=format,
            shard_bytes=shard_bytes,
            overwrite=overwrite,
            plan=plan,
            sender=sender,
            **settings,
        )

    return make_part(dst, part, plan, folders, pack, overwrite=overwrite)


def make_part(
    dst: Path | str,
    part: Part,
    plan: Mapping[str, str],
    folders: Sequence[str],
    make: Callable[[Path, ShardSender | None], Summary],
    *,
    overwrite: bool,
) -> Summary:
    """Make one part of datasets below ``dst`` where it is not made.

    Args:
        dst: Where the parts are joined.
        part: Which one.
        plan: All that decides the output.
        folders: The datasets below ``dst``.
        make: Stages a part (a ``Packing`` of this kind) in a folder, and gives its shards to what takes them away.
        overwrite: Replace what is there.

    Raises:
        PackError: Something else is there, or what ``make`` raises.
    """
    place = target_at(dst)
    with _part_at(place, part, plan, overwrite) as packing:
        if overwrite:
            packing.drop_to_repeat()
        if packing.is_done(folders):
            packing.drop()
            return packing.nothing_done("was packed earlier; nothing was read or written")
        packing.make_room(folders)
        try:
            with packing.sending() as sender:
                summary = make(packing.own, sender)
            packing.complete()
        except PackError:
            if not packing.is_done(folders):  # else another has finished it, and all, meanwhile
                raise
            packing.drop()
            return packing.nothing_done("was packed by another, meanwhile")
    return replace(summary, dst=str(place / PARTS_NAME / part.name))


@contextmanager
def _part_at(
    place: Path, part: Part, plan: Mapping[str, str], overwrite: bool
) -> Iterator[PartPlace[Any]]:
    if isinstance(place, URL):
        with claimed_folder(f"{place} {part.name}") as own, on_the_way(own, place):
            yield StoredPart(place, part, plan, overwrite, own)
    else:
        own = place / PARTS_NAME / f"{part.name}.{_this_machine()}"
        yield _FolderPart(place, part, plan, overwrite, own)


def digest_of_parts(
    recipes: Sequence[tuple[str, Recipe]], format: Format, shard_bytes: int, of: int
) -> str:
    """Return the hash by which a dataset knows the plan of all its parts."""
    plan = plan_of(recipes, format, shard_bytes, {"of": of})
    return digest_of(whole(plan, of))


def pack_whole(
    recipes: Sequence[tuple[str, Recipe]],
    dst: Path | str,
    *,
    format: Format,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    **settings: Any,
) -> Summary:
    """Pack recipes below a URL as one part, and finish it; what it is given is that of ``pack_recipes``.

    Raises:
        RemoteError: The store does not answer, or refuses.
        SourceError, PackError: As ``pack_recipes`` does.
    """
    began, overwrite = time.monotonic(), bool(settings.get("overwrite"))
    packed = pack_part(
        recipes, dst, Part(0, 1), format=format, shard_bytes=shard_bytes, **settings
    )
    digest = digest_of_parts(recipes, format, shard_bytes, 1)
    summary = finish(dst, overwrite=overwrite, digest=digest)
    if not summary.datasets:
        return summary
    seconds = time.monotonic() - began
    rate = packed.samples_per_s * packed.seconds / seconds
    notes = (*packed.notes, *summary.notes)
    return replace(summary, seconds=seconds, samples_per_s=rate, notes=notes)


class _FolderPart(PartPlace[Path]):
    """A part below a folder that all machines mount."""

    __slots__ = ()

    @property
    def _record(self) -> Path:
        return self.dst / PARTS_NAME / self.part.name

    def found(self) -> Complete | None:
        """Return it as it lies there, if it is complete."""
        return _complete(self._record)

    def is_made(self, folders: Sequence[str], digest: str) -> bool:
        """Tell whether the datasets are there, as the plan of this hash has made them."""
        return is_made(self.dst, folders, digest)

    def make_room(self, folders: Sequence[str]) -> None:
        """Make room for the part; PackError if something else is there."""
        if not self.overwrite:
            if find_datasets(self.dst, folders):
                raise is_there(self.dst)
            if is_unfinished(self.dst):
                hint = "Finish it with the command that began it, or pass overwrite=True"
                raise PackError("packing into it was not finished", self.dst, hint)
        others = [path for path, part in _found(self.dst) if part.of != self.part.of]
        was_there = self._record.exists()  # asked first: it comes whole, by a rename
        if self.check_others(others) or (was_there and self.found() is None):
            others.append(self._record)  # of another packing, or some of its files are gone
        for path in others:
            shutil.rmtree(path, ignore_errors=True)

    def complete(self) -> None:
        """Rename the part to the name of a complete one; PackError if another one was there first."""
        staged = self.own / PACKING_NAME
        with explained(self.dst, again=GO_ON):
            if read_journal(staged / JOURNAL_NAME) is None:
                # All were finished, and removed, while the last shards were written.
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(staged))
            os.rename(staged, self._record)
            shutil.rmtree(self.own, ignore_errors=True)
            sync_folder(self._record.parent)

    def remove(self) -> None:
        """Remove what is complete."""
        shutil.rmtree(self._record, ignore_errors=True)

    def drop(self) -> None:
        """Remove what was packed here, unless somebody is at it."""
        PartPlace.drop(self)
        with suppress(OSError):  # there are other parts, or none
            self._record.parent.rmdir()


def _this_machine() -> str:
    """Return what tells the running kernel from all others, as far as its own locks reach."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return re.sub(r"\W", "-", socket.gethostname())


def _found(dst: Path) -> Found:
    """Return the folders of parts below a destination, in order."""
    try:
        names = os.listdir(dst / PARTS_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return found_parts(dst / PARTS_NAME, names)


def _complete(path: Path) -> Complete | None:
    """Return the part in a folder, None if it is not complete: also where a shard is gone."""
    found = read_journal(path / JOURNAL_NAME)
    if found is None or found[1].done is None:
        return None
    places = (
        (path / STAGED_NAME / folder / shard.file, shard.size_bytes)
        for folder, shards in found[1].shards.items()
        for shard in shards
    )
    if any(size_of(place) != size for place, size in places):
        return None
    return Complete(path, *found)


def finish(
    dst: Path | str,
    *,
    overwrite: bool = False,
    delete_old: bool = False,
    digest: str = "",
) -> Summary:
    """Join the parts of a packing to the dataset, or the datasets, that they are of.

    Args:
        dst: Where the parts were packed.
        overwrite: Replace the datasets that are there.
        delete_old: At a URL, delete what lies beside the datasets of earlier ones, and end all uploads that
            were not finished; else only those of shards that are there.
        digest: Of the plan that all parts are to be of: where it made what is there, all is done.

    Raises:
        PackError: Parts are missing, or were made of other sources, with other options or versions; the target
            holds something else, or cannot be written; or there is nothing to be done.
    """
    began, place = time.monotonic(), target_at(dst)
    if isinstance(place, URL):
        return finish_stored(place, overwrite=overwrite, delete_old=delete_old, digest=digest)
    if delete_old:
        raise ValueError("delete_old is for URLs: in a folder nothing of an earlier dataset stays")
    parts = _complete_parts(place)
    if not parts:
        return _finish_earlier(place, began, digest)
    check_alike(place, parts, digest)
    first = parts[0]
    plan = whole(first.header.plan, len(parts))
    with Packing(
        place, [*first.header.first], plan, overwrite=overwrite, kind="finish"
    ) as packing:
        notes = []
        if packing.is_published:
            notes.append(f"the parts were joined earlier: {packing.why_finished}")
        else:
            _join(packing, parts)
        _remove(packing.take_over(place / PARTS_NAME))
        firsts = first_folders(packing.folders, first.header.plan)
        summary = summarize(packing, firsts, time.monotonic() - began, 0, notes)
    return replace(summary, amount=counted(len(parts), "part"))


def _finish_earlier(dst: Path, began: float, digest: str) -> Summary:
    """End what was killed once the parts had been joined; PackError if there is nothing to join."""
    found = read_journal(dst / PACKING_NAME / JOURNAL_NAME)
    if found is None or found[0].kind != "finish" or found[1].done is None:
        return nothing_left(dst, map(_provenance, _manifests(dst)), rejects_at(dst), digest)
    header = found[0]
    with Packing(dst, [*header.first], header.plan, overwrite=True, kind="finish") as packing:
        return summarize(
            packing, packing.folders, time.monotonic() - began, 0, [packing.why_finished]
        )


def holds_datasets(dst: Path) -> bool:
    """Tell whether a dataset is at a place, or those of splits, of sizes or of both below it."""
    return bool(manifests_below(origin_of(dst)) if isinstance(dst, URL) else _manifests(dst))


def _manifests(dst: Path) -> list[Path]:
    return [path for below in ("", "*/", "*/*/") for path in dst.glob(f"{below}{MANIFEST_NAME}")]


def _provenance(manifest: Path) -> Mapping[str, Any]:
    with suppress(ManifestError):
        return read_manifest(manifest.parent).provenance
    return {}


def _complete_parts(dst: Path) -> list[Complete]:
    """Return all parts in order, none if there are none; PackError if some are missing."""
    found = _found(dst)
    if not found:
        return []
    places = {part.number: path for path, part in found if path.name == part.name}
    with ThreadPoolExecutor(_THREADS) as pool:
        complete = dict(zip(places, pool.map(_complete, places.values()), strict=True))
    return all_parts(dst, found, complete)


def _join(packing: Packing, parts: Sequence[Complete]) -> None:
    """Bring the shards of all parts to their target, and publish it."""
    done: Mapping[str, Any] = parts[0].state.done or {}
    contents = {
        folder: (Schema.from_json(content["schema"]), joined_provenance(content, len(parts)))
        for folder, content in done.items()
    }
    for folder, (schema, _) in contents.items():
        shards = [
            FileShard(part.path / STAGED_NAME / folder, info, schema, None)
            for part in parts
            for info in part.state.shards.get(folder, ())
        ]
        packing.take_whole(folder, shards)
        packing.copy_files(folder, schema, parts[0].path / STAGED_NAME / folder)
    for split in parts[0].state.ended:
        if split not in packing.state.ended:
            packing.end_split(reached(split, [part.state for part in parts]))
    packing.publish(contents)


def _remove(parts: Path) -> None:
    """Delete the folders of parts, many at a time: a network drive takes its time for each file."""
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(partial(shutil.rmtree, ignore_errors=True), parts.glob("*")):
            pass  # none: another has finished, meanwhile
    shutil.rmtree(parts, ignore_errors=True)
