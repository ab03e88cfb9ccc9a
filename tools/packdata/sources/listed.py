"""Sources at URLs: listed once, so that they are looked at as folders are; read object by object, ahead of need.

A listing is kept by this process under its URL. A path below is a ``ListedURL``, which asks the listing what the file
system is asked of other paths; opened as a file, it is fetched as one first (``packdata.sources.fetched``). What is
read is compared with what was listed.
"""

from __future__ import annotations

import os
import stat
from array import array
from bisect import bisect_left
from glob import glob, has_magic
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash

from loaders.errors import SourceError
from loaders.remote.url import URL, is_url, url_of
from loaders.remote.wire import Entry
from packdata.bucket import bucket_at
from packdata.sources.fetched import expect_in_order, local_path
from packdata.sources.names import Names
from packdata.sources.objects import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from packdata.bucket import Bucket

_BEHIND_SLASH = chr(ord("/") + 1)


class Tree:
    """A listing: the objects below a URL, by name.

    Args:
        origin: Of the URL.
        entries: The objects.
        is_flat: Whether objects in folders below are left out.
    """

    def __init__(
        self,
        origin: Bucket,
        entries: Iterable[Entry],
        *,
        is_flat: bool = False,
    ) -> None:
        self.origin, self.is_flat = origin, is_flat
        self.names, sizes, marks = Names(), array("Q"), array("Q")
        self._sum, last, is_sorted = 0, "", True
        for entry in entries:
            self._sum += _hash(entry)
            if entry.name.endswith("/"):  # what stands for the folder itself, as some tools make
                continue
            self.names.append(entry.name)
            sizes.append(entry.size)
            marks.append(entry.mark)
            is_sorted, last = is_sorted and last <= entry.name, entry.name
        self.sizes, self.marks = np.asarray(sizes), np.asarray(marks)
        if not is_sorted:
            order = sorted(range(len(self.names)), key=[*self.names].__getitem__)
            self.names = Names(self.names[i] for i in order)
            self.sizes, self.marks = self.sizes[order], self.marks[order]

    def is_of(self, entries: Iterable[Entry]) -> bool:
        """Tell whether it is of these objects, in any order."""
        return sum(map(_hash, entries)) == self._sum

    def entry(self, number: int) -> Entry:
        """Return an object by its number."""
        return Entry(self.names[number], int(self.sizes[number]), int(self.marks[number]))

    def find(self, name: str) -> Entry | None:
        """Return an object by its name."""
        number = bisect_left(self.names, name)
        is_there = number < len(self.names) and self.names[number] == name
        return self.entry(number) if is_there else None

    def below(self, folder: str) -> range:
        """Return the numbers of the objects in a folder and below it."""
        if not folder:
            return range(len(self.names))
        first = bisect_left(self.names, f"{folder}/")
        return range(first, bisect_left(self.names, folder + _BEHIND_SLASH, first))

    def inside(self, folder: str) -> tuple[Sequence[int], list[str]]:
        """Return the numbers of the objects directly in a folder, by name, and names of the folders in it.

        Raises:
            SourceError: An object and a folder have one name.
        """
        numbers, folders, every = array("I"), [], self.below(folder)
        above = f"{folder}/" if folder else ""
        number = every.start
        while number < every.stop:
            name, slash, _ = self.names[number][len(above) :].partition("/")
            if slash:
                folders.append(name)
                number = self.below(above + name).stop
            else:
                numbers.append(number)
                number += 1
        for name in folders:
            if (entry := self.find(above + name)) is None:
                continue
            if entry.size:  # else it stands for the folder, as some tools make
                what = "an object, and others lie below it as in a folder"
                raise SourceError(what, self.origin.url / entry.name, "Rename one of them")
            numbers.remove(bisect_left(self.names, entry.name))
        return numbers, sorted(folders)

    @property
    def num_bytes(self) -> int:
        """Of all objects."""
        return int(self.sizes.sum())

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Entry]:
        return map(Entry, self.names, self.sizes.tolist(), self.marks.tolist())


