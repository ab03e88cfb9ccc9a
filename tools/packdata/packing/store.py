"""Where a packing goes: a folder, or a URL, are the same to what publishes and joins there.

Shards and tokenizers come first, under names that hold their hash; then the manifests are swapped.

1. A reader sees the old dataset or the new one: files are replaced in one step, a shard only by one of the same hash.
2. Killed, the same command does all of it again, but for the shards that its journal has.
3. In a folder, what the dataset before had goes after that. At a URL it stays: somebody may still read it.
4. Of two who publish at one place: the manifest is put only in place of the one that was seen. It is
   read again right before and after, as some stores ignore conditions.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.data.formats import hash_file
from loaders.data.manifest import MANIFEST_NAME, Manifest, manifest_bytes, parse_manifest
from loaders.errors import PackError, ShardError
from loaders.remote.url import URL, Location
from loaders.remote.wire import Entry
from loaders.system.publish import publish_bytes, sync_folder
from loaders.system.regular import read_regular
from loaders.text import printable_json
from packdata.bucket import Bucket, name_at
from packdata.describe import counted
from packdata.packing.provenance import PLAN
from packdata.packing.target import (
    PACKING_NAME,
    PARTS_NAME,
    REJECTED_NAME,
    STORED,
    check_empty,
    digest_of,
    make_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from loaders.data.manifest import ShardInfo


def store_of(place: Location) -> Store:
    """Return the store at a place, as ``target_at`` returns it."""
    return Bucket(place) if isinstance(place, URL) else FolderStore(place)


class FolderStore:
    """A folder as a store. Machines that mount it may write at one time: names appear by a link or a rename."""

    def __init__(self, folder: Path) -> None:
        self.url = folder  # the place as it was given, for messages
        self._folder = folder.absolute()  # the working folder may change

    def read(self, name: str) -> tuple[bytes | None, dict[str, Any]]:
        """Return a file's bytes, and the mark of this state of it; None and {} if there is none."""
        try:
            data = read_regular(self._folder / name)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None, {}
        return data, {"xxh3_128": xxhash.xxh3_128_hexdigest(data)}

    def put(self, name: str, data: bytes, only: Mapping[str, Any] | None = None) -> bool:
        """Write a small file, with ``only`` of {} if there is none; another state is for the caller to compare.

        Return whether it was written.
        """
        target = self._folder / name
        return self._publish(target, lambda beside: publish_bytes(beside, data), only == {})

    def put_shard(self, folder: str, path: Path, info: ShardInfo) -> None:
        """Put a file under a name that no other content has, over what is there: link it, or copy and verify it."""
        target = self._folder / name_at(folder, info.file)
        if (what := size_fault(path, info.size_bytes)) is not None:
            hint = "Run 'packdata verify', and copy what it names from a backup"
            raise ShardError(what, path, hint=hint)
        # What is there may be damaged.
        self._publish(target, lambda beside: _link_or_copy(path, beside, info.xxh3_128), False)

    def _publish(self, target: Path, write: Callable[[Path], None], is_first: bool) -> bool:
        """Write a file beside what is ours, and rename it; False if ``is_first``, and another was faster."""
        parts, ours = self._folder / PARTS_NAME, self._folder / PACKING_NAME
        beside = (parts if parts.exists() else ours) / f"{uuid.uuid4().hex}.tmp"
        make_folder(target.parent)
        make_folder(beside.parent)
        try:
            write(beside)
            if not is_first or not _linked(beside, target):
                os.replace(beside, target)
        except FileExistsError:
            return False
        finally:
            beside.unlink(missing_ok=True)
            with suppress(OSError):  # of a command that is at work
                ours.rmdir()
        sync_folder(target.parent)
        return True

    def delete(self, *names: str) -> None:
        """Delete files and folders, those that are not there are no error, and folders that this leaves empty."""
        for name in names:
            path = self._folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            for above in path.parents:
                if above == self._folder:
                    break
                with suppress(OSError):
                    above.rmdir()

    def in_folder(self, folder: str = "") -> tuple[list[Entry], list[str]]:
        """Return the files in a folder, and the names of the folders in it."""
        try:
            found = sorted(os.scandir(self._folder / folder), key=lambda each: each.name)
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        files, folders = list[Entry](), list[str]()
        for each in found:
            name = f"{folder}/{each.name}".lstrip("/")
            if each.is_dir(follow_symlinks=False):
                folders.append(name)
            else:
                with suppress(FileNotFoundError):  # it was deleted meanwhile
                    about = each.stat()
                    files.append(Entry(name, about.st_size, about.st_mtime_ns))
        return files, folders


