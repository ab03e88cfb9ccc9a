"""Sources at URLs: listed once, so that they are looked at as folders are; read object by object, ahead of need.

A listing is kept by this process under its URL. A path below is a ``ListedURL``, which asks the listing what the file
system is asked of other paths; opened as a file, it is fetched as one first (``packdata.sources.fetched``). What is
read is compared with what was listed.
"""

from __future__ import annotations

import io
import os
import stat
from array import array
from bisect import bisect_left
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from glob import has_magic
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

import xxhash

from loaders.errors import SourceError
from loaders.remote.origin import origin_of
from loaders.remote.url import URL, is_url, split_secrets
from loaders.remote.wire import Entry
from packdata.sources.fetched import local_path
from packdata.sources.names import Names

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from loaders.remote.origin import Origin

T = TypeVar("T")
_ASKS, _ASK_ITEMS, _ASK_BYTES = 8, 32, 4 << 20  # questions on their way, and how much each is for
_FIRST_BYTES, _MOST_BYTES = 256 << 10, 8 << 20  # of a file that is read in its order


class _Folder:
    """What lies in a folder, by name."""

    __slots__ = ("folders", "is_sorted", "marks", "names", "sizes")

    def __init__(self) -> None:
        self.names = Names()
        self.sizes, self.marks = array("Q"), array("Q")
        self.folders: dict[str, None] = {}
        self.is_sorted = True

    def add(self, name: str, size: int, mark: int) -> None:
        """Add an object; most stores give them by name."""
        self.is_sorted = self.is_sorted and not (self.names and name < self.names[-1])
        self.names.append(name)
        self.sizes.append(size)
        self.marks.append(mark)

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        return zip(self.names, self.sizes, self.marks, strict=True)

    def sort(self) -> None:
        """Bring the objects into the order of their names."""
        if not self.is_sorted:
            found = sorted(self)
            self.names = Names(name for name, _, _ in found)
            self.sizes = array("Q", (size for _, size, _ in found))
            self.marks = array("Q", (mark for _, _, mark in found))
            self.is_sorted = True


class Tree:
    """A listing: the objects below a URL.

    Args:
        origin: Of the URL.
        entries: The objects.
    """

    def __init__(self, origin: Origin, entries: Iterable[Entry]) -> None:
        self.origin = origin
        self._folders: dict[str, _Folder] = {"": _Folder()}
        for entry in entries:
            above, _, name = entry.name.rpartition("/")
            if not name:  # what stands for the folder itself, as some tools make
                continue
            folder = self._folders.get(above) or self._add(above)
            folder.add(name, entry.size, entry.mark)

    def _add(self, path: str) -> _Folder:
        above, _, name = path.rpartition("/")
        (self._folders.get(above) or self._add(above)).folders[name] = None
        folder = self._folders[path] = _Folder()
        return folder

    def is_folder(self, path: str) -> bool:
        """Tell whether something lies below a path."""
        folder = self._folders.get(path)
        return folder is not None and bool(folder.names or folder.folders)

    def find(self, path: str) -> Entry | None:
        """Return an object."""
        above, _, name = path.rpartition("/")
        folder = self._folders.get(above)
        if folder is None:
            return None
        folder.sort()
        i = bisect_left(folder.names, name)
        if i == len(folder.names) or folder.names[i] != name:
            return None
        return Entry(path, folder.sizes[i], folder.marks[i])

    def inside(self, path: str) -> tuple[list[Entry], list[str]]:
        """Return the objects in a folder, by name, and the names of folders in it."""
        folder = self._folders.get(path) or _Folder()
        prefix = f"{path}/" if path else ""
        folder.sort()
        files = []
        for name, size, mark in folder:
            if name not in folder.folders:
                files.append(Entry(prefix + name, size, mark))
            elif size:  # else it stands for the folder, as some tools make
                what = "it is an object, and others lie below it as in a folder"
                raise SourceError(what, self.origin.url / prefix / name, "Rename one of them")
        return files, sorted(folder.folders)

    def __iter__(self) -> Iterator[Entry]:
        for path, folder in self._folders.items():
            prefix = f"{path}/" if path else ""
            for name, *about in folder:
                yield Entry(prefix + name, *about)


