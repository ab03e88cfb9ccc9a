"""One file on its way from a store: in parts, retried, hashed in order, and published by a rename.

1. Normal end: all is written, the hash is that of the manifest, the file is renamed into place.
2. A part that fails is asked for again (``ServedURL.again``).
3. Other bytes than the manifest's: all of it is fetched again, twice at most.
4. Failure: what was written is deleted, and all that wait get the same error.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.errors import CacheError, ChecksumError, RemoteError
from loaders.remote import wire
from loaders.remote.faults import StoreFault
from loaders.remote.source import ATTEMPTS, FINAL

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from loaders.remote.source import ServedURL
    from loaders.remote.stores import Got
    from loaders.remote.wire import File

_MAX_UNHASHED = 32  # parts
_TEXTS = {  # of faults for which all of the file is fetched again
    "damaged": f"its bytes are not those of the manifest, fetched {ATTEMPTS} times",
    "short": "it is smaller than the manifest says",
}


class Download:
    """A file that is wanted.

    Args:
        source: Where it comes from.
        file: Which.
        part_path: Where it is filled.
        target: Where it is published.
        on_end: Called when the file is published, or with the error.

    Attributes:
        done: Ends when the file is published, or with an error.
        distance: How many bytes ahead it is needed; -1: a client waits.
        is_begun: Whether there is room for it.
    """

    def __init__(
        self,
        source: ServedURL,
        file: File,
        part_path: Path,
        target: Path,
        on_end: Callable[[Download, Exception | None], object],
    ) -> None:
        self.source, self.file = source, file
        self.distance = 0
        self.is_begun = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_end = on_end
        self.done.add_done_callback(_ignore)
        self._part_path, self.target = part_path, target
        self._num_parts = max(1, -(-file.size // wire.PART_BYTES))
        self._num_rounds = self._num_flying = 0
        self._descriptor = -1
        self._begin_round()

    def _begin_round(self) -> None:
        self._next = self._num_hashed = 0
        self._state = xxhash.xxh3_128()
        self._arrived: dict[int, list[Any]] = {}
        self._fault: StoreFault | None = None  # of this round

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
            os.close(self._descriptor)
            self._descriptor = -1
            self._part_path.unlink(missing_ok=True)
            raise
        self.is_begun = True

    @property
    def is_silent(self) -> bool:
        """Whether it failed as the store has answered nothing at all for as long as is waited for."""
        is_late = self._fault is not None and self._fault.kind == "network"
        return is_late and self.source.is_silent

    @property
    def has_part(self) -> bool:
        """Whether another part can be asked for."""
        is_open = self.is_begun and self._fault is None and not self.done.done()
        return is_open and self._next < min(self._num_parts, self._num_hashed + _MAX_UNHASHED)

    def take_part(self) -> Coroutine[Any, Any, None]:
        """Return the work of fetching the next part."""
        number, self._next = self._next, self._next + 1
        self._num_flying += 1
        return self._fetch(number)

    async def _fetch(self, number: int) -> None:
        try:
            got = await self._get(number)
            if self._fault is None and not self.done.done():
                await self._accept(number, got)
        except StoreFault as fault:
            self._fault = self._fault or fault
        except OSError as error:
            self.fail(not_written(error, self._part_path.parents[2]))
        except Exception as error:  # whatever it is: a part that ends silently is a hang
            self.fail(RemoteError(f"its fetcher has a defect: {error!r}", self.url, "Report it"))
            raise
        finally:
            self._num_flying -= 1
            self._land()

    def _land(self) -> None:
        """When no part is on its way any more: close the file, or fetch all of it again."""
        if self._num_flying:
            return
        if self._fault is not None and not self.done.done():
            self._fail_round(self._fault)
        if self.done.done() and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    async def _get(self, number: int) -> Got:
        start, name = number * wire.PART_BYTES, self.file.file
        end = min(start + wire.PART_BYTES, self.file.size)

        def is_final(fault: StoreFault) -> bool:
            return self._fault is not None or fault.kind in FINAL or fault.kind in _TEXTS

        source = self.source
        return await source.again(
            lambda hear: source.objects.get(name, start, end, hear), is_final
        )

    async def _accept(self, number: int, got: Got) -> None:
        await asyncio.to_thread(_write, self._descriptor, got.pieces, number * wire.PART_BYTES)
        self._arrived[number] = got.pieces
        while self._num_hashed in self._arrived and not self.done.done():
            for piece in self._arrived.pop(self._num_hashed):  # 1 ms: as to hand it over
                self._state.update(piece)
            self._num_hashed += 1
        if self._num_hashed == self._num_parts and not self.done.done():
            self._finish()

    def _finish(self) -> None:
        digest = self._state.hexdigest()
        if digest != self.file.hash:
            self._fault = StoreFault("damaged", f"its xxh3-128 is {digest}")
            return
        os.fchmod(self._descriptor, 0o444)
        # Not those above: who removed them has removed the whole cache.
        for folder in (self.target.parents[1], self.target.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        os.rename(self._part_path, self.target)
        self._on_end(self, None)
        self.done.set_result(None)

    def _fail_round(self, fault: StoreFault) -> None:
        """Fetch all of it again, or give up."""
        self._num_rounds += 1
        self.source.num_retries += 1
        if fault.kind in _TEXTS and self._num_rounds < ATTEMPTS:
            self._begin_round()
        else:
            self.fail(self._error(fault))

    def _error(self, fault: StoreFault) -> RemoteError | ChecksumError:
        texts = _TEXTS | {"missing": "the shard is missing in the store"}
        if fault.kind not in texts:
            return self.source.refused("fetched", self.file.file, fault)
        hint = "If the dataset was replaced there, open it again; else restore the shard there"
        return ChecksumError(texts[fault.kind], self.url, None, None, hint)

    def fail(self, error: Exception) -> None:
        """End with an error, the same for all that wait."""
        if not self.done.done():
            with suppress(OSError):
                self._part_path.unlink(missing_ok=True)
            self._on_end(self, error)
            self.done.set_exception(error)
        self._land()


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
