"""One part of a packing, made on any machine.

1. Its journal lies in a folder of its own, where the same command continues it: of a URL below ``$TMPDIR``, of a
   folder in ``DST/.parts/part-00003-of-00010.HERE``, where HERE is the running kernel, as far as its locks reach.
2. Its shards are put under names that hold the part's number and their hash: every process that packs it puts the same.
3. When all are there, its journal is put as ``DST/.parts/part-00003-of-00010``, if none is: of two that made the same
   part, the second drops its own.
"""

from __future__ import annotations

import re
import shutil
import socket
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.errors import PackError
from loaders.remote.url import is_url
from packdata.bucket import target_at
from packdata.claimed import claimed_folder
from packdata.packing.engine import Run, counted_folders, plan_of, targets_of
from packdata.packing.journal import differences, named
from packdata.packing.packing import Packing, check_target
from packdata.packing.publish import is_made, lost_at
from packdata.packing.shards import DEFAULT_SHARD_BYTES
from packdata.packing.target import JOURNAL_NAME, PACKING_NAME, PARTS_NAME, digest_of
from packdata.parts.joining import found_parts, kept_file, nothing_done, part_at, whole
from packdata.parts.part import Part, versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from loaders.data.manifest import Manifest
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
    run = Run(format, shard_bytes, **settings)
    share = {"of": part.of, "counted": counted_folders(recipes), "versions": versions()}
    plan = plan_of(recipes, format, shard_bytes, share)
    place, folders = target_at(dst), [*targets_of(*recipes)]
    with PartPacking(place, folders, plan, part, overwrite=overwrite) as packing:
        if packing.is_published:
            return packing.nothing_done()
        summary = run.pack(packing, part.cut(recipes))
    return replace(summary, dst=str(place / packing.record))


class PartPacking(Packing):
    """The making of one part of datasets: what is published is its journal, as ``record``."""

    def __init__(
        self,
        dst: Path,
        folders: Sequence[str],
        plan: Mapping[str, str],
        part: Part,
        *,
        overwrite: bool = False,
    ) -> None:
        super().__init__(dst, folders, plan, overwrite=overwrite, kind="part")
        self._part, self.record = part, f"{PARTS_NAME}/{part.name}"
        self._prefix = f"shard-{part.number:05d}" if part.of > 1 else "shard"

    @contextmanager
    def _working_place(self) -> Iterator[Path]:
        with ExitStack() as opened:
            if is_url(self.dst):
                own = opened.enter_context(claimed_folder(f"{self.dst} {self._part.name}"))
            else:
                own = self.dst / f"{self.record}.{_this_machine()}"
            yield own
            if self.is_published:
                shutil.rmtree(own, ignore_errors=True)
                with suppress(OSError):  # there are other parts, or none
                    (self.dst / PARTS_NAME).rmdir()

    def is_made(self) -> bool:
        """Tell whether the part is packed, or all of them are finished.

        With ``overwrite``, a part that left items out is packed again: they may be readable now.
        """
        found = part_at(self._store, self._part.name)
        if found is None:
            digest = digest_of(whole(self._plan, self._part.of))
            self.is_published = is_made(self._store, self.folders, digest)
        else:
            self.is_published = not (
                differences(found.plan, self._plan)
                or any(lost_at(self._store, folder, each) for folder, each in found.shards.items())
                or (self._overwrite and found.all_rejects)
            )
        return self.is_published

    def _check_target(self) -> None:
        """Make room for the part; PackError if something else is there."""
        check_target(self.dst, self.folders, overwrite=self._overwrite)
        begun = self.dst / PACKING_NAME / JOURNAL_NAME
        if not (self._overwrite or is_url(self.dst)) and begun.exists():
            hint = "Finish it with the command that began it, or pass overwrite=True"
            raise PackError("unfinished packing", self.dst, hint)
        others = [path for path, part in found_parts(self._store) if part.of != self._part.of]
        if others and not self._overwrite:
            raise self._other(f"{others[0].name}, of another number of parts")
        self._check_record()
        for path in others:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
        self._store.delete(self.record, *(f"{PARTS_NAME}/{path.name}" for path in others))

    def _check_record(self) -> None:
        """Raise PackError if the part is there, made with other options."""
        found = part_at(self._store, self._part.name)
        differs = [] if found is None else differences(found.plan, self._plan)
        if differs and not self._overwrite:
            raise self._other("; ".join(differs[:4]))

    def _other(self, what: str) -> PackError:
        hint = "Pass what they were packed with, or overwrite=True to drop them"
        return PackError(f"other parts were packed there: {what}", self.dst, hint)

    def _put_made(
        self,
        manifests: Mapping[str, Manifest],
        files: Mapping[str, Mapping[str, bytes]],
    ) -> None:
        """Put the part's journal; PackError if another packed it differently."""
        for folder, beside in files.items():
            for name, data in beside.items():
                self._store.put(kept_file(manifests[folder].schema.files[name]), data)
        if not self._store.put(self.record, self._journal.path.read_bytes(), {}):
            self._check_record()

    def rejected(self) -> list[tuple[str, str]]:
        """Return (item, error) of what was left out of the part so far."""
        return named(self.state.all_rejects)

    def nothing_done(self) -> Summary:
        """Return the summary of a part that was packed before, with its rejects."""
        found = part_at(self._store, self._part.name)
        rejects = [] if found is None else found.all_rejects
        what = f"part {self._part} was packed earlier; nothing was read or written"
        return nothing_done(self.dst / self.record, what, named(rejects))


def _this_machine() -> str:
    """Return what tells the running kernel from all others, as far as its own locks reach."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return re.sub(r"\W", "-", socket.gethostname())
