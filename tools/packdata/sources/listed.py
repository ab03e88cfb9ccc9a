"""What lies in a folder, or below a URL: one walk lists names, sizes and marks; nothing is read.

Sources are made of a ``Listing``, or of single files, and do not ask again what lies where.
"""

from __future__ import annotations

import os
import stat
from array import array
from bisect import bisect_left
from copy import copy
from glob import glob
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from loaders.errors import SourceError
from loaders.remote.url import URL, Location, place_of
from packdata.bucket import Bucket
from packdata.reading import File, LocalFile, RemoteFile
from packdata.sources.names import is_hidden

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from loaders.remote.wire import Entry


_MARKS = 1 << 64
_AT_ONCE = 1024  # names
# In front of a folder and of a name in keys: files come before folders, and a folder before what is called longer.
_FOLDER, _NAME = b"\0\1", b"\0\0"
_File = tuple[bytes, int, int]  # key, size, and mark, which changes when the file does


class Listing:
    """The files in a folder and below it, folder by folder, in each by name; none that are hidden.

    Args:
        root: The folder, or a URL.
        deep: Whether what lies in its folders is listed, too.

    Attributes:
        root: As it was given.
        folders: Relative paths of those in it and below, "" first; what is below one follows it.

    Raises:
        SourceError: A folder cannot be listed, a link leads nowhere, or to a folder above: others are followed.
        RemoteError: The store does not answer, or refuses.
    """

    def __init__(self, root: Location, *, deep: bool = True) -> None:
        self._set_root(root)
        folders = {""}
        found = (
            _walk(root, deep, folders) if isinstance(root, Path) else _objects(root, deep, folders)
        )
        data, ends, sizes, marks = bytearray(), array("q", [0]), array("Q"), array("Q")
        for key, size, mark in found:
            data += key
            ends.append(len(data))
            sizes.append(size)
            marks.append(mark)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
        # As they were listed: tens of millions are not moved, they have an order.
        self._keys = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sizes), buffers)
        self._sizes, self._marks = np.asarray(sizes), np.asarray(marks)
        # Not by to_numpy() and pa.array(), which import pandas where it is installed.
        self._order = np.from_dlpack(pc.array_sort_indices(self._keys)).astype(np.uint32)
        self._above = b""  # what all keys begin with
        self.folders = sorted(folders, key=lambda folder: folder.split("/"))

    def _set_root(self, root: Location) -> None:
        self.root = root
        self._bucket = Bucket(root) if isinstance(root, URL) else None

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        """Yield the relative paths of all files."""
        return self.paths(range(len(self)))

    def paths(self, numbers: Sequence[int]) -> Iterator[str]:
        """Yield the relative paths of some files."""
        for first in range(0, len(numbers), _AT_ONCE):
            some = np.asarray(numbers[first : first + _AT_ONCE], np.int64)
            places = [None, pa.py_buffer(self._order[some])]
            keys = self._keys.take(pa.Array.from_buffers(pa.uint32(), len(some), places))
            yield from map(self._path, keys.to_pylist())

    def _path(self, key: bytes) -> str:
        path = key[len(self._above) :].replace(_NAME, b"/").replace(_FOLDER, b"/")
        return os.fsdecode(path[1:])

    @property
    def name(self) -> str:
        """The last component of its path."""
        return self.root.resolve().name if isinstance(self.root, Path) else self.root.name

    def inside(self, folder: str = "") -> range:
        """Return the numbers of the files directly in a folder."""
        key = self._above + _key(f"{folder}/" if folder else "")
        return range(self._place(key), self._place(key.removesuffix(_NAME) + _FOLDER))

    def _place(self, key: bytes) -> int:
        return bisect_left(range(len(self)), key, key=self._key)

    def _key(self, number: int) -> bytes:
        return self._keys[self._order[number]].as_py()  # type: ignore[no-any-return]

    def names(self, folder: str = "") -> Iterator[str]:
        """Yield the names of the files directly in a folder."""
        return map(os.path.basename, self.paths(self.inside(folder)))

    def subfolders(self) -> list[str]:
        """Return the names of the folders directly in the root."""
        return [folder for folder in self.folders if folder and "/" not in folder]

    def below(self, folder: str) -> Listing:
        """Return what lies in a folder and below it."""
        if folder not in self.folders:
            raise SourceError("there is no such folder", self.root / folder)
        part, above = copy(self), self._above + _key(f"{folder}/").removesuffix(_NAME)
        part._set_root(self.root / folder)
        start, stop = self._place(above + _NAME), self._place(above + b"\1")
        part._above, part._order = above, self._order[start:stop]
        inner = [each for each in self.folders if f"{each}/".startswith(f"{folder}/")]
        part.folders = [each[len(folder) + 1 :] for each in inner]
        return part

    def state(self, number: int) -> tuple[int, int]:
        """Return the size of a file, and its mark, which changes when it does."""
        row = self._order[number]
        return int(self._sizes[row]), int(self._marks[row])

    def at(self, number: int) -> tuple[str, File]:
        """Return the relative path of a file, and the file."""
        path = self._path(self._key(number))
        return path, self._file(path, number)

    def find(self, path: str) -> File | None:
        """Return the file of a relative path; None if there is none."""
        key = self._above + _key(path)
        number = self._place(key)
        is_there = number < len(self) and self._key(number) == key
        return self._file(path, number) if is_there else None

    def files(self, paths: Iterable[str]) -> list[File]:
        """Return the files of some relative paths, but for those that are not there."""
        return [file for file in map(self.find, paths) if file is not None]

    def _file(self, path: str, number: int) -> File:
        where = os.path.join(str(self.root), path)
        size, mark = self.state(number)
        if self._bucket is not None:
            return RemoteFile(self._bucket, path, where, size, mark)
        return LocalFile(where, where, size, mark)


