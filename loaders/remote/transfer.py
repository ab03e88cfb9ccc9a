"""One file on its way from a store: in parts, retried, hashed in order, and published by a rename.

1. Normal end: all is written, the hash is that of the manifest, the file is renamed into place.
2. A part that fails is asked for again (``ServedURL.again``).
3. Other bytes than the manifest's: all of it is fetched again.
4. Failure: what was written is deleted, and all that wait get the same error.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.errors import ChecksumError, RemoteError
from loaders.remote import wire
from loaders.remote.faults import StoreFault
from loaders.remote.patience import MAX_TRIES

if TYPE_CHECKING:
    from pathlib import Path

    from loaders.remote.served import ServedURL
    from loaders.remote.wire import File

    Turns = tuple[asyncio.Semaphore, asyncio.Semaphore]

_MAX_UNHASHED = 32  # parts
_TEXTS = {
    "damaged": f"the bytes are not those of the manifest, fetched {MAX_TRIES} times",
    "short": "the shard is smaller than the manifest says",
    "missing": "the shard is missing in the store",
}


class Download:
    """The download of a file: it is written at one path, and published at another.

    ``turns`` limit the requests at one time: of files fetched ahead, and of those that a client waits for.
    """

    def __init__(
        self, source: ServedURL, file: File, part_path: Path, target: Path, turns: Turns
    ) -> None:
        self.source, self.file, self.target = source, file, target
        self.is_waited = False  # by a client
        self.asked_at, self.failed_at = time.monotonic(), 0.0  # it waits for room, then the store
        # Done when the file is published, or failed; the callback retrieves an error that no client awaits.
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.task: asyncio.Task[None] | None = None  # fetches it, once there is room
        self._part_path, self._turns, self._descriptor = part_path, turns, -1

    def open(self) -> None:
        """Reserve its room on the disk; ``OSError`` if there is none."""
        self._part_path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self._part_path, flags, 0o600)
        try:
            os.posix_fallocate(self._descriptor, 0, max(1, self.file.size))
        except BaseException:
            self._close()
            raise

    async def run(self) -> None:
        """Fetch it, and publish it; RemoteError, ChecksumError or OSError if that cannot be."""
        self.asked_at = time.monotonic()
        try:
            for attempt in range(MAX_TRIES):
                self.source.num_retries += attempt > 0
                if await self._fetch() == self.file.hash:
                    self._publish()
                    return
            raise StoreFault("damaged", "")
        except StoreFault as fault:
            raise self._error(fault) from None
        finally:
            self._close()

    async def _fetch(self) -> str:
        """Write all parts; return the hash of what came."""
        state, parts = xxhash.xxh3_128(), deque[asyncio.Task[list[Any]]]()
        starts = deque(range(0, self.file.size, wire.PART_BYTES))
        try:
            while starts or parts:
                while starts and len(parts) < _MAX_UNHASHED:
                    parts.append(asyncio.create_task(self._part(starts.popleft())))
                for piece in await parts[0]:  # 1 ms: as to hand it over
                    state.update(piece)
                parts.popleft()
        finally:  # nothing is written any more when it ends
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        return state.hexdigest()

    async def _part(self, start: int) -> list[Any]:
        end = min(start + wire.PART_BYTES, self.file.size)
        async with self._turns[self.is_waited]:
            got = await self.source.get(self.file.file, start, end, self.asked_at)
            work = asyncio.to_thread(_write, self._descriptor, got.pieces, start)
            writing = asyncio.create_task(work)
            try:
                await asyncio.shield(writing)
            finally:
                await asyncio.wait({writing})  # a thread cannot be cancelled
        return got.pieces

    def _publish(self) -> None:
        os.fchmod(self._descriptor, 0o444)
        # Not those above: who removed them has removed the whole cache.
        for folder in (self.target.parents[1], self.target.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        os.rename(self._part_path, self.target)

    def _error(self, fault: StoreFault) -> RemoteError | ChecksumError:
        if fault.kind not in _TEXTS:
            return self.source.refused("fetched", self.file.file, fault)
        hint = "If the dataset was replaced there, open it again; else restore the shard there"
        return ChecksumError(_TEXTS[fault.kind], self.source.url / self.file.file, hint=hint)

    def _close(self) -> None:
        """Close the file, and delete it where it was not published."""
        os.close(self._descriptor)
        with suppress(OSError):
            self._part_path.unlink()


def _write(descriptor: int, pieces: list[Any], start: int) -> None:
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while len(view):
            written = os.pwrite(descriptor, view, start)
            start, view = start + written, view[written:]
