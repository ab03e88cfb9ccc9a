"""One file on its way from a store: in parts, retried, hashed in order, and published by a rename.

1. Normal end: all is written, the hash is that of the manifest, the file is renamed into place.
2. A part that fails is asked for again (``ServedURL.again``).
3. Other bytes than the manifest's: all of it is fetched again, twice at most.
4. Failure: what was written is deleted, and all that wait get the same error.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.errors import CacheError, ChecksumError, RemoteError
from loaders.remote import wire
from loaders.remote.faults import StoreFault
from loaders.remote.source import ATTEMPTS, FINAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from loaders.remote.source import ServedURL
    from loaders.remote.wire import File

_MAX_UNHASHED = 32  # parts
_TEXTS = {  # of faults for which all of the file is fetched again
    "damaged": f"its bytes are not those of the manifest, fetched {ATTEMPTS} times",
    "short": "it is smaller than the manifest says",
}


class Slots:
    """So many requests at a time: the next one is for the download that is needed first."""

    def __init__(self, num: int) -> None:
        self._num_free = num
        self._waiting: list[tuple[Download, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def of(self, download: Download) -> AsyncIterator[None]:
        """Wait for a slot, and have it during the block."""
        if self._num_free:
            self._num_free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((download, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.cancelled():
                    self._waiting.remove((download, turn))
                else:
                    self._release()
                raise
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        if not self._waiting:
            self._num_free += 1
            return
        first = min(self._waiting, key=lambda each: each[0].distance)
        self._waiting.remove(first)
        first[1].set_result(None)


class Download:
    """A file that is wanted.

    Args:
        source: Where it comes from.
        file: Which.
        part_path: Where it is filled.
        target: Where it is published.
        slots: Of requests.

    Attributes:
        done: Ends when the file is published, or with an error.
        distance: How many bytes ahead it is needed; -1: a client waits.
        asked_at: Since when it is wanted.
        task: Fetches it, where there is room for it.
        is_silent: Whether it failed as the store has answered nothing at all for as long as is waited for.
    """

    def __init__(
        self, source: ServedURL, file: File, part_path: Path, target: Path, slots: Slots
    ) -> None:
        self.source, self.file, self.target = source, file, target
        self.distance, self.asked_at = 0, time.monotonic()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_ignore)
        self.task: asyncio.Task[None] | None = None
        self.is_silent = False
        self._part_path, self._slots, self._descriptor = part_path, slots, -1
        self._writing = set[asyncio.Task[None]]()

    @property
    def url(self) -> str:
        """Where the file lies."""
        return str(self.source.url / self.file.file)

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
        """Fetch it, and publish it.

        Raises:
            RemoteError: The store does not answer, or refuses.
            ChecksumError: It is not what the manifest says.
            OSError: It cannot be written.
        """
        try:
            for is_last in (False, False, True):
                try:
                    digest = await self._fetch()
                    if digest != self.file.hash:
                        raise StoreFault("damaged", f"its xxh3-128 is {digest}")
                    self._publish()
                    return
                except StoreFault as fault:
                    self.is_silent = fault.kind == "network" and self.source.is_silent
                    if is_last or fault.kind not in _TEXTS:
                        raise self._error(fault) from None
                    self.source.num_retries += 1
        finally:
            self._close()

    async def _fetch(self) -> str:
        """Write all parts; return the hash of what came."""
        state, parts = xxhash.xxh3_128(), deque[asyncio.Task[list[Any]]]()
        try:
            starts = [*range(0, self.file.size, wire.PART_BYTES)]
            while starts or parts:
                while starts and len(parts) < _MAX_UNHASHED:
                    parts.append(asyncio.create_task(self._part(starts.pop(0))))
                for piece in await parts[0]:  # 1 ms: as to hand it over
                    state.update(piece)
                parts.popleft()
        finally:  # nothing is written any more when it ends
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, *self._writing, return_exceptions=True)
        return state.hexdigest()

    async def _part(self, start: int) -> list[Any]:
        source, name = self.source, self.file.file
        end = min(start + wire.PART_BYTES, self.file.size)

        def is_final(fault: StoreFault) -> bool:
            return fault.kind in FINAL or fault.kind in _TEXTS

        async with self._slots.of(self):
            got = await source.again(
                lambda hear: source.objects.get(name, start, end, hear), is_final
            )
            work = asyncio.to_thread(_write, self._descriptor, got.pieces, start)
            writing = asyncio.create_task(work)
            self._writing.add(writing)
            writing.add_done_callback(self._writing.discard)
            await asyncio.shield(writing)
        return got.pieces

    def _publish(self) -> None:
        os.fchmod(self._descriptor, 0o444)
        # Not those above: who removed them has removed the whole cache.
        for folder in (self.target.parents[1], self.target.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        os.rename(self._part_path, self.target)

    def _error(self, fault: StoreFault) -> RemoteError | ChecksumError:
        texts = _TEXTS | {"missing": "the shard is missing in the store"}
        if fault.kind not in texts:
            return self.source.refused("fetched", self.file.file, fault)
        hint = "If the dataset was replaced there, open it again; else restore the shard there"
        return ChecksumError(texts[fault.kind], self.url, None, None, hint)

    def _close(self) -> None:
        """Close the file, and delete it where it was not published."""
        os.close(self._descriptor)
        with suppress(OSError):
            self._part_path.unlink()


def not_written(error: OSError, folder: Path) -> CacheError:
    """Return the error for a cache folder that the system does not let be written."""
    what = f"it cannot be written ({error.strerror or error})"
    return CacheError(what, folder, "Check that its disk has room, and that you may write there")


def _write(descriptor: int, pieces: list[Any], start: int) -> None:
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while len(view):
            written = os.pwrite(descriptor, view, start)
            start, view = start + written, view[written:]


def _ignore(future: asyncio.Future[None]) -> None:
    """Retrieve the error of a task that may have no waiter, as a prefetched file has none."""
    if not future.cancelled():
        future.exception()
