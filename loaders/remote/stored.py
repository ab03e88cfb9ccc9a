"""What lies in the cache folder: sizes, room, eviction of shards that are not mapped, and what a dead fetcher left."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAP_S = 0.3  # for so long after a client was told of a file it stays: it is about to map it


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
        num_evicted: How many were deleted to make room.
        promised: By client the file that it waits for, or was told of last, and until when that stays.
    """

    def __init__(self, inside: Path) -> None:
        self._lock = inside / "lock"
        self._lock_number = _number_of(self._lock)
        found = (CacheFile(path, path.stat().st_size) for path in _files(inside / "shards"))
        self.files = {file.path.stem: file for file in found}
        self.used_bytes = sum(file.size for file in self.files.values())
        self.reserved_bytes = self.num_evicted = self.evicted_bytes = 0
        self.promised: dict[object, tuple[str, float]] = {}

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

    def add(self, digest: str, path: Path, size: int) -> None:
        """Note a file that was published, and give back what was reserved for it."""
        self.reserved_bytes -= size
        if digest not in self.files:
            self.used_bytes += size
        self.files[digest] = CacheFile(path, size)

    def _forget(self, digest: str) -> None:
        self.used_bytes -= self.files.pop(digest).size

    def reserve(
        self, nbytes: int, budget: int, needs: Mapping[str, float], beyond: float = -1.0
    ) -> bool:
        """Reserve room, and evict for it what is needed last; False if there is none.

        Args:
            nbytes: How much.
            budget: What may be taken in all.
            needs: How far ahead files are needed, by hash; others are not known to be.
            beyond: Files that are needed no further ahead stay.
        """
        if not self.make_room(nbytes, budget, needs, beyond):
            return False
        self.reserved_bytes += nbytes
        return True

    def make_room(
        self, nbytes: int, budget: int, needs: Mapping[str, float], beyond: float = -1.0
    ) -> bool:
        """Evict until so many bytes fit; False if they do not."""
        missing = self.used_bytes + self.reserved_bytes + nbytes - budget
        if missing <= 0:
            return True
        candidates = list(self._candidates(needs, beyond))
        if sum(self.files[digest].size for digest in candidates) < missing:
            return False  # nothing is deleted in vain
        for digest in candidates:
            if missing <= 0:
                break
            missing -= self._evict(digest)
        return missing <= 0

    def _candidates(self, needs: Mapping[str, float], beyond: float) -> Iterator[str]:
        now = time.monotonic()
        kept = {digest for digest, until in self.promised.values() if until > now}

        def last_first(digest: str) -> tuple[float, float]:
            if digest in needs:
                return -needs[digest], 0.0
            with suppress(OSError):
                return -math.inf, self.files[digest].path.stat().st_mtime
            return -math.inf, 0.0

        far = [digest for digest in self.files if needs.get(digest, math.inf) > beyond]
        yield from sorted((digest for digest in far if digest not in kept), key=last_first)

    def _evict(self, digest: str) -> int:
        """Delete a file unless a reader has it mapped; return the bytes that came free."""
        import fcntl  # not on Windows, where there are no such caches

        path, size = self.files[digest]
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            self._forget(digest)
            return size
        except OSError:
            return 0
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        except OSError:  # it is in use
            return 0
        finally:
            os.close(descriptor)
        self._forget(digest)
        self.num_evicted += 1
        self.evicted_bytes += size
        return size

    def pinned_bytes(self) -> int:
        """Return how many bytes readers have mapped."""
        return sum(file.size for file in self.files.values() if is_pinned(file.path))


def is_pinned(path: Path) -> bool:
    """Tell whether a reader has a file of a cache mapped."""
    import fcntl  # as above

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def users_of(paths: Iterable[Path]) -> list[int]:
    """Return the processes that have some of these files mapped, as far as this one sees them."""
    places = set[str]()
    for path in paths:
        with suppress(OSError):  # it was evicted meanwhile
            at = os.stat(path)
            places.add(f"{os.major(at.st_dev):02x}:{os.minor(at.st_dev):02x}:{at.st_ino}")
    with suppress(OSError):
        held = (line.split() for line in Path("/proc/locks").read_text().splitlines())
        return sorted({int(each[4]) for each in held if each[5] in places and int(each[4]) > 0})
    return []


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
