"""The cache folder: where it is, how large it may become, and what lies in it.

::

    CACHE/CACHEDIR.TAG                    says what this folder is; without it, a folder with anything in it is refused
    CACHE/v2/lock, start, socket          the fetcher's lock, that of who starts it, and where it listens
    CACHE/v2/shards/ab/HASH.FORMAT        whole, verified files, by their xxh3-128; read-only
    CACHE/v2/parts/                       files on their way; what lies there when a fetcher starts is deleted
    CACHE/v2/manifests/ID/                the last manifest of each URL
    CACHE/v2/fetcher.log                  at most 1 MB, without secrets

``v2`` is layout and protocol. Nothing outside of ``CACHE/v2`` is ever deleted. Eviction unlinks a shard: processes that
have it mapped keep reading it.
"""

from __future__ import annotations

import math
import os
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.checks import shown
from loaders.errors import CacheError
from loaders.gone import gone
from loaders.remote.patience import MAP_S
from loaders.system.mounts import mount_of
from loaders.text import parse_size

if TYPE_CHECKING:
    from loaders.remote.url import URL
    from loaders.remote.wire import File

VERSION = "v2"
TAG_NAME = "CACHEDIR.TAG"
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Downloaded shards of loaders; 'packdata cache' shows them.\n"
_OURS = re.compile(r"v\d+|lost\+found|CACHEDIR\.TAG")
_ASK = "Use a folder on a local disk: cache='/local/folder', or the variable LOADERS_CACHE"
_GB = 1 << 30
CACHE_FORMS = 'a size such as "500GB", a folder, or {"path": ..., "size": ...}'


@dataclass(frozen=True, slots=True)
class Cache:
    """What was asked for by ``cache=``."""

    folder: Path | None = None  # where; None: the default
    size_bytes: int | None = None  # how large; None: the default

    @classmethod
    def parse(cls, given: Any) -> Cache:
        """Read ``cache=``: None, a size (text, or a number of bytes), a folder, or a mapping of both.

        TypeError if it is something else, ValueError if a mapping has other names, or a value is none of these.
        """
        is_size = isinstance(given, str) and parse_size(given) is not None
        if is_size or given is None or type(given) is int:
            given = {"size": given}
        elif isinstance(given, str | os.PathLike):
            given = {"path": given}
        elif not isinstance(given, Mapping):
            raise TypeError(f"cache must be {CACHE_FORMS}, got {shown(given)}")
        if unknown := set(given) - {"path", "size"}:
            hint = gone(f"cache={{'mode': {given.get('mode')!r}}}")
            raise ValueError(f"cache must be {CACHE_FORMS}, got {sorted(unknown)}{hint}")
        path, size = given.get("path"), given.get("size")
        return cls(None if path is None else _folder(path), None if size is None else _size(size))

    def open(self) -> Path:
        """Return the folder of this version, made and checked; CacheError if it cannot be used."""
        folder = default_folder() if self.folder is None else self.folder
        check_folder(folder)
        return prepare(folder)


def _folder(given: Any) -> Path:
    return Path(os.path.expandvars(given)).expanduser().absolute()


def _size(given: Any) -> int:
    size = parse_size(given) if isinstance(given, str) else given
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f'a cache\'s size is bytes, or such as "500GB", got {shown(given)}')
    return size


def default_folder() -> Path:
    """Return the folder for a user who names none: ``$LOADERS_CACHE``, that of XDG, or one in a temporary folder.

    CacheError if none of these lies on a local disk.
    """
    if named := os.environ.get("LOADERS_CACHE"):
        return _folder(named)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    temporary = filter(None, [os.environ.get("TMPDIR"), "/tmp"])
    places = [Path(home) / "loaders", *(Path(t) / f"loaders-{os.getuid()}" for t in temporary)]
    for place in places:
        if place.is_absolute() and is_on_disk(place):
            return place
    raise CacheError("no local disk was found for downloads", places[0], _ASK)


def is_on_disk(folder: Path) -> bool:
    """Tell whether a folder, there or to be made, is one where this user may write to a local disk."""
    above = _existing(folder)
    mount = mount_of(above)
    is_disk = mount is None or not (mount.kind == "tmpfs" or mount.is_network)
    return os.access(above, os.W_OK) and is_disk


def check_folder(folder: Path) -> None:
    """Raise CacheError if a folder cannot be a cache; one that is not there yet can be."""
    mount = mount_of(_existing(folder))
    if mount is not None and mount.is_network:
        what = f"the folder lies on a network ({mount.kind}): locks and sockets there do not reach other hosts"
        raise CacheError(what, folder, _ASK)
    try:
        found = folder.stat()
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CacheError(f"the folder cannot be read ({error.strerror})", folder, _ASK) from error
    if found.st_uid != os.getuid():
        raise CacheError(f"the folder belongs to another user (uid {found.st_uid})", folder, _ASK)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        hint = "Run 'chmod go-w' on the folder, or use another"
        raise CacheError("other users may write to the folder", folder, hint)
    strange = sorted(name for name in names if not _OURS.fullmatch(name))
    if strange or (names and TAG_NAME not in names and "lost+found" not in names):
        what = f"not a cache, and not empty ({', '.join(strange[:3]) or 'no tag'})"
        raise CacheError(what, folder, "Use an empty or new folder: other files stay as they are")


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def prepare(folder: Path) -> Path:
    """Make a cache folder and what belongs into it; return the folder of this version; CacheError if it cannot be."""
    inside = folder / VERSION
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (folder / TAG_NAME).exists():
            (folder / TAG_NAME).write_text(_TAG)
        for name in ("shards", "parts", "manifests"):
            (inside / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(inside)  # a folder that is read-only by now
    except OSError as error:
        what = f"the cache cannot be written ({error.strerror or error})"
        raise CacheError(what, folder, _ASK) from error
    check_folder(folder)  # as it is now: somebody may have been faster
    return inside


def shard_path(inside: Path, file: File) -> Path:
    """Return where a shard lies: by its content, so that all datasets that have it share it."""
    return inside / f"shards/{file.hash[:2]}/{file.hash}{os.path.splitext(file.file)[1]}"


def manifest_folder(inside: Path, url: URL, endpoint: str) -> Path:
    """Return where the last manifest of a URL lies."""
    return inside / "manifests" / xxhash.xxh3_128_hexdigest(f"{endpoint} {url}".encode())


def small_file(manifest: Path, name: str) -> Path:
    """Return where a small file beside a manifest lies."""
    return manifest / f"file-{name.replace('/', '-')}"


def default_size(inside: Path, used_bytes: int) -> int:
    """Return how large a cache becomes by itself: 80 % of what is free or used by it, less 20 GB, at least 2 GB.

    Where the disk is a container's own layer, whose overrun ends the container, it is at most 10 GB.
    """
    disk = os.statvfs(inside)
    room = disk.f_bavail * disk.f_frsize + used_bytes
    size = max(2 * _GB, int(0.8 * room) - 20 * _GB)
    mount = mount_of(inside)
    return min(size, 10 * _GB) if mount is not None and mount.kind == "overlay" else size


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

        Evicted first: files in no order, least recently used first; then those needed last. ``needs``: how many bytes
        ahead files are needed, by hash; files that are needed no further ahead than ``beyond`` stay.
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
