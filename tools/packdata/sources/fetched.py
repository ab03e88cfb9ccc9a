"""Objects of a store as files of this machine, for whoever opens them by name.

1. An object is fetched when it is first opened, in ranges, and compared with its listing (size, e-tag).
2. Files lie in a folder of this process below ``$TMPDIR``. They take up to half of its disk: then those go that were
   opened longest ago, and are fetched again if they are opened again. Who has one open reads on.
3. The folder goes when the packing ends. What a killed process left is used, or removed, by the next one.
"""

from __future__ import annotations

import atexit
import os
import shutil
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol

import xxhash

from loaders.errors import SourceError
from packdata.claimed import claimed_folder, drop_unclaimed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loaders.remote.wire import Entry

_RANGE_BYTES, _AT_ONCE = 8 << 20, 8
_SAFE_S = 10.0  # for so long a file stays, that who asked for it can open it
_TO_COME = ".part"


class Stored(Protocol):
    """An object of a store."""

    @property
    def where(self) -> str:
        """Its URL."""

    @property
    def entry(self) -> Entry:
        """What its listing tells."""

    def reader(self, start: int, end: int) -> Callable[[], bytes]:
        """Return what reads a range; SourceError if it is not what was listed."""


class _Copies:
    """The files of this process.

    Args:
        limit: Bytes that they may take; None for half of what is free.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._stack = ExitStack()
        self.pid = os.getpid()
        self.folder = self._stack.enter_context(claimed_folder("sources"))
        self.folder.mkdir(exist_ok=True)
        self._lock = threading.Lock()
        self._fetching: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._used: dict[
            str, tuple[int, float]
        ] = {}  # size and time, by name, in the order of their last use
        for path in self.folder.iterdir():
            if path.name.endswith(_TO_COME):
                path.unlink()
            else:
                self._used[path.name] = path.stat().st_size, 0.0
        there = sum(size for size, _ in self._used.values())
        self._limit = (
            (shutil.disk_usage(self.folder).free + there) // 2 if limit is None else limit
        )

    def path(self, stored: Stored) -> Path:
        """Return the file that is an object.

        Raises:
            SourceError: The object is not what was listed, or there is no room for it.
            RemoteError: The store does not answer, or refuses.
        """
        about = f"{stored.where} {stored.entry.size} {stored.entry.mark}"
        name = xxhash.xxh3_128_hexdigest(about.encode())
        path, size = self.folder / name, stored.entry.size
        with self._lock:
            fetching = self._fetching[name]
        with fetching:
            if not self._touch(name):
                self._make_room(size)
                try:
                    _fetch(stored, path)
                except OSError as error:
                    what = f"it cannot be fetched into {self.folder} ({error.strerror})"
                    hint = "Set TMPDIR to a folder on a disk with more room"
                    raise SourceError(what, stored.where, hint) from error
                with self._lock:
                    self._used[name] = size, time.monotonic()
        return path

    def _touch(self, name: str) -> bool:
        """Note that a file is used; return False if it is not there."""
        with self._lock:
            if (about := self._used.pop(name, None)) is None:
                return False
            self._used[name] = about[0], time.monotonic()
            return True

    def _make_room(self, size: int) -> None:
        with self._lock:
            before = time.monotonic() - _SAFE_S
            total = size + sum(each for each, _ in self._used.values())
            for name, (each, used) in [*self._used.items()]:
                if total <= self._limit or used > before:
                    return
                (self.folder / name).unlink(missing_ok=True)
                del self._used[name]
                total -= each

    def close(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._stack.close()
        drop_unclaimed("sources")


def _fetch(stored: Stored, path: Path) -> None:
    """Write an object to a file, in ranges, some at a time."""
    beside, size = path.with_name(path.name + _TO_COME), stored.entry.size
    try:
        with open(beside, "wb") as file, ThreadPoolExecutor(_AT_ONCE, "fetch") as pool:
            try:
                for _ in pool.map(
                    partial(_write, file.fileno(), stored), range(0, size, _RANGE_BYTES)
                ):
                    pass
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _write(fd: int, stored: Stored, start: int) -> None:
    data = memoryview(stored.reader(start, start + _RANGE_BYTES)())
    while data:
        written = os.pwrite(fd, data, start)
        data, start = data[written:], start + written


_copies: list[_Copies] = []
_making = threading.Lock()


def local_path(stored: Stored) -> str:
    """Return the path of an object as a file of this machine; see the first lines."""
    with _making:
        if (
            _copies and _copies[0].pid != os.getpid()
        ):  # those of the process that this was forked from
            _copies.clear()
        if not _copies:
            _copies.append(_Copies())
        copies = _copies[0]
    return str(copies.path(stored))


@atexit.register
def drop_copies() -> None:
    """Remove what was fetched: it was read, or no more will be."""
    with _making:
        while _copies:
            copies = _copies.pop()
            if copies.pid == os.getpid():
                copies.close()
