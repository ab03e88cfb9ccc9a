"""Sends the fetcher the order of reading and the reader's position, so that it fetches and evicts in that order.

1. A thread sends the order once, and the position when it comes to another stretch of it; no batch waits for it.
   It starts after the reader's worker processes: what a thread holds while they are forked nobody releases in them.
2. It ends with its reader. When the connection closes, the fetcher drops the order.
3. If the fetcher dies, the order is sent to the next one, also while the reader stands still. Without an answer, files
   are fetched on demand.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from loaders.errors import LoadersError

if TYPE_CHECKING:
    from collections.abc import Callable

    Position = tuple[int, bool]

    from loaders.remote.needs import Needs
    from loaders.remote.origin import Origin
    from loaders.remote.wire import Connection

_LEAST_S, _MOST_S = 0.01, 0.1  # between two looks at the position: few where it goes slowly


class Ahead:
    """Sends the fetcher what one reader will read, from ``start`` on.

    Args:
        origin: Where from.
        make_needs: Returns what will be read; called on the thread.
        position: How many samples the reader has had, and whether it has ended.
    """

    def __init__(
        self, origin: Origin, make_needs: Callable[[], Needs], position: Callable[[], Position]
    ) -> None:
        self._ended = threading.Event()
        args = self._ended, origin, make_needs, position  # not self: that would keep it alive
        self._thread = threading.Thread(target=_tell, args=args, name="loaders-ahead", daemon=True)
        weakref.finalize(self, self._ended.set)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, and let the fetcher forget."""
        self._ended.set()
        is_other = (
            self._thread is not threading.current_thread()
        )  # which may collect its dead reader
        if is_other and self._thread.is_alive():
            self._thread.join(2)


def _tell(
    ended: threading.Event,
    origin: Origin,
    make_needs: Callable[[], Needs],
    position: Callable[[], Position],
) -> None:
    """Send the order, and again to each fetcher that follows a dead one."""
    needs: Needs | None = None
    while not ended.is_set():
        try:
            needs = needs or make_needs()
            connection = origin.client.connect()
        except (OSError, LoadersError):  # what is wrong is said to who waits for a file
            ended.wait(1)
            continue
        with suppress(OSError, LoadersError), closing(connection):
            connection.send({"op": "needs", "needs": needs.to_json()})
            while "wait" in connection.receive():
                pass
            _follow(ended, connection, needs, position)


def _follow(
    ended: threading.Event,
    connection: Connection,
    needs: Needs,
    position: Callable[[], Position],
) -> None:
    last, pause_s = 0, _LEAST_S
    while not ended.wait(pause_s):
        connection.check()  # of a reader that waits for a file the position does not change
        at, is_over = position()
        pause_s = min(2 * pause_s, _MOST_S)
        if (stretch := needs.stretch(at)) != last:
            connection.send({"op": "at", "position": at})
            last, pause_s = stretch, _LEAST_S
        if is_over:
            ended.set()