_trees: dict[str, Tree] = {}
_given: set[str] = set()  # of which the list was made elsewhere
_sent: dict[str, StoredFile] = {}  # objects that another process has listed


class ListedURL(URL):
    """A folder or object of a source that was listed."""

    def _found(self) -> tuple[Tree | None, str]:
        text = str(self)
        roots = [root for root in tuple(_trees) if text == root or text.startswith(f"{root}/")]
        if not roots:
            return None, ""
        tree = _trees[max(roots, key=len)]
        return tree, text[len(str(tree.origin.url)) + 1 :]

    @property
    def origin(self) -> Origin:
        """What reads it; names of objects begin at the URL that was listed."""
        tree, _ = self._found()
        if tree is None:
            raise SourceError("it was not listed", self)
        return tree.origin

    @property
    def stored(self) -> StoredFile | None:
        """The object, for whoever reads it; None if it is none."""
        tree, path = self._found()
        if tree is None:
            return _sent.get(str(self))
        entry = tree.find(path)
        return None if entry is None else StoredFile(tree.origin, entry, str(self))

    def __fspath__(self) -> str:
        """Return the path of the object as a file of this machine, as which it is fetched now; else the URL."""
        stored = self.stored
        if stored is None or self.is_dir():
            return str(self)
        return local_path(stored)

    def __reduce__(self) -> Any:
        return _sent_url, (str(self), self.stored)

    def iterdir(self) -> Generator[ListedURL]:
        """Yield what is directly inside."""
        files, folders = self.scan()
        yield from (self / name for name in [*(file.name for file in files), *folders])

    def is_dir(self) -> bool:
        """Tell whether something lies below it."""
        tree, path = self._found()
        return tree is not None and tree.is_folder(path)

    def is_file(self) -> bool:
        """Tell whether it is an object."""
        return not self.is_dir() and self.stored is not None

    def exists(self) -> bool:
        """Tell whether it is there."""
        return self.is_dir() or self.stored is not None

    def resolve(self, strict: bool = False) -> ListedURL:
        """Return it as it is."""
        return self

    def absolute(self) -> ListedURL:
        """Return it as it is."""
        return self

    def stat(self, *, follow_symlinks: bool = True) -> Any:
        """Tell what a file system does; ``FileNotFoundError`` if it is not there."""
        ino = xxhash.xxh3_64_intdigest(str(self).encode())
        if self.is_dir():
            return SimpleNamespace(st_mode=stat.S_IFDIR, st_dev=-1, st_ino=ino)
        if (stored := self.stored) is None:
            raise FileNotFoundError(2, "there is no such object", str(self))
        return stat_of(stored.entry, ino)

    def scan(self) -> tuple[list[ListedEntry], list[str]]:
        """Return what is directly inside, by name: objects, and names of folders."""
        tree, path = self._found()
        files, folders = ([], []) if tree is None else tree.inside(path)
        start = len(path) + 1 if path else 0
        return [ListedEntry(entry.name[start:], entry, self) for entry in files], folders


def _sent_url(text: str, stored: StoredFile | None) -> ListedURL:
    if stored is not None:
        _sent[text] = stored
    return ListedURL(text)


def stat_of(entry: Entry, ino: int = 0) -> Any:
    """Tell of an object what a file system tells of a file: its size, and what changes with it."""
    about = {"st_size": entry.size, "st_mtime_ns": entry.mark}
    return SimpleNamespace(st_mode=stat.S_IFREG, st_dev=-1, st_ino=ino, **about)


class ListedEntry(NamedTuple):
    """An object in a folder, as ``os.DirEntry`` tells of a file."""

    name: str
    entry: Entry
    folder: ListedURL

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
    return ListedURL(str(split_secrets(path)[0])) if is_url(path) else Path(path)


def real_path(path: Path | str) -> str:
    """Return what all names of a file have in common; of a URL, itself."""
    place = place_of_source(path)
    return str(place) if isinstance(place, ListedURL) else os.path.realpath(place)


