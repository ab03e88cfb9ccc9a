"""Files of this machine, and objects of a store as they were listed: read whole, by ranges, ahead, or as local files.

Of objects as local files, for code that opens files by name:

1. An object is fetched when it is first opened, in ranges, and compared with its listing (size, e-tag). Those that
   are opened behind it come meanwhile, as far as there is room: the next one, or some small ones.
2. Files lie in a folder below ``$TMPDIR``. They take up to half of its disk: then those go that were opened longest
   ago, and are fetched again if they are opened again. A file that is open can be read to its end.
3. The folder goes with the last of its files, or with the process; that of a killed process with the next one's.
"""

from __future__ import annotations

import io
import os
import shutil
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from loaders.errors import SourceError
from loaders.remote.url import URL, Location, is_url, url_of
from loaders.system.regular import read_regular, regular
from packdata.bucket import Bucket
from packdata.claimed import claimed_folder

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from loaders.remote.wire import Entry

T = TypeVar("T")
_ASKS, _ASK_ITEMS, _ASK_BYTES = 8, 32, 4 << 20  # questions on their way, and how much each is for
# Of the first question, twice as many of the next: the first items soon come.
_FIRST_ITEMS = 4
_BUFFER_BYTES, _RANGE_BYTES = 2 << 20, 8 << 20  # of an object that is read as a file; of one range
_READ_BYTES = 32 << 20  # at once, of one object
_AHEAD, _AHEAD_BYTES = 16, 64 << 20  # objects ahead of the one that was opened last
_SAFE_S = 10.0  # for so long a file stays, that who asked for it can open it


@dataclass(frozen=True, slots=True)
class LocalFile:
    """Reads a file of this machine, as ``RemoteFile`` reads an object of a store."""

    name: str  # its whole path
    where: str = field(compare=False)
    size: int = field(default=0, compare=False)  # where it was listed
    mark: int = field(default=0, compare=False)  # when it was written, in nanoseconds

    def __call__(self) -> bytes:
        """Return its bytes; SourceError that names ``where`` if that fails."""
        return read_file(self.name, self.where)

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self.name)

    def open(self) -> BinaryIO:
        """Open it; SourceError that names ``where`` if that fails."""
        return open_file(self)

    def placed(self, where: str) -> LocalFile:
        """Return what reads it and calls its place otherwise."""
        return replace(self, where=where)

    def local(self) -> Path:
        """Return its path; SourceError for a pipe or device, which may be waited for in vain."""
        path = Path(self.name)
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise SourceError("not a regular file", self.where)
        return path


class RemoteFile:
    """Reads an object, or a range of it, which may have been fetched ahead."""

    __slots__ = ("coming", "copy", "end", "entry", "origin", "start", "where")

    def __init__(
        self, origin: Bucket, entry: Entry, where: str, start: int = 0, end: int | None = None
    ) -> None:
        self.origin, self.entry, self.where = origin, entry, where
        self.start, self.end = start, entry.size if end is None else min(end, entry.size)
        # A fetch ahead, and the place of the bytes in its answer.
        self.coming: tuple[Future[list[bytes | str]], int] | None = None
        self.copy: tuple[Copies, int] | None = None  # the copies that it is one of, and its number

    def __call__(self) -> bytes:
        """Return its bytes; SourceError if it is not what was listed."""
        if self.coming is None:
            got = self.origin.objects([(self.entry, self.start, self.end)])[0]
        else:
            some, number = self.coming
            got = some.result()[number]
        return _checked(got, self.where)

    @property
    def path(self) -> URL:
        """The URL of the object."""
        return self.origin.url / self.entry.name

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return self.entry.size

    @property
    def mark(self) -> int:
        """What changes when the object does."""
        return self.entry.mark

    def part(self, start: int = 0, end: int | None = None) -> RemoteFile:
        """Return what reads another range of the object, or all of it."""
        return RemoteFile(self.origin, self.entry, self.where, start, end)

    def placed(self, where: str) -> RemoteFile:
        """Return what reads it and calls its place otherwise."""
        return RemoteFile(self.origin, self.entry, where, self.start, self.end)

    def open(self) -> BinaryIO:
        """Open it: what was fetched ahead, or else the object, to be read by ranges."""
        if self.coming is not None:
            return io.BytesIO(self())
        return io.BufferedReader(_Ranges(self), _BUFFER_BYTES)

    def local(self) -> Path:
        """Return the object as a file of this machine, as which it is fetched now, unless it was."""
        if self.copy is None:
            opened_in_order([self])
        assert self.copy is not None
        copies, number = self.copy
        return copies.path(number)


File = LocalFile | RemoteFile


def read_file(path: Location | str, where: str, hint: str = "") -> bytes:
    """Return the bytes of a file, also of one at a URL; SourceError that names ``where`` if that fails."""
    with _explained(where, hint):
        if not (isinstance(path, URL) or is_url(path)):
            return read_regular(path)
        url = url_of(path)
        data, _ = Bucket(url.parent).read(url.name)
        if data is None:
            raise FileNotFoundError("there is no such object")
        return data


def read_text(path: Location, hint: str = "") -> str:
    """Return the text of a file, also of one at a URL; SourceError if that fails."""
    try:
        return read_file(path, str(path), hint).decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"the file is not UTF-8 ({error})", path) from error


def open_file(file: File) -> BinaryIO:
    """Open a file of this machine, or an object as one; SourceError that names its place if that fails."""
    with _explained(file.where):
        return open(file.local(), "rb", opener=regular)


