"""Where a packing goes: a folder, or a URL, are the same to what publishes and joins there."""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.data.formats import hash_file
from loaders.errors import ShardError
from loaders.remote.url import URL
from loaders.remote.wire import Entry
from loaders.system.publish import publish_bytes, sync_folder
from loaders.system.regular import read_regular
from packdata.bucket import Bucket, bucket_at
from packdata.packing.target import PACKING_NAME, PARTS_NAME, explained, make_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

_NOTHING = {"etag": None, "version": None}


def store_of(place: Path, *, link: bool = True) -> Store:
    """Return the store at a place, as ``target_at`` returns it; ``link`` is as of ``FolderStore``."""
    return bucket_at(place) if isinstance(place, URL) else FolderStore(place, link=link)


class FolderStore:
    """A folder as a store. Machines that mount it may write at one time: names appear by a link or a rename.

    Args:
        folder: The folder.
        link: Link shards, where the file system has links; else they are copied, and the copies verified.
    """

    def __init__(self, folder: Path, *, link: bool = True) -> None:
        self.url, self._link = folder, link

    def read(self, name: str) -> tuple[bytes | None, dict[str, Any]]:
        """Return a file's bytes, None if there is none, and the mark of this state of it."""
        try:
            data = read_regular(self.url / name)
        except (FileNotFoundError, NotADirectoryError):
            return None, dict(_NOTHING)
        return data, _NOTHING | {"etag": xxhash.xxh3_128_hexdigest(data), "size": len(data)}

    def put(self, name: str, data: bytes, only: Mapping[str, Any] | None = None) -> bool:
        """Write a small file, with ``only`` just in place of what ``read`` has seen ({}: of nothing).

        Return whether it was written.
        """
        target = self.url / name
        with explained(target):
            if only and self.read(name)[1] != _NOTHING | dict(only):
                return False
            return self._bring(target, lambda beside: publish_bytes(beside, data), only == {})

    def put_shard(self, name: str, path: Path, size_bytes: int, digest: str) -> None:
        """Bring a file to a name that no other content has, unless it is there: link it, or copy and verify it."""
        target = self.url / name

        def write(beside: Path) -> None:
            if self._link:
                with suppress(OSError):  # another file system, or one without links
                    return os.link(path.resolve(), beside)
            return _copy(path, beside, digest)

        with explained(target, "the shard cannot be written"):
            if target.exists() and target.stat().st_size == size_bytes:
                return
            if (what := size_fault(path, size_bytes)) is not None:
                hint = "Run 'packdata verify', and copy what it names from a backup"
                raise ShardError(what, path, hint=hint)
            target.unlink(missing_ok=True)
            self._bring(target, write, True)

    def _bring(self, target: Path, write: Callable[[Path], None], is_first: bool) -> bool:
        """Write a file beside what is ours, and rename it; False if ``is_first``, and another was faster."""
        parts, ours = self.url / PARTS_NAME, self.url / PACKING_NAME
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
        """Delete files, those that are not there are no error, and folders that this leaves empty."""
        for name in names:
            path = self.url / name
            path.unlink(missing_ok=True)
            for above in path.parents:
                if above == self.url:
                    break
                with suppress(OSError):
                    above.rmdir()

    def in_folder(self, folder: str = "") -> tuple[list[Entry], list[str]]:
        """Return the files in a folder, and the names of the folders in it."""
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
        """Yield the files below a folder, some at a time."""
        files, folders = self.in_folder(folder)
        yield files
        for inner in folders:
            yield from self.below(inner)


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


def _copy(source: Path, target: Path, digest: str) -> None:
    """Copy a shard durably, and verify the copy."""
    shutil.copyfile(source, target)
    with open(target, "rb+") as file:
        os.fsync(file.fileno())
    if (found := hash_file(target)) != digest:
        what = f"xxh3-128 is {found}, the manifest says {digest}"
        raise ShardError(what, source, hint="Run 'packdata verify' on it")


def size_fault(path: Path, size_bytes: int) -> str | None:
    """Return why a shard cannot be the recorded one without reading it, or None."""
    try:
        size = path.stat().st_size
    except OSError as error:
        return (
            f"it cannot be read ({error.strerror})" if os.path.lexists(path) else "it is missing"
        )
    if not path.is_file():  # opening a pipe would wait for ever
        return "it is not a file"
    is_right = size == size_bytes
    return None if is_right else f"it has {size} bytes, the manifest says {size_bytes}"
