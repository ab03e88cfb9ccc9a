"""A place in a store as the fetcher reads it: its client, what is counted of it, and how often it is asked again."""

from __future__ import annotations

import asyncio
import random
import re
import time
from typing import TYPE_CHECKING, Any, TypeVar

from loaders.errors import RemoteError
from loaders.remote.faults import StoreFault, hide_secrets
from loaders.remote.stores import Objects, open_objects
from loaders.remote.uploads import end_uploads
from loaders.remote.url import PUBLIC_OPTIONS, endpoint_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from loaders.remote.url import URL

T = TypeVar("T")
ATTEMPTS = 3  # of what a store is asked for, beside those of its client; and of a whole file
_UPLOADS_S = 120.0
FINAL = frozenset(["missing", "denied", "region", "unusable"])


class Tries:
    """How often a store was asked again for something, and what it answered last."""

    def __init__(self, source: ServedURL) -> None:
        self._source, self._num, self._last = source, 0, ""

    def note(self, fault: StoreFault) -> None:
        """Note that it is asked again, and why."""
        self._num += 1
        self._source.num_retries += 1
        said = self._source.public(fault.text).rpartition(" - ")[2]  # behind how it was asked
        self._last = said[:200]

    def __str__(self) -> str:
        return f", {self._num} retries, the last answer: {self._last}" if self._num else ""


def say_to_who_waits(describe: Callable[[], str]) -> None:
    """Describe what the current task works on to the client that waits for it."""
    task: Any = asyncio.current_task()
    task.describe = describe


class ServedURL:
    """A dataset's URL, and what reads it; counted from the start of the fetcher."""

    def __init__(self, url: URL, storage: dict[str, Any], environment: dict[str, str]) -> None:
        self.url, self._storage, self._environment = url, storage, environment
        self.endpoint = endpoint_of(url.scheme, storage, environment)
        self.objects = self._open()
        self.num_bytes = self.num_requests = self.num_retries = 0
        self._renewed = 0.0
        self.manifest_at = -1e9
        self.manifest_lock = asyncio.Lock()

    def _open(self) -> Objects:
        try:
            return open_objects(self.url, self._storage, self._environment)
        except StoreFault as fault:
            raise RemoteError(self.public(fault.text), self.url, fault.hint) from None

    async def renew(self) -> None:
        """Ask for credentials anew, where that was not done right now."""
        if time.monotonic() - self._renewed > 5:
            self._renewed = time.monotonic()
            self.objects = self._open()

    async def end_uploads(self, names: list[str] | None) -> int:
        """Abort unfinished uploads, or those of some objects; return how many."""
        about = self.url, self._storage, self._environment, names
        try:
            return await asyncio.wait_for(asyncio.to_thread(end_uploads, *about), _UPLOADS_S)
        except (StoreFault, TimeoutError) as fault:
            text = fault.text if isinstance(fault, StoreFault) else "no answer in time"
            what = f"unfinished uploads cannot be ended ({self.public(text)})"
            raise RemoteError(what, self.url) from None

    def public(self, text: str) -> str:
        """Return a text without secrets."""
        given = {n: v for n, v in self._storage.items() if n not in PUBLIC_OPTIONS}
        found = {n: v for n, v in self._environment.items() if re.search("KEY|TOKEN|SECRET", n)}
        return hide_secrets(text, given | found)

    def refused(self, what: str, name: str, fault: StoreFault) -> RemoteError:
        """Return the error for what the store did not do, without secrets."""
        text = f"it cannot be {what} ({self.public(fault.text)})"
        return RemoteError(text, self.url / name if name else self.url, fault.hint)

    async def again(
        self,
        call: Callable[[], Coroutine[Any, Any, T]],
        is_final: Callable[[StoreFault], bool] = lambda fault: fault.kind in FINAL,
        tries: Tries | None = None,
    ) -> T:
        """Ask the store, and ask again where that may help.

        Args:
            call: Asks once.
            is_final: Whether it is of no use to ask again.
            tries: Where it is noted that it is asked again.

        Raises:
            StoreFault: The last one.
        """
        for attempt in range(ATTEMPTS):
            self.num_requests += 1
            try:
                return await call()
            except StoreFault as fault:
                if attempt == ATTEMPTS - 1 or is_final(fault):
                    raise
                (tries or Tries(self)).note(fault)
                if fault.kind == "expired":
                    await self.renew()
                else:
                    await asyncio.sleep(random.uniform(0.5, 1) * 0.4 * 2**attempt)
        raise AssertionError
