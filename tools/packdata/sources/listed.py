"""Sources at URLs: listed once, so that they are looked at as folders are; read object by object, ahead of need.

A listing is kept by this process under its URL. A path below is a ``ListedURL``, which asks the listing what the file
system is asked of other paths; opened as a file, it is fetched as one first (``packdata.sources.fetched``). What is
read is compared with what was listed.
"""

from __future__ import annotations

import os
import stat
from array import array
from bisect import bisect_left, bisect_right
from contextlib import contextmanager
from fnmatch import fnmatchcase
from glob import glob, has_magic
from itertools import chain, compress, islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from loaders.errors import SourceError
from loaders.remote.origin import origin_of
from loaders.remote.url import URL, is_url, split_secrets
from loaders.remote.wire import Entry
from packdata.sources.fetched import expect_in_order, local_path
from packdata.sources.names import ByNumber, Names, appended, sent
from packdata.sources.objects import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from loaders.remote.origin import Origin


class _Folder:
    """What lies in a folder, by name."""

    __slots__ = ("folders", "is_sorted", "marks", "names", "sizes")

    def __init__(self) -> None:
        self.names = Names()
        self.sizes: Any = array("I")
        self.marks: Any = array("Q")
        self.folders: dict[str, None] = {}
        self.is_sorted = True

    def __getstate__(self) -> tuple[Any, ...]:
        self.sort()
        return self.names, self.folders, sent(self.sizes), sent(self.marks)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.names, self.folders, sizes, marks = state
        self.sizes, self.marks = memoryview(sizes), memoryview(marks)
        self.is_sorted = True

    def add(self, name: str, size: int, mark: int) -> None:
        """Add an object; most stores give them by name."""
        self.is_sorted = self.is_sorted and not (self.names and name < self.names[-1])
        self.names.append(name)
        self.sizes = appended(self.sizes, size)
        self.marks.append(mark)

    def find(self, name: str) -> int | None:
        """Return the number of an object, which is its place by name."""
        self.sort()
        i = bisect_left(self.names, name)
        return i if i < len(self.names) and self.names[i] == name else None

    def entry(self, above: str, number: int) -> Entry:
        """Return an object, under its name in a folder above (which ends in a slash, or is empty)."""
        return Entry(above + self.names.at(number), self.sizes[number], self.marks[number])

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        return zip(self.names, self.sizes, self.marks, strict=True)

    def sort(self) -> None:
        """Bring the objects into the order of their names."""
        if not self.is_sorted:
            found = sorted(self)
            self.names = Names(name for name, _, _ in found)
            self.sizes = array(self.sizes.typecode, (size for _, size, _ in found))
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
        self._sum = 0
        for entry in entries:
            self._sum += _hash(entry)
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

    def is_of(self, entries: Iterable[Entry]) -> bool:
        """Tell whether it is of these objects, in any order."""
        return sum(map(_hash, entries)) == self._sum

    def is_folder(self, path: str) -> bool:
        """Tell whether something lies below a path."""
        folder = self._folders.get(path)
        return folder is not None and bool(folder.names or folder.folders)

    def find(self, path: str) -> Entry | None:
        """Return an object."""
        above, _, name = path.rpartition("/")
        folder = self._folders.get(above)
        number = None if folder is None else folder.find(name)
        if folder is None or number is None:
            return None
        return folder.entry(path[: len(path) - len(name)], number)

    def only(self, names: Iterable[str]) -> Tree:
        """Return a listing of those objects that have one of some names."""
        wanted = {path: bytearray(len(folder.names)) for path, folder in self._folders.items()}
        for path in names:
            above, _, name = path.rpartition("/")
            folder = self._folders.get(above)
            if folder is not None and (number := folder.find(name)) is not None:
                wanted[above][number] = True
        if all(map(all, wanted.values())):
            return self
        return Tree(self.origin, compress(self, chain.from_iterable(wanted.values())))

    def inside(self, path: str) -> tuple[_Folder, Sequence[int], list[str]]:
        """Return what lies in a folder, by name: where the objects are, their numbers there, and names of folders."""
        folder = self._folders.get(path) or _Folder()
        folder.sort()
        both = {n for name in folder.folders if (n := folder.find(name)) is not None}
        for n in both:
            if folder.sizes[n]:  # else it stands for the folder, as some tools make
                what = "it is an object, and others lie below it as in a folder"
                where = self.origin.url / path / folder.names[n]
                raise SourceError(what, where, "Rename one of them")
        every = range(len(folder.names))
        return (
            folder,
            [n for n in every if n not in both] if both else every,
            sorted(folder.folders),
        )

    @property
    def num_bytes(self) -> int:
        """Of all objects."""
        return sum(sum(folder.sizes) for folder in self._folders.values())

    def __len__(self) -> int:
        return sum(len(folder.names) for folder in self._folders.values())

    def __iter__(self) -> Iterator[Entry]:
        for path, folder in self._folders.items():
            prefix = f"{path}/" if path else ""
            for name, *about in folder:
                yield Entry(prefix + name, *about)