@contextmanager
def _explained(where: str, hint: str = "") -> Iterator[None]:
    try:
        yield
    except SourceError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"cannot be read ({reason})", where, hint) from error


def opened_in_order(files: Iterable[object]) -> None:
    """Announce the order in which files are opened as local ones: objects among them are fetched ahead."""
    stored = [file for file in files if isinstance(file, RemoteFile)]
    copies = Copies([file.part() for file in stored])
    for number, file in enumerate(stored):
        file.copy = copies, number


def _checked(got: bytes | str, where: str) -> bytes:
    if isinstance(got, str):
        raise SourceError(got, where, "Was the source changed? Then list it again")
    return got


class _Ranges(io.RawIOBase):
    """An object as a file: much at once comes in several ranges."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}
        self._at = max(0, bases[whence] + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._read(self._file.size)

    def _read(self, size: int) -> bytes:
        file, end = self._file, min(self._at + size, self._file.size)
        starts = range(self._at, end, _RANGE_BYTES)
        ranges = [(file.entry, start, min(start + _RANGE_BYTES, end)) for start in starts]
        got = file.origin.objects(ranges) if ranges else ()
        data = b"".join(_checked(each, file.where) for each in got)
        self._at += len(data)
        return data


class _Room:
    """A folder of this process, and the threads that fetch into it."""

    def __init__(self) -> None:
        self._stack, self.pid = ExitStack(), os.getpid()
        self.folder = self._stack.enter_context(claimed_folder("sources"))
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.pool = ThreadPoolExecutor(2 * _AHEAD, "fetch-object")
        self.is_closed = False

    def close(self) -> None:
        """Remove the files, but not in a process that was forked off."""
        if self.pid == os.getpid():
            self.is_closed = True
            self.pool.shutdown(cancel_futures=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            self._stack.close()

    def fetch(self, stored: RemoteFile, path: Path) -> None:
        """Write an object to a file."""
        try:
            with open(path, "wb") as file, stored.open() as opened:
                while data := opened.read(_READ_BYTES):
                    file.write(data)
                    if self.is_closed:
                        raise RuntimeError("the packing has ended")
        except OSError as error:
            what = f"the object cannot be fetched into {self.folder} ({error.strerror})"
            hint = "Set TMPDIR to a folder on a disk with more room"
            raise SourceError(what, stored.where, hint) from error


class Copies:
    """Objects as files of this machine, which are fetched ahead in the order in which they are opened.

    Args:
        objects: In that order.
    """

    def __init__(self, objects: Sequence[RemoteFile]) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._room: _Room | None = None

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
        if self._room is None or self._room.pid != os.getpid():
            self._room = _Room()
            weakref.finalize(self, self._room.close)
            # What ends when a file is there, by number, in the order of their last use.
            self._coming: dict[int, Future[None]] = {}
            self._used: dict[int, float] = {}
            self._total = 0  # bytes of these
            self._most = shutil.disk_usage(self._room.folder).free // 2
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
        """Tell whether there is room; files that were opened longest ago are evicted for it."""
        before = time.monotonic() - _SAFE_S
        for number, coming in [*self._coming.items()] if self._total + size > self._most else ():
            if self._used[number] > before or self._total + size <= self._most:
                break
            if coming.done():
                (room.folder / str(number)).unlink(missing_ok=True)
                del self._coming[number]
                self._total -= self._objects[number].size
        return self._total + size <= self._most


def fetched_ahead(items: Iterator[T]) -> Generator[T]:
    """Yield items; the objects that they are, ``read``, or name as ``reads``, are fetched meanwhile, some ahead.

    When all were yielded the last ones may still be on their way; when it is closed before, what has not begun is not
    fetched.
    """
    first = list(islice(items, 1))
    items = chain(first, items)
    if not any(map(_files, first)):
        yield from items
        return
    pool = ThreadPoolExecutor(_ASKS, "fetch-ahead")
    ahead: deque[list[T]] = deque()
    most, is_over = _FIRST_ITEMS, False
    try:
        while True:
            while len(ahead) < _ASKS and sum(map(_nbytes, ahead)) < _ASKS * _ASK_BYTES:
                if not (some := _some(items, most)):
                    break
                most = min(2 * most, _ASK_ITEMS)
                _expect(pool, some)
                ahead.append(some)
            if is_over := not ahead:
                return
            yield from ahead.popleft()
    finally:
        pool.shutdown(wait=not is_over, cancel_futures=not is_over)


def _some(items: Iterator[T], most: int) -> list[T]:
    """Return the next items that one question is for."""
    some, nbytes = list[T](), 0
    for item in items:
        some.append(item)
        nbytes += _nbytes([item])
        if len(some) >= most or nbytes >= _ASK_BYTES:
            break
    return some


def _nbytes(items: Iterable[object]) -> int:
    return sum(file.end - file.start for item in items for file in _files(item))


def _files(item: Any) -> list[RemoteFile]:
    if isinstance(item, RemoteFile):
        return [item]
    read = getattr(item, "read", None)
    reads: list[RemoteFile] = getattr(item, "reads", [])
    return [read] if isinstance(read, RemoteFile) else reads


def _expect(pool: ThreadPoolExecutor, items: Iterable[object]) -> None:
    by_origin: dict[int, list[RemoteFile]] = {}
    for file in (file for item in items for file in _files(item)):
        by_origin.setdefault(id(file.origin), []).append(file)
    for files in by_origin.values():
        wanted = [(file.entry, file.start, file.end) for file in files]
        some = pool.submit(files[0].origin.objects, wanted)
        for number, file in enumerate(files):
            file.coming = some, number
