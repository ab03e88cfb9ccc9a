"""Objects of a store as local files, for code that opens files by name.

1. An object is fetched when it is first opened, in ranges, and compared with its listing (size, e-tag). Those that
   are opened behind it come meanwhile, as far as that is known, and there is room: the next one, or some small ones.
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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import xxhash

from loaders.errors import SourceError
from packdata.claimed import claimed_folder, drop_unclaimed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from packdata.sources.objects import RemoteFile

_RANGE_BYTES, _AT_ONCE = 8 << 20, 8  # of all that is fetched: what it takes of memory
_AHEAD, _AHEAD_BYTES = 16, 64 << 20  # objects ahead of the one that was opened last
_SAFE_S = 10.0  # for so long a file stays, that who asked for it can open it
_TO_COME = ".part"


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
        self._ranges = ThreadPoolExecutor(_AT_ONCE, "fetch")
        self._objects = ThreadPoolExecutor(2 * _AHEAD, "fetch-object")
        self._coming: dict[str, Future[None]] = {}  # what is being fetched, or will be, by name
        self._used: dict[
            str, tuple[int, float]
        ] = {}  # size and time, by name, in the order of their last use
        for path in self.folder.iterdir():
            if path.name.endswith(_TO_COME):
                path.unlink()
            else:
                self._used[path.name] = path.stat().st_size, 0.0
        self._total = sum(size for size, _ in self._used.values())  # with what is being fetched
        free = shutil.disk_usage(self.folder).free
        self._limit = (free + self._total) // 2 if limit is None else limit

    def path(self, stored: RemoteFile) -> Path:
        """Return the file that is an object; those that are opened behind it are fetched meanwhile.

        Raises:
            SourceError: The object is not what was listed, or there is no room for it.
            RemoteError: The store does not answer, or refuses.
        """
        name = _name_of(stored)
        while not self._touch(name):  # it may have gone again
            coming = self._start(name, stored, is_ahead=False)
            self._start_following(name)
            if coming is not None:
                coming.result()
        self._start_following(name)
        return self.folder / name

    def _start(self, name: str, stored: RemoteFile, *, is_ahead: bool) -> Future[None] | None:
        """Fetch an object on another thread; return None if it is there, or comes ahead and does not fit."""
        with self._lock:
            if name in self._used:
                return None
            if name not in self._coming and self._take_room(stored.entry.size, is_ahead=is_ahead):
                self._coming[name] = self._objects.submit(self._fetch, name, stored)
            return self._coming.get(name)

    def _start_following(self, name: str) -> None:
        """Fetch what is opened after an object; what fails is an error when it is opened."""
        for following, stored in _following(name):
            with suppress(RuntimeError):  # it was closed
                self._start(following, stored, is_ahead=True)

    def _fetch(self, name: str, stored: RemoteFile) -> None:
        size, is_there = stored.entry.size, False
        try:
            _fetch(stored, self.folder / name, self._ranges)
            is_there = True
        except OSError as error:
            what = f"it cannot be fetched into {self.folder} ({error.strerror})"
            hint = "Set TMPDIR to a folder on a disk with more room"
            raise SourceError(what, stored.where, hint) from error
        finally:
            with self._lock:
                del self._coming[name]
                if is_there:
                    self._used[name] = size, time.monotonic()
                else:
                    self._total -= size

    def _touch(self, name: str) -> bool:
        """Note that a file is used; return False if it is not there."""
        with self._lock:
            if (about := self._used.pop(name, None)) is None:
                return False
            self._used[name] = about[0], time.monotonic()
            return True

    def _take_room(self, size: int, *, is_ahead: bool) -> bool:
        """Remove what was opened longest ago; return False for what comes ahead and does not fit even so."""
        before = time.monotonic() - _SAFE_S
        while self._total + size > self._limit and self._used:
            oldest, (freed, used) = next(iter(self._used.items()))
            if used > before:
                break
            (self.folder / oldest).unlink(missing_ok=True)
            del self._used[oldest]
            self._total -= freed
        if is_ahead and self._total + size > self._limit:
            return False
        self._total += size
        return True

    def close(self) -> None:
        """Remove the files."""
        self._ranges.shutdown(wait=False, cancel_futures=True)
        self._objects.shutdown(cancel_futures=True)
        self._ranges.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._stack.close()
        drop_unclaimed("sources")


def _name_of(stored: RemoteFile) -> str:
    about = f"{stored.where} {stored.entry.size} {stored.entry.mark}"
    return xxhash.xxh3_128_hexdigest(about.encode())


def _fetch(stored: RemoteFile, path: Path, pool: ThreadPoolExecutor) -> None:
    """Write an object to a file, in ranges, some at a time; the first one on this thread."""
    beside, size = path.with_name(path.name + _TO_COME), stored.entry.size
    try:
        with open(beside, "wb") as file:
            fd, others = file.fileno(), range(_RANGE_BYTES, size, _RANGE_BYTES)
            parts: list[Future[None]] = []
            try:
                parts += (pool.submit(_write, fd, stored, start) for start in others)
                if size:
                    _write(fd, stored, 0)
                for part in parts:
                    part.result()
            finally:
                # They write to an open file. Who waited for one that is cancelled might wait for ever.
                wait([part for part in parts if not part.cancel()])
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _write(fd: int, stored: RemoteFile, start: int) -> None:
    data = memoryview(stored.part(start, start + _RANGE_BYTES)())
    while data:
        written = os.pwrite(fd, data, start)
        data, start = data[written:], start + written


_copies: list[_Copies] = []
_after: dict[str, tuple[str, RemoteFile]] = {}  # by the name of a file what is opened after it
_making = threading.Lock()


def local_path(stored: RemoteFile) -> str:
    """Return the path of an object as a file of this machine; see the first lines."""
    with _making:
        # Those of the process that this was forked from.
        if _copies and _copies[0].pid != os.getpid():
            _copies.clear()
        if not _copies:
            _copies.append(_Copies())
        copies = _copies[0]
    return str(copies.path(stored))


def expect_in_order(objects: Iterable[RemoteFile]) -> None:
    """Tell in which order objects are opened as files."""
    named = ((_name_of(each), each) for each in objects)
    _after.update((name, following) for (name, _), following in pairwise(named))


def _following(name: str) -> Iterator[tuple[str, RemoteFile]]:
    """Yield what is opened after an object, and the names of its files, as far as it may come ahead."""
    num, nbytes = 0, 0
    while num < _AHEAD and nbytes < _AHEAD_BYTES and name in _after:
        name, following = _after[name]
        yield name, following
        num, nbytes = num + 1, nbytes + following.entry.size


@atexit.register
def drop_copies() -> None:
    """Remove what was fetched: it was read, or no more will be."""
    _after.clear()
    with _making:
        while _copies:
            copies = _copies.pop()
            if copies.pid == os.getpid():
                copies.close()