def _hash(entry: Entry) -> int:
    text = f"{entry.name}\0{entry.size},{entry.mark}"
    return xxhash.xxh3_128_intdigest(text.encode(errors="surrogateescape"))


_trees: dict[str, Tree] = {}
_beside: dict[
    str, Tree
] = {}  # folders, without those in them, in which what is no source was looked for
_given: set[str] = set()  # of which the list was made elsewhere
_sent: dict[str, RemoteFile] = {}  # objects that another process has listed


class ListedURL(URL):
    """A folder or object of a source that was listed."""

    def _found(self) -> tuple[Tree | None, str]:
        text = above = str(self)
        while (tree := _trees.get(above)) is None and "/" in above:
            above = above.rpartition("/")[0]
        if tree is None:
            tree = _beside.get(text, _beside.get(str(self.parent)))
        return tree, "" if tree is None else _name_in(tree, text)

    @property
    def origin(self) -> Origin:
        """What reads it; names of objects begin at the URL that was listed."""
        tree, _ = self._found()
        if tree is None:
            raise SourceError("it was not listed", self)
        return tree.origin

    @property
    def stored(self) -> RemoteFile | None:
        """The object behind this path; None if there is none."""
        tree, path = self._found()
        if tree is None:
            return _sent.get(str(self))
        entry = tree.find(path)
        return None if entry is None else RemoteFile(tree.origin, entry, str(self))

    def __fspath__(self) -> str:
        """Return the path of the object as a file of this machine, as which it is fetched now; else the URL."""
        stored = self.stored
        return str(self) if stored is None or self.is_dir() else local_path(stored)

    def __reduce__(self) -> Any:
        return _sent_url, (str(self), self.stored)

    def iterdir(self) -> Generator[ListedURL]:
        """Yield what is directly inside."""
        files, folders = self.scan()
        yield from (self / name for name in [*(file.name for file in files), *folders])

    def glob(self, pattern: str, **_: Any) -> Generator[ListedURL]:
        """Yield what matches, level by level."""
        first, rest = [*pattern.split("/", 1), ""][:2]
        for path in self.iterdir():
            if fnmatchcase(path.name, first):
                yield from path.glob(rest) if rest else [path]

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

    def scan(self) -> tuple[Sequence[ListedEntry], list[str]]:
        """Return what is directly inside, by name: objects, and names of folders."""
        tree, path = self._found()
        if tree is None:
            return [], []
        folder, numbers, folders = tree.inside(path)
        return _ListedFolder(self, f"{path}/" if path else "", folder, numbers), folders


def _name_in(tree: Tree, url: str) -> str:
    above = f"{tree.origin.url}/"
    return url[len(above) :] if url.startswith(above) else ""


def _sent_url(text: str, stored: RemoteFile | None) -> ListedURL:
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
    kept: _Folder  # where the listing has it, and its number there
    number: int

    @property
    def path(self) -> str:
        """The URL."""
        return f"{self.folder}/{self.name}"

    def stat(self) -> Any:
        """Tell its size and what changes with it."""
        return stat_of(self.entry)


class _ListedFolder(ByNumber[ListedEntry]):
    """The objects in a folder: of tens of millions there is no list beside the listing."""

    def __init__(
        self, url: ListedURL, above: str, folder: _Folder, numbers: Sequence[int]
    ) -> None:
        self._url, self._above, self._folder, self._numbers = url, above, folder, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def at(self, number: int) -> ListedEntry:
        number, folder = self._numbers[number], self._folder
        entry = folder.entry(self._above, number)
        return ListedEntry(entry.name[len(self._above) :], entry, self._url, folder, number)


def place_of_source(path: Path | str) -> Path:
    """Return a path, or a URL that was listed."""
    if isinstance(path, ListedURL):
        return path
    return ListedURL(str(split_secrets(path)[0])) if is_url(path) else Path(path)


