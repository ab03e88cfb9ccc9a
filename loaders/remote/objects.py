"""What a store is asked for beside shards, in the fetcher: listings, ranges of objects, writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from loaders.remote.faults import StoreFault
from loaders.remote.stores import mark_of
from loaders.remote.wire import PART_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.remote.source import ServedURL
    from loaders.remote.stores import Got

# Questions that a method of ``ObstoreObjects`` answers, and what it does to the objects.
BUCKET_OPS = {
    "below": "listed",
    "in_folder": "listed",
    "look": "listed",
    "put": "written",
    "delete": "deleted",
}
_AT_ONCE = 16  # of one question
_REPLACED = "it was replaced since it was listed"
# Faults of an object that was listed.
_OF_OBJECT = {"missing": "it is not there any more", "short": _REPLACED}


async def ask_bucket(source: ServedURL, op: str, **about: Any) -> Any:
    """Return what a bucket answers; None if there is nothing to list."""
    try:
        return await source.again(lambda _: getattr(source.bucket, op)(**about))
    except StoreFault as fault:
        if fault.kind == "missing" and BUCKET_OPS[op] == "listed":
            return None
        raise source.refused(BUCKET_OPS[op], about.get("name", ""), fault) from None


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
