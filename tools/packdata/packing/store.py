"""Where a packing goes: a folder, or a URL, are the same to what publishes and joins there."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import xxhash

from loaders.data.formats import hash_file
from loaders.errors import ShardError
from loaders.remote.url import URL
from loaders.remote.wire import Entry
from loaders.system.publish import publish_bytes, publish_file, sync_folder
from loaders.system.regular import read_regular
from packdata.bucket import bucket_at
from packdata.packing.disk import GO_ON, explained

if TYPE_CHECKING:
    from pathlib import Path

Mark = Mapping[str, Any]
_NOTHING = {"etag": None, "version": None}


class Store(Protocol):
    """Files by name, below a place; a file is there whole or not at all."""

    @property
    def url(self) -> Path:
        """The place, as messages name it."""

    def read(self, name: str) -> tuple[bytes | None, dict[str, Any]]:
        """Return a file's bytes, None if there is none, and the mark of this state of it."""

    def put(self, name: str, path: Path, only: Mark | None = None) -> bool:
        """Write a small file, with ``only`` just in place of what ``read`` has seen ({}: of nothing).

        Return whether it was written.
        """

    def put_shard(self, name: str, path: Path, size_bytes: int, digest: str) -> int:
        """Bring a file to a name that no other content has; return the bytes that this took."""

    def delete(self, *names: str) -> None:
        """Delete files; those that are not there are no error."""

    def in_folder(self, folder: str = "") -> tuple[list[Entry], list[str]]:
        """Return the files in a folder, and the names of the folders in it."""

    def below(self, folder: str = "") -> Iterator[list[Entry]]:
        """Yield the files below a folder, some at a time."""


def store_of(place: Path) -> Store:
    """Return the store at a place, as ``target_at`` returns it."""
    return bucket_at(place) if isinstance(place, URL) else FolderStore(place)


class FolderStore:
    """A folder as a store. Machines that mount it may write at one time: names appear by a link or a rename."""

    def __init__(self, folder: Path) -> None:
        self.url = folder

    def read(self, name: str) -> tuple[bytes | None, dict[str, Any]]:
        """Return the bytes and the mark of a file; its mark has its hash."""
        try:
            data = read_regular(self.url / name)
        except (FileNotFoundError, NotADirectoryError):
            return None, dict(_NOTHING)
        return data, _NOTHING | {"etag": xxhash.xxh3_128_hexdigest(data), "size": len(data)}

    def put(self, name: str, path: Path, only: Mark | None = None) -> bool:
        """Write a file; PackError if the system takes none."""
        target = self.url / name
        with explained(target, again=GO_ON):
            self._make_room(target)
            if only is not None and not only:
                return _put_first(target, path.read_bytes())
            if only is not None and self.read(name)[1] != _NOTHING | dict(only):
                return False
            publish_bytes(target, path.read_bytes())
        return True

    def put_shard(self, name: str, path: Path, size_bytes: int, digest: str) -> int:
        """Link a shard, or copy it where the file system has no links."""
        target = self.url / name
        with explained(target, "the shard cannot be written", GO_ON):
            self._make_room(target)
            if target.exists() and target.stat().st_size == size_bytes:
                return 0
            try:
                target.unlink(missing_ok=True)
                os.link(path, target)
            except FileExistsError:  # a twin was faster
                return 0
            except OSError:
                _copy(path, target, digest)
            sync_folder(target.parent)
        return size_bytes

    def _make_room(self, target: Path) -> None:
        from packdata.packing.target import missing_folders, sync_made

        made = missing_folders(target.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        sync_made(made)

    def delete(self, *names: str) -> None:
        """Delete files, and folders that this leaves empty."""
        for name in names:
            path = self.url / name
            path.unlink(missing_ok=True)
            for above in path.parents:
                if above == self.url:
                    break
                with suppress(OSError):
                    above.rmdir()

    def in_folder(self, folder: str = "") -> tuple[list[Entry], list[str]]:
        """Return files and folders, by name."""
        try:
            found = sorted(os.scandir(self.url / folder), key=lambda each: each.name)
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

    def below(self, folder: str = "") -> Iterator[list[Entry]]:
        """Yield the files of each folder."""
        files, folders = self.in_folder(folder)
        yield files
        for inner in folders:
            yield from self.below(inner)


def _put_first(target: Path, data: bytes) -> bool:
    """Write a file where there is none, whole and durably; False if another one was faster."""
    beside = target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        publish_bytes(beside, data)
        try:
            os.link(beside, target)
        except FileExistsError:
            return False
        except OSError:  # of a file system without links
            if target.exists():
                return False
            os.replace(beside, target)
        sync_folder(target.parent)
    finally:
        beside.unlink(missing_ok=True)
    return True


def _copy(source: Path, target: Path, digest: str) -> None:
    """Copy a shard durably, and verify the copy."""
    beside = target.with_name(f"{target.name}.tmp")
    try:
        shutil.copyfile(source, beside)
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        if (found := hash_file(beside)) != digest:
            what = f"its xxh3-128 is {found}, {digest} was written"
            raise ShardError(what, source, hint="Run the same command again")
        publish_file(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