def real_path(path: Path | str) -> str:
    """Return what all names of a file have in common; of a URL, itself."""
    place = place_of_source(path)
    return str(place) if isinstance(place, ListedURL) else os.path.realpath(place)


def bytes_of(sources: Iterable[Path | str]) -> int | None:
    """Return how many bytes sources have; None if one is a folder or pattern, of whose files that is not known."""
    total = 0
    for place in map(place_of_source, sources):
        if isinstance(place, ListedURL) and (tree := _trees.get(str(place))) is not None:
            total += tree.num_bytes
        elif place.is_file():
            total += place.stat().st_size
        else:
            return None
    return total


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
        earlier = _trees.get(str(origin.url))
        # Of tens of millions a second tree would take the same room again.
        if not earlier or earlier.origin.url != origin.url or not earlier.is_of(_objects(origin)):
            _trees[str(origin.url)] = list_origin(origin)
        for root in [root for root in tuple(_trees) if root.startswith(f"{origin.url}/")]:
            if root not in _given:  # what was listed below it may be another by now
                del _trees[root]


def objects_beside(file: ListedURL) -> Tree:
    """Return the objects beside one, and in folders there."""
    list_sources([file.parent])
    return _trees[str(file.parent)]


def _objects(origin: Origin) -> Iterator[Entry]:
    return (entry for some in origin.below() for entry in some)


def list_origin(origin: Origin) -> Tree:
    """List what lies below a URL, or the one object that it is."""
    tree = Tree(origin, _objects(origin))
    if tree.is_folder(""):
        return tree
    bucket, _, key = str(origin.url).partition("://")[2].partition("/")
    if key or not bucket:
        above = origin_of(str(origin.url.parent))
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
        origin = origin_of(str(url))
        if entries := origin.in_folder()[0]:
            _beside[str(url)] = Tree(origin, entries)
            break
        _beside.pop(str(url), None)
    return path


def one_object(origin: Origin, tree: Tree) -> Entry | None:
    """Return the object that a URL is, where no other was listed of it."""
    return tree.find(origin.url.name) if tree.origin.url == origin.url.parent else None


def kept_entries(origin: Origin, tree: Tree) -> Iterator[Entry]:
    """Yield what was listed of a source as ``given`` takes it."""
    if tree.origin.url == origin.url:
        yield from tree
    elif (one := one_object(origin, tree)) is not None:  # which has no name below itself
        yield one._replace(name="")


def _given_tree(url: URL, entries: Iterable[Entry]) -> Tree:
    found = iter(entries)
    first = list(islice(found, 1))
    entries = chain(first, found)
    name = first[0].name if first else "."
    if not name:  # the URL is of one object
        return Tree(origin_of(str(url.parent)), [first[0]._replace(name=url.name)])
    return Tree(origin_of(url), entries)


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


class StoredFiles(ByNumber[str]):
    """The objects that a source has of a folder, in its order, by their names below it; the listing has them."""

    def __init__(self, root: ListedURL) -> None:
        self._origin = root.origin
        self._prefix = str(root)[len(str(self._origin.url)) :].lstrip("/")
        self._folders: list[tuple[str, _Folder]] = []
        self._starts = array("Q")  # the first object of each
        self._numbers: Any = array("I")  # of each object, in its folder

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_numbers": sent(self._numbers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _numbers=memoryview(state["_numbers"]))

    def add(self, entry: ListedEntry) -> None:
        """Add one."""
        if not self._folders or self._folders[-1][1] is not entry.kept:
            above = entry.entry.name[: -len(entry.name)]
            self._folders.append((above, entry.kept))
            self._starts.append(len(self._numbers))
        self._numbers = appended(self._numbers, entry.number)

    def __len__(self) -> int:
        return len(self._numbers)

    def at(self, number: int) -> str:
        return self._entry(number).name[len(self._prefix) :].lstrip("/")

    def __iter__(self) -> Iterator[str]:
        for (above, folder), (start, end) in zip(
            self._folders, pairwise([*self._starts, len(self)]), strict=True
        ):
            inside, names = above[len(self._prefix) :].lstrip("/"), folder.names
            yield from (inside + names[self._numbers[i]] for i in range(start, end))

    def _entry(self, number: int) -> Entry:
        above, folder = self._folders[bisect_right(self._starts, number) - 1]
        return folder.entry(above, self._numbers[number])

    def reader(self, number: int, where: str) -> RemoteFile:
        """Return what reads the object of a number."""
        return RemoteFile(self._origin, self._entry(number), where)
