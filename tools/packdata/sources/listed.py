"""What lies in a folder, or below a URL: one walk lists names, sizes and marks; nothing is read.

Sources are made of a ``Listing``, or of single files, and do not ask again what lies where.
"""

from __future__ import annotations

import os
import stat
from array import array
from bisect import bisect_left, bisect_right
from copy import copy
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError
from loaders.remote.url import URL, place_of
from loaders.remote.wire import Entry
from packdata.bucket import bucket_at
from packdata.reading import File, LocalFile, RemoteFile
from packdata.sources.base import is_hidden

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from packdata.bucket import Bucket

_MARKS = 1 << 64
_AT_ONCE = 1024  # names
_Row = tuple[
    str, str, int, int
]  # folder, name, size and mark of a file; "" as name for the folder


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

    def __init__(self, root: Path, *, deep: bool = True) -> None:
        self._set_root(root)
        self._sort(self._walk(deep) if self._bucket is None else _objects(self._bucket, deep))

    def _set_root(self, root: Path) -> None:
        self.root = root
        self._absolute = str(
            root.absolute()
        )  # the working folder may change before files are read
        self._bucket = bucket_at(root) if isinstance(root, URL) else None

    def _walk(self, deep: bool) -> Iterator[_Row]:
        pending = [("", {*map(str, Path(os.path.realpath(self.root)).parents)})]
        while pending:
            folder, above = pending.pop()
            place = self.root / folder
            if (real := os.path.realpath(place)) in above:
                raise SourceError("link to a folder above", place, "Remove the link")
            yield folder, "", 0, 0
            try:
                with os.scandir(place) as found:
                    for entry in found:
                        path = f"{folder}/{entry.name}".lstrip("/")
                        if is_hidden(entry.name):
                            continue
                        if not entry.is_dir():
                            yield folder, entry.name, *_state_of(entry.stat())
                        elif deep:
                            pending.append((path, above | {real}))
                        else:
                            yield path, "", 0, 0
            except OSError as error:
                what = f"cannot be listed ({error.strerror})"
                raise SourceError(what, error.filename or place) from error

    def _sort(self, rows: Iterable[_Row]) -> None:
        numbers, data, ends = {"": 0}, bytearray(), array("q", [0])
        folders, sizes, marks = array("I"), array("Q"), array("Q")
        for folder, name, size, mark in rows:
            number = numbers.setdefault(folder, len(numbers))
            if name:
                data += os.fsencode(name)
                ends.append(len(data))
                folders.append(number)
                sizes.append(size)
                marks.append(mark)
        for folder in [*numbers]:  # those above may hold no files
            while folder := folder.rpartition("/")[0]:
                numbers.setdefault(folder, len(numbers))
        self.folders = sorted(numbers, key=lambda folder: folder.split("/"))
        ranks = np.empty(len(numbers), np.uint32)
        ranks[[numbers[folder] for folder in self.folders]] = np.arange(len(numbers))
        rank, buffers = ranks[np.asarray(folders)], [None, pa.py_buffer(ends), pa.py_buffer(data)]
        # As they were listed: tens of millions are not moved, they have an order.
        self._names = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(rank), buffers)
        self._sizes, self._marks = np.asarray(sizes), np.asarray(marks)
        keys = pa.table({"folder": rank, "name": self._names})
        order = pc.sort_indices(keys, [("folder", "ascending"), ("name", "ascending")])
        self._order = order.to_numpy().astype(np.uint32)
        self._starts = np.append(0, np.cumsum(np.bincount(rank, minlength=len(numbers))))

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        """Yield the relative paths of all files."""
        return self.paths(range(len(self)))

    def paths(self, numbers: Sequence[int]) -> Iterator[str]:
        """Yield the relative paths of some files."""
        for first in range(0, len(numbers), _AT_ONCE):
            some = np.asarray(numbers[first : first + _AT_ONCE], np.int64)
            folders = np.searchsorted(self._starts, some, "right") - 1
            names = self._names.take(pa.array(self._order[some])).to_pylist()
            for folder, name in zip(folders.tolist(), names, strict=True):
                yield f"{self.folders[folder]}/{os.fsdecode(name)}".lstrip("/")

    @property
    def name(self) -> str:
        """The last component of its path."""
        return self.root.name if self._bucket else self.root.resolve().name

    def inside(self, folder: str = "") -> range:
        """Return the numbers of the files directly in a folder."""
        at = bisect_left(self.folders, folder.split("/"), key=lambda folder: folder.split("/"))
        if self.folders[at : at + 1] != [folder]:
            return range(0)
        return range(int(self._starts[at]), int(self._starts[at + 1]))

    def names(self, folder: str = "") -> Iterator[str]:
        """Yield the names of the files directly in a folder."""
        return map(os.path.basename, self.paths(self.inside(folder)))

    def subfolders(self) -> list[str]:
        """Return the names of the folders directly in the root."""
        return [folder for folder in self.folders if folder and "/" not in folder]

    def below(self, folder: str) -> Listing:
        """Return what lies in a folder and below it."""
        part, cut = copy(self), len(folder) + 1
        part._set_root(self.root / folder)
        if folder not in self.folders:
            raise SourceError("there is no such folder", self.root / folder)
        inner = [i for i, f in enumerate(self.folders) if f"{f}/".startswith(f"{folder}/")]
        part.folders = [self.folders[i][cut:] for i in inner]
        starts = self._starts[inner[0] : inner[-1] + 2]
        part._order, part._starts = self._order[starts[0] : starts[-1]], starts - starts[0]
        return part

    def state(self, number: int) -> tuple[int, int]:
        """Return the size of a file, and its mark, which changes when it does."""
        row = self._order[number]
        return int(self._sizes[row]), int(self._marks[row])

    def _name(self, number: int) -> bytes:
        return self._names[self._order[number]].as_py()  # type: ignore[no-any-return]

    def at(self, number: int) -> tuple[str, File]:
        """Return the relative path of a file, and what reads it from whatever working folder."""
        folder = self.folders[bisect_right(self._starts, number) - 1]
        path = f"{folder}/{os.fsdecode(self._name(number))}".lstrip("/")
        return path, self._file(path, number, self._absolute)

    def find(self, path: str) -> File | None:
        """Return the file of a relative path, called as the root was given; None if there is none."""
        folder, _, name = path.rpartition("/")
        wanted, inside = os.fsencode(name), self.inside(folder)
        at = bisect_left(inside, wanted, key=self._name)
        is_there = at < len(inside) and self._name(inside[at]) == wanted
        return self._file(path, inside[at], str(self.root)) if is_there else None

    def files(self, paths: Iterable[str]) -> list[File]:
        """Return the files of some relative paths, but for those that are not there."""
        return [file for file in map(self.find, paths) if file is not None]

    def _file(self, path: str, number: int, root: str) -> File:
        where, state = os.path.join(str(self.root), path), self.state(number)
        if self._bucket is not None:
            return RemoteFile(self._bucket, Entry(path, *state), where)
        return LocalFile(os.path.join(root, path), where, *state)


