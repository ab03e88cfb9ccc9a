"""Objects that are no dataset, in the fetcher: listed, and read whole, many at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from loaders.remote.faults import StoreFault
from loaders.remote.stores import mark_of
from loaders.remote.transfer import PART_BYTES, in_time

if TYPE_CHECKING:
    from loaders.remote.source import ServedURL

_AT_ONCE = 16  # of one question
_PASSED_ON = {  # what is the fault of one object
    "missing": "it is not there any more",
    "changed": "it was replaced since it was listed",
    "short": "it was replaced since it was listed",
}


async def listing(source: ServedURL, message: dict[str, Any]) -> dict[str, Any]:
    """List what is below a folder, or directly in it, or look up one object.

    Raises:
        RemoteError: The store does not answer, or refuses.
    """
    folder = message["folder"]
    try:
        match message["of"]:
            case "below":
                after = message["after"]
                found = await source.again(lambda: source.objects.below(folder, after))
                return {"objects": found}
            case "inside":
                objects, folders = await source.again(lambda: source.objects.in_folder(folder))
                return {"objects": objects, "folders": folders}
        mark = await source.again(lambda: source.objects.look(folder))
        return {"objects": [(folder, mark.size, mark_of(mark.etag, mark.version))]}
    except StoreFault as fault:
        if fault.kind == "missing":
            return {"objects": [], "folders": []}
        raise source.refused("listed", folder, fault) from None


async def read_objects(
    source: ServedURL, wanted: list[tuple[str, int, int, int, int]]
) -> dict[str, Any]:
    """Return the bytes of ranges, one after the other, and by number why a range cannot be read.

    Args:
        source: Where they are.
        wanted: Of each its name, size and mark (``Entry``), and where the range begins and ends.

    Raises:
        RemoteError: The store does not answer, or refuses.
    """
    limit = asyncio.Semaphore(_AT_ONCE)

    async def part(name: str, start: int, end: int, mark: int) -> Any:
        async with limit:
            got = await source.again(lambda: in_time(source, name, start, end))
        source.num_bytes += end - start
        if got.etag is not None and mark & 1 and mark_of(got.etag) != mark:
            raise StoreFault("changed", got.etag)
        return got

    async def is_another(name: str, size: int) -> bool:
        try:
            return (await source.objects.look(name)).size != size
        except StoreFault:
            return False

    async def one(name: str, size: int, mark: int, start: int, end: int) -> Any:
        starts = range(start, end, PART_BYTES)
        parts = (part(name, at, min(at + PART_BYTES, end), mark) for at in starts)
        try:
            found = await asyncio.gather(*parts)
            if not all(got.etag for got in found) and await is_another(name, size):
                raise StoreFault("changed", "it has another size")
            return b"".join(got.data for got in found)
        except StoreFault as fault:
            if fault.kind in _PASSED_ON or await is_another(name, size):
                return _PASSED_ON.get(fault.kind, _PASSED_ON["changed"])
            raise source.refused("fetched", name, fault) from None

    found = await asyncio.gather(*(one(*each) for each in wanted))
    faults = {i: each for i, each in enumerate(found) if isinstance(each, str)}
    data = b"".join(each for each in found if not isinstance(each, str))
    return {"faults": faults, "nbytes": len(data), "data": data}