def _hash(entry: Entry) -> int:
    return xxhash.xxh3_128_intdigest(f"{entry.name}\0{entry.size},{entry.mark}".encode())


_trees: dict[str, Tree] = {}


class ListedURL(URL):
    """A folder or object of a source that was listed."""

    @property
    def _listed(self) -> str:
        """The URL of the listing that it is in; "" if there is none."""
        above = str(self)
        while above and above not in _trees:
            above = above.rpartition("/")[0]
        return above

    def _found(self) -> tuple[Tree | None, str]:
        tree = _trees.get(self._listed)
        return tree, "" if tree is None else str(self)[len(f"{tree.origin.url}/") :]

    @property
    def tree(self) -> Tree:
        """The listing that it is in; SourceError if there is none."""
        tree, _ = self._found()
        if tree is None:
            raise SourceError("the URL was not listed", self)
        return tree

    @property
    def stored(self) -> RemoteFile | None:
        """The object behind this path; None if there is none."""
        tree, path = self._found()
        entry = None if tree is None else tree.find(path)
        return None if tree is None or entry is None else RemoteFile(tree.origin, entry, str(self))

    def __fspath__(self) -> str:
        """Return the path of the object as a file of this machine, as which it is fetched now; else the URL."""
        stored = self.stored
        return str(self) if stored is None or self.is_dir() else local_path(stored)

    def __reduce__(self) -> Any:
        return _sent, (str(self), self._listed, self._found()[0])

    def iterdir(self) -> Generator[ListedURL]:
        """Yield what is directly inside."""
        files, folders = self.scan()
        yield from (self / name for name in [*(file.name for file in files), *folders])

    def is_dir(self) -> bool:
        """Tell whether something lies below it."""
        tree, path = self._found()
        return tree is not None and len(tree.below(path)) > 0

    def is_file(self) -> bool:
        """Tell whether it is an object."""
        return not self.is_dir() and self.stored is not None

    def exists(self) -> bool:
        """Tell whether it is there."""
        return self.is_dir() or self.stored is not None

    def resolve(self, strict: bool = False) -> ListedURL:
        """Return it as it is."""
        return self

    def stat(self, *, follow_symlinks: bool = True) -> Any:
        """Tell what a file system does; ``FileNotFoundError`` if it is not there."""
        if self.is_dir():
            return SimpleNamespace(st_mode=stat.S_IFDIR)
        if (stored := self.stored) is None:
            raise FileNotFoundError(2, "there is no such object", str(self))
        return stat_of(stored.entry)

    def scan(self) -> tuple[Iterator[ListedEntry], list[str]]:
        """Return what is directly inside, by name: objects, and names of folders."""
        tree, path = self._found()
        if tree is None:
            return iter(()), []
        numbers, folders = tree.inside(path)
        return (ListedEntry(self, i, tree.entry(i)) for i in numbers), folders


def _sent(text: str, listed: str, tree: Tree | None) -> ListedURL:
    if tree is not None:
        _trees[listed] = tree
    return ListedURL(text)


def stat_of(entry: Entry) -> Any:
    """Tell of an object what a file system tells of a file: its size, and what changes with it."""
    return SimpleNamespace(st_mode=stat.S_IFREG, st_size=entry.size, st_mtime_ns=entry.mark)


class ListedEntry(NamedTuple):
    """An object in a folder, as ``os.DirEntry`` tells of a file."""

    folder: ListedURL
    number: int  # in the listing
    entry: Entry

    @property
    def name(self) -> str:
        """Its name in the folder."""
        return self.entry.name.rpartition("/")[2]

    @property
    def path(self) -> str:
        """The URL."""
        return f"{self.folder}/{self.name}"

    def stat(self) -> Any:
        """Tell its size and what changes with it."""
        return stat_of(self.entry)


def place_of_source(path: Path | str) -> Path:
    """Return a path, or a URL that was listed."""
    if isinstance(path, ListedURL):
        return path
    return ListedURL(str(url_of(path))) if is_url(path) else Path(path)


