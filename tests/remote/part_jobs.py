"""Fetches one object in small parts, with an answer that is bad at each request in turn; ``test_parts.py`` starts it.

``part_jobs.py FOLDER ENDPOINT PROXY KIND``: a process of its own, as clients of stores do not live through a fork.
"""

import asyncio
import sys
from pathlib import Path

import numpy as np

from loaders.errors import ChecksumError
from loaders.remote import transfer, wire
from loaders.remote.served import ServedURL
from loaders.remote.url import URL
from loaders.remote.wire import File
from loaders.system.regular import hash_file
from tests.remote.conftest import storage
from tests.remote.servers import Proxy

NAME, PART, NUM_PARTS = "object.lmdb", 64 << 10, 5


class Place:
    """An object behind the proxy, and where it is fetched to."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.object = folder / "bucket/data" / NAME
        self.part, self.target = folder / "part", folder / "shards" / NAME
        rng = np.random.default_rng(0)
        self.right, self.wrong = (rng.bytes(NUM_PARTS * PART - 1_000) for _ in range(2))
        self.object.parent.mkdir(parents=True)
        self.object.write_bytes(self.right)
        self.file = File(NAME, len(self.right), hash_file(self.object))
        self.source = ServedURL(URL("s3://bucket/data"), storage(endpoint), {})

    async def fetch(self) -> None:
        """Fetch it, eight parts at a time."""
        turns = asyncio.Semaphore(8), asyncio.Semaphore(8)
        download = transfer.Download(self.source, self.file, self.part, self.target, turns)
        download.open()
        try:
            await download.run()
        finally:
            assert not self.part.exists()

    def take(self) -> bytes:
        """Return what was fetched, which is there no more."""
        data = self.target.read_bytes()
        self.target.unlink()
        return data


async def once(place: Place, proxy: Proxy, kind: str) -> None:
    for at in range(NUM_PARTS):
        proxy.set(faults=[{"kind": kind, "at": [at]}])
        await place.fetch()
        assert place.take() == place.right, at
        assert len(proxy.requests(NAME)) > NUM_PARTS


async def replaced(place: Place, proxy: Proxy) -> None:
    """By one of the same size, while it is fetched: the right one before or after."""
    for before, after in ((place.right, place.wrong), (place.wrong, place.right)):
        place.object.write_bytes(before)
        proxy.set(faults=[{"kind": "slow", "at": [1, 3]}])

        before_bytes = place.source.num_bytes
        fetching = asyncio.create_task(place.fetch())
        while place.source.num_bytes < before_bytes + PART:
            await asyncio.sleep(0.01)
        place.object.write_bytes(after)
        await asyncio.wait({fetching})
        if after == place.right:
            assert fetching.exception() is None
            assert place.take() == place.right
        else:
            assert isinstance(fetching.exception(), ChecksumError)
            assert not place.target.exists()


def main(folder: str, endpoint: str, kind: str) -> None:
    wire.PART_BYTES = PART
    place, proxy = Place(Path(folder), endpoint), Proxy(endpoint)
    asyncio.run(replaced(place, proxy) if kind == "replaced" else once(place, proxy, kind))


if __name__ == "__main__":
    main(*sys.argv[1:])
