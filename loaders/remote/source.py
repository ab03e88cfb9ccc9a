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
from loaders.remote.url import PUBLIC_OPTIONS, endpoint_of
from loaders.remote.wire import MAX_CONNECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from loaders.remote.stores import Got
    from loaders.remote.url import URL

T = TypeVar("T")
ATTEMPTS = 3  # at what more time does not mend, and at a whole file
FINAL = frozenset(["missing", "denied", "region", "unusable", "certificate", "encoded"])
_MOST_PAUSE_S = 5.0


class Tries:
    """How often a store was asked again for something, what it answered last, and when its last byte came.

    Args:
        source: The store.
        whole: Those of what this is a part of.
    """

    def __init__(self, source: ServedURL, whole: Tries | None = None) -> None:
        self._source, self._whole, self._num, self._last = source, whole, 0, ""
        self.heard_at = time.monotonic()

    def hear(self, nbytes: int) -> None:
        """Note bytes that came."""
        self.heard_at = self._source.heard_at = time.monotonic()
        self._source.num_bytes += nbytes

    def note(self, fault: StoreFault) -> None:
        """Note that it is asked again, and why."""
        if self._whole is not None:
            self._whole.note(fault)
            return
        self._num += 1
        self._source.num_retries += 1
        said = self._source.public(fault.text).rpartition(" - ")[2]  # behind how it was asked
        self._last = said[:200]

    def __str__(self) -> str:
        return f", {self._num} retries, the last answer: {self._last}" if self._num else ""


def describe_wait(describe: Callable[[], str]) -> None:
    """Have the client that waits for the current task hear what it works on."""
    task: Any = asyncio.current_task()
    task.describe = describe


class ServedURL:
    """A dataset's URL, and what reads it; counted from the start of the fetcher.

    Attributes:
        heard_at: When the store's last byte came.
        limit: How many parts may be asked for at once: few while it does not answer.
        num_flying: How many are.
    """

    def __init__(self, url: URL, storage: dict[str, Any], environment: dict[str, str]) -> None:
        self.url, self._storage, self._environment = url, storage, environment
        self.endpoint = endpoint_of(url.scheme, storage, environment)
        self.objects = self._open()
        self.num_bytes = self.num_requests = self.num_retries = 0
        self.limit, self.num_flying = MAX_CONNECTIONS, 0
        self._renewed = 0.0
        self.heard_at = time.monotonic()
        self.etags: dict[str, str] = {}  # of objects of which ranges were read
        self.manifest_at = -1e9
        self.manifest_lock = asyncio.Lock()

    def _open(self) -> Objects:
        try:
            return open_objects(self.url, self._storage, self._environment)
        except StoreFault as fault:
            raise RemoteError(self.public(fault.text), self.url, fault.hint) from None

    def _renew(self) -> None:
        """Ask for credentials anew, where that was not done right now."""
        if time.monotonic() - self._renewed > 5:
            self._renewed = time.monotonic()
            self.objects = self._open()

    def public(self, text: str) -> str:
        """Return a text without secrets."""
        given = {n: v for n, v in self._storage.items() if n not in PUBLIC_OPTIONS}
        found = {n: v for n, v in self._environment.items() if re.search("KEY|TOKEN|SECRET", n)}
        return hide_secrets(text, given | found)

    def refused(self, what: str, name: str, fault: StoreFault) -> RemoteError:
        """Return the error for what the store did not do, without secrets."""
        text = f"it cannot be {what} ({self.public(fault.text)})"
        return RemoteError(text, self.url / name if name else self.url, fault.hint)

    @property
    def is_silent(self) -> bool:
        """Whether its last byte came longer ago than anything is waited for."""
        return time.monotonic() - self.heard_at >= self.objects.deadline_s

    async def get(self, name: str) -> Got:
        """Return a small object."""
        tries = Tries(self)
        return await self.again(
            lambda: self.objects.get(name, 0, None, on_bytes=tries.hear), tries=tries
        )

    async def again(
        self,
        call: Callable[[], Coroutine[Any, Any, T]],
        is_final: Callable[[StoreFault], bool] = lambda fault: fault.kind in FINAL,
        tries: Tries | None = None,
    ) -> T:
        """Ask the store, and ask again where that may help.

        Where it does not answer, until ``deadline_s`` after its last byte, or after the first question; else at most
        ``ATTEMPTS`` times.

        Args:
            call: Asks once; it ends in bounded time.
            is_final: Whether it is of no use to ask again.
            tries: What of it is described to the client that waits.

        Raises:
            StoreFault: The last one.
        """
        tries, attempt = tries or Tries(self), 0
        while True:
            self.num_requests, attempt = self.num_requests + 1, attempt + 1
            try:
                found = await call()
            except StoreFault as fault:
                late_s = time.monotonic() - tries.heard_at
                is_late = (
                    late_s >= self.objects.deadline_s
                    if fault.kind == "network"
                    else attempt >= ATTEMPTS
                )
                if is_late or is_final(fault):
                    raise
                tries.note(fault)
                if fault.kind == "expired":
                    self._renew()
                elif fault.kind == "network":
                    self.limit = max(1, self.limit // 2)
                pause_s = min(_MOST_PAUSE_S, 0.2 * 2 ** min(attempt, 10))
                await asyncio.sleep(
                    random.uniform(0.5, 1) * min(pause_s, self.objects.deadline_s / 4)
                )
            else:
                self.limit = min(MAX_CONNECTIONS, self.limit + 1)
                return found
