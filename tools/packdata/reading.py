"""Files of this machine, and objects of a store as they were listed: read whole, opened, or as files by name."""

from __future__ import annotations

import io
import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from loaders.errors import SourceError
from loaders.remote.url import URL, Location, is_url, url_of
from loaders.system.regular import read_regular, regular
from packdata.bucket import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BUFFER_BYTES, _RANGE_BYTES = 2 << 20, 8 << 20  # of an object that is read as a file; of one range


@dataclass(frozen=True, slots=True)
class LocalFile:
    """Reads a file of this machine, as ``RemoteFile`` reads an object of a store."""

    name: str  # its whole path
    where: str = field(compare=False)
    size: int = field(default=0, compare=False)  # where it was listed
    mark: int = field(default=0, compare=False)  # when it was written, in nanoseconds

    def __call__(self) -> bytes:
        """Return its bytes; SourceError that names ``where`` if that fails."""
        return read_file(self.name, where=self.where)

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self.name)

    def open(self) -> BinaryIO:
        """Open it; SourceError that names ``where`` if that fails."""
        return open_file(self)

    def local(self) -> Path:
        """Return its path; SourceError for a pipe or device, which may be waited for in vain."""
        path = Path(self.name)
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise SourceError("not a regular file", self.where)
        return path


@dataclass(eq=False, slots=True)
class RemoteFile:
    """Reads an object as it was listed, or a range of it, which may have been fetched ahead."""

    bucket: Bucket
    name: str  # in the bucket
    where: str
    size: int  # of the object
    mark: int  # changes when the object does
    start: int = 0
    end: int = 1 << 62  # at most its size
    # Return its bytes, or why there are none, and the object as a file of this machine: once these are fetched ahead.
    coming: Callable[[], bytes | str] | None = field(default=None, init=False)
    copy: Callable[[], Path] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.end = min(self.end, self.size)

    def __call__(self) -> bytes:
        """Return its bytes, many by several ranges; SourceError if it is not what was listed."""
        if self.coming is not None:
            return _checked(self.coming(), self.where)
        ranges = [
            (self.name, start, min(start + _RANGE_BYTES, self.end), self.mark)
            for start in range(self.start, self.end, _RANGE_BYTES)
        ]
        got = self.bucket.objects(ranges) if ranges else ()
        return b"".join(_checked(each, self.where) for each in got)

    @property
    def path(self) -> URL:
        """The URL of the object."""
        return self.bucket.url / self.name

    @property
    def reads(self) -> list[RemoteFile]:
        """What ``fetched_ahead`` fetches where this is an item."""
        return [self]

    def open(self) -> BinaryIO:
        """Open it: what was fetched ahead, or else the object, to be read by ranges."""
        if self.coming is not None:
            return io.BytesIO(self())
        return io.BufferedReader(_Ranges(self), _BUFFER_BYTES)

    def local(self) -> Path:
        """Return the object as a file of this machine, as which it is fetched now, unless it was."""
        assert self.copy is not None, "it is opened before its order is known"
        return self.copy()


File = LocalFile | RemoteFile


def read_file(path: Location | str, hint: str = "", where: str = "") -> bytes:
    """Return the bytes of a file, also of one at a URL; SourceError that names it, or ``where``, if that fails."""
    with _explained(where or str(path), hint):
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
        return read_file(path, hint).decode()
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


def _checked(got: bytes | str, where: str) -> bytes:
    if isinstance(got, str):
        raise SourceError(got, where, "Was the source changed? Then list it again")
    return got


class _Ranges(io.RawIOBase):
    """An object as a file, each read by ranges."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}
        self._at = max(0, bases[whence] + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = replace(self._file, start=self._at, end=self._at + len(buffer))()
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
