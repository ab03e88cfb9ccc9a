"""What lies in the cache folder: verified shards, room for others, eviction, and what a dead fetcher left.

Eviction unlinks a shard: processes that have it mapped keep reading it.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAP_S = 1.0  # for so long the file that a client was given last stays: it is about to be mapped


class CacheFolder:
    """The verified files of a cache: ``files`` has path and bytes of each, by hash; ``used_bytes`` they take."""

    def __init__(self, inside: Path) -> None:
        self._lock = inside / "lock"
        self._lock_number = _number_of(self._lock)
        for left in (inside / "parts").iterdir():  # by a fetcher that was killed
            left.unlink()
        paths = (inside / "shards").glob("??/*")
        self.files = {path.stem: (path, path.stat().st_size) for path in paths}
        self.used_bytes = sum(size for _, size in self.files.values())
        # Which file a client was given last, and when.
        self._answered: dict[object, tuple[str, float]] = {}

    def is_removed(self) -> bool:
        """Tell whether somebody removed the fetcher's lock: another one may serve the folder now."""
        return _number_of(self._lock) != self._lock_number

    def has(self, digest: str) -> bool:
        """Tell whether a file is there; one that somebody deleted is forgotten."""
        if digest in self.files and not self.files[digest][0].exists():
            self._forget(digest)
        return digest in self.files

    def note_answer(self, client: object, digest: str) -> None:
        """Note that a client is given a file, which is used now: it will map it before it asks for another."""
        self._answered[client] = digest, time.monotonic()
        with suppress(OSError):
            os.utime(self.files[digest][0])

    def add(self, digest: str, path: Path, size: int) -> None:
        """Note a file that was published."""
        self.used_bytes += size
        self.files[digest] = path, size

    def _forget(self, digest: str) -> None:
        self.used_bytes -= self.files.pop(digest)[1]

    def make_room(self, max_bytes: int, needs: Mapping[str, int], beyond: float = -1.0) -> bool:
        """Evict files until they take no more than ``max_bytes``; False, and none is evicted, if that cannot be.

        Evicted first: files in no order, least recently used first; then those needed last.

        Args:
            max_bytes: What they may take.
            needs: How many bytes ahead files are needed, by hash; others are not known to be.
            beyond: Files that are needed no further ahead stay.
        """
        missing = self.used_bytes - max_bytes
        candidates = self._candidates(needs, beyond) if missing > 0 else []
        if sum(self.files[digest][1] for digest in candidates) < missing:
            return False
        for digest in candidates:
            if self.used_bytes <= max_bytes:
                break
            self.files[digest][0].unlink(missing_ok=True)
            self._forget(digest)
        return True

    def _candidates(self, needs: Mapping[str, int], beyond: float) -> list[str]:
        recent = time.monotonic() - MAP_S
        self._answered = {who: last for who, last in self._answered.items() if last[1] > recent}
        kept = {digest for digest, _ in self._answered.values()}

        def order(digest: str) -> tuple[float, float]:
            if digest in needs:
                return -needs[digest], 0.0
            with suppress(OSError):
                return -math.inf, self.files[digest][0].stat().st_mtime
            return -math.inf, 0.0

        far = (digest for digest in self.files if needs.get(digest, math.inf) > beyond)
        return sorted((digest for digest in far if digest not in kept), key=order)


def _number_of(path: Path) -> int | None:
    """Return what tells a file from another of the same name; None if there is none."""
    with suppress(OSError):
        return path.stat().st_ino
    return None
