"""Folders of pictures (or of other files): one per class, or one for all.

Order and class numbers are those of torchvision's ``ImageFolder``: classes sorted by name, in each
the folders below it sorted by path, in each of those the files sorted by name.
"""

from __future__ import annotations

import os
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from packdata.sources.base import (
    PICTURES,
    Column,
    File,
    FileHash,
    FileKind,
    Item,
    LocalFile,
    Source,
    check_unique,
    file_at,
    is_hidden,
    key_of,
    shared_keys,
    suffix_of,
)
from packdata.sources.listed import ListedEntry, ListedURL, StoredNames, real_path
from packdata.sources.names import Names
from packdata.sources.objects import RemoteFile
from packdata.sources.refused import check_name
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Entry = os.DirEntry[str] | ListedEntry
LINK_ABOVE = "link to a folder above"


class Listing:
    """The files of a kind in a folder and below it, relative to ``root``, in order."""

    def __init__(self, root: Path, kind: FileKind = PICTURES, without: str = "") -> None:
        self.root, self._suffixes, self._without = root, kind.suffixes, without
        # Their relative paths with forward slashes.
        self.files = StoredNames(root) if isinstance(root, ListedURL) else Names()
        # Other files passed over, by suffix; also each ``link to a folder above``.
        self.ignored: Counter[str] = Counter()
        self._hash = FileHash()

    @property
    def digest(self) -> str:
        """A hash of the names, sizes and modification times of the files."""
        return self._hash.hexdigest()

    def add_top(self) -> list[str]:
        """List the files directly in ``root``; return the folders beside them, sorted."""
        entries, folders = scan(self.root)
        self._add("", entries)
        return [name for name in folders if not is_hidden(name)]

    def add_below(self, folder: str) -> None:
        """List the files in a folder of ``root`` and below it."""
        found = list(files_below(self.root, folder))
        for relative, entries in sorted(found, key=lambda pair: pair[0]):
            if entries is None:
                self.ignored[LINK_ABOVE] += 1
            else:
                self._add(f"{relative}/", entries)

    def _add(self, prefix: str, entries: Iterable[Entry]) -> None:
        for entry in entries:
            name = entry.name
            suffix = suffix_of(name)
            if is_hidden(name):
                continue
            if self._without and key_of(name).endswith(self._without):
                continue
            if suffix not in self._suffixes:
                self.ignored[suffix or "no suffix"] += 1
                continue
            relative = prefix + name
            check_name(relative, entry.path)
            if isinstance(self.files, Names):
                self.files.append(relative)
            elif isinstance(entry, ListedEntry):
                self.files.append(entry.number)
            self._hash.add(relative, _stat(entry))


def files_below(root: Path, folder: str = "") -> Iterator[tuple[str, Iterable[Entry] | None]]:
    """Yield a folder of ``root``, by default itself, and all below it, with their files, in no order.

    Links are followed; what leads to a folder above, be it of ``root`` itself, has None. Folders
    are named relative to ``root``; hidden ones are passed over. SourceError where one cannot be listed.
    """
    above = {*map(str, Path(real_path(root)).parents), *([real_path(root)] if folder else [])}
    pending = [(folder, above)]
    while pending:
        relative, above = pending.pop()
        real = real_path(root / relative)
        if real in above:
            yield relative, None
            continue
        entries, folders = scan(root / relative)
        yield relative, entries
        inner = (f"{relative}/{name}".lstrip("/") for name in folders if not is_hidden(name))
        pending += [(path, above | {real}) for path in inner]


def scan(folder: Path) -> tuple[Iterable[Entry], list[str]]:
    """Return files and names of folders, sorted; a link counts as what it leads to. SourceError if that fails."""
    if isinstance(folder, ListedURL):
        return folder.scan()
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        folders = [entry.name for entry in entries if _is_folder(entry)]
    except OSError as error:
        raise SourceError(f"the folder cannot be listed ({error.strerror})", folder) from error
    names = set(folders)
    return [entry for entry in entries if entry.name not in names], folders


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: it is rejected when it is read
        return False


def _stat(entry: Entry) -> os.stat_result | None:
    try:
        return entry.stat()
    except OSError:  # a link to nowhere: it is rejected when it is read
        return None


