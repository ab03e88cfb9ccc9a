"""What a store is asked for beside whole shards, in the fetcher: listings, ranges of objects, how it answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from loaders.remote.faults import StoreFault
from loaders.remote.source import Tries, describe_wait
from loaders.remote.stores import mark_of
from loaders.remote.wire import PART_BYTES

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from loaders.remote.source import ServedURL
    from loaders.remote.stores import Got

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


class Ranges:
    """Fetches ranges of objects for one question, many at a time, a large one in parts.

    Args:
        source: Where they are.
        names: The objects, as far as they are said to who waits.
    """

    def __init__(self, source: ServedURL, names: list[str]) -> None:
        self._source, self._limit = source, asyncio.Semaphore(_AT_ONCE)
        self._tries, self._num_wanted, self._num_here = Tries(source), 0, 0
        self._where = f"{source.url / names[0]}" if names else str(source.url)
        self._where += f" and {len(names) - 1} others" if len(names) > 1 else ""
        describe_wait(self._describe)

    def _describe(self) -> str:
        num = f"{self._num_here} of {self._num_wanted} ranges are here"
        return f"fetching ranges of {self._where}, {num}{self._tries}"

    async def get(self, name: str, start: int, end: int, etag: str | None = None) -> list[Got]:
        """Return the parts of a range, of the object with this e-tag; StoreFault if one does not come."""
        parts = [self._part(name, *each, etag) for each in _parts(start, end)]
        # Most have one part, which needs no task of its own.
        return [await parts[0]] if len(parts) == 1 else await asyncio.gather(*parts)

    async def _part(self, name: str, start: int, end: int, etag: str | None) -> Got:
        self._num_wanted += 1
        async with self._limit:
            tries = Tries(self._source, self._tries)

            def call() -> Coroutine[Any, Any, Got]:
                return self._source.objects.get(name, start, end, etag, tries.hear)

            got = await self._source.again(call, tries=tries)
        self._num_here += 1
        return got


def _parts(start: int, end: int) -> Iterator[tuple[int, int]]:
    return ((at, min(at + PART_BYTES, end)) for at in range(start, end, PART_BYTES))


async def read_ranges(source: ServedURL, wanted: list[tuple[str, int, int]]) -> bytes:
    """Return ranges of shards, one after the other, each of the object of which the first of them was read.

    Raises:
        RemoteError: One cannot be fetched.
    """
    ranges = Ranges(source, [*dict.fromkeys(name for name, _, _ in wanted)])

    async def one(name: str, start: int, end: int) -> list[Got]:
        try:
            found = await ranges.get(name, start, end, source.etags.get(name))
            for got in found:
                if got.etag is not None and source.etags.setdefault(name, got.etag) != got.etag:
                    raise StoreFault("changed", f"it has another e-tag: {got.etag}")
            return found
        except StoreFault as fault:
            source.etags.pop(name, None)
            raise source.refused("fetched", name, fault) from None

    found = await asyncio.gather(*(one(*each) for each in wanted))
    return b"".join(piece for parts in found for got in parts for piece in got.pieces)


async def read_objects(
    source: ServedURL, wanted: list[tuple[str, int, int, int, int]]
) -> dict[str, Any]:
    """Return ranges of objects that were listed, one after the other, and by number why one cannot be read.

    Args:
        source: Where they are.
        wanted: Of each its name, size and mark (``Entry``), and where the range begins and ends.

    Raises:
        RemoteError: The store does not answer, or refuses.
    """
    ranges = Ranges(source, [name for name, *_ in wanted])

    async def is_another(name: str, size: int) -> bool:
        try:
            return (await source.objects.look(name)).size != size
        except StoreFault:
            return False

    async def one(name: str, size: int, mark: int, start: int, end: int) -> bytes | str:
        try:
            found = await ranges.get(name, start, end)
            etags = {got.etag for got in found}
            if any(etag and mark & 1 and mark_of(etag) != mark for etag in etags):
                raise StoreFault("changed", "it has another e-tag")
            if not all(etags) and await is_another(name, size):
                raise StoreFault("changed", "it has another size")
            return b"".join(got.data for got in found)
        except StoreFault as fault:
            if fault.kind in _PASSED_ON or (
                fault.kind != "network" and await is_another(name, size)
            ):
                return _PASSED_ON.get(fault.kind, _PASSED_ON["changed"])
            raise source.refused("fetched", name, fault) from None

    found = await asyncio.gather(*(one(*each) for each in wanted))
    faults = {i: each for i, each in enumerate(found) if isinstance(each, str)}
    data = b"".join(each for each in found if not isinstance(each, str))
    return {"faults": faults, "nbytes": len(data), "data": data}
