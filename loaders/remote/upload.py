"""Sending files to a store, in the fetcher: what is there is not sent again, and what arrived is compared.

A shard's name in a store holds its hash: all who send it send the same bytes, so no lock and no condition is needed.
It is there if its size is right, and its e-tag is one that stores make of these bytes (MD5, or MD5 of the MD5s of
parts); where an e-tag is something else, the object is read back and hashed.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.errors import ChecksumError, RemoteError
from loaders.remote.faults import StoreFault
from loaders.remote.source import ATTEMPTS
from loaders.remote.stores import PUT_BYTES, ObjectState
from loaders.remote.wire import PART_BYTES
from loaders.system.regular import hash_file, regular

if TYPE_CHECKING:
    from loaders.remote.source import ServedURL


async def put(source: ServedURL, message: dict[str, Any]) -> dict[str, Any]:
    """Send a shard, or a small file under a condition."""
    name, path = message["name"], Path(message["path"])
    try:
        if "hash" in message:
            return {"sent": await _put_shard(source, name, path, message["size"], message["hash"])}
        only = None if message["only"] is None else ObjectState(**message["only"])
        data = await asyncio.to_thread(path.read_bytes)
        return {"is_written": await source.again(lambda: source.objects.put(name, data, only))}
    except StoreFault as fault:
        raise source.refused("written", name, fault) from None
    except OSError as error:
        what = f"what is to be sent cannot be read ({error.strerror or error})"
        raise RemoteError(what, path, "Its fetcher may run in another container") from None


async def remove(source: ServedURL, names: list[str]) -> None:
    """Delete objects; those that are not there are no error."""
    try:
        await source.again(lambda: source.objects.delete(names))
    except StoreFault as fault:
        raise source.refused("deleted", "" if names[1:] else names[0], fault) from None


async def _put_shard(source: ServedURL, name: str, path: Path, size: int, digest: str) -> int:
    """Send a shard unless it is there; return the bytes that were sent."""
    if await _is_there(source, name, path, size, digest):
        return 0
    found = await asyncio.to_thread(hash_file, path)
    if found != digest:
        what = f"its xxh3-128 is {found}, the manifest says {digest}"
        raise ChecksumError(what, path, None, None, "Run 'packdata verify' on it")
    for attempt in range(1, ATTEMPTS + 1):
        await source.again(lambda: source.objects.put(name, path))
        if await _is_there(source, name, path, size, digest):
            return size * attempt
    what = f"what arrives has another size or hash, sent {ATTEMPTS} times"
    raise ChecksumError(what, source.url / name, None, None, "Check the network and the store")


async def _is_there(source: ServedURL, name: str, path: Path, size: int, digest: str) -> bool:
    try:
        mark = await source.again(lambda: source.objects.look(name))
    except StoreFault as fault:
        if fault.kind == "missing":
            return False
        raise
    if mark.size != size:
        return False
    etag = (mark.etag or "").strip('"')
    if etag and etag == await asyncio.to_thread(_etag, path, "-" in etag):
        return True
    return await _read_back(source, name, size) == digest


async def _read_back(source: ServedURL, name: str, size: int) -> str:
    state = xxhash.xxh3_128()
    for start in range(0, size, PART_BYTES):
        end = min(start + PART_BYTES, size)

        def part(start: int = start, end: int = end) -> Any:
            return source.objects.get(name, start, end)

        state.update((await source.again(part)).data)
    return state.hexdigest()


def _etag(path: Path, in_parts: bool) -> str:
    """Return the e-tag that S3 gives a file that was sent whole, or in parts of ``PUT_BYTES``."""
    with open(path, "rb", opener=regular) as file:
        if not in_parts:
            return hashlib.file_digest(file, _md5).hexdigest()
        parts = [_md5(part).digest() for part in iter(lambda: file.read(PUT_BYTES), b"")]
    return f"{_md5(b''.join(parts)).hexdigest()}-{len(parts)}"


def _md5(data: bytes = b"") -> Any:
    return hashlib.md5(data, usedforsecurity=False)
