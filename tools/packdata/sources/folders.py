"""Folders of pictures (or of other files): one per class, or one for all.

Order and class numbers are those of torchvision's ``ImageFolder``: classes sorted by name, in each
the folders below it sorted by path, in each of those the files sorted by name.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from packdata.sources.base import (
    PICTURE_SUFFIXES,
    PICTURES,
    Column,
    FileHash,
    FileKind,
    Item,
    Source,
    check_unique,
    key_of,
    shared_keys,
    suffix_of,
)
from packdata.sources.refused import check_name
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from packdata.reading import File
    from packdata.sources.listed import Listing


class _Chosen:
    """The files of a kind in a listing, in order, but for those whose names end in ``without`` before the suffix."""

    def __init__(self, listing: Listing, kind: FileKind, without: str = "") -> None:
        self._listing, self._numbers = listing, array("I")
        self.ignored = Counter[str]()  # others, by suffix
        self.counts: Counter[str] = Counter()  # by class: the first folder
        hashed = FileHash()
        for folder in sorted(listing.folders, key=lambda path: (_class_of(f"{path}/"), path)):
            inside = listing.inside(folder)
            for number, path in zip(inside, listing.paths(inside), strict=True):
                suffix = suffix_of(path)
                if without and key_of(path).endswith(without):
                    continue
                if suffix not in kind.suffixes:
                    self.ignored[suffix or "no suffix"] += 1
                    continue
                check_name(path, listing.root / path)
                self._numbers.append(number)
                self.counts[_class_of(path)] += 1
                hashed.add(path, *listing.state(number))
        if not self._numbers:
            raise _no_files(listing.root, kind, self.ignored)
        self.identity = {"num_files": len(self), "files": hashed.hexdigest()}

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return self._listing.paths(self._numbers)

    def __getitem__(self, number: int) -> tuple[str, File]:
        return self._listing.at(self._numbers[number])


def _class_of(path: str) -> str:
    return path.partition("/")[0] if "/" in path else ""


class FolderSource(Source):
    """The files of a folder: with classes if they lie in folders of it, else without.

    Files whose names end, before the suffix, in ``without`` are skipped: masks beside their pictures.
    """

    listing: Listing

    def __init__(self, listing: Listing, kind: FileKind = PICTURES, without: str = "") -> None:
        self.listing, self.name = listing, listing.name
        self._files = files = _Chosen(listing, kind, without)
        num_top, folders = files.counts[""], listing.subfolders()
        classes = [folder for folder in folders if files.counts[folder]]
        if num_top and classes:
            top = few(islice(files, num_top), 3)
            what = f"{top} beside folders of {kind.names} ({few(classes)})"
            hint = "Move them into the folder of their class, or out of this one"
            raise SourceError(what, listing.root, hint)
        self.kind = "folder" if num_top else "classes"
        self.labels = {} if num_top else {"label": Column("class", tuple(classes))}
        self.other_folders = [name for name in folders if not files.counts[name]]
        self.ignored = dict(files.ignored)
        self.identity = {
            "kind": self.kind,
            "classes": [] if num_top else folders,
            **files.identity,
        }
        self._shared = shared_keys(lambda: files)
        if self._shared:  # else all keys were compared there
            check_unique(lambda: zip(self.keys(), files, strict=True), listing.root)

    def __len__(self) -> int:
        return len(self._files)

    def items(self, start: int = 0) -> Iterator[Item]:
        for number in range(start, len(self)):
            path, file = self._files[number]
            labels = {} if self.kind == "folder" else {"label": _class_of(path)}
            yield Item(key_of(path, self._shared), file.where, file, labels)

    def keys(self) -> Iterator[str]:
        return (key_of(path, self._shared) for path in self._files)


def _no_files(root: Path, kind: FileKind, ignored: Counter[str]) -> SourceError:
    seen = ", ".join(f"{count} x {suffix}" for suffix, count in ignored.most_common(5))
    hint = f"{kind.names.capitalize()} end in {' '.join(sorted(kind.suffixes))}"
    if kind is PICTURES:
        hint += "; tar, Parquet and IDX files are looked for in this folder alone, not below"
    return SourceError(f"no {kind.names}, but {seen or 'no files'}", root, hint)


def split_suffix(suffix: str) -> tuple[str, str]:
    """Return how the name of a picture ends that has a mask, and how the mask's does in its place."""
    old, has_both, new = suffix.partition("=")
    return (old, new) if has_both else ("", suffix)


class MaskFolder:
    """Masks in a folder, found by the key of their picture.

    Args:
        listing: Of the folder.
        kind: Which files are masks.
        suffix: How names of masks end where those of pictures do not, as ``_mask``; or what takes the place of
            what, as ``_leftImg8bit=_gtFine_labelIds``. Other files are no masks.
    """

    def __init__(self, listing: Listing, kind: FileKind = PICTURES, suffix: str = "") -> None:
        self._files = files = _Chosen(listing, kind)
        self._old, self._new = split_suffix(suffix)
        self._numbers: dict[str, int] = {}
        for number, path in enumerate(files):
            if (key := key_of(path)).endswith(self._new):
                picture = key[: len(key) - len(self._new)] + self._old
                if picture in self._numbers:
                    what = (
                        f"two masks of {picture!r}: {files[self._numbers[picture]][0]} and {path}"
                    )
                    raise SourceError(what, listing.root, "Rename or remove one")
                self._numbers[picture] = number
        if not self._numbers:
            what = f"none of {len(files)} files ends in {self._new!r}, such as {files[0][0]}"
            raise SourceError(what, listing.root, "Check mask_suffix=")
        self.root, self._suffix = (
            listing.root,
            min(kind.suffixes - PICTURE_SUFFIXES, default=".png"),
        )
        self.identity: dict[str, Any] = files.identity
        if suffix:
            self.identity["suffix"] = suffix

    def find(self, item: Item) -> File:
        """Return the mask for a picture; SourceError if there is none."""
        if (name := self.name(item.key)) is None:
            name = os.path.join(self.root, item.key.removesuffix(self._old) + self._new)
            hint = f"The mask is looked for as {name}{self._suffix}, say; mask_suffix= says how names end"
            raise SourceError("the mask is missing", item.where, hint)
        _, file = self._files[self._numbers[item.key]]
        return file.placed(item.place_of_mask(name))

    def name(self, key: str) -> str | None:
        """Return the path of the mask for a picture, beginning as the folder's was given."""
        number = self._numbers.get(key)
        return None if number is None else self._files[number][1].where
