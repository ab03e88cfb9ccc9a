"""What lies in the cache folder: verified shards, room for others, eviction, and what a dead fetcher left.

Eviction unlinks a shard: processes that have it mapped keep reading it.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAP_S = 1.0  # for so long the file that a client was given last stays: it is about to be mapped


class CacheFile(NamedTuple):
    """A file of the cache."""

    path: Path
    size: int


class CacheFolder:
    """The verified files of a cache, by hash.

    Args:
        inside: The cache folder of this version, locked.

    Attributes:
        used_bytes: What they take.
        reserved_bytes: What is on its way, and will take.
    """

    def __init__(self, inside: Path) -> None:
        self._lock = inside / "lock"
        self._lock_number = _number_of(self._lock)
        for left in (inside / "parts").iterdir():  # by a fetcher that was killed
            left.unlink()
        found = (CacheFile(path, path.stat().st_size) for path in (inside / "shards").glob("??/*"))
        self.files = {file.path.stem: file for file in found}
        self.used_bytes = sum(file.size for file in self.files.values())
        self.reserved_bytes = 0
        # Which file a client was given last, and when.
        self._answered: dict[object, tuple[str, float]] = {}

    def is_removed(self) -> bool:
        """Tell whether somebody removed the fetcher's lock: another one may serve the folder now."""
        return _number_of(self._lock) != self._lock_number

    def has(self, digest: str) -> bool:
        """Tell whether a file is there; one that somebody deleted is forgotten."""
        file = self.files.get(digest)
        if file is not None and not file.path.exists():
            self._forget(digest)
            return False
        return file is not None

    def note_answer(self, client: object, digest: str) -> None:
        """Note that a client is given a file, which is used now: it will map it before it asks for another."""
        self._answered[client] = digest, time.monotonic()
        with suppress(OSError):
            os.utime(self.files[digest].path)

    def add(self, digest: str, path: Path, size: int) -> None:
        """Note a file that was published, and give back what was reserved for it."""
        self.reserved_bytes -= size
        if digest not in self.files:
            self.used_bytes += size
        self.files[digest] = CacheFile(path, size)

    def _forget(self, digest: str) -> None:
        self.used_bytes -= self.files.pop(digest).size

    def reserve(
        self, nbytes: int, budget: int, needs: Mapping[str, int], beyond: float = -1.0
    ) -> bool:
        """Reserve room, and evict for it; False if there is none.

        Evicted first: files in no order, least recently used first; then those needed last.

        Args:
            nbytes: How much.
            budget: What may be taken in all.
            needs: How many bytes ahead files are needed, by hash; others are not known to be.
            beyond: Files that are needed no further ahead stay.
        """
        missing = self.used_bytes + self.reserved_bytes + nbytes - budget
        candidates = self._candidates(needs, beyond) if missing > 0 else []
        if sum(self.files[digest].size for digest in candidates) < missing:
            return False  # nothing is deleted in vain
        for digest in candidates:
            if missing <= 0:
                break
            missing -= self.files[digest].size
            self.files[digest].path.unlink(missing_ok=True)
            self._forget(digest)
        self.reserved_bytes += nbytes
        return True

    def _candidates(self, needs: Mapping[str, int], beyond: float) -> list[str]:
        recent = time.monotonic() - MAP_S
        self._answered = {who: last for who, last in self._answered.items() if last[1] > recent}
        kept = {digest for digest, _ in self._answered.values()}

        def order(digest: str) -> tuple[float, float]:
            if digest in needs:
                return -needs[digest], 0.0
            with suppress(OSError):
                return -math.inf, self.files[digest].path.stat().st_mtime
            return -math.inf, 0.0

        far = (digest for digest in self.files if needs.get(digest, math.inf) > beyond)
        return sorted((digest for digest in far if digest not in kept), key=order)


def _number_of(path: Path) -> int | None:
    """Return what tells a file from another of the same name; None if there is none."""
    with suppress(OSError):
        return path.stat().st_ino
    return None


def publish(path: Path, data: bytes) -> None:
    """Write a file all at once."""
    beside = path.with_name(f"{path.name}.tmp")
    beside.write_bytes(data)
    os.replace(beside, path)