def without_secrets(sources: Iterable[Path | str]) -> list[Path | str]:
    """Return sources as they may be shown: URLs without users, passwords and queries."""
    return [split_secrets(source)[0] if is_url(source) else source for source in sources]


def are_given(sources: Iterable[Path | str]) -> bool:
    """Tell whether what all sources are was said by lists, so that none can have changed."""
    return all(is_url(each) and str(split_secrets(each)[0]) in _given for each in sources)


def list_sources(sources: Iterable[Path | str]) -> None:
    """List those of some sources that are URLs, but for those whose list was given.

    Raises:
        RemoteError: They cannot be listed.
        SourceError: Nothing is there.
    """
    for source in filter(is_url, sources):
        origin = origin_of(source)
        if str(origin.url) in _given:
            continue
        _trees[str(origin.url)] = list_origin(origin)
        for root in [root for root in tuple(_trees) if root.startswith(f"{origin.url}/")]:
            if root not in _given:  # what was listed below it may be another by now
                del _trees[root]


def objects_beside(file: ListedURL, names: Iterable[str]) -> Tree:
    """Return of the objects beside one, and in folders there, those with some names, which are relative to it."""
    list_sources([file.parent])
    tree = _trees[str(file.parent)]
    return Tree(tree.origin, filter(None, map(tree.find, dict.fromkeys(names))))


def list_origin(origin: Origin) -> Tree:
    """List what lies below a URL, or the one object that it is."""
    tree = Tree(origin, (entry for some in origin.below() for entry in some))
    if tree.is_folder(""):
        return tree
    bucket, _, key = str(origin.url).partition("://")[2].partition("/")
    if key or not bucket:
        above = origin_of(str(origin.url.parent))
        if (one := above.look(origin.url.name)) is not None:
            return Tree(above, [one])
    hint = "Check the URL"
    if has_magic(str(origin.url)):
        hint = "Patterns are for files of this machine: give the folder, or each object"
    raise SourceError("there is no such object, and none below it", origin.url, hint)


def _given_tree(url: URL, entries: Iterable[Entry]) -> Tree:
    found = iter(entries)
    first = list(islice(found, 1))
    if first and not first[0].name:  # the URL is of one object
        return Tree(origin_of(str(url.parent)), [first[0]._replace(name=url.name)])
    return Tree(origin_of(url), chain(first, found))


@contextmanager
def given(lists: Mapping[URL, Iterable[Entry]]) -> Iterator[None]:
    """Let URLs be what lists of their objects say, that were made before: they are not listed again meanwhile."""
    for url, entries in lists.items():
        _trees[str(url)] = _given_tree(url, entries)
        _given.add(str(url))
    try:
        yield
    finally:
        for url in lists:
            _given.discard(str(url))
            _trees.pop(str(url), None)


