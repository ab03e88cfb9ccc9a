"""Objects that are no dataset, in the fetcher: listed, and read whole, many at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from loaders.errors import RemoteError
from loaders.remote.stores import StoreFault
from loaders.remote.transfer import PART_BYTES, again, in_time

if TYPE_CHECKING:
    from loaders.remote.fetcher import Source

_AT_ONCE = 16  # of one question
_PASSED_ON = {  # what is the fault of one object
    "missing": "it is not there any more",
    "changed": "it was replaced since it was listed",
    "short": "it was replaced since it was listed",
}


async def listing(source: Source, message: dict[str, Any]) -> dict[str, Any]:
    """Do what a client asks for: list what lies below a folder, or in it, or tell of one object.

    Raises:
        RemoteError: The store does not answer, or refuses.
    """
    folder = message["folder"]
    try:
        match message["of"]:
            case "below":
                after = message["after"]
                found = await again(lambda: source.objects.below(folder, after), source)
                return {"objects": found}
            case "inside":
                objects, folders = await again(lambda: source.objects.in_folder(folder), source)
                return {"objects": objects, "folders": folders}
        mark = await again(lambda: source.objects.look(folder), source)
        return {"objects": [(folder, mark.size, mark.etag or mark.version or "")]}
    except StoreFault as fault:
        if fault.kind == "missing":
            return {"objects": [], "folders": []}
        what = f"it cannot be listed ({source.public(fault.text)})"
        raise RemoteError(what, source.url / folder, fault.hint) from None


async def read_objects(source: Source, wanted: list[tuple[str, int, str]]) -> dict[str, Any]:
    """Return objects as they were listed, one after the other, and why others cannot be given, by number.

    Raises:
        RemoteError: The store does not answer, or refuses.
    """
    limit = asyncio.Semaphore(_AT_ONCE)

    async def part(name: str, start: int, end: int, mark: str) -> Any:
        async with limit:
            got = await again(lambda: in_time(source, name, start, end), source)
        source.num_bytes += end - start
        if got.etag is not None and got.etag != mark and mark.startswith(('"', "W/")):
            raise StoreFault("changed", got.etag)
        return got.data

    async def is_another(name: str, size: int) -> bool:
        try:
            return (await source.objects.look(name)).size != size
        except StoreFault:
            return False

    async def one(name: str, size: int, mark: str) -> Any:
        starts = range(0, size, PART_BYTES)
        ends = [min(start + PART_BYTES, size) for start in starts]
        parts = (part(name, *ends, mark) for ends in zip(starts, ends, strict=True))
        try:
            return b"".join(await asyncio.gather(*parts))
        except StoreFault as fault:
            if fault.kind in _PASSED_ON or await is_another(name, size):
                return _PASSED_ON.get(fault.kind, _PASSED_ON["changed"])
            what = f"it cannot be fetched ({source.public(fault.text)})"
            raise RemoteError(what, source.url / name, fault.hint) from None

    found = await asyncio.gather(*(one(*each) for each in wanted))
    faults = {i: each for i, each in enumerate(found) if isinstance(each, str)}
    data = b"".join(each for each in found if not isinstance(each, str))
    return {"faults": faults, "nbytes": len(data), "data": data}
