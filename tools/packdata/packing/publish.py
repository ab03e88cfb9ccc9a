"""Publishing what is staged: a reader finds the old dataset or the new one, and dying in between costs neither.

The shards are renamed into place, under names that hold their hash, the manifests are replaced, each in one step, and
only after that the files of the dataset that was there before are deleted. The journal says by then that all is
complete: each step may be repeated.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loaders.data.manifest import (
    MANIFEST_NAME,
    Manifest,
    manifest_bytes,
    publish_bytes,
    publish_file,
    read_manifest,
    sync_folder,
)
from loaders.errors import PackError
from loaders.schema import Schema
from packdata.packing.shards import stored_info
from packdata.packing.target import (
    REJECTED_NAME,
    STORED_SHARD,
    dataset_at,
    files_of,
    has_all,
    missing_folders,
    rejects_bytes,
    staged_at,
    sync_made,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from loaders.data.manifest import ShardInfo
    from packdata.packing.journal import Journal


@dataclass(frozen=True, slots=True)
class Publication:
    """What is staged below a folder, and becomes its datasets.

    Attributes:
        dst: The folder, as messages name it.
        place: The same, absolute.
        journal: Of the packing; it lists the finished shards.
    """

    dst: Path
    place: Path
    journal: Journal

    def check_targets(self) -> None:
        """Raise PackError if publishing would cost what others have put there meanwhile."""
        for folder in self.journal.header.first:
            there = dataset_at(self.place / folder)
            is_known = there is None or has_all(there, self._shards(folder))
            if there is not None and not is_known and not self._is_replaced(folder, there):
                what = "the dataset there changed while another was packed to take its place"
                hint = "Pass overwrite=True to pack anew, and to replace it as it is"
                raise PackError(what, self.dst / folder, hint)

    def is_published(self) -> bool:
        """Tell whether the manifests are in place: by a run that was killed behind that."""
        folders = self.journal.header.first
        there = {folder: dataset_at(self.place / folder) for folder in folders}
        return all(m is not None and has_all(m, self._shards(f)) for f, m in there.items())

    def publish(self) -> None:
        """Make the datasets, whose schemas and provenance the journal has."""
        done = self.journal.state.done or {}
        for folder in done:
            self._stage_manifest(folder)
        for folder in done:
            self._rename_staged(folder)
        self._publish_rejects()
        for folder in done:
            staged = staged_at(self.place, folder) / MANIFEST_NAME
            if staged.exists():
                publish_file(staged, self.place / folder / MANIFEST_NAME)
        for folder in done:
            kept = files_of(read_manifest(self.place / folder))
            given_up = filter(STORED_SHARD.fullmatch, os.listdir(self.place / folder))
            for name in {*self._to_delete(folder), *given_up}.difference(kept):
                (self.place / folder / name).unlink(missing_ok=True)

    def manifest(self, folder: str, before: Sequence[ShardInfo] = ()) -> Manifest:
        """Return what the manifest of a target is to be, with shards that come first."""
        content = (self.journal.state.done or {})[folder]
        shards = (*before, *self._shards(folder))
        return Manifest(Schema.from_json(content["schema"]), shards, content["provenance"])

    def _shards(self, folder: str) -> list[ShardInfo]:
        """Return the finished shards of a target, under the names that they get there."""
        return [stored_info(shard) for shard in self.journal.state.shards.get(folder, ())]

    def _is_replaced(self, folder: str, there: Manifest) -> bool:
        """Tell whether the dataset at a target is the one that this one is to take the place of."""
        replaced, _ = self.journal.header.replaces.get(folder, (None, ()))
        return there.fingerprint == replaced

    def _to_delete(self, folder: str) -> Sequence[str]:
        """Return the files of the dataset that is replaced; none of one that is extended."""
        return self.journal.header.replaces.get(folder, (None, ()))[1]

    def _stage_manifest(self, folder: str) -> None:
        """Make the manifest of a target ready, if it is not there: published already, and perhaps extended since."""
        there = dataset_at(self.place / folder)
        if there is None or self._is_replaced(folder, there):
            before = there.shards if there is not None and not self._to_delete(folder) else ()
            data = manifest_bytes(self.manifest(folder, before))
            publish_bytes(staged_at(self.place, folder) / MANIFEST_NAME, data)

    def _rename_staged(self, folder: str) -> None:
        target, manifest = self.place / folder, self.manifest(folder)
        made = missing_folders(target)
        target.mkdir(parents=True, exist_ok=True)
        sync_made(made)
        named = {
            shard.file: stored_info(shard).file
            for shard in self.journal.state.shards.get(folder, ())
        }
        for name, stored in (named | {name: name for name in manifest.schema.files}).items():
            staged = staged_at(self.place, folder) / name
            if staged.exists():
                os.replace(staged, target / stored)
        sync_folder(target)  # a manifest that outlives a power cut finds its shards

    def _publish_rejects(self) -> None:
        path, header = self.place / REJECTED_NAME, self.journal.header
        rejects = self.journal.state.all_rejects
        if rejects:
            publish_bytes(path, rejects_bytes(rejects))
        elif header.replaces and header.kind != "command":
            path.unlink(missing_ok=True)
