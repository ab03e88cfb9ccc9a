"""Datasets put together at a URL, without reading records: shards are sent as they are, and listed anew.

1. Shards that the manifest there lists stay and are not sent again; nor are those that a killed command has sent.
   None is deleted: an older manifest may name it.
2. The manifest is put last, in place of the one that was seen.
3. ``extend`` first puts what it is about to publish beside the dataset: killed, the same command finds out by that
   whether it was published, and does not add the same twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loaders.data.manifest import (
    MANIFEST_NAME,
    Manifest,
    manifest_bytes,
    parse_manifest,
    read_manifest,
)
from loaders.data.view import open_view
from loaders.errors import PackError
from loaders.remote.origin import origin_of, target_at
from packdata.packed.remote import as_folder
from packdata.packing.links import file_beside, file_fault
from packdata.packing.provenance import PLAN
from packdata.packing.shards import shard_format, shard_name
from packdata.packing.target import PARTS_NAME, digest_of
from packdata.packing.upload import as_file, lost_at, publish_at, put_shards, seen_at, stored_info

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from loaders.data.manifest import ShardInfo
    from loaders.data.view import View
    from loaders.remote.origin import Origin

MADE = "the same command made it earlier; nothing was written"
TWIN = "the same command made it meanwhile"
FINISHED = "the same command was killed when it had made it; it was finished"


def upload(
    folder: Path,
    url: Path | str,
    *,
    overwrite: bool = False,
    tick: Callable[[int], object] = int,
    note: Callable[[str], object] = str,
) -> Manifest:
    """Send a packed dataset to a URL as it is; if it is killed, the same call continues. See ``Sending``.

    Args:
        folder: The dataset.
        url: Where it is to be.
        overwrite: Replace the manifest of another dataset there; its shards stay.
        tick: Called with the bytes of each shard when it is there, on another thread.
        note: Called with what deserves a look.

    Returns:
        The manifest at the URL: that of the folder, with other names of shards.

    Raises:
        PackError: Another dataset is there, or was put there meanwhile.
        ChecksumError: A shard is damaged.
        RemoteError: The store does not answer, or refuses.
    """
    manifest = read_manifest(folder)
    named = replace(manifest, shards=tuple(map(stored_info, manifest.shards)))
    sending = Sending(target_at(url), [open_view(folder, "never")], {}, tick, note)
    return sending.publish(named, overwrite)


@dataclass(frozen=True, slots=True)
class Sending:
    """Whole datasets on their way to another one at a URL.

    Attributes:
        url: Of the other one.
        views: The datasets.
        plan: What tells the command from others.
        tick: Called with the bytes of each shard when it is there, on another thread.
        note: Called with what deserves a look.
    """

    url: Path
    views: Sequence[View]
    plan: Mapping[str, str]
    tick: Callable[[int], object] = int
    note: Callable[[str], object] = str

    @property
    def _origin(self) -> Origin:
        return origin_of(self.url)

    def merge(self, provenance: Mapping[str, Any], *, overwrite: bool) -> Manifest:
        """Make the datasets one at the URL.

        Raises:
            PackError: Another dataset is there, or was put there meanwhile.
            RemoteError: The store does not answer, or refuses.
        """
        about = {**provenance, PLAN: digest_of(self.plan)}
        return self.publish(
            Manifest(self.views[0].schema, tuple(self._infos(0)), about), overwrite
        )

    def publish(self, manifest: Manifest, overwrite: bool) -> Manifest:
        """Put the datasets at the URL as this manifest lists them; raises what ``merge`` does."""
        seen = seen_at(self._origin, "", manifest, overwrite=overwrite)
        if seen is None and not lost_at(self._origin, "", manifest.shards):
            self.note(f"{self.url}: {MADE}")
            return manifest
        self._send(manifest.shards)
        for name, digest in manifest.schema.files.items():
            file = file_beside(self.views[0].path, name)
            if (what := file_fault(file, digest)) is not None:
                raise PackError(f"its file {name} cannot be sent: {what}", self.views[0].path)
            self._origin.put(name, file)
        if seen is not None:
            publish_at(self._origin, "", manifest, seen, self.note)
        return manifest

    def extend(
        self, check: Callable[[View], object], about: Callable[[Manifest], Any]
    ) -> Manifest:
        """Add the datasets to the one at the URL.

        Args:
            check: Called with that one before anything is sent.
            about: Returns the provenance of what becomes of it.

        Raises:
            PackError: It was replaced meanwhile.
            RemoteError: The store does not answer, or refuses.
        """
        origin = self._origin
        origin.manifest(anew=True)
        grown = open_view(self.url, "never")
        data, seen = origin.read(MANIFEST_NAME)
        before = parse_manifest(data or b"", self.url / MANIFEST_NAME)
        if before.fingerprint != grown.fingerprint:
            raise PackError("it was replaced meanwhile", self.url, "Run the same command again")
        record = f"{PARTS_NAME}/extend-{digest_of(self.plan)}.json"
        if self._is_in(before, origin.read(record)[0]):
            origin.delete(record)
            self.note(f"{self.url}: {FINISHED}")
            return before
        check(grown)
        added = self._infos(len(before.shards))
        manifest = Manifest(grown.schema, (*before.shards, *added), about(before))
        self._send(added)
        with as_file(manifest_bytes(manifest)) as path:
            origin.put(record, path)
        made = manifest
        try:
            publish_at(origin, "", manifest, seen, self.note, "Run the same command again")
        except PackError:
            data, _ = origin.read(MANIFEST_NAME)
            if data is None:
                raise
            made = parse_manifest(data, self.url / MANIFEST_NAME)
            if not self._is_in(made, manifest_bytes(manifest)):
                raise
            self.note(f"{self.url}: {TWIN}")
        origin.delete(record)
        return made

    def _is_in(self, there: Manifest, record: bytes | None) -> bool:
        """Tell whether what was about to be published was, though others may have added to it meanwhile."""
        if record is None:
            return False
        shards = parse_manifest(record, self.url / PARTS_NAME).shards
        return there.shards[: len(shards)] == shards

    def _infos(self, first: int) -> list[ShardInfo]:
        """Return the shards under their names at the URL, numbered from one on."""
        shards = [shard.info for view in self.views for shard in view.whole_shards or ()]
        names = (shard_name(i, shard_format(each.file)) for i, each in enumerate(shards, first))
        return [
            stored_info(each._replace(file=name)) for each, name in zip(shards, names, strict=True)
        ]

    def _send(self, infos: Sequence[ShardInfo]) -> None:
        left = iter(infos)
        for view in self.views:
            with as_folder(view.path) as folder:
                places = [folder / shard.info.file for shard in view.whole_shards or ()]
                named = [(place, next(left)) for place in places]
                if named:
                    put_shards(self._origin, "", named, self.tick)
