"""One file on its way from a store: in parts, retried, hashed in order, and published by a rename.

1. Normal end: all is written, the hash is that of the manifest, the file is renamed into place.
2. A part that fails is asked for again, after a pause; one that is late is asked for twice: what comes first counts.
3. Other bytes than the manifest's (or another e-tag among the parts): all of it is fetched again, twice at most.
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

from loaders.errors import CacheError, ChecksumError, RemoteError
from loaders.remote.faults import StoreFault
from loaders.remote.source import ATTEMPTS, FINAL, Tries

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from loaders.remote.source import ServedURL
    from loaders.remote.stores import Got
    from loaders.remote.wire import File

MAX_CONNECTIONS = 16  # 10 Gbit/s of a store that gives 80 MB/s on each
PART_BYTES = 8 << 20
_MAX_UNHASHED = 32  # parts
_FIRST_PATIENCE_S, _LEAST_PATIENCE_S = 6.0, 2.0
_FINAL_OF_PARTS = FINAL | {"changed", "short"}  # all of the file is fetched again, or nothing


class Pace:
    """What the last parts took: of these one that takes much longer hangs."""

    def __init__(self) -> None:
        self._parts: deque[tuple[float, float, int]] = deque(maxlen=64)  # began, ended, bytes

    def note(self, began: float, nbytes: int) -> None:
        """Note that a part has come."""
        self._parts.append((began, time.monotonic(), nbytes))

    @property
    def patience_s(self) -> float:
        """After how long a part is asked for again."""
        if len(self._parts) < 4:
            return _FIRST_PATIENCE_S
        times = sorted(ended - began for began, ended, _ in self._parts)
        return max(_LEAST_PATIENCE_S, 4 * times[len(times) // 2])

    @property
    def bytes_per_s(self) -> float:
        """At what rate they came over all connections, while any was on its way; 0 if there were none."""
        busy_s = until = 0.0
        for began, ended, _ in sorted(self._parts):
            busy_s += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return sum(nbytes for _, _, nbytes in self._parts) / busy_s if busy_s else 0.0


class Download:
    """A file that is wanted.

    Args:
        source: Where it comes from.
        file: Which.
        part_path: Where it is filled.
        target: Where it is published.
        pace: How long parts take.
        on_end: Called when the file is published, or with the error.

    Attributes:
        done: Ends when the file is published, or with an error.
        distance: How far ahead it is needed, in samples; -1: somebody waits.
        num_waiting: How many wait.
        is_begun: Whether there is room for it.
    """

    def __init__(
        self,
        source: ServedURL,
        file: File,
        part_path: Path,
        target: Path,
        pace: Pace,
        on_end: Callable[[Download, Exception | None], object],
    ) -> None:
        self.source, self.file = source, file
        self.distance = float("inf")
        self.is_begun = False
        self.num_waiting = 0
        self._tries = Tries(source)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_end = on_end
        self.done.add_done_callback(_ignore)
        self._part_path, self.target, self._pace = part_path, target, pace
        self._num_parts = max(1, -(-file.size // PART_BYTES))
        self._num_rounds = self._num_flying = 0
        self._descriptor = -1
        self._begin_round()

    def _begin_round(self) -> None:
        self._next = self._num_hashed = 0
        self._etag: str | None = None
        self._state = xxhash.xxh3_128()
        self._arrived: dict[int, Any] = {}
        self._fault: StoreFault | None = None  # of this round

    @property
    def url(self) -> str:
        """Where the file lies."""
        return str(self.source.url / self.file.file)

    def describe(self) -> str:
        """Describe how far the download is."""
        parts = f"part {min(self._num_hashed + 1, self._num_parts)} of {self._num_parts}"
        room = "" if self.is_begun else ", waiting for room in the cache"
        return f"fetching {self.url}, {parts}{room}{self._tries}"

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
        start = number * PART_BYTES
        end = min(start + PART_BYTES, self.file.size)
        try:
            got = await self._patiently(start, end)
            if self._fault is None and not self.done.done():
                await self._accept(number, start, got)
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

    async def _patiently(self, start: int, end: int) -> Got:
        def is_final(fault: StoreFault) -> bool:
            return self._fault is not None or fault.kind in _FINAL_OF_PARTS

        return await self.source.again(lambda: self._hedged(start, end), is_final, self._tries)

    async def _hedged(self, start: int, end: int) -> Got:
        """Ask for a part; if it is late ask again, and take what comes first."""
        began = time.monotonic()
        done, late = await asyncio.wait({self._asked(start, end)}, timeout=self._pace.patience_s)
        if late:
            self.source.num_requests += 1
            self._tries.note(StoreFault("network", f"no answer for {self._pace.patience_s:.0f} s"))
            late = {*late, self._asked(start, end)}
        try:
            while late and not any(task.exception() is None for task in done):
                done, late = await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in late:
                task.cancel()
        good = [task for task in done if task.exception() is None]
        got = (good or [*done])[0].result()
        self._pace.note(began, end - start)
        return got

    def _asked(self, start: int, end: int) -> asyncio.Task[Got]:
        return asyncio.ensure_future(self._ask(start, end))

    async def _ask(self, start: int, end: int) -> Got:
        got = await self.source.objects.get(self.file.file, start, end, self._etag)
        self.source.num_bytes += end - start
        return got

    async def _accept(self, number: int, start: int, got: Got) -> None:
        if got.etag is not None and self._etag not in (None, got.etag):
            raise StoreFault("changed", f"its e-tag was {self._etag}, and is {got.etag} now")
        self._etag = self._etag or got.etag
        await asyncio.to_thread(_write, self._descriptor, got.data, start)
        self._arrived[number] = got.data
        while self._num_hashed in self._arrived and not self.done.done():
            self._state.update(self._arrived.pop(self._num_hashed))  # 1 ms: as to hand it over
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
        self._tries.note(fault)
        self._num_rounds += 1
        if fault.kind in ("damaged", "changed", "short") and self._num_rounds < ATTEMPTS:
            self._begin_round()
        else:
            self.fail(self._error(fault))

    def _error(self, fault: StoreFault) -> RemoteError | ChecksumError:
        if fault.kind in ("damaged", "changed", "short", "missing"):
            texts = {
                "damaged": f"its bytes are not those of the manifest, fetched {ATTEMPTS} times",
                "changed": "it was replaced while it was fetched",
                "short": "it is smaller than the manifest says",
                "missing": "the shard is missing in the store",
            }
            hint = "If the dataset was replaced there, open it again; else restore the shard there"
            return ChecksumError(texts[fault.kind], self.url, None, None, hint)
        return self.source.refused("fetched", self.file.file, fault)

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


def _write(descriptor: int, data: Any, start: int) -> None:
    view = memoryview(data).cast("B")
    while len(view):
        written = os.pwrite(descriptor, view, start)
        start, view = start + written, view[written:]


def _ignore(future: asyncio.Future[None]) -> None:
    """Retrieve the error of a task that may have no waiter, as a prefetched file has none."""
    if not future.cancelled():
        future.exception()