class RemoteFile:
    """Reads an object, or a range of it, which may have been fetched ahead."""

    __slots__ = ("_number", "_some", "end", "entry", "origin", "start", "where")

    def __init__(
        self, origin: Origin, entry: Entry, where: str, start: int = 0, end: int | None = None
    ) -> None:
        self.origin, self.entry, self.where = origin, entry, where
        self.start, self.end = start, entry.size if end is None else min(end, entry.size)
        self._some: Future[list[memoryview | str]] | None = None
        self._number = 0

    def __call__(self) -> bytes:
        """Return its bytes; SourceError if it is not what was listed."""
        if self._some is None:
            got = self.origin.objects([(self.entry, self.start, self.end)])[0]
        else:
            got = self._some.result()[self._number]
        if isinstance(got, str):
            raise SourceError(got, self.where, "Was the source changed? Then list it again")
        return bytes(got)

    @property
    def url(self) -> str:
        """Of the object."""
        return f"{self.origin.url}/{self.entry.name}"

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the object."""
        return (self.start, self.end) == (0, self.entry.size)

    def whole(self, most: int | None = None) -> RemoteFile:
        """Return what reads all of the object, or its first bytes."""
        return RemoteFile(self.origin, self.entry, self.where, 0, most)

    def open(self) -> BinaryIO:
        """Open it: what was fetched ahead, or else the object, to be read by ranges."""
        if self._some is not None:
            return io.BytesIO(self())
        reading: Any = _Reading(self.origin, self.entry, self.where)
        return reading  # type: ignore[no-any-return]

    def expect(self, some: Future[list[memoryview | str]], number: int) -> None:
        """Take its bytes from what is being fetched."""
        self._some, self._number = some, number


class StoredFiles:
    """The objects that a source has of a folder, in its order."""

    def __init__(self, root: ListedURL) -> None:
        self._origin = root.origin
        self._prefix = str(root)[len(str(self._origin.url)) :].lstrip("/")
        self._sizes, self._marks = array("Q"), array("Q")

    def add(self, entry: Entry) -> None:
        """Add one."""
        self._sizes.append(entry.size)
        self._marks.append(entry.mark)

    def reader(self, number: int, file: str, where: str) -> RemoteFile:
        """Return what reads the object of a number, whose name below the folder this is."""
        name = f"{self._prefix}/{file}".lstrip("/")
        entry = Entry(name, self._sizes[number], self._marks[number])
        return RemoteFile(self._origin, entry, where)


class _Reading(io.RawIOBase):
    """An object as a file: what is read in its order comes in larger and larger ranges."""

    def __init__(self, origin: Origin, entry: Entry, where: str) -> None:
        self._origin, self._entry, self._where = origin, entry, where
        self._at, self._next, self._size = 0, 0, _FIRST_BYTES
        self._first, self._data = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._entry.size}
        self._at = max(0, bases[whence] + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = self._entry.size - self._at
        wanted = left if size < 0 else min(size, left)
        pieces = []
        while wanted > 0:
            if not self._first <= self._at < self._first + len(self._data):
                self._fetch(wanted)
            start = self._at - self._first
            pieces.append(self._data[start : start + wanted])
            self._at += len(pieces[-1])
            wanted -= len(pieces[-1])
        return b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _fetch(self, wanted: int) -> None:
        is_next = self._at == self._next
        self._size = min(2 * self._size, _MOST_BYTES) if is_next else _FIRST_BYTES
        end = self._at + min(max(wanted, self._size), _MOST_BYTES)
        self._data = RemoteFile(self._origin, self._entry, self._where, self._at, end)()
        self._first, self._next = self._at, self._at + len(self._data)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An object of a source, for whoever reads it in ranges."""

    origin: Origin
    entry: Entry
    where: str

    def open(self) -> BinaryIO:
        """Open it, to be read by ranges: SourceError where that fails."""
        return self.reader(0, self.entry.size).open()

    def reader(self, start: int = 0, end: int | None = None) -> RemoteFile:
        """Return what reads it, or a range."""
        return RemoteFile(self.origin, self.entry, self.where, start, end)


def fetched_ahead(items: Iterator[T]) -> Generator[T]:
    """Yield items; the objects that they are, ``read``, or name as ``reads``, are fetched meanwhile, some ahead."""
    first = list(islice(items, 1))
    if not any(map(_files, first)):
        yield from first
        yield from items
        return
    pool = ThreadPoolExecutor(_ASKS, "fetch-ahead")
    ahead: deque[list[T]] = deque()
    try:
        while True:
            while len(ahead) < _ASKS and sum(map(_nbytes, ahead)) < _ASKS * _ASK_BYTES:
                if not (some := _some(first, items)):
                    break
                first = []
                _expect(pool, some)
                ahead.append(some)
            if not ahead:
                return
            yield from ahead.popleft()
    finally:
        pool.shutdown(cancel_futures=True)


def _some(first: list[T], items: Iterator[T]) -> list[T]:
    """Return the next items that one question is for."""
    some, nbytes = [*first], 0
    for item in items:
        some.append(item)
        nbytes += _nbytes([item])
        if len(some) >= _ASK_ITEMS or nbytes >= _ASK_BYTES:
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
