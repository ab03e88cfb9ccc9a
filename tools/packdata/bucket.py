"""A URL that is listed, packed from, and written to: what packdata asks its fetcher for.

A shard's name in a store holds its hash: all who send it send the same bytes, so no lock and no condition is needed.
It is there if its size is right, and its e-tag is one that stores make of these bytes (MD5, or MD5 of the MD5s of
parts); where an e-tag is something else, the object is read back and hashed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.errors import ChecksumError, RemoteError
from loaders.remote.origin import origin_of
from loaders.remote.url import KINDS, URL, Location, place_of
from loaders.remote.wire import PART_BYTES, PUT_BYTES, Entry
from loaders.system.regular import hash_file, regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from loaders.data.manifest import ShardInfo

_WRITABLE = ("s3", "gs", "az")


def target_at(place: Location | str) -> Location:
    """Return a path, or a URL.

    Raises:
        RemoteError: Nothing is written to such URLs: their stores have no conditional writes.
    """
    target = place_of(place)
    if isinstance(target, URL) and KINDS.get(target.scheme, target.scheme) not in _WRITABLE:
        what = f"datasets are not written to {target.scheme}:// URLs"
        raise RemoteError(what, target, "Pack into a folder, and copy the folder there")
    return target


def name_at(folder: str, name: str) -> str:
    """Return the name of a file in a folder of a target."""
    return f"{folder}/{name}".lstrip("/")


class Bucket:
    """The objects at a URL, as a ``Store`` that is also listed and read by ranges; RemoteError if it cannot be."""

    def __init__(self, url: URL) -> None:
        self.url, self._origin = url, origin_of(url)

    def _ask(self, op: str, **about: Any) -> Any:
        return self._origin.ask(f"{op}: {self.url}", op, **about)

    def read(self, name: str) -> tuple[bytes | None, dict[str, Any]]:
        """Return an object's bytes and the mark by which ``put`` replaces just this state; None and {} of none."""
        found = self._ask("file", name=name)
        if found["path"] is None:
            return None, {}
        data = found["path"].read_bytes()
        return data, {"etag": found["etag"], "version": found["version"], "size": len(data)}

    def put(self, name: str, data: bytes, only: Mapping[str, Any] | None = None) -> bool:
        """Send a small file, with ``only`` just in place of what ``read`` has seen ({}: of nothing).

        Return whether it was written. Some stores ignore that condition.
        """
        return bool(self._ask("put", name=name, data=data, only=only))

    def put_shard(self, folder: str, path: Path, info: ShardInfo) -> None:
        """Send a file under a name that no other content has, unless it is there.

        Raises:
            ChecksumError: The file has another hash, or what arrives is another.
        """
        name, digest = name_at(folder, info.file), info.xxh3_128
        if self._is_there(name, path, info.size_bytes, digest):
            return
        if (found := hash_file(path)) != digest:
            what = f"xxh3-128 is {found}, the manifest says {digest}"
            raise ChecksumError(what, path, None, None, "Run 'packdata verify'")
        self._ask("put", name=name, data=path.absolute(), only=None)
        if not self._is_there(name, path, info.size_bytes, digest):
            what, hint = "what arrived has another size or hash", "Check the network and the store"
            raise ChecksumError(what, self.url / name, None, None, hint)

    def _is_there(self, name: str, path: Path, size_bytes: int, digest: str) -> bool:
        found = self._ask("look", name=name)
        if found is None or found[0].size != size_bytes:
            return False
        etag = (found[1] or "").strip('"')
        if etag and etag == _etag(path, "-" in etag):
            return True
        state = xxhash.xxh3_128()
        for start in range(0, size_bytes, PART_BYTES):
            end = min(start + PART_BYTES, size_bytes)
            state.update(*self._origin.ranges([(name, start, end)]))
        return state.hexdigest() == digest

    def delete(self, *names: str) -> None:
        """Delete objects; those that are not there are no error."""
        if names:
            self._ask("delete", names=names)

    def below(self) -> Iterator[list[Entry]]:
        """Yield all objects, many at a time, by name."""
        after = ""
        while found := self._ask("below", name="", after=after):
            yield found
            after = found[-1].name

    def in_folder(self, folder: str = "") -> tuple[list[Entry], list[str]]:
        """Return the objects in a folder, and the folders in it."""
        return self._ask("in_folder", name=folder) or ([], [])

    def look(self, name: str) -> Entry | None:
        """Return an object as a listing has it; None if there is none."""
        found: tuple[Entry, str | None] | None = self._ask("look", name=name)
        return found and found[0]

    def objects(self, wanted: Sequence[tuple[str, int, int, int]]) -> list[bytes | str]:
        """Return ranges of objects as they were listed; in the place of one that is not there, or is another, why.

        Of each is wanted: its name, where the range begins and ends, and its mark.
        """
        return self._origin.ranges(wanted)


def _etag(path: Path, in_parts: bool) -> str:
    """Return the e-tag that S3 gives a file that was sent whole, or in parts of ``PUT_BYTES``."""
    with open(path, "rb", opener=regular) as file:
        if not in_parts:
            return hashlib.file_digest(file, _md5).hexdigest()
        parts = [_md5(part).digest() for part in iter(lambda: file.read(PUT_BYTES), b"")]
    return f"{_md5(b''.join(parts)).hexdigest()}-{len(parts)}"


def _md5(data: bytes = b"") -> Any:
    return hashlib.md5(data, usedforsecurity=False)