def _key(path: str) -> bytes:
    *folders, name = os.fsencode(path).split(b"/")
    return b"".join(_FOLDER + folder for folder in folders) + _NAME + name


def _walk(root: Path, deep: bool, folders: set[str]) -> Iterator[_File]:
    """Yield the files of a folder, and add the folders in it."""
    pending = [("", {*map(str, Path(os.path.realpath(root)).parents)})]
    while pending:
        folder, above = pending.pop()
        place, key = root / folder, _key(f"{folder}/".lstrip("/"))
        if (real := os.path.realpath(place)) in above:
            raise SourceError("link to a folder above", place, "Remove the link")
        try:
            with os.scandir(place) as found:
                for entry in found:
                    path = f"{folder}/{entry.name}".lstrip("/")
                    if is_hidden(entry.name):
                        continue
                    if not entry.is_dir():
                        yield key + os.fsencode(entry.name), *_state_of(entry.stat())
                        continue
                    folders.add(path)
                    if deep:
                        pending.append((path, above | {real}))
        except OSError as error:
            what = f"cannot be listed ({error.strerror})"
            raise SourceError(what, error.filename or place) from error


def _objects(root: URL, deep: bool, folders: set[str]) -> Iterator[_File]:
    """Yield objects, and add folders; names that end in a slash stand for the folder, as some tools make."""
    bucket = Bucket(root)
    entries: Iterable[Entry] = chain.from_iterable(bucket.below())
    if not deep:
        entries, inner = bucket.in_folder()
        folders.update(folder.rstrip("/") for folder in inner)
    keys: dict[str, bytes] = {}
    for entry in entries:
        folder, slash, name = entry.name.rpartition("/")
        if folder not in keys:
            parts = folder.split("/")
            keys[folder] = b"" if any(map(is_hidden, parts)) else _key(folder + slash)
            folders.update(accumulate(parts, "{}/{}".format) if keys[folder] else ())
        if keys[folder] and not is_hidden(name):
            yield keys[folder] + os.fsencode(name), entry.size, entry.mark


def _state_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns % _MARKS


def hash_of_files(files: Iterable[tuple[str, int, int]]) -> str:
    """Return 32 hexadecimal digits of names, sizes and marks, which change when one of the files does."""
    state = xxhash.xxh3_128()
    for name, size, mark in files:
        state.update(f"{name}\0{size},{mark}\n".encode(errors="surrogateescape"))
    return state.hexdigest()


def files_identity(kind: str, files: Sequence[File]) -> dict[str, Any]:
    """Return the identity of a source made of a few large files."""
    names = relative_names([file.path for file in files])
    states = [(name, file.size, file.mark) for file, name in zip(files, names, strict=True)]
    return {"kind": kind, "num_files": len(files), "files": hash_of_files(states)}


def relative_names(paths: Sequence[Location]) -> list[str]:
    """Return the paths of files from the last folder on that holds all of them."""
    folder = os.path.commonpath([os.path.abspath(str(path.parent)) for path in paths])
    return [os.path.relpath(str(path), folder) for path in paths]


def listed_sources(src: Location | str | Iterable[Location | str]) -> list[Location]:
    """Return sources as a list; SourceError if it is empty, as of a pattern that matches nothing."""
    given = [src] if isinstance(src, Location | str) else src
    if not (sources := [*map(place_of, given)]):
        raise SourceError("the list is empty", "sources", "Check the pattern that lists them")
    return sources


def look_at(place: Location | str, *, deep: bool = True) -> Listing | list[File]:
    """List a folder; or return the file at a place, or those that a pattern such as ``data/*.csv`` matches, sorted.

    Raises:
        SourceError: Nothing is there, or no regular file, or a folder that may not be read.
        RemoteError: The store does not answer, or refuses.
    """
    path = place_of(place)
    if isinstance(path, URL):
        listing = Listing(path, deep=deep)
        return listing if len(listing) or listing.folders[1:] else files_at(path)
    return Listing(path, deep=deep) if is_folder(path) else files_at(path)


def files_at(path: Location) -> list[File]:
    """Return the file at a path or a URL, or those that a pattern matches, sorted; errors as of ``look_at``."""
    files: list[File] = []
    if isinstance(path, URL):
        if path.parent != path:  # a bucket is no object
            bucket = Bucket(path.parent)
            if (found := bucket.look(path.name)) is not None:
                files = [RemoteFile(bucket, found.name, str(path), found.size, found.mark)]
    else:
        is_there = os.path.exists(path)
        matches = [str(path)] if is_there else sorted(glob(str(path), recursive=True))
        files = [_file_at(match) for match in matches if not os.path.isdir(match)]
    if not files:
        hint = "Check the path; '*' is for local files: at a URL give a folder, or objects"
        raise SourceError("there is no such file or folder", path, hint)
    return files


def _file_at(path: str) -> File:
    try:
        found = os.stat(path)
    except OSError as error:  # such as a link that leads nowhere
        raise SourceError(f"cannot be read ({error.strerror})", path) from error
    size, mark = _state_of(found)
    return LocalFile(path, path, size, mark)


def is_file(path: Location) -> bool:
    """Tell whether a file is there, be it a pipe, which is refused when it is opened; or an object."""
    if isinstance(path, URL):
        return Bucket(path.parent).look(path.name) is not None
    return path.exists() and not path.is_dir()


def is_folder(path: Path) -> bool:
    """Tell whether a folder is there; SourceError if it may not be read."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        return False
    except OSError as error:
        raise SourceError(f"cannot be read ({error.strerror})", path) from error
