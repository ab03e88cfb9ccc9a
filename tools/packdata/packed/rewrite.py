"""Writing samples of packed datasets as new ones: what ``copy``, ``merge``, ``split`` and ``write`` do."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypedDict

import xxhash

from loaders.data.shards import FileShard
from loaders.errors import PackError
from loaders.remote.origin import origin_of
from loaders.remote.url import is_url
from loaders.system.regular import read_regular
from packdata.bucket import target_at
from packdata.packing.engine import Run
from packdata.packing.journal import flatten_plan
from packdata.packing.packing import MADE, Made, Packing
from packdata.packing.provenance import PACKER
from packdata.packing.shards import (
    DEFAULT_SHARD_BYTES,
    Format,
    shard_format,
)
from packdata.packing.target import check_outside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from loaders.data.manifest import Manifest
    from loaders.data.view import View
    from loaders.schema import Schema
    from packdata.packed.content import Content
    from packdata.packing.progress import Progress

    Note = Callable[[str], object]


class WriteSettings(TypedDict, total=False):
    """Keyword arguments that other functions pass on to ``write_datasets``, which describes them."""

    format: Format | None
    shard_bytes: int | None
    workers: int | None
    overwrite: bool
    link: bool
    progress: Progress | None
    note: Note


def command_plan(name: str, sources: Sequence[View], **options: Any) -> dict[str, str]:
    """Return what tells a command from others, flat."""
    prints = [view.source_fingerprint for view in sources]
    command = json.dumps({"command": name, "sources": prints} | options, sort_keys=True)
    return flatten_plan({"command": command, "packer": PACKER})


def format_of(view: View) -> Format:
    """Return the format of a view's shards (of the first, should they differ)."""
    files = (shard for shard in view.store.shards if isinstance(shard, FileShard))
    return next((shard_format(shard.info.file) for shard in files), "lmdb")


def write_datasets(
    dst: Path | str,
    command: str,
    sources: Sequence[View],
    datasets: Mapping[str, Content],
    options: Mapping[str, Any],
    *,
    format: Format | None = None,
    shard_bytes: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    link: bool = True,
    progress: Progress | None = None,
    note: Note = str,
) -> dict[str, Manifest]:
    """Write samples as packed datasets, by their folder below ``dst``; all of them appear, or none.

    Killed, the same command continues: command, sources, options, format and size of shards tell it from others.

    Args:
        dst: A folder, or a URL.
        command: Its name.
        sources: What the samples come from.
        datasets: What each is to hold, by its folder below ``dst``.
        options: What else decides what is written, as JSON.
        format: Of the shards; by default that of the first source.
        shard_bytes: A shard ends with the sample that reaches this size; 64 MiB by default.
        workers: Threads that encode; all cores by default.
        overwrite: Replace datasets that are there.
        link: Link whole shards, where the file system has links.
        progress: Counts the samples.
        note: Called with what is no error and deserves a look, such as that all was done before.

    Raises:
        PackError: A target is taken or cannot be written, is a source, lies inside one or holds one; or there are no
            samples.
        RemoteError: The store does not answer, or refuses.
    """
    place, format = target_at(dst), format or format_of(sources[0])
    shard_bytes = DEFAULT_SHARD_BYTES if shard_bytes is None else shard_bytes
    run = Run(format, shard_bytes, workers, progress=progress)
    if not any(content.recoders for content in datasets.values()):
        run.num_workers = 1  # only copies, of records that may be large
    folders = [folder for view in sources for folder in view.folders]
    for folder, content in datasets.items():
        check_outside(place / folder, folders)
        if not len(content):
            what = "no sample to write: none meets the condition, or a part's share is too small"
            hint = "Documents stay whole in parts of text; TokenWindows.split divides them"
            raise PackError(what, place / folder, hint)
    plan = command_plan(command, sources, **options, format=format, shard_bytes=shard_bytes)
    how: Any = {"kind": "command", "overwrite": overwrite, "link": link}
    with closing(run.shown), Packing(place, [*datasets], plan, **how) as packing:
        if packing.is_published:
            note(f"{place}: {MADE}")
            return packing.manifests()
        made = {
            f: Made(c.schema, c.provenance, files_beside(c.schema, c.view.folders), c.whole)
            for f, c in datasets.items()
        }
        if all(c.whole for c in datasets.values()):
            run.shown.start(total := sum(len(c.view) for c in datasets.values()), 0)
            run.shown.advance(0, total)
        else:
            run.pack_splits(packing, [*datasets.items()])
        packing.publish(made)
        return packing.manifests()


def files_beside(schema: Schema, folders: Sequence[Path]) -> dict[str, bytes]:
    """Return the files that a schema names, from the first of some folders.

    Raises:
        PackError: One is missing or damaged.
    """
    found = dict[str, bytes]()
    for name, digest in schema.files.items():
        files = [origin_of(f).small_file(name) if is_url(f) else f / name for f in folders[:1]]
        found[name] = b"".join(read_regular(file) for file in files if file.is_file())
        if xxhash.xxh3_128_hexdigest(found[name]) != digest:
            what = f"the file {name} is missing, or not the one that the manifest names"
            raise PackError(what, folders[0] if folders else name, "Copy it from a backup")
    return found
