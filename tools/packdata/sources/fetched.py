"""Objects of a store as local files, for code that opens files by name.

1. An object is fetched when it is first opened, in ranges, and compared with its listing (size, e-tag). Those that
   are opened behind it come meanwhile, as far as that is known, and there is room: the next one, or some small ones.
2. Files lie in a folder of this process below ``$TMPDIR``. They take up to half of its disk: then those go that were
   opened longest ago, and are fetched again if they are opened again. Who has one open reads on.
3. The folder goes when the packing ends; that of a killed process goes with the next one's.
"""

from __future__ import annotations

import atexit
import os
import shutil
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import xxhash

from loaders.errors import SourceError
from packdata.claimed import claimed_folder, drop_unclaimed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from packdata.sources.objects import RemoteFile

_READ_BYTES = 32 << 20  # at once, of one object
_AHEAD, _AHEAD_BYTES = 16, 64 << 20  # objects ahead of the one that was opened last
_SAFE_S = 10.0  # for so long a file stays, that who asked for it can open it
_TO_COME = ".part"


@dataclass(slots=True)
class _Copy:
    """An object that is a file, or comes to be one."""

    coming: Future[None]
    size: int
    used: float  # when it was opened last


class _Copies:
    """The files of this process.

    Args:
        limit: Bytes that they may take; None for half of what is free.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._stack = ExitStack()
        self.pid = os.getpid()
        self.folder = self._stack.enter_context(claimed_folder("sources"))
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(2 * _AHEAD, "fetch-object")
        self._files: dict[str, _Copy] = {}  # by name, in the order of their last use
        self._total = 0  # bytes of these
        self._limit = shutil.disk_usage(self.folder).free // 2 if limit is None else limit
        self._is_closed = False

    def path(self, stored: RemoteFile) -> Path:
        """Return the file that is an object; those that are opened behind it are fetched meanwhile.

        Raises:
            SourceError: The object is not what was listed, or there is no room for it.
            RemoteError: The store does not answer, or refuses.
        """
        name = _name_of(stored)
        while True:
            copy = self._start(name, stored)
            for following in _following(name):
                with suppress(RuntimeError):  # it was closed
                    self._start(*following, is_ahead=True)
            if copy is not None:
                copy.coming.result()
            with self._lock:
                if found := self._files.pop(name, None):  # it may have gone again
                    found.used = time.monotonic()
                    self._files[name] = found
                    return self.folder / name

    def _start(self, name: str, stored: RemoteFile, *, is_ahead: bool = False) -> _Copy | None:
        """Fetch an object on another thread, unless it is there; None if it comes ahead and does not fit."""
        with self._lock:
            if name not in self._files:
                if not self._has_room(stored.entry.size) and is_ahead:
                    return None
                coming = self._pool.submit(self._fetch, name, stored)
                self._files[name] = _Copy(coming, stored.entry.size, time.monotonic())
                self._total += stored.entry.size
            return self._files[name]

    def _has_room(self, size: int) -> bool:
        """Tell whether there is room; what was opened longest ago goes for it."""
        before = time.monotonic() - _SAFE_S
        for name, copy in [*self._files.items()] if self._total + size > self._limit else ():
            if copy.used > before or self._total + size <= self._limit:
                break
            if copy.coming.done():
                (self.folder / name).unlink(missing_ok=True)
                self._forget(name)
        return self._total + size <= self._limit

    def _forget(self, name: str) -> None:
        self._total -= self._files.pop(name).size

    def _fetch(self, name: str, stored: RemoteFile) -> None:
        """Write an object to a file; what fails is an error when it is opened."""
        beside = self.folder / f"{name}{_TO_COME}"
        try:
            with open(beside, "wb") as file, stored.part().open() as opened:
                while data := opened.read(_READ_BYTES):
                    file.write(data)
                    if self._is_closed:
                        raise RuntimeError("the packing has ended")
            os.replace(beside, self.folder / name)
        except BaseException as error:
            beside.unlink(missing_ok=True)
            with self._lock:
                self._forget(name)
            if isinstance(error, OSError):
                what = f"the object cannot be fetched into {self.folder} ({error.strerror})"
                hint = "Set TMPDIR to a folder on a disk with more room"
                raise SourceError(what, stored.where, hint) from error
            raise

    def close(self) -> None:
        """Remove the files."""
        self._is_closed = True
        self._pool.shutdown(cancel_futures=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._stack.close()
        drop_unclaimed("sources")


def _name_of(stored: RemoteFile) -> str:
    about = f"{stored.where} {stored.entry.size} {stored.entry.mark}"
    return xxhash.xxh3_128_hexdigest(about.encode())


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
