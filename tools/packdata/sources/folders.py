"""Folders of pictures (or of other files): one per class, or one for all.

Order and class numbers are those of torchvision's ``ImageFolder``: classes sorted by name, in each
the folders below it sorted by path, in each of those the files sorted by name.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from packdata.describe import few
from packdata.sources.base import ExtendedSource, Item, Source
from packdata.sources.columns import LABEL, Column
from packdata.sources.duplicates import check_unique
from packdata.sources.listed import hash_of_files
from packdata.sources.names import (
    PICTURES,
    FileKind,
    check_name,
    foreign_hint,
    is_split,
    key_of,
    shared_keys,
    suffix_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packdata.reading import File
    from packdata.sources.listed import Listing


_BESIDE_IMAGES = frozenset({"masks", "labels", "annotations"})


class _Chosen:
    """The files of a kind in a listing, in order, but for those whose names end in ``without`` before the suffix."""

    def __init__(self, listing: Listing, kind: FileKind, without: str = "") -> None:
        self._listing, self._numbers = listing, array("I")
        self.ignored = Counter[str]()  # others, by suffix
        self.classes: dict[str, None] = {}  # the first folders, "" of files that are in none
        digest = hash_of_files(self._choose(kind, without))
        self.identity = {"num_files": len(self), "files": digest}
        if not self._numbers:
            seen = few(f"{count} x {suffix}" for suffix, count in self.ignored.most_common(5))
            usual = f"{kind.names.capitalize()} end in {' '.join(sorted(kind.suffixes))}"
            if kind is PICTURES:
                usual += "; tar and Parquet files are looked for here alone, not below"
            hint = next(filter(None, map(foreign_hint, listing)), usual)
            what = f"no {kind.names}" + (f", but {seen}" if seen else "")
            raise SourceError(what, listing.root, hint)

    def _choose(self, kind: FileKind, without: str) -> Iterator[tuple[str, int, int]]:
        """Note numbers and classes of the files, and yield their paths, sizes and marks."""
        listing = self._listing
        for folder in sorted(listing.folders, key=lambda path: (path.partition("/")[0], path)):
            inside = listing.inside(folder)
            for number, path in zip(inside, listing.paths(inside), strict=True):
                suffix = suffix_of(path)
                if without and key_of(path).endswith(without):
                    continue
                if suffix not in kind.suffixes:
                    self.ignored[suffix or "no suffix"] += 1
                    continue
                if not path.isascii():
                    check_name(path, listing.root / path)
                self._numbers.append(number)
                self.classes[folder.partition("/")[0]] = None
                yield path, *listing.state(number)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return self._listing.paths(self._numbers)

    def __getitem__(self, number: int) -> tuple[str, File]:
        return self._listing.at(self._numbers[number])


class FolderSource(Source):
    """The files of a folder: with classes if they lie in folders of it, else without.

    Files whose names end, before the suffix, in ``without`` are skipped: masks beside their pictures.
    """

    def __init__(self, listing: Listing, kind: FileKind = PICTURES, without: str = "") -> None:
        self.listing, self.name = listing, listing.name
        self._files = files = _Chosen(listing, kind, without)
        folders, classes = listing.subfolders(), [*filter(None, files.classes)]
        if "" in files.classes and classes:
            top = few((path for path in islice(files, 4) if "/" not in path), 3)
            what = f"{top} beside folders of {kind.names} ({few(classes)})"
            hint = "Move them into the folder of their class, or out of this one"
            raise SourceError(what, listing.root, hint)
        self.kind = "classes" if classes else "folder"
        self.labels = {LABEL: Column("class", tuple(classes))} if classes else {}
        self.other_folders = [name for name in folders if name not in files.classes]
        self.ignored = dict(files.ignored)
        names = folders if classes else []
        self.identity = {"kind": self.kind, "classes": names, **files.identity}
        self._shared = shared_keys(lambda: files)
        if self._shared:  # else all keys were compared there
            check_unique(lambda: ((key_of(p, self._shared), p) for p in files), listing.root)

    def __len__(self) -> int:
        return len(self._files)

    def items(self, start: int = 0) -> Iterator[Item]:
        for number in range(start, len(self)):
            path, file = self._files[number]
            labels = {LABEL: path.partition("/")[0]} if self.labels else {}
            yield Item(key_of(path, self._shared), file.where, file, labels)


def check_classes(source: FolderSource, *, is_all: bool, has_annotations: bool) -> None:
    """Raise SourceError if folders that would be classes are something else.

    Args:
        source: A folder, or one of a split.
        is_all: True if no split of several classes has them.
        has_annotations: Whether there are annotations, with which folders are no classes.
    """
    folders, root = source.labels[LABEL].classes, source.listing.root
    names = {name.lower(): name for name in folders}
    if not has_annotations:
        names |= {name.lower(): name for name in source.other_folders}
    splits = [name for name in folders if is_split(name)]
    beside = sorted(names[name] for name in _BESIDE_IMAGES & names.keys())
    if splits:
        what, hint = (
            f"splits ({few(splits)}) are not classes",
            "Pack each split by itself, with the same classes=",
        )
    elif "images" in names and beside:
        what = f"{few([names['images'], *beside])} are not classes"
        hint = f"Pack {root / names['images']}, with masks= or annotations="
    elif is_all and not has_annotations and len(folders) == 1:
        what, hint = f"{folders[0]} would be the only class", f"Pack {root / folders[0]}"
    else:
        return
    # With annotations classes= names those of boxes.
    hint += "; if these are classes, name them with classes=" * (not has_annotations)
    raise SourceError(what, root, hint)


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
        self.root, self._files = listing.root, _Chosen(listing, kind)
        self._old, self._new = split_suffix(suffix)
        self._numbers: dict[str, int] = {}
        for number, path in enumerate(self._files):
            if (key := key_of(path)).endswith(self._new):
                picture = key[: len(key) - len(self._new)] + self._old
                if (other := self._numbers.setdefault(picture, number)) != number:
                    what = f"two masks of {picture!r}: {self._files[other][0]} and {path}"
                    raise SourceError(what, self.root, "Rename or remove one")
        if not self._numbers:
            first, _ = self._files[0]
            what = f"none of {len(self._files)} files ends in {self._new!r}, such as {first}"
            raise SourceError(what, self.root, "Check mask_suffix=")
        self.identity: dict[str, Any] = self._files.identity
        if suffix:
            self.identity["suffix"] = suffix

    def masked(self, source: Source) -> Source:
        """Return a source whose items have these masks."""
        identity = {"masks": self.identity}
        masked = ExtendedSource(source, source.labels, identity, self._with_mask)
        masked.has_masks, masked.mask_folder = True, self.root.name
        return masked

    def check_used(self, source: Source) -> None:
        """Raise SourceError for a mask of no picture: it may be a picture, called so by chance."""
        if unused := self._numbers.keys() - {item.key for item in source.items()}:
            what = (
                f"{min(unused).removesuffix(self._old)}{self._new} would be the mask of no picture"
            )
            raise SourceError(what, self.root, "Rename it if it is a picture, else remove it")

    def _with_mask(self, item: Item) -> Item:
        return replace(item, read_mask=self.find(item))

    def find(self, item: Item) -> File:
        """Return the mask for a picture; SourceError if there is none."""
        if (number := self._numbers.get(item.key)) is None:
            name = os.path.join(str(self.root), item.key.removesuffix(self._old) + self._new)
            hint = f"The mask is looked for as {name}, with any suffix; mask_suffix= says how names end"
            raise SourceError("the mask is missing", item.where, hint)
        _, file = self._files[number]
        return replace(file, where=f"{item.where} (mask {file.where})")
