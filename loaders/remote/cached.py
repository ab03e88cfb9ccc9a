"""What lies in the cache folder: verified shards, room for others, eviction, and what a dead fetcher left.

A shard is evicted by removing its name: whoever has it mapped goes on reading it.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
        found = (CacheFile(path, path.stat().st_size) for path in _files(inside / "shards"))
        self.files = {file.path.stem: file for file in found}
        self.used_bytes = sum(file.size for file in self.files.values())
        self.reserved_bytes = 0
        self._answered: dict[
            object, tuple[str, float]
        ] = {}  # which file a client was given last, and when

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
        """Note that a client is given a file: it will map it before it asks for another."""
        self._answered[client] = digest, time.monotonic()

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

        Args:
            nbytes: How much.
            budget: What may be taken in all.
            needs: How many bytes ahead files are needed, by hash; others are not known to be.
            beyond: Files that are needed no further ahead stay.
        """
        if not self.make_room(nbytes, budget, needs, beyond):
            return False
        self.reserved_bytes += nbytes
        return True

    def make_room(
        self, nbytes: int, budget: int, needs: Mapping[str, int], beyond: float = -1.0
    ) -> bool:
        """Evict until so many bytes fit; False if they do not.

        First goes what nobody is known to need, longest unused first, then what is needed last.
        """
        missing = self.used_bytes + self.reserved_bytes + nbytes - budget
        if missing <= 0:
            return True
        candidates = self._candidates(needs, beyond)
        if sum(self.files[digest].size for digest in candidates) < missing:
            return False  # nothing is deleted in vain
        for digest in candidates:
            if missing <= 0:
                break
            missing -= self.files[digest].size
            self.files[digest].path.unlink(missing_ok=True)
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
                return -math.inf, self.files[digest].path.stat().st_mtime
            return -math.inf, 0.0

        far = (digest for digest in self.files if needs.get(digest, math.inf) > beyond)
        return sorted((digest for digest in far if digest not in kept), key=order)


def _number_of(path: Path) -> int | None:
    """Return what tells a file from another of the same name; None if there is none."""
    with suppress(OSError):
        return path.stat().st_ino
    return None


def _files(folder: Path) -> Iterator[Path]:
    yield from (path for path in folder.glob("??/*") if path.is_file() and not path.is_symlink())


def publish(path: Path, data: bytes) -> None:
    """Write a file all at once."""
    beside = path.with_name(f"{path.name}.tmp")
    beside.write_bytes(data)
    os.replace(beside, path)


def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def sweep(inside: Path) -> None:
    """Delete what a fetcher left unfinished, and set aside what was published before the last boot."""
    for left in (inside / "parts").iterdir():
        left.unlink()
    boot, noted = _boot(), inside / "boot"
    if noted.exists() and noted.read_text() == boot:
        return
    for path in (inside / "shards").glob("??/*"):
        path.rename(inside / "unverified" / path.name)
    publish(noted, boot.encode())
