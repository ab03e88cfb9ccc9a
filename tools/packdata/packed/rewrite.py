"""Writing samples of packed datasets as a new one: what ``copy``, ``merge``, ``split`` and ``write`` do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loaders.data.shards import FileShard
from loaders.errors import PackError
from loaders.remote.url import URL
from packdata.bucket import target_at
from packdata.packing.journal import Reached, flatten_plan
from packdata.packing.packing import Packing
from packdata.packing.provenance import PACKER
from packdata.packing.shards import (
    DEFAULT_SHARD_BYTES,
    Format,
    ShardBuilder,
    check_records,
    check_shard_options,
    shard_format,
)
from packdata.packing.store import store_of
from packdata.packing.summary import summarize
from packdata.packing.target import digest_of
from packdata.parts.local import finish, make_part
from packdata.parts.part import Part
from packdata.parts.stored import manifests_below

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from loaders.data.manifest import Manifest
    from loaders.data.view import View
    from packdata.packed.content import Content
    from packdata.packing.links import OnLink
    from packdata.packing.summary import Summary
    from packdata.packing.upload import ShardSender

    Note = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How samples are written; none of it is about which."""

    format: Format = "lmdb"  # format of the shards
    shard_bytes: int = DEFAULT_SHARD_BYTES  # a shard ends with the sample that reaches this size
    overwrite: bool = False  # replace a dataset that is there
    link: bool = True  # link whole shards, as ``packdata.packing.links.stage_whole`` does
    # Called with the number of samples written since the last call.
    tick: Callable[[int], object] = int
    on_link: OnLink = str  # called with each shard that was linked
    # Called with what is no error and deserves a look, such as that all was done before.
    note: Note = str

    def __post_init__(self) -> None:
        check_shard_options(self.format, self.shard_bytes)


@dataclass(frozen=True, slots=True)
class Written:
    """A dataset that is to be written."""

    content: Content
    provenance: Mapping[str, Any]  # JSON for the manifest: what it is made from
    # Shards that hold just these samples, to be used as they are.
    whole: Sequence[FileShard] | None = None


def plan_of(name: str, sources: Sequence[View], **options: Any) -> dict[str, str]:
    """Return what tells a command from others."""
    prints = [view.source_fingerprint for view in sources]
    command = json.dumps({"command": name, "sources": prints} | options, sort_keys=True)
    return flatten_plan({"command": command, "packer": PACKER})


def format_of(view: View) -> Format:
    """Return the format of a view's shards (of the first, should they differ)."""
    files = (shard for shard in view.store.shards if isinstance(shard, FileShard))
    return next((shard_format(shard.info.file) for shard in files), "lmdb")


def write_datasets(
    dst: Path | str,
    plan: Mapping[str, str],
    datasets: Mapping[str, Written],
    options: WriteOptions,
) -> dict[str, Manifest]:
    """Write samples as packed datasets, by their folder below ``dst``; all of them appear, or none.

    Killed, the same command continues: ``plan`` (``plan_of``) tells it from others. At a URL shards are sent when they
    are finished, as those of a packing of one part.

    Raises:
        PackError: A target is taken or cannot be written, or there are no samples.
        RemoteError: The store does not answer, or refuses.
    """
    place = target_at(dst)
    if isinstance(place, URL):
        return _send_datasets(place, plan, datasets, options)
    packing = Packing(place, list(datasets), plan, overwrite=options.overwrite, kind="command")
    with packing:
        if packing.is_published:
            options.note(f"{place}: {packing.why_finished}")
            return packing.manifests()
        _write_all(packing, datasets, options)
        return packing.manifests()


def _send_datasets(
    dst: URL,
    plan: Mapping[str, str],
    datasets: Mapping[str, Written],
    options: WriteOptions,
) -> dict[str, Manifest]:
    folders = list(datasets)

    def make(own: Path, sender: ShardSender | None) -> Summary:
        # What a killed command has left here of other sources is dropped.
        with Packing(own, folders, plan, overwrite=True, kind="part", sender=sender) as packing:
            _write_all(packing, datasets, options)
            return summarize(packing, folders, 0.0, 0)

    make_part(dst, Part(0, 1), plan, folders, make, overwrite=options.overwrite)
    done = finish(dst, overwrite=options.overwrite, digest=digest_of(plan))
    for text in done.notes:
        options.note(f"{dst}: {text}")
    there = manifests_below(store_of(dst))
    return {folder: there[folder] for folder in folders}


def _write_all(packing: Packing, datasets: Mapping[str, Written], options: WriteOptions) -> None:
    for folder, each in datasets.items():
        if each.whole is None:
            _write_content(packing, folder, each.content, options)
        else:
            link, on_link = options.link, options.on_link
            packing.take_whole(folder, each.whole, link=link, on_link=on_link)
        # It has what the schema names besides shards.
        source = next(iter(each.content.view.folders), None)
        packing.copy_files(folder, each.content.schema, source)
    packing.publish({f: (each.content.schema, each.provenance) for f, each in datasets.items()})


def _write_content(packing: Packing, folder: str, content: Content, options: WriteOptions) -> None:
    """Write samples as shards, behind those that the same command has left."""
    builder = ShardBuilder(content.schema, options.format, options.shard_bytes)
    done = sum(info.num_samples for info in packing.state.shards.get(folder, ()))
    options.tick(done)

    def flush() -> None:
        columns = builder.take()
        packing.write(folder, columns, content.schema, options.format, Reached(0))

    for block in content.blocks(done):
        check_records(block, content.schema, options.format)
        for _ in builder.fill(block):
            flush()
        options.tick(len(block))
    if builder.num_samples:
        flush()
    packing.wait()
    if not packing.state.shards.get(folder):
        raise PackError("there is no sample to write", packing.dst)
