"""Objects of a store as local files, for code that opens files by name.

1. An object is fetched when it is first opened, in ranges, and compared with its listing (size, e-tag). Those that
   are opened behind it come meanwhile, as far as that is known, and there is room: the next one, or a few small ones.
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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import xxhash

from loaders.errors import SourceError
from packdata.claimed import claimed_folder, drop_unclaimed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from packdata.sources.objects import RemoteFile

_RANGE_BYTES, _AT_ONCE = 8 << 20, 8  # of all that is fetched: what it takes of memory
_AHEAD, _AHEAD_BYTES = 8, 64 << 20  # objects ahead of the one that was opened last
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
        self._fetching: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._ranges = ThreadPoolExecutor(_AT_ONCE, "fetch")
        self._ahead = ThreadPoolExecutor(_AHEAD, "fetch-ahead")
        self._used: dict[
            str, tuple[int, float]
        ] = {}  # size and time, by name, in the order of their last use
        self._coming: dict[str, int] = {}  # sizes of those that are being fetched, by name
        for path in self.folder.iterdir():
            if path.name.endswith(_TO_COME):
                path.unlink()
            else:
                self._used[path.name] = path.stat().st_size, 0.0
        there = sum(size for size, _ in self._used.values())
        self._limit = (
            (shutil.disk_usage(self.folder).free + there) // 2 if limit is None else limit
        )

    def path(self, stored: RemoteFile) -> Path:
        """Return the file that is an object.

        Raises:
            SourceError: The object is not what was listed, or there is no room for it.
            RemoteError: The store does not answer, or refuses.
        """
        with self._fetching_of(_name_of(stored)):
            path = self._bring(stored, partial(self._expect, stored))
        self._expect(stored)
        return path

    def _fetching_of(self, name: str) -> threading.Lock:
        with self._lock:
            return self._fetching[name]

    def _bring(self, stored: RemoteFile, meanwhile: Callable[[], object] | None = None) -> Path:
        """Fetch an object, if it is not there; ``meanwhile`` is called if it is opened, else it comes ahead."""
        name, size = _name_of(stored), stored.entry.size
        path = self.folder / name
        if not self._touch(name) and self._take_room(name, size, is_ahead=meanwhile is None):
            try:
                _fetch(stored, path, self._ranges, meanwhile or int)
                with self._lock:
                    self._used[name] = size, time.monotonic()
            except OSError as error:
                what = f"it cannot be fetched into {self.folder} ({error.strerror})"
                hint = "Set TMPDIR to a folder on a disk with more room"
                raise SourceError(what, stored.where, hint) from error
            finally:
                with self._lock:
                    del self._coming[name]
        return path

    def _expect(self, stored: RemoteFile) -> None:
        """Fetch what is opened after an object; what fails is an error when it is opened."""
        for following in _following(stored):
            name = _name_of(following)
            with self._lock:
                is_known = name in self._used or self._fetching[name].locked()
            if not is_known:
                with suppress(RuntimeError):  # it was closed
                    self._ahead.submit(self._bring_ahead, following)

    def _bring_ahead(self, stored: RemoteFile) -> None:
        with self._fetching_of(_name_of(stored)), suppress(Exception):
            self._bring(stored)

    def _touch(self, name: str) -> bool:
        """Note that a file is used; return False if it is not there."""
        with self._lock:
            if (about := self._used.pop(name, None)) is None:
                return False
            self._used[name] = about[0], time.monotonic()
            return True

    def _take_room(self, name: str, size: int, *, is_ahead: bool) -> bool:
        """Remove what was opened longest ago; return False for what comes ahead and does not fit even so."""
        with self._lock:
            before = time.monotonic() - _SAFE_S
            total = (
                size + sum(each for each, _ in self._used.values()) + sum(self._coming.values())
            )
            for other, (each, used) in [*self._used.items()]:
                if total <= self._limit or used > before:
                    break
                (self.folder / other).unlink(missing_ok=True)
                del self._used[other]
                total -= each
            if is_ahead and total > self._limit:
                return False
            self._coming[name] = size
            return True

    def close(self) -> None:
        """Remove the files."""
        self._ranges.shutdown(wait=False, cancel_futures=True)
        self._ahead.shutdown(cancel_futures=True)
        self._ranges.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._stack.close()
        drop_unclaimed("sources")


def _name_of(stored: RemoteFile) -> str:
    about = f"{stored.where} {stored.entry.size} {stored.entry.mark}"
    return xxhash.xxh3_128_hexdigest(about.encode())


def _fetch(
    stored: RemoteFile, path: Path, pool: ThreadPoolExecutor, meanwhile: Callable[[], object]
) -> None:
    """Write an object to a file, in ranges, some at a time."""
    beside, size = path.with_name(path.name + _TO_COME), stored.entry.size
    try:
        with open(beside, "wb") as file:
            fd, starts = file.fileno(), range(0, size, _RANGE_BYTES)
            parts: list[Future[None]] = []
            try:
                parts += (pool.submit(_write, fd, stored, start) for start in starts)
                meanwhile()
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
_after: dict[str, RemoteFile] = {}  # by the URL of an object what is opened after it
_making = threading.Lock()


def local_path(stored: RemoteFile) -> str:
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


def expect_in_order(objects: Iterable[RemoteFile]) -> None:
    """Tell in which order objects are opened as files."""
    _after.update((one.where, other) for one, other in pairwise(objects))


def _following(stored: RemoteFile) -> Iterator[RemoteFile]:
    """Yield what is opened after an object, as far as it may come ahead."""
    num, nbytes, following = 0, 0, _after.get(stored.where)
    while following is not None and num < _AHEAD and nbytes < _AHEAD_BYTES:
        yield following
        num, nbytes = num + 1, nbytes + following.entry.size
        following = _after.get(following.where)


@atexit.register
def drop_copies() -> None:
    """Remove what was fetched: it was read, or no more will be."""
    _after.clear()
    with _making:
        while _copies:
            copies = _copies.pop()
            if copies.pid == os.getpid():
                copies.close()
