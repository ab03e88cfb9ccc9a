"""Objects of a store as files of this machine, for code that opens files by name.

1. An object is fetched when it is first opened, in ranges, and compared with its listing (size, e-tag). Those that
   are opened behind it come meanwhile, as far as there is room: the next one, or some small ones.
2. Files lie in a folder below ``$TMPDIR``. They take up to half of its disk: then those go that were opened longest
   ago, and are fetched again if they are opened again. A file that is open can be read to its end.
3. The folder goes with the last of its files, or with the process; that of a killed process with the next one's.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from loaders.errors import SourceError
from packdata.claimed import claimed_folder
from packdata.reading import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from packdata.reading import File

_READ_BYTES = 32 << 20  # at once, of one object
_AHEAD, _AHEAD_BYTES = 16, 64 << 20  # objects ahead of the one that was opened last
_SAFE_S = 10.0  # for so long a file stays, that who asked for it can open it


def opened_in_order(files: Iterable[File]) -> None:
    """Announce the order in which files are opened as local ones: objects among them are fetched ahead."""
    stored = [file for file in files if isinstance(file, RemoteFile)]
    copies = Copies([replace(file) for file in stored])  # which do not hold the copies in turn
    for number, file in enumerate(stored):
        file.copy = partial(copies.path, number)


class _Folder:
    """A folder of this process, and the threads that fetch into it."""

    def __init__(self) -> None:
        self._stack, self.pid = ExitStack(), os.getpid()
        self.path = self._stack.enter_context(claimed_folder("sources"))
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        self.pool = ThreadPoolExecutor(2 * _AHEAD, "fetch-object")
        self._is_closed = False

    def close(self) -> None:
        """Remove the files, but not in a process that was forked off."""
        if self.pid == os.getpid():
            self._is_closed = True
            self.pool.shutdown(cancel_futures=True)
            shutil.rmtree(self.path, ignore_errors=True)
            self._stack.close()

    def fetch(self, stored: RemoteFile, path: Path) -> None:
        """Write an object to a file."""
        try:
            with open(path, "wb") as file:
                for start in range(0, stored.size, _READ_BYTES):
                    file.write(replace(stored, start=start, end=start + _READ_BYTES)())
                    if self._is_closed:
                        raise RuntimeError("the packing has ended")
        except OSError as error:
            what = f"the object cannot be fetched into {self.path} ({error.strerror})"
            hint = "Set TMPDIR to a folder on a disk with more room"
            raise SourceError(what, stored.where, hint) from error


@dataclass(slots=True)
class _Copy:
    """An object in the folder, or on its way there."""

    path: Path
    size: int
    fetched: Future[None]
    used: float  # when it was asked for last


class Copies:
    """Objects as files of this machine, which are fetched ahead in the order in which they are opened.

    Args:
        objects: In that order.
    """

    def __init__(self, objects: Sequence[RemoteFile]) -> None:
        self._objects, self._lock = objects, threading.Lock()
        # None before the first is opened. It knows no copies: their errors hold this object, which it would outlive.
        self._folder: _Folder | None = None
        self._copies: dict[int, _Copy] = {}  # by the number of the object, used last at the end
        self._total, self._most = 0, 0  # bytes of these

    def __reduce__(self) -> tuple[type[Copies], tuple[Sequence[RemoteFile]]]:
        """Leave what was fetched where it is: another process fetches the objects itself."""
        return Copies, (self._objects,)

    def path(self, number: int) -> Path:
        """Return the file that is an object; those that are opened behind it are fetched meanwhile.

        Raises:
            SourceError: The object is not what was listed, or there is no room for it.
            RemoteError: The store does not answer, or refuses.
        """
        while True:
            with self._lock:
                folder = self._opened()
                self._start(number, folder)
                copy, nbytes = self._copies[number], 0
                for following in range(number + 1, min(number + 1 + _AHEAD, len(self._objects))):
                    if nbytes < _AHEAD_BYTES:
                        self._start(following, folder, is_ahead=True)
                        nbytes += self._objects[following].size
            copy.fetched.result()
            with self._lock:
                if self._copies.pop(number, None) is copy:  # else it went, or another comes
                    self._copies[number], copy.used = copy, time.monotonic()
                    return copy.path

    def _opened(self) -> _Folder:
        if self._folder is None or self._folder.pid != os.getpid():
            self._folder = folder = _Folder()
            weakref.finalize(self, folder.close)
            self._copies, self._total = {}, 0
            self._most = shutil.disk_usage(folder.path).free // 2
        return self._folder

    def _start(self, number: int, folder: _Folder, *, is_ahead: bool = False) -> None:
        """Fetch an object on another thread, unless it is there, or comes ahead and does not fit."""
        stored, path = self._objects[number], folder.path / str(number)
        if number in self._copies or (not self._has_room(stored.size) and is_ahead):
            return
        fetched = folder.pool.submit(folder.fetch, stored, path)
        self._copies[number] = _Copy(path, stored.size, fetched, time.monotonic())
        self._total += stored.size

    def _has_room(self, size: int) -> bool:
        """Tell whether there is room; files that were opened longest ago are evicted for it."""
        before = time.monotonic() - _SAFE_S
        for number, copy in [*self._copies.items()] if self._total + size > self._most else ():
            if copy.used > before or self._total + size <= self._most:
                break
            if copy.fetched.done():
                copy.path.unlink(missing_ok=True)
                del self._copies[number]
                self._total -= copy.size
        return self._total + size <= self._most
