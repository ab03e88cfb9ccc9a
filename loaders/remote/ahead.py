"""Sends the fetcher the order of reading and the reader's position, so that it fetches and evicts in that order.

1. A thread sends the shards that will be read, in order, when the reader comes to another stretch of them, and at least
   once a second; no batch waits for it. It starts after the reader's worker processes: a lock that a
   thread holds during a fork is never released in the child.
2. It ends with its reader. When the connection closes, the fetcher drops the order.
3. If the fetcher dies, the order is sent to the next one, also while the reader stands still. Without an answer, files
   are fetched on demand.
"""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import closing
from typing import TYPE_CHECKING

from loaders.errors import LoadersError
from loaders.remote.mapping import close_beyond

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.remote.needs import Needs
    from loaders.remote.origin import Origin
    from loaders.remote.wire import Connection, File

    Position = tuple[int, bool]

_LEAST_S, _MOST_S = 0.01, 0.1  # between two looks at the position: few where it goes slowly
_AGAIN_S = 1.0


class Ahead:
    """Sends the fetcher what one reader will read, from ``start`` on."""

    def __init__(
        self,
        origin: Origin,
        make_needs: Callable[[], Needs],  # what will be read; called on the thread
        position: Callable[[], Position],  # how many samples the reader has had; has it ended?
    ) -> None:
        self._ended = threading.Event()
        args = self._ended, origin, make_needs, position  # not self: that would keep it alive
        self._thread = threading.Thread(target=_send, args=args, name="loaders-ahead", daemon=True)
        weakref.finalize(self, self._ended.set)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, and let the fetcher forget."""
        self._ended.set()
        # The thread itself may collect its dead reader.
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join(2)


def _send(
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
            with closing(origin.client.connect()) as connection:
                _follow(ended, origin, connection, needs, position)
        except (OSError, LoadersError):  # a reader that waits for a file gets the error
            ended.wait(_AGAIN_S)


def _follow(
    ended: threading.Event,
    origin: Origin,
    connection: Connection,
    needs: Needs,
    position: Callable[[], Position],
) -> None:
    """Send the order whenever the reader comes to another stretch, and the files of it the first time."""
    files: list[File] | None = needs.files
    last, sent_at, pause_s = -1, 0.0, _LEAST_S
    while not ended.is_set():
        at, is_over = position()
        pause_s = min(2 * pause_s, _MOST_S)
        is_new = (stretch := needs.stretch(at)) != last
        if is_new or time.monotonic() - sent_at > _AGAIN_S:
            upcoming = needs.upcoming(at) if is_new else None
            limit = connection.ask("order", files=files, upcoming=upcoming)
            before, origin.max_mapped = origin.max_mapped, limit
            if limit is not None and limit != before:
                close_beyond(limit)
            files, last, sent_at = None, stretch, time.monotonic()
            pause_s = _LEAST_S if is_new else pause_s
        if is_over:
            ended.set()
        ended.wait(pause_s)