Store = FolderStore | Bucket  # files by name, below a place; each is there whole or not at all


def _linked(beside: Path, target: Path) -> bool:
    """Link a file to a name that is new, if the file system has links; FileExistsError if it is not new."""
    try:
        os.link(beside, target)
    except OSError:
        if target.exists():
            raise FileExistsError from None
        return False
    return True


def _link_or_copy(source: Path, target: Path, digest: str) -> None:
    """Link a shard; or, as from another file system, copy it durably, and verify the copy."""
    if _linked(source.resolve(), target):
        return
    shutil.copyfile(source, target)
    with open(target, "rb+") as file:
        os.fsync(file.fileno())
    if (found := hash_file(target)) != digest:
        what = f"xxh3-128 is {found}, the manifest says {digest}"
        raise ShardError(what, source, hint="Run 'packdata verify'")


def size_fault(path: Path, size_bytes: int) -> str | None:
    """Return why a shard cannot be the recorded one without reading it, or None."""
    try:
        size = path.stat().st_size
    except OSError as error:
        return f"cannot be read ({error.strerror})" if os.path.lexists(path) else "missing"
    if not path.is_file():  # opening a pipe would wait for ever
        return "not a file"
    return None if size == size_bytes else f"{size} bytes, the manifest says {size_bytes}"


def lost_at(store: Store, files: Mapping[str, int | None]) -> list[str]:
    """Return which of these files are missing in a target, or have another size than this one, if it is known."""
    folders = {name.rpartition("/")[0] for name in files}
    there = {entry.name: entry.size for each in folders for entry in store.in_folder(each)[0]}
    return [n for n, size in files.items() if n not in there or size not in (None, there[n])]


def manifest_at(store: Store, folder: str) -> Manifest | None:
    """Return the manifest in a folder of a target, as it is by now; None if there is none."""
    data, _ = store.read(name_at(folder, MANIFEST_NAME))
    return None if data is None else parse_manifest(data, store.url / folder / MANIFEST_NAME)


def manifests_at(store: Store, folders: Iterable[str]) -> dict[str, Manifest]:
    """Return the manifests that there are in folders of a target, by folder."""
    there = {folder: manifest_at(store, folder) for folder in folders}
    return {folder: each for folder, each in there.items() if each is not None}


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


def made_at(
    store: Store, folders: Collection[str], plan: Mapping[str, str]
) -> dict[str, Manifest]:
    """Return the manifests of datasets, by folder, if all are there, whole, as this plan has made them."""
    there, digest = manifests_at(store, folders), digest_of(plan)
    is_made = there.keys() >= {*folders} and all(
        each.provenance.get(PLAN) == digest for each in there.values()
    )
    return there if is_made and not lost_at(store, files_of(there)) else {}


def check_target(
    store: Store, folders: Collection[str], *, overwrite: bool, is_alone: bool = True
) -> None:
    """Raise PackError if something is where datasets are to be made; ManifestError if it is damaged.

    Args:
        store: The destination.
        folders: The datasets below it.
        overwrite: Datasets in these folders may be there: they are replaced.
        is_alone: No other dataset may be below the destination.
    """
    dst, there = store.url, [*manifests_at(store, dict.fromkeys(("", *folders)))]
    below = datasets_below(store) if is_alone and not isinstance(dst, URL) else []
    if others := {*there, *below} - {*folders}:
        hint = "Datasets are replaced in the same places only: remove that one, or choose another folder"
        raise PackError("another packed dataset exists", dst / min(others), hint)
    if there and not overwrite:
        raise _already_there(dst / there[0])
    if not there and not isinstance(dst, URL):
        check_empty(dst, {*folders, *([""] if is_alone else [])})


def _already_there(folder: Location) -> PackError:
    hint = "Pass overwrite=True to replace that; 'packdata extend' adds samples"
    return PackError("a packed dataset exists", folder, hint)


def rejected_at(store: Store) -> list[tuple[str, str]]:
    """Return (item, error) of what was left out of the datasets at a place; PackError if the list is damaged."""
    lines = (store.read(REJECTED_NAME)[0] or b"").splitlines()
    try:
        return [(line["item"], line["error"]) for line in map(json.loads, lines)]
    except (LookupError, TypeError, ValueError) as error:
        what, hint = f"not a list of rejects ({error})", "Remove it, or pass overwrite=True"
        raise PackError(what, store.url / REJECTED_NAME, hint) from error