def real_path(path: Path | str) -> str:
    """Return what all names of a file have in common; of a URL, itself."""
    place = place_of_source(path)
    return str(place) if isinstance(place, ListedURL) else os.path.realpath(place)


def without_secrets(sources: Iterable[Path | str]) -> list[Path | str]:
    """Return sources as they may be shown: URLs without users, passwords and queries."""
    return [url_of(source) if is_url(source) else source for source in sources]


def list_sources(sources: Iterable[Path | str]) -> None:
    """List those of some sources that are URLs.

    Raises:
        RemoteError: They cannot be listed.
        SourceError: Nothing is there.
    """
    for source in filter(is_url, sources):
        origin = bucket_at(source)
        url = str(origin.url)
        tree = _trees.get(url)
        # Of tens of millions a second tree would take the same room again.
        if (
            not tree
            or tree.is_flat
            or tree.origin.url != origin.url
            or not tree.is_of(_objects(origin))
        ):
            _trees[url] = list_origin(origin)
        for below in [each for each in _trees if each.startswith(f"{url}/")]:
            del _trees[below]  # what was listed below it may be another by now


def objects_beside(file: ListedURL) -> Tree:
    """Return the objects beside one, and in folders there."""
    list_sources([file.parent])
    return _trees[str(file.parent)]


def _objects(origin: Bucket) -> Iterator[Entry]:
    return (entry for some in origin.below() for entry in some)


def list_origin(origin: Bucket) -> Tree:
    """List what lies below a URL, or the one object that it is."""
    tree = Tree(origin, _objects(origin))
    if tree:
        return tree
    bucket, _, key = str(origin.url).partition("://")[2].partition("/")
    if key or not bucket:
        above = bucket_at(str(origin.url.parent))
        if (one := above.look(origin.url.name)) is not None:
            return Tree(above, [one])
    hint = "Check the URL"
    if has_magic(str(origin.url)):
        hint = "At a URL there are no patterns: give a folder, single objects, or a list of them"
    raise SourceError("there is no such object, and none below it", origin.url, hint)


def files_matching(pattern: Path | str) -> list[Path]:
    """Return the files that a pattern means, in no order; there are no patterns at URLs."""
    if isinstance(place_of_source(pattern), ListedURL):
        return []
    found = map(Path, glob(str(pattern), recursive=True))
    return [path for path in found if not path.is_dir()]


def opened_in_order(paths: Iterable[Path]) -> None:
    """Tell in which order files are opened: of those that are objects, the next comes while one is read."""
    found = (path.stored for path in paths if isinstance(path, ListedURL))
    expect_in_order(filter(None, found))


def with_beside(place: Path | str) -> Path:
    """Return a path; at a URL that is no source, what lies there or beside it is listed first, but for what is below.

    Raises:
        RemoteError: It cannot be listed.
    """
    path = place_of_source(place)
    places = (path, path.parent) if isinstance(path, ListedURL) else ()
    for url in (each for each in places if each.parent.name):  # above a bucket nothing is listed
        if (known := _trees.get(str(url))) is not None and not known.is_flat:
            break
        origin = bucket_at(str(url))
        if entries := origin.in_folder()[0]:
            _trees[str(url)] = Tree(origin, entries, is_flat=True)
            break
        _trees.pop(str(url), None)
    return path


class StoredNames:
    """The names of some objects of a listing, by their numbers, as they are below a folder."""

    def __init__(self, root: ListedURL) -> None:
        self._tree, self._numbers = root.tree, array("I")
        self._cut = len(f"{root}/") - len(f"{self._tree.origin.url}/")

    def append(self, number: int) -> None:
        """Append the name of an object."""
        self._numbers.append(number)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> str:
        return self._tree.names[self._numbers[number]][self._cut :]

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def reader(self, number: int, where: str) -> RemoteFile:
        """Return what reads the object of a number."""
        return RemoteFile(self._tree.origin, self._tree.entry(self._numbers[number]), where)