class FolderSource(Source):
    """The files of a folder: with classes if they lie in folders of it, else without.

    Files whose names end, before the suffix, in ``without`` are passed over: masks beside their pictures.
    """

    root: Path

    def __init__(self, root: Path, kind: FileKind = PICTURES, without: str = "") -> None:
        self.root, self._place = root, root.absolute()  # files are read when they are packed
        self.name = root.resolve().name
        listing = Listing(root, kind, without)
        folders = listing.add_top()
        num_top = len(listing.files)
        classes = [folder for folder in folders if _adds_files(listing, folder)]
        if num_top and len(listing.files) > num_top:
            raise _mixed(root, kind, listing.files, num_top)
        if not listing.files:
            raise no_files(root, kind, listing.ignored)
        self.kind = "folder" if num_top else "classes"
        self.labels = {}
        if not num_top:
            self.labels = {"label": Column("class", tuple(classes))}
        self.other_folders = [name for name in folders if name not in classes]
        self.ignored = dict(listing.ignored)
        self._files = listing.files
        self.identity = {
            "kind": self.kind,
            "classes": [] if num_top else folders,
            "num_files": len(self._files),
            "files": listing.digest,
        }
        self._shared = shared_keys(lambda: self._files)
        if self._shared:  # else all keys were compared there
            check_unique(lambda: zip(self.keys(), self._files, strict=True), root)

    def __len__(self) -> int:
        return len(self._files)

    def items(self, start: int = 0) -> Iterator[Item]:
        labelled, root = self.kind == "classes", str(self.root)
        for i in range(start, len(self._files)):
            file = self._files[i]
            where = os.path.join(root, file)
            labels = {"label": file.split("/", 1)[0]} if labelled else {}
            key = key_of(file, self._shared)
            if isinstance(self._files, Names):
                read: File = LocalFile(os.path.join(self._place, file), where)
            else:
                read = self._files.reader(i, where)
            yield Item(key, where, read, labels)

    def keys(self) -> Iterator[str]:
        return (key_of(file, self._shared) for file in self._files)


def _adds_files(listing: Listing, folder: str) -> bool:
    before = len(listing.files)
    listing.add_below(folder)
    return len(listing.files) > before


def _mixed(root: Path, kind: FileKind, files: Iterable[str], num_top: int) -> SourceError:
    top, below = [*islice(files, num_top)], islice(files, num_top, None)
    folders = sorted({file.split("/", 1)[0] for file in below})
    what = f"{few(top, 3)} beside folders of {kind.names} ({few(folders)})"
    return SourceError(what, root, "Move them into the folder of their class, or out of this one")


def no_files(root: Path, kind: FileKind, ignored: Counter[str]) -> SourceError:
    """Return the error that there is nothing of a kind, with what is there instead."""
    if not ignored:
        return SourceError(f"no {kind.names}", root, "Check the path")
    seen = ", ".join(f"{count} x {suffix}" for suffix, count in ignored.most_common(5))
    hint = f"{kind.names.capitalize()} end in {' '.join(sorted(kind.suffixes))}"
    if kind is PICTURES:
        hint += "; tar, Parquet and IDX files are looked for in this folder alone, not below"
    return SourceError(f"no {kind.names}, but {seen}", root, hint)


def split_suffix(suffix: str) -> tuple[str, str]:
    """Return how the name of a picture ends that has a mask, and how the mask's does in its place."""
    old, has_both, new = suffix.partition("=")
    return (old, new) if has_both else ("", suffix)


class MaskFolder:
    """Masks in a folder, found by the key of their picture.

    Args:
        root: The folder.
        kind: Which files are masks.
        suffix: How names of masks end where those of pictures do not, as ``_mask``; or what takes the place of
            what, as ``_leftImg8bit=_gtFine_labelIds``. Other files are no masks.
    """

    def __init__(self, root: Path, kind: FileKind = PICTURES, suffix: str = "") -> None:
        listing = Listing(root, kind)
        for folder in listing.add_top():
            listing.add_below(folder)
        if not listing.files:
            raise no_files(root, kind, listing.ignored)
        self._old, self._new = split_suffix(suffix)
        keys = [(key_of(file), file) for file in listing.files]
        masks = [(self._picture(key), file) for key, file in keys if key.endswith(self._new)]
        if not masks:
            what = f"none of its {len(keys)} files ends in {self._new!r}, such as {keys[0][1]} does not"
            raise SourceError(what, root, "Check mask_suffix=")
        check_unique(lambda: masks, root)
        self.root, self._place, self._kind = root, root.absolute(), kind
        self.identity: dict[str, Any] = {"num_files": len(listing.files), "files": listing.digest}
        if suffix:
            self.identity["suffix"] = suffix
        self.files = dict(masks)

    def _picture(self, key: str) -> str:
        """Return the key of the picture that a mask is of."""
        return key[: len(key) - len(self._new)] + self._old if self._new or self._old else key

    def find(self, item: Item) -> File:
        """Return the mask for a picture; SourceError if there is none."""
        file = self.files.get(item.key)
        if file is None:
            suffix = ".png" if self._kind is PICTURES else min(self._kind.suffixes)
            name = os.path.join(self.root, item.key.removesuffix(self._old) + self._new) + suffix
            hint = f"The mask is looked for as {name} (or another suffix)"
            hint += "" if self._new or self._old else "; mask_suffix= says how else names end"
            raise SourceError("the mask is missing", item.where, hint)
        found = file_at(self._place / file)
        where = item.place_of_mask(self.name(item.key))
        return found if isinstance(found, RemoteFile) else LocalFile(found.path, where)

    def name(self, key: str) -> str | None:
        """Return the path of the mask for a picture, beginning as the folder's was given."""
        file = self.files.get(key)
        return None if file is None else os.path.join(self.root, file)
