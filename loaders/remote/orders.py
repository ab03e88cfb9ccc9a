"""What the clients of a fetcher will read, each in its order: what is fetched next, and evicted last."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loaders.remote.source import ServedURL
    from loaders.remote.wire import File

_WINDOW_SHARE, _WINDOW_BYTES = 32, 2 << 30


class WantedFile(NamedTuple):
    """A file that a client will need.

    Attributes:
        distance: How many bytes of other files the client reads before.
        is_near: Whether files that are needed later may be evicted for it. For far ones they are not: what was just
            read is needed last, and would always go, though half of it could stay until the next epoch.
        file: Which.
    """

    distance: int
    is_near: bool
    file: File


@dataclass(slots=True)
class Order:
    """What one client will read.

    Attributes:
        source: Where from.
        files: All files of its dataset.
        upcoming: The files that it will read, the next one first.
    """

    source: ServedURL
    files: list[File]
    upcoming: list[File] = field(default_factory=list)

    def wanted(self, share: int) -> Iterator[WantedFile]:
        """Yield the files of the next ``share`` bytes, and at least the next one."""
        window, passed = min(_WINDOW_BYTES, share // _WINDOW_SHARE), 0
        for file in self.upcoming:
            if passed and passed + file.size > share:
                return
            is_near = not passed or passed + file.size <= window
            yield WantedFile(passed, is_near, file)
            passed += file.size


class Orders:
    """The orders of all clients.

    Attributes:
        distances: How many bytes ahead each file is needed, by hash, by the client that comes to it first.
        files: The files of the datasets of all of them: their sizes, by hash.
    """

    def __init__(self) -> None:
        self._orders: dict[Any, Order] = {}
        self.distances: dict[str, int] = {}
        self.files: dict[str, int] = {}

    def __contains__(self, client: object) -> bool:
        return client in self._orders

    def each(self) -> list[Order]:
        """Return them."""
        return [*self._orders.values()]

    def put(
        self, client: Any, source: ServedURL, files: list[File] | None, upcoming: list[int] | None
    ) -> None:
        """Note what a client will read; None: as it said before.

        Args:
            client: Which.
            source: Where it reads.
            files: The files of its dataset.
            upcoming: The numbers of those that it will read, the next one first.
        """
        if files is not None:
            self._orders[client] = Order(source, files)
            self._count()
        order = self._orders[client]
        if upcoming is not None:
            order.upcoming = [order.files[number] for number in upcoming]
            self._measure()

    def drop(self, client: Any) -> None:
        """Forget a client."""
        if self._orders.pop(client, None) is not None:
            self._count()
            self._measure()

    def _count(self) -> None:
        orders = self._orders.values()
        self.files = {file.hash: file.size for order in orders for file in order.files}

    def _measure(self) -> None:
        self.distances = found = dict[str, int]()
        for order in self._orders.values():
            passed = 0
            for file in order.upcoming:
                found[file.hash] = min(passed, found.get(file.hash, passed))
                passed += file.size
