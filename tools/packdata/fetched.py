"""Objects of a store as local files, for code that opens files by name.

1. An object is fetched when it is first opened, in ranges, and compared with its listing (size, e-tag). Those that
   are opened behind it come meanwhile, as far as there is room: the next one, or some small ones.
2. Files lie in a folder below ``$TMPDIR``. They take up to half of its disk: then those go that were opened longest
   ago, and are fetched again if they are opened again. Who has one open reads on.
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
from typing import TYPE_CHECKING, BinaryIO, Protocol

from loaders.errors import SourceError
from packdata.claimed import claimed_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_READ_BYTES = 32 << 20  # at once, of one object
_AHEAD, _AHEAD_BYTES = 16, 64 << 20  # objects ahead of the one that was opened last
_SAFE_S = 10.0  # for so long a file stays, that who asked for it can open it


class Stored(Protocol):
    """An object of a store."""

    where: str

    @property
    def size(self) -> int:
        """Its bytes."""

    def open(self) -> BinaryIO:
        """Open it, to be read by ranges."""


class _Room:
    """A folder of this process, and the threads that fetch into it."""

    def __init__(self) -> None:
        self._stack, self._pid = ExitStack(), os.getpid()
        self.folder = self._stack.enter_context(claimed_folder("sources"))
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.pool = ThreadPoolExecutor(2 * _AHEAD, "fetch-object")
        self.is_closed = False

    @property
    def is_usable(self) -> bool:
        """False in a process that was forked off."""
        return not self.is_closed and self._pid == os.getpid()

    def close(self) -> None:
        """Remove the files."""
        if self.is_usable:
            self.is_closed = True
            self.pool.shutdown(cancel_futures=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            self._stack.close()

    def fetch(self, stored: Stored, path: Path) -> None:
        """Write an object to a file."""
        beside = path.with_suffix(".part")
        try:
            with open(beside, "wb") as file, stored.open() as opened:
                while data := opened.read(_READ_BYTES):
                    file.write(data)
                    if self.is_closed:
                        raise RuntimeError("the packing has ended")
            os.replace(beside, path)
        except BaseException as error:
            beside.unlink(missing_ok=True)
            if isinstance(error, OSError):
                what = f"the object cannot be fetched into {self.folder} ({error.strerror})"
                hint = "Set TMPDIR to a folder on a disk with more room"
                raise SourceError(what, stored.where, hint) from error
            raise


class Copies:
    """Objects as files of this machine, which are fetched ahead in the order in which they are opened.

    Args:
        objects: In that order.
        limit: Bytes that their files may take; None for half of what is free.
    """

    def __init__(self, objects: Sequence[Stored], limit: int | None = None) -> None:
        self._objects, self._limit = objects, limit
        self._lock = threading.Lock()
        self._room: _Room | None = None

    def __reduce__(self) -> tuple[type[Copies], tuple[Sequence[Stored], int | None]]:
        """Leave what was fetched where it is: another process fetches the objects itself."""
        return Copies, (self._objects, self._limit)

    def path(self, number: int) -> Path:
        """Return the file that is an object; those that are opened behind it are fetched meanwhile.

        Raises:
            SourceError: The object is not what was listed, or there is no room for it.
            RemoteError: The store does not answer, or refuses.
        """
        while True:
            with self._lock:
                room = self._opened()
                self._start(number, room)
                coming, nbytes = self._coming[number], 0
                for following in range(number + 1, min(number + 1 + _AHEAD, len(self._objects))):
                    if nbytes < _AHEAD_BYTES:
                        self._start(following, room, is_ahead=True)
                        nbytes += self._objects[following].size
            coming.result()
            with self._lock:
                if self._coming.pop(number, None) is coming:  # else it went, or another comes
                    self._coming[number], self._used[number] = coming, time.monotonic()
                    return room.folder / str(number)

    def _opened(self) -> _Room:
        if self._room is None or not self._room.is_usable:
            self._room = _Room()
            weakref.finalize(self, self._room.close)
            # What ends when a file is there, by number, in the order of their last use.
            self._coming: dict[int, Future[None]] = {}
            self._used: dict[int, float] = {}
            self._total = 0  # bytes of these
            free = shutil.disk_usage(self._room.folder).free
            self._most = free // 2 if self._limit is None else self._limit
        return self._room

    def _start(self, number: int, room: _Room, *, is_ahead: bool = False) -> None:
        """Fetch an object on another thread, unless it is there, or comes ahead and does not fit."""
        stored = self._objects[number]
        if number in self._coming or (not self._has_room(stored.size, room) and is_ahead):
            return
        self._coming[number] = room.pool.submit(room.fetch, stored, room.folder / str(number))
        self._used[number] = time.monotonic()
        self._total += stored.size

    def _has_room(self, size: int, room: _Room) -> bool:
        """Tell whether there is room; what was opened longest ago goes for it."""
        before = time.monotonic() - _SAFE_S
        for number, coming in [*self._coming.items()] if self._total + size > self._most else ():
            if self._used[number] > before or self._total + size <= self._most:
                break
            if coming.done():
                (room.folder / str(number)).unlink(missing_ok=True)
                del self._coming[number]
                self._total -= self._objects[number].size
        return self._total + size <= self._most

    def close(self) -> None:
        """Remove the files; they are fetched again if they are opened again."""
        if self._room is not None:
            self._room.close()