def _state_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns % _MARKS


def _objects(bucket: Bucket, deep: bool) -> Iterator[_Row]:
    """Yield objects; names that end in a slash stand for the folder, as some tools make."""
    entries, folders = ([], []) if deep else bucket.in_folder()
    yield from ((folder.rstrip("/"), "", 0, 0) for folder in folders)
    shown: dict[str, bool] = {}
    for entry in (each for some in bucket.below() for each in some) if deep else entries:
        folder, _, name = entry.name.rpartition("/")
        if folder not in shown:
            shown[folder] = not any(map(is_hidden, folder.split("/")))
        if shown[folder] and not is_hidden(name):
            yield folder, name, entry.size, entry.mark


def look_at(place: Path | str, *, deep: bool = True) -> Listing | list[File]:
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


def files_at(path: Path) -> list[File]:
    """Return the file at a path or a URL, or those that a pattern matches, sorted; errors as of ``look_at``."""
    files: list[File] = []
    if isinstance(path, URL):
        if path.parent.parent.name:  # a bucket is no object
            bucket = bucket_at(path.parent)
            entry = bucket.look(path.name)
            files = [RemoteFile(bucket, entry, str(path))] if entry else []
    else:
        matches = sorted(glob(str(path), recursive=True)) if not _stat_of(path) else [str(path)]
        files = [_file_at(Path(match)) for match in matches if not os.path.isdir(match)]
    if not files:
        hint = "Check the path; '*' is for local files: at a URL give a folder, or objects"
        raise SourceError("there is no such file or folder", path, hint)
    return files


def _file_at(path: Path) -> File:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise SourceError("not a regular file", path)
    return LocalFile(str(path), str(path), *_state_of(found))


def is_folder(path: Path) -> bool:
    """Tell whether a folder is there; SourceError if it may not be read."""
    found = _stat_of(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def is_file(path: Path) -> bool:
    """Tell whether a file is there, be it a pipe, which is refused when it is opened; or an object."""
    if isinstance(path, URL):
        return bucket_at(path.parent).look(path.name) is not None
    return path.exists() and not path.is_dir()


def _stat_of(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        return None
    except OSError as error:
        raise SourceError(f"cannot be read ({error.strerror})", path) from error