def _rejected_bytes(rejected: Iterable[tuple[str, str]]) -> bytes:
    """Return what ``rejected.jsonl`` holds, escaped as the manifest is."""
    lines = (json.dumps({"item": i, "error": e}, ensure_ascii=False) for i, e in rejected)
    text = "".join(f"{printable_json(line)}\n" for line in lines)
    return text.encode(errors="backslashreplace")


def publish(
    store: Store,
    manifests: Mapping[str, Manifest],
    *,
    rejected: Mapping[str, Sequence[tuple[str, str]]],
    seen: Mapping[str, Mapping[str, Any]],
) -> None:
    """Make datasets of shards and files that were put there.

    Args:
        store: The target.
        manifests: Of each dataset, by its folder.
        rejected: (item, error) for ``rejected.jsonl``, by folder: if there is none, the file that is there goes.
        seen: Marks of the manifests that may be replaced, by folder (``marks_at``).

    Raises:
        PackError: Another dataset is there, or was put there meanwhile; a file is missing.
        RemoteError: The store does not answer, or refuses.
    """
    marks: dict[str, Mapping[str, Any]] = {}
    old = set[str]()
    for folder, manifest in manifests.items():
        there, _ = store.read(name_at(folder, MANIFEST_NAME))
        if there == manifest_bytes(manifest):
            continue
        marks[folder] = {}
        if there is not None:
            if folder not in seen:
                raise _already_there(store.url / folder)
            marks[folder] = seen[folder]
            replaced = parse_manifest(there, store.url / folder / MANIFEST_NAME)
            old |= files_of({folder: replaced}).keys()
    if lost := lost_at(store, files := files_of(manifests)):
        what = f"{counted(len(lost), 'file')} missing, the first: {lost[0]}"
        raise PackError(what, store.url, "Pack anew, with overwrite=True")
    for folder, items in rejected.items():
        name = name_at(folder, REJECTED_NAME)
        if items:
            store.put(name, _rejected_bytes(items))
        elif store.read(name)[0] is not None:  # of what is replaced
            store.delete(name)
    for folder, mark in marks.items():
        swap(store, folder, manifests[folder], mark)
    if not isinstance(store, Bucket):
        store.delete(*(old - files.keys()))
        delete_unnamed(store, manifests)


def marks_at(store: Store, folders: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Return the marks of the manifests in folders of a target, as they are now; {} where there is none."""
    return {folder: store.read(name_at(folder, MANIFEST_NAME))[1] for folder in folders}


def swap(store: Store, folder: str, manifest: Manifest, seen: Mapping[str, Any]) -> None:
    """Put a manifest in place of the one that was seen; PackError if another was put there meanwhile."""
    data, name = manifest_bytes(manifest), name_at(folder, MANIFEST_NAME)
    if store.read(name)[1] == seen:
        store.put(name, data, seen)
    if store.read(name)[0] != data:  # also where an answer was lost, and it was sent twice
        what = "another dataset was published meanwhile"
        hint = "Look at that dataset; overwrite=True replaces it"
        raise PackError(what, store.url / folder, hint)


def files_of(manifests: Mapping[str, Manifest]) -> dict[str, int | None]:
    """Return all files of datasets in folders of a target but the manifests, by name, with the sizes of shards."""
    files = dict[str, int | None]()
    for folder, manifest in manifests.items():
        files |= {name_at(folder, shard.file): shard.size_bytes for shard in manifest.shards}
        files |= {name_at(folder, name): None for name in manifest.schema.files}
    return files


def delete_unnamed(store: Store, folders: Collection[str]) -> int:
    """Delete the shards and tokenizers in folders that no manifest there has; return how many."""
    named = files_of(manifests_at(store, folders))
    there = (entry.name for folder in folders for entry in store.in_folder(folder)[0])
    is_ours = STORED.fullmatch
    old = [name for name in there if name not in named and is_ours(name.rpartition("/")[2])]
    store.delete(*old)
    return len(old)


def clear_parts(store: Store) -> None:
    """Delete what lies there of parts: their journals, and what others have begun, who find out."""
    files, folders = store.in_folder(PARTS_NAME)
    store.delete(*folders, *(entry.name for entry in files))
