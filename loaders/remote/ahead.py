"""Sends the fetcher the order of reading and the reader's position, so that it fetches and evicts in that order.

1. A thread sends the order once, and the position when it comes to another stretch of it; no batch waits for it.
2. It ends with its reader. When the connection closes, the fetcher drops the order.
3. If the fetcher dies, the order is sent to the next one. Without an answer, files are fetched on demand.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from loaders.errors import LoadersError

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.remote.needs import Needs
    from loaders.remote.origin import Origin

_LEAST_S, _MOST_S = 0.01, 0.1  # between two looks at the position: few where it goes slowly


class Ahead:
    """Sends the fetcher what one reader will read.

    Args:
        origin: Where from.
        make_needs: Returns what will be read; called on the thread.
        position: How many samples the reader has had, and whether it has ended.
    """

    def __init__(
        self,
        origin: Origin,
        make_needs: Callable[[], Needs],
        position: Callable[[], tuple[int, bool]],
    ) -> None:
        self._ended = threading.Event()
        told = _Told(origin, make_needs, position, self._ended)
        self._thread = threading.Thread(target=told.run, name="loaders-ahead", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._ended.set)

    def close(self) -> None:
        """End the thread, and let the fetcher forget."""
        self._ended.set()
        self._thread.join(2)


class _Told:
    """The thread's part, which does not keep the reader alive."""

    def __init__(
        self,
        origin: Origin,
        make_needs: Callable[[], Needs],
        position: Callable[[], tuple[int, bool]],
        ended: threading.Event,
    ) -> None:
        self._origin, self._make_needs = origin, make_needs
        self._position, self._ended = position, ended
        self._needs: Needs | None = None

    def run(self) -> None:
        """Tell, again and again if fetchers die."""
        while not self._ended.is_set():
            try:
                self._tell()
            except (OSError, LoadersError):  # what is wrong is said to who waits for a file
                self._ended.wait(1)

    def _tell(self) -> None:
        if self._needs is None:
            self._needs = self._make_needs()
        connection = self._origin.client.connect()
        try:
            connection.send({"op": "needs", "needs": self._needs.to_json()})
            while "wait" in connection.receive():
                pass
            last, pause_s = 0, _LEAST_S
            while not self._ended.wait(pause_s):
                position, is_over = self._position()
                pause_s = min(2 * pause_s, _MOST_S)
                if (stretch := self._needs.stretch(position)) != last:
                    connection.send({"op": "at", "position": position})
                    last, pause_s = stretch, _LEAST_S
                if is_over:
                    self._ended.set()
        finally:
            connection.close()


def of_pass(current: Any, batch_size: int) -> Callable[[], tuple[int, bool]]:
    """Return what tells how many samples of a pass were handed over, and whether it is over."""

    def position() -> tuple[int, bool]:
        return int(current.num_steps) * batch_size, current.is_over

    return position
