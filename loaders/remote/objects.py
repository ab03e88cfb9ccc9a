"""What packdata asks a store for, in the fetcher: listings, ranges of objects that were listed, writes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.errors import RemoteError
from loaders.remote.faults import StoreFault
from loaders.remote.stores import ObjectState, mark_of
from loaders.remote.wire import PART_BYTES

if TYPE_CHECKING:
    from loaders.remote.source import ServedURL
    from loaders.remote.stores import Got

_AT_ONCE = 16  # of one question
_REPLACED = "it was replaced since it was listed"
# Faults of an object that was listed.
_OF_OBJECT = {"missing": "it is not there any more", "short": _REPLACED}


async def listing(source: ServedURL, of: str, folder: str, after: str = "") -> dict[str, Any]:
    """List what is ``below`` a folder, or directly ``inside`` it, or look up ``one`` object.

    Raises:
        RemoteError: The store does not answer, or refuses.
    """
    try:
        if of == "below":
            return {"objects": await source.again(lambda _: source.bucket.below(folder, after))}
        if of == "inside":
            objects, folders = await source.again(lambda _: source.bucket.in_folder(folder))
            return {"objects": objects, "folders": folders}
        state = await source.again(lambda _: source.bucket.look(folder))
    except StoreFault as fault:
        if fault.kind == "missing":
            return {"objects": [], "folders": []}
        raise source.refused("listed", folder, fault) from None
    one = folder, state.size, mark_of(state.etag, state.version)
    return {"objects": [one], "etag": state.etag}


async def put(
    source: ServedURL, name: str, path: str, only: dict[str, Any] | None
) -> dict[str, Any]:
    """Write a file to an object; with ``only`` just in place of one in that state, or say that it was not.

    Raises:
        RemoteError: The store does not answer, or refuses; or the file cannot be read.
    """
    file, state = Path(path), None if only is None else ObjectState(**only)
    try:
        file.stat()
        written = await source.again(lambda _: source.bucket.put(name, file, state))
    except StoreFault as fault:
        raise source.refused("written", name, fault) from None
    except OSError as error:
        what = f"what is to be sent cannot be read ({error.strerror or error})"
        raise RemoteError(what, file, "Its fetcher may run in another container") from None
    return {"is_written": written}


async def delete(source: ServedURL, names: list[str]) -> dict[str, Any]:
    """Delete objects; those that are not there are no error."""
    try:
        await source.again(lambda _: source.bucket.delete(names))
    except StoreFault as fault:
        raise source.refused("deleted", "" if names[1:] else names[0], fault) from None
    return {}


async def ranges(source: ServedURL, wanted: list[list[Any]]) -> dict[str, Any]:
    """Return ranges of objects, one after the other, and by number why one of an object that was listed is not read.

    Args:
        source: Where they are.
        wanted: Of each the object's name, where the range begins and ends, and of an object that was listed its mark.

    Raises:
        RemoteError: The store does not answer, or refuses, or an object that was not listed is missing.
    """
    limit = asyncio.Semaphore(_AT_ONCE)

    async def part(name: str, start: int, end: int) -> Got:
        async with limit:
            return await source.get(name, start, end)

    async def one(name: str, start: int, end: int, mark: int = 0) -> tuple[bytes, str | None]:
        parts = (part(name, i, min(i + PART_BYTES, end)) for i in range(start, end, PART_BYTES))
        try:
            found = await asyncio.gather(*parts)
        except StoreFault as fault:
            if not mark or fault.kind not in _OF_OBJECT:
                raise source.refused("fetched", name, fault) from None
            return b"", _OF_OBJECT[fault.kind]
        if mark & 1 and any(got.etag and mark_of(got.etag) != mark for got in found):
            return b"", _REPLACED
        return b"".join(got.data for got in found), None

    found = await asyncio.gather(*(one(*each) for each in wanted))
    data = b"".join(data for data, _ in found)
    faults = {i: fault for i, (_, fault) in enumerate(found) if fault}
    return {"faults": faults, "nbytes": len(data), "data": data}


OBJECT_OPS: dict[str, Any] = {
    "listing": listing,
    "put": put,
    "delete": delete,
    "ranges": ranges,
}
