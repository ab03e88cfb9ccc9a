"""What a store is asked for beside shards, in the fetcher: listings, ranges of objects, writes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from loaders.errors import RemoteError
from loaders.remote.faults import StoreFault
from loaders.remote.stores import ObjectState, mark_of
from loaders.remote.wire import PART_BYTES, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from loaders.remote.source import ServedURL
    from loaders.remote.stores import Got, ObstoreObjects

T = TypeVar("T")
_AT_ONCE = 16  # of one question
_REPLACED = "it was replaced since it was listed"
# Faults of an object that was listed.
_OF_OBJECT = {"missing": "it is not there any more", "short": _REPLACED}


async def _asked(
    source: ServedURL,
    what: str,
    name: str,
    call: Callable[[ObstoreObjects], Coroutine[Any, Any, T]],
) -> T | None:
    """Return what a bucket answers; None if there is nothing of that name."""
    try:
        return await source.again(lambda _: call(source.bucket))
    except StoreFault as fault:
        if fault.kind == "missing" and what == "listed":
            return None
        raise source.refused(what, name, fault) from None


async def below(source: ServedURL, folder: str, after: str) -> list[Entry]:
    """Return the next objects below a folder, in order of name, that come after a name; none at the end."""
    return await _asked(source, "listed", folder, lambda bucket: bucket.below(folder, after)) or []


async def in_folder(source: ServedURL, folder: str) -> tuple[list[Entry], list[str]]:
    """Return the objects in a folder, and the folders in it."""
    found = await _asked(source, "listed", folder, lambda bucket: bucket.in_folder(folder))
    return found or ([], [])


async def look(source: ServedURL, name: str) -> tuple[Entry, str | None] | None:
    """Return an object, and its e-tag; None if there is none."""
    state = await _asked(source, "listed", name, lambda bucket: bucket.look(name))
    if state is None:
        return None
    return Entry(name, state.size or 0, mark_of(state.etag, state.version)), state.etag


async def put(
    source: ServedURL, name: str, data: bytes | Path, only: Mapping[str, Any] | None
) -> bool | None:
    """Write bytes, or a file; with ``only`` just in place of an object in that state, or return False."""
    if isinstance(data, Path):
        try:
            data.stat()
        except OSError as error:
            what = f"what is to be sent cannot be read ({error.strerror or error})"
            raise RemoteError(what, data, "Its fetcher may run in another container") from None
    state = None if only is None else ObjectState(**only)
    return await _asked(source, "written", name, lambda bucket: bucket.put(name, data, state))


async def delete(source: ServedURL, names: Sequence[str]) -> None:
    """Delete objects; those that are not there are no error."""
    name = "" if names[1:] else names[0]
    await _asked(source, "deleted", name, lambda bucket: bucket.delete(names))


async def ranges(source: ServedURL, wanted: Sequence[tuple[Any, ...]]) -> list[bytes | str]:
    """Return ranges of objects; in the place of one of an object that was listed, and is no more what it was, why.

    Of each is wanted: the object's name, where the range begins and ends, and of an object that was listed its mark.
    """
    limit = asyncio.Semaphore(_AT_ONCE)

    async def part(name: str, start: int, end: int) -> Got:
        async with limit:
            return await source.get(name, start, end)

    async def one(name: str, start: int, end: int, mark: int | None = None) -> bytes | str:
        parts = (part(name, i, min(i + PART_BYTES, end)) for i in range(start, end, PART_BYTES))
        try:
            found = await asyncio.gather(*parts)
        except StoreFault as fault:
            if mark is None or fault.kind not in _OF_OBJECT:
                raise source.refused("fetched", name, fault) from None
            return _OF_OBJECT[fault.kind]
        if mark and mark & 1 and any(got.etag and mark_of(got.etag) != mark for got in found):
            return _REPLACED
        return b"".join(piece for got in found for piece in got.pieces)

    return await asyncio.gather(*(one(*each) for each in wanted))


OBJECT_OPS: dict[str, Any] = {
    each.__name__: each for each in (below, in_folder, look, put, delete, ranges)
}
