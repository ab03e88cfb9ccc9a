"""Publishing, in a folder or at a URL: shards first, under names that hold their hash; then the manifests are swapped.

1. A reader sees the old dataset or the new one: no shard is written over, and a manifest is replaced in one step.
2. Killed, the same command does all of it again, and finds the shards that are there.
3. In a folder, what the dataset before had goes after that. At a URL it stays: somebody may still read it.
4. Of two who publish at one place: the manifest is put only in place of the one that was seen. It is
   read again right before and after, as some stores ignore conditions.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from loaders.data.manifest import MANIFEST_NAME, Manifest, manifest_bytes, parse_manifest
from loaders.errors import PackError
from loaders.remote.url import is_url
from packdata.describe import counted
from packdata.packing.provenance import PLAN
from packdata.packing.target import REJECTED_NAME, STORED_SHARD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from loaders.data.manifest import ShardInfo
    from loaders.remote.wire import Entry
    from packdata.packing.store import Store


def name_at(folder: str, name: str) -> str:
    """Return the name of a file in a folder of a target."""
    return f"{folder}/{name}".lstrip("/")


def sizes_at(store: Store, folder: str) -> dict[str, int]:
    """Return the bytes of each file in a folder of a target."""
    return {entry.name: entry.size for entry in store.in_folder(folder)[0]}


def lost_at(store: Store, folder: str, shards: Iterable[ShardInfo]) -> list[str]:
    """Return which of these shards are missing in a folder of a target."""
    sizes = sizes_at(store, folder)
    return [s.file for s in shards if sizes.get(name_at(folder, s.file)) != s.size_bytes]


def manifest_at(store: Store, folder: str) -> Manifest | None:
    """Return the manifest in a folder of a target, as it is by now; None if there is none."""
    data, _ = store.read(name_at(folder, MANIFEST_NAME))
    return None if data is None else parse_manifest(data, store.url / folder / MANIFEST_NAME)


def datasets_below(store: Store) -> list[str]:
    """Return the folder of the dataset at a place, ""; or those of splits, of sizes or of both below it.

    A folder of shards is one of them, though it may have lost its manifest.
    """
    found, level = list[str](), [""]
    for _ in range(3):
        listed = {folder: store.in_folder(folder) for folder in level}
        found += [f for f, (files, _) in listed.items() if any(_is_of_dataset(e) for e in files)]
        if found == [""]:
            break
        inside = [name for _, folders in listed.values() for name in folders]
        level = [name for name in inside if not name.rpartition("/")[2].startswith(".")]
    return sorted(found)


def _is_of_dataset(file: Entry) -> bool:
    name = file.name.rpartition("/")[2]
    is_shard = name.startswith("shard-") and name.endswith((".lmdb", ".parquet"))
    return is_shard or name == MANIFEST_NAME


def is_made(store: Store, folders: Iterable[str], digest: str) -> bool:
    """Tell whether the datasets are there, whole, as the plan of this hash has made them."""
    there = {folder: manifest_at(store, folder) for folder in folders}
    return all(
        each is not None
        and each.provenance.get(PLAN) == digest
        and not lost_at(store, folder, each.shards)
        for folder, each in there.items()
    )


def is_there(folder: Path) -> PackError:
    """Return the error that a dataset is where another would go."""
    hint = "Pass overwrite=True to replace it; 'packdata extend' adds to it"
    return PackError("a packed dataset exists", folder, hint)


def publish(
    store: Store,
    manifests: Mapping[str, Manifest],
    files: Mapping[str, Mapping[str, bytes]],
    rejects: Mapping[str, bytes],
    *,
    overwrite: bool = False,
    seen: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> bool:
    """Make datasets of shards that were put there; return whether any was not there before.

    Args:
        store: The target.
        manifests: Of each dataset, by its folder.
        files: The files that its schema names, by their names.
        rejects: What ``rejected.jsonl`` is to hold, by folder: if it is nothing, the file that is there goes.
        overwrite: Replace other datasets.
        seen: Marks of the manifests that are to be replaced, by folder; of others, what is there now is.

    Raises:
        PackError: Another dataset is there, or was put there meanwhile; a shard is missing.
        RemoteError: The store does not answer, or refuses.
    """
    marks, old = dict[str, dict[str, Any]](), set[str]()
    for folder, manifest in manifests.items():
        there, mark = store.read(name_at(folder, MANIFEST_NAME))
        if there == manifest_bytes(manifest):
            continue
        if there is not None and folder not in seen and not overwrite:
            raise is_there(store.url / folder)
        marks[folder] = {} if there is None else dict(seen.get(folder, mark))
        if there is not None:
            old |= files_of(folder, parse_manifest(there, store.url / folder / MANIFEST_NAME))
    for folder, manifest in manifests.items():
        if lost := lost_at(store, folder, manifest.shards):
            what = f"{counted(len(lost), 'shard')} missing, the first: {lost[0]}"
            raise PackError(what, store.url / folder, "Pack anew, with overwrite=True")
    for folder, beside in files.items():
        for name, data in beside.items():
            store.put(name_at(folder, name), data)
    for folder, data in rejects.items():
        if data:
            store.put(name_at(folder, REJECTED_NAME), data)
        elif store.read(name_at(folder, REJECTED_NAME))[0] is not None:  # of what is replaced
            store.delete(name_at(folder, REJECTED_NAME))
    for folder, mark in marks.items():
        swap(store, folder, manifests[folder], mark)
    if not is_url(store.url):
        kept = set[str]().union(*(files_of(f, manifest) for f, manifest in manifests.items()))
        store.delete(*(old - kept), *unnamed(store, manifests))
    return bool(marks)


def swap(store: Store, folder: str, manifest: Manifest, seen: Mapping[str, Any]) -> None:
    """Put a manifest in place of the one that was seen; PackError if another was put there meanwhile."""
    data, name, place = (
        manifest_bytes(manifest),
        name_at(folder, MANIFEST_NAME),
        store.url / folder,
    )
    is_same = store.read(name)[1] == {"etag": None, "version": None} | dict(seen)
    is_written = is_same and store.put(name, data, seen)
    there, _ = store.read(name)  # also where an answer was lost, and it was sent twice
    if there != data:
        what = "the manifest that was written is missing"
        if is_written is False:
            what = "another dataset was published meanwhile"
        raise PackError(what, place, "Look at it; pass overwrite=True to replace it")


def files_of(folder: str, manifest: Manifest) -> set[str]:
    """Return the names of all files of a dataset in a folder of a target, but its manifest."""
    names = (*(shard.file for shard in manifest.shards), *manifest.schema.files)
    return {name_at(folder, name) for name in names}


def unnamed(store: Store, datasets: Mapping[str, Manifest | None]) -> Iterator[str]:
    """Yield the shards in the folders of datasets that these do not have."""
    for folder, manifest in datasets.items():
        named = set() if manifest is None else files_of(folder, manifest)
        for entry in store.in_folder(folder)[0]:
            is_shard = STORED_SHARD.fullmatch(entry.name.rpartition("/")[2])
            if is_shard and entry.name not in named:
                yield entry.name
