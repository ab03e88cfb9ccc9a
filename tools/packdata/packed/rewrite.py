"""Writing samples of packed datasets as a new one: what ``copy``, ``merge``, ``split`` and ``write`` do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.data.shards import FileShard
from loaders.errors import PackError
from loaders.remote.origin import origin_of as origin_at
from loaders.remote.url import is_url
from loaders.system.regular import read_regular
from packdata.bucket import target_at
from packdata.packing.journal import Reached, flatten_plan
from packdata.packing.packing import Packing
from packdata.packing.provenance import PACKER, PLAN
from packdata.packing.shards import (
    DEFAULT_SHARD_BYTES,
    Format,
    ShardBuilder,
    check_records,
    check_shard_options,
    shard_format,
)
from packdata.packing.target import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from loaders.data.manifest import Manifest
    from loaders.data.view import View
    from loaders.schema import Schema
    from packdata.packed.content import Content

    Note = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How samples are written; none of it is about which."""

    format: Format = "lmdb"  # format of the shards
    shard_bytes: int = DEFAULT_SHARD_BYTES  # a shard ends with the sample that reaches this size
    overwrite: bool = False  # replace a dataset that is there
    link: bool = True  # link whole shards, where the file system has links
    # Called with the number of samples written since the last call.
    tick: Callable[[int], object] = int
    # Called with what is no error and deserves a look, such as that all was done before.
    note: Note = str

    def __post_init__(self) -> None:
        check_shard_options(self.format, self.shard_bytes)


@dataclass(frozen=True, slots=True)
class Written:
    """A dataset that is to be written."""

    content: Content
    provenance: Mapping[str, Any]  # JSON for the manifest: what it is made from
    # Shards that hold just these samples, to be used as they are: of a dataset that is written alone.
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

    Killed, the same command continues: ``plan`` (``plan_of``) tells it from others.

    Raises:
        PackError: A target is taken or cannot be written, or there are no samples.
        RemoteError: The store does not answer, or refuses.
    """
    place, folders, overwrite, link = target_at(dst), [*datasets], options.overwrite, options.link
    with Packing(place, folders, plan, kind="command", overwrite=overwrite, link=link) as packing:
        if packing.is_published:
            options.note(f"{place}: {packing.why_finished}")
            return packing.manifests()
        for folder, each in datasets.items():
            # It has what the schema names besides shards.
            source = next(iter(each.content.view.folders), None)
            packing.stage_files(folder, files_beside(each.content.schema, source))
            if each.whole is not None:
                provenance = {**each.provenance, PLAN: digest_of(plan)}
                schema, tick = each.content.schema, options.tick
                made = packing.publish_whole(schema, provenance, each.whole, tick=tick)
                return {folder: made}
            _write_content(packing, folder, each.content, options)
        packing.publish({f: (w.content.schema, w.provenance) for f, w in datasets.items()})
        return packing.manifests()


def files_beside(schema: Schema, source: Path | None) -> dict[str, bytes]:
    """Return the files that a schema names, from a dataset that has them.

    Raises:
        PackError: One is missing or damaged.
    """
    found = dict[str, bytes]()
    for name, digest in schema.files.items():
        data = b""
        if source is not None:
            file = origin_at(source).small_file(name) if is_url(source) else source / name
            data = read_regular(file) if file.is_file() else b""
        if xxhash.xxh3_128_hexdigest(data) != digest:
            what = f"the file {name} is missing, or not the one that the manifest names"
            raise PackError(what, source or name, "Copy it from a backup")
        found[name] = data
    return found


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
