"""A URL that clients of the fetcher ask for: its store, counters, repeated requests, and what packdata asks."""

from __future__ import annotations

import asyncio
import random
import re
import time
from typing import TYPE_CHECKING, TypeVar

from loaders.errors import RemoteError
from loaders.remote.faults import StoreFault, hide_secrets
from loaders.remote.patience import PAUSE_S, RENEWED_S
from loaders.remote.stores import Got, Objects, ObstoreObjects, mark_of, open_objects
from loaders.remote.url import PUBLIC_OPTIONS, URL, endpoint_of
from loaders.remote.wire import PART_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    # A URL, options, and variables of the client.
    Reached = tuple[URL, dict[str, Any], dict[str, str]]

T = TypeVar("T")
_RANGES_AT_ONCE = 16  # of one question
_REPLACED = "replaced since it was listed"
# Faults of an object that was listed.
_OF_LISTED = {"missing": "removed since it was listed", "short": _REPLACED}
# Questions that a method of ``ObstoreObjects`` answers, and what it does to the objects.
BUCKET_OPS = {
    "below": "listed",
    "in_folder": "listed",
    "look": "listed",
    "put": "written",
    "delete": "deleted",
}


class ServedURL:
    """A dataset's URL, and what reads it; counted from the start of the fetcher."""

    def __init__(self, url: URL, storage: dict[str, Any], environment: dict[str, str]) -> None:
        self.reached: Reached = (url, storage, environment)
        self.url, self._storage, self._environment = self.reached
        self.endpoint = endpoint_of(url.scheme, storage, environment)
        self.objects = self._open()
        self.num_bytes = self.num_requests = self.num_retries = 0
        self._renewed = 0.0
        self._heard_at = time.monotonic()
        self.manifest_at = -1e9
        self.manifest_lock = asyncio.Lock()

    def _open(self) -> Objects:
        try:
            return open_objects(self.url, self._storage, self._environment)
        except StoreFault as fault:
            raise RemoteError(self.public(fault.text), self.url, fault.hint) from None

    def public(self, text: str) -> str:
        """Return a text without secrets."""
        given = {n: v for n, v in self._storage.items() if n not in PUBLIC_OPTIONS}
        found = {n: v for n, v in self._environment.items() if re.search("KEY|TOKEN|SECRET", n)}
        return hide_secrets(text, given | found)

    def refused(self, what: str, name: str, fault: StoreFault) -> RemoteError:
        """Return the error for what the store did not do, without secrets."""
        text = f"cannot be {what} ({self.public(fault.text)})"
        return RemoteError(text, self.url / name if name else self.url, fault.hint)

    async def get(
        self, name: str, start: int = 0, end: int | None = None, since: float | None = None
    ) -> Got:
        """Return bytes of an object, by default all; ``since`` when they are waited for (``time.monotonic``)."""
        got = Got()  # what came of an answer that broke is kept
        return await self.again(lambda hear: self.objects.get(name, start, end, hear, got), since)

    async def again(
        self,
        call: Callable[[Callable[[int], None]], Coroutine[Any, Any, T]],
        since: float | None = None,
    ) -> T:
        """Ask the store, and ask again where that may help; the last ``StoreFault`` is raised.

        That is as often as the fault says, until ``deadline_s`` after the last byte of this answer, or of any ``since``
        it is waited for. ``call`` asks once, in bounded time, for what has not come yet, and calls its argument with
        how many bytes have come.
        """
        deadline_s = self.objects.deadline_s
        heard_at, attempt, num_silent = time.monotonic(), 0, 0
        if since is not None and heard_at - max(since, self._heard_at) >= deadline_s:
            raise StoreFault("network", f"no byte came for {deadline_s:.0f} s")

        def hear(nbytes: int) -> None:
            nonlocal heard_at, num_silent
            heard_at, num_silent = time.monotonic(), 0
            self._heard_at = heard_at
            self.num_bytes += nbytes

        while True:
            self.num_requests, attempt = self.num_requests + 1, attempt + 1
            try:
                return await call(hear)
            except StoreFault as fault:
                if attempt >= fault.max_tries or time.monotonic() - heard_at >= deadline_s:
                    raise
                if fault.kind == "expired" and time.monotonic() - self._renewed > RENEWED_S:
                    self._renewed = time.monotonic()
                    self.objects = self._open()
            self.num_retries, num_silent = self.num_retries + 1, num_silent + 1
            pause_s = min(PAUSE_S, 0.2 * 2 ** min(num_silent, 10), deadline_s / 4)
            await asyncio.sleep(random.uniform(0.5, 1) * pause_s)

    async def ask_bucket(self, op: str, **about: Any) -> Any:
        """Return what a bucket answers; None if there is nothing to list."""
        if not isinstance(self.objects, ObstoreObjects):
            what = f"only datasets are read at {self.url.scheme}:// URLs"
            raise RemoteError(what, self.url, "Copy the files to a folder, or to a bucket")
        try:
            return await self.again(lambda _: getattr(self.objects, op)(**about))
        except StoreFault as fault:
            if fault.kind == "missing" and BUCKET_OPS[op] == "listed":
                return None
            raise self.refused(BUCKET_OPS[op], about.get("name", ""), fault) from None

    async def ranges(self, wanted: Sequence[tuple[Any, ...]]) -> list[bytes | str]:
        """Return ranges of objects; in the place of one of an object that was listed, and is another by now, why.

        Of each is wanted: the name, where the range begins and ends, and of an object that was listed its mark.
        """
        limit = asyncio.Semaphore(_RANGES_AT_ONCE)

        async def part(name: str, start: int, end: int) -> Got:
            async with limit:
                return await self.get(name, start, end)

        async def one(name: str, start: int, end: int, mark: int | None = None) -> bytes | str:
            parts = (
                part(name, i, min(i + PART_BYTES, end)) for i in range(start, end, PART_BYTES)
            )
            try:
                found = await asyncio.gather(*parts)
            except StoreFault as fault:
                if mark is None or fault.kind not in _OF_LISTED:
                    raise self.refused("fetched", name, fault) from None
                return _OF_LISTED[fault.kind]
            if mark and mark & 1 and any(got.etag and mark_of(got.etag) != mark for got in found):
                return _REPLACED
            return b"".join(piece for got in found for piece in got.pieces)

        return await asyncio.gather(*(one(*each) for each in wanted))
