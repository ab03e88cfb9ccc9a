"""One part of a packing, made on any machine.

1. It is packed in a folder of its own, where the same command continues it: of a URL below ``$TMPDIR``, of a folder
   in ``DST/.parts/part-00003-of-00010.HERE``, where HERE is the running kernel, as far as its locks reach.
2. Its shards are sent, each when it is finished, under names that hold the part's number and their hash: every process
   that packs it sends the same.
3. When all are there, its journal is put as ``DST/.parts/part-00003-of-00010``, if none is: of two that made the same
   part, the second drops its own.
"""

from __future__ import annotations

import re
import shutil
import socket
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.errors import PackError
from loaders.remote.url import is_url
from loaders.schema import Schema
from packdata.bucket import target_at
from packdata.claimed import claimed_folder, on_the_way
from packdata.packing.engine import counted_folders, pack_recipes, plan_of, target_folders
from packdata.packing.journal import named, read_journal
from packdata.packing.packing import check_target
from packdata.packing.publish import ShardSender, is_made, lost_at, put_shards
from packdata.packing.shards import DEFAULT_SHARD_BYTES
from packdata.packing.store import Store, store_of
from packdata.packing.target import (
    JOURNAL_NAME,
    PACKING_NAME,
    PARTS_NAME,
    STAGED_NAME,
    digest_of,
    is_unfinished,
)
from packdata.parts.joining import Complete, complete, found_parts, kept_file, nothing_done, whole
from packdata.parts.part import Part, versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from packdata.packing.shards import Format
    from packdata.packing.summary import Summary
    from packdata.recipe import Recipe


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
    place = target_at(dst)
    with _own_folder(place, part) as own:
        making = _Making(place, store_of(place), part, plan, own)
        if making.is_done(folders, overwrite=overwrite):
            return making.nothing_done("was packed earlier; nothing was read or written")
        making.make_room(folders, overwrite=overwrite)
        how: dict[str, Any] = {"format": format, "shard_bytes": shard_bytes, **settings}
        try:
            with ShardSender(making.store, part.stored) as sender:
                how |= {"overwrite": overwrite, "plan": plan, "sender": sender}
                summary = pack_recipes(part.cut(recipes), own, **how)
            making.complete(overwrite=overwrite)
        except PackError:
            if not making.is_done(folders, overwrite=False):
                raise
            return making.nothing_done("was packed by another, meanwhile")
    return replace(summary, dst=str(place / PARTS_NAME / part.name))


@contextmanager
def _own_folder(place: Path, part: Part) -> Iterator[Path]:
    if not is_url(place):
        yield place / PARTS_NAME / f"{part.name}.{_this_machine()}"
        return
    with claimed_folder(f"{place} {part.name}") as own, on_the_way(own, place):
        yield own


def _this_machine() -> str:
    """Return what tells the running kernel from all others, as far as its own locks reach."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return re.sub(r"\W", "-", socket.gethostname())


@dataclass(frozen=True, slots=True)
class _Making:
    """One part, and its places.

    Attributes:
        dst: The destination of all parts, a folder or a URL.
        store: What is there.
        part: The part.
        plan: All that decides the output.
        own: Where it is packed, on this machine alone.
    """

    dst: Path
    store: Store
    part: Part
    plan: Mapping[str, str]
    own: Path

    @property
    def _record(self) -> str:
        return f"{PARTS_NAME}/{self.part.name}"

    def _found(self) -> Complete | None:
        data, _ = self.store.read(self._record)
        return None if data is None else complete(data, self.dst / self._record)

    def _lost(self, found: Complete) -> bool:
        named = {f: map(self.part.stored, each) for f, each in found.state.shards.items()}
        return any(lost_at(self.store, folder, each) for folder, each in named.items())

    def is_done(self, folders: Sequence[str], *, overwrite: bool) -> bool:
        """Tell whether the part is packed, or all of them are finished.

        With ``overwrite``, a part that left items out is packed again: they may be readable now.
        """
        found = self._found()
        if found is None:
            is_done = is_made(self.store, folders, digest_of(whole(self.plan, self.part.of)))
        else:
            is_done = not found.header.differences(self.plan) and not self._lost(found)
            is_done &= not (overwrite and found.state.all_rejects)
        if is_done:
            self._drop()
        return is_done

    def make_room(self, folders: Sequence[str], *, overwrite: bool) -> None:
        """Make room for the part; PackError if something else is there."""
        check_target(self.dst, folders, overwrite=overwrite)
        if not is_url(self.dst) and is_unfinished(self.dst) and not overwrite:
            hint = "Finish it with the command that began it, or pass overwrite=True"
            raise PackError("packing into it was not finished", self.dst, hint)
        others = [path for path, part in found_parts(self.store) if part.of != self.part.of]
        if others and not overwrite:
            raise self._other(f"{others[0].name} is there, of another number of parts")
        self._check_record(overwrite=overwrite)
        for path in others:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
        self.store.delete(self._record, *(f"{PARTS_NAME}/{path.name}" for path in others))

    def _check_record(self, *, overwrite: bool) -> None:
        """Raise PackError if the part is there, made with other options."""
        found = self._found()
        differs = [] if found is None else found.header.differences(self.plan)
        if differs and not overwrite:
            raise self._other("; ".join(differs[:4]))

    def _other(self, what: str) -> PackError:
        hint = "Pass what they were packed with, or overwrite=True to drop them"
        return PackError(f"other parts were packed there: {what}", self.dst, hint)

    def complete(self, *, overwrite: bool) -> None:
        """Put the shards that are not there yet, then the journal; PackError if another packed it differently."""
        staged, store = self.own / PACKING_NAME, self.store
        found = read_journal(staged / JOURNAL_NAME)
        if found is None:  # all parts were joined, and removed, meanwhile
            what = "the part was removed while it was packed"
            raise PackError(what, self.own, "Run the same command again")
        for folder, shards in found[1].shards.items():
            places = [(staged / STAGED_NAME / folder / shard.file, shard) for shard in shards]
            left = [(p.resolve, self.part.stored(shard)) for p, shard in places if p.exists()]
            put_shards(store, folder, left)
        for folder, content in (found[1].done or {}).items():
            for name, digest in Schema.from_json(content["schema"]).files.items():
                store.put(kept_file(digest), staged / STAGED_NAME / folder / name)
        if not store.put(self._record, staged / JOURNAL_NAME, {}):
            self._check_record(overwrite=overwrite)
        self._drop()

    def _drop(self) -> None:
        """Remove what was packed here: another process that packs the same finds the part done."""
        shutil.rmtree(self.own, ignore_errors=True)
        if not is_url(self.dst):
            with suppress(OSError):  # there are other parts, or none
                self.own.parent.rmdir()

    def nothing_done(self, why: str) -> Summary:
        """Return the summary of a part that was packed before, with its rejects."""
        found = self._found()
        rejects = [] if found is None else found.state.all_rejects
        return nothing_done(self.dst / self._record, f"part {self.part} {why}", named(rejects))
