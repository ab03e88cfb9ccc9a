"""Files of this machine, and objects of a store as they were listed: read whole, by ranges, or ahead of need."""

from __future__ import annotations

import io
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from loaders.errors import SourceError
from loaders.remote.url import is_url, place_of
from loaders.system.regular import NotRegularError, read_regular, regular
from packdata.bucket import bucket_at
from packdata.fetched import Copies

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from loaders.remote.wire import Entry
    from packdata.bucket import Bucket

T = TypeVar("T")
_ASKS, _ASK_ITEMS, _ASK_BYTES = 8, 32, 4 << 20  # questions on their way, and how much each is for
# Of the first question, twice as many of the next: the first items soon come.
_FIRST_ITEMS = 4
_BUFFER_BYTES, _RANGE_BYTES = 2 << 20, 8 << 20  # of an object that is read as a file; of one range
_WANTED_BYTES = 64 << 20  # in ranges at once


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

    __slots__ = ("_copies", "_number", "_some", "end", "entry", "origin", "start", "where")

    def __init__(
        self, origin: Bucket, entry: Entry, where: str, start: int = 0, end: int | None = None
    ) -> None:
        self.origin, self.entry, self.where = origin, entry, where
        self.start, self.end = start, entry.size if end is None else min(end, entry.size)
        self._some: Future[list[bytes | str]] | None = None
        self._copies: Copies | None = None
        self._number = 0  # in what was fetched, or among the copies

    def __call__(self) -> bytes:
        """Return its bytes; SourceError if it is not what was listed."""
        if self._some is None:
            got = self.origin.objects([(self.entry, self.start, self.end)])[0]
        else:
            got = self._some.result()[self._number]
        return _checked(got, self.where)

    @property
    def path(self) -> Path:
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
        if self._some is not None:
            return io.BytesIO(self())
        return io.BufferedReader(_Ranges(self), _BUFFER_BYTES)

    def local(self) -> Path:
        """Return the object as a file of this machine, as which it is fetched now, unless it was."""
        if self._copies is None:
            opened_in_order([self])
        assert self._copies is not None
        return self._copies.path(self._number)

    def expect(self, some: Future[list[bytes | str]], number: int) -> None:
        """Take its bytes from what is being fetched."""
        self._some, self._number = some, number

    def copied(self, copies: Copies, number: int) -> None:
        """Be one of some copies."""
        self._copies, self._number = copies, number


File = LocalFile | RemoteFile


def read_file(path: Path | str, where: str, hint: str = "") -> bytes:
    """Return the bytes of a file, also of one at a URL; SourceError that names ``where`` if that fails."""
    with _explained(path, where, hint):
        if is_url(path):
            return _read_object(place_of(path))
        return read_regular(path)


def open_file(file: File) -> BinaryIO:
    """Open a file of this machine, or an object as one; SourceError that names its place if that fails."""
    with _explained(file.path, file.where):
        return open(file.local(), "rb", opener=regular)


@contextmanager
def _explained(path: Path | str, where: str, hint: str = "") -> Iterator[None]:
    try:
        yield
    except SourceError:
        raise
    except NotRegularError as error:
        raise SourceError(str(error.strerror), where, hint) from error
    except FileNotFoundError as error:
        what = f"there is no file {str(path)!r}"
        raise SourceError(what, where, hint or "Was it moved?") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"cannot be read ({reason})", where, hint) from error


def _read_object(url: Path) -> bytes:
    data, _ = bucket_at(str(url.parent)).read(url.name)
    if data is None:
        raise FileNotFoundError
    return data


def opened_in_order(files: Iterable[object]) -> None:
    """Tell in which order files are opened as local ones: of those that are objects, the next come meanwhile."""
    stored = [file for file in files if isinstance(file, RemoteFile)]
    copies = Copies([file.part() for file in stored])
    for number, file in enumerate(stored):
        file.copied(copies, number)


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
        data = self._read(min(len(buffer), _WANTED_BYTES))
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


def fetched_ahead(items: Iterator[T]) -> Generator[T]:
    """Yield items; the objects that they are, ``read``, or name as ``reads``, are fetched meanwhile, some ahead.

    When all were yielded the last ones may still be on their way; when it is closed before, what has not begun is not
    fetched.
    """
    first = list(islice(items, 1))
    if not any(map(_files, first)):
        yield from first
        yield from items
        return
    pool = ThreadPoolExecutor(_ASKS, "fetch-ahead")
    ahead: deque[list[T]] = deque()
    most, is_over = _FIRST_ITEMS, False
    try:
        while True:
            while len(ahead) < _ASKS and sum(map(_nbytes, ahead)) < _ASKS * _ASK_BYTES:
                if not (some := _some(first, items, most)):
                    break
                first, most = [], min(2 * most, _ASK_ITEMS)
                _expect(pool, some)
                ahead.append(some)
            if is_over := not ahead:
                return
            yield from ahead.popleft()
    finally:
        pool.shutdown(wait=not is_over, cancel_futures=not is_over)


def _some(first: list[T], items: Iterator[T], most: int) -> list[T]:
    """Return the next items that one question is for."""
    some, nbytes = [*first], 0
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
            file.expect(some, number)
