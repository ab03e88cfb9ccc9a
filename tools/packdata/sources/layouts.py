"""Folders that look like classes and are something else: splits, pictures and masks, one folder around all.

A public dataset, unpacked, has such a root. Read as a folder per class it would give wrong labels, so
``check_layout`` stops with the command that is meant. Names decide, and where files lie.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loaders.errors import SourceError
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

SPLIT_NAMES = ("train", "training", "val", "valid", "validation", "test", "testing")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SPLITS = {
    **dict.fromkeys(_words("train training trainset trn tr"), "train"),
    **dict.fromkeys(_words("val valid validation valset dev eval evaluation"), "val"),
    **dict.fromkeys(_words("test testing testset tst ts"), "test"),
    "trainval": "trainval",
}
# Beside one of the above: what else is no class.
_MORE_SPLITS = _words("extra unlabeled unlabelled pred predict inference holdout query")
_PICTURES = _words(
    "image images img imgs picture pictures photo photos jpg jpeg png rgb frame frames input inputs"
)
_MASKS = _words(
    "mask masks label labels annotation annotations seg segmentation segmentations gt groundtruth "
    "truth trimap trimaps target targets semantic instance instances matte mattes"
)
_AROUND = _words(
    "set sets data dataset datasets split archive all raw files folder download downloads extracted "
    "original samples fold part batch chunk new"
)
_NO_MEANING = _words("left right bit fine coarse class object ground color camera cls loc")
_MANY = 3  # folders: from here on it is no accident if others hold the same

_OTHERWISE = "or, if these are classes, --classes FILE with their names"


@dataclass(frozen=True, slots=True)
class _FolderName:
    """What the name of a folder says: the words are sorted by what they may mean."""

    # ``train``, ``trainval``, ``val`` or ``test``; ``more`` of another word for data apart.
    split: str
    role: str  # ``pictures`` or ``masks``
    rest: frozenset[str]  # all other words
    is_vague: bool  # True of what is no class: ``images``, ``data``, ``archive``, ``part_1``

    @classmethod
    def of(cls, name: str) -> _FolderName:
        words = frozenset(word.lower() for word in _WORD.findall(name))
        splits = [_SPLITS[word] for word in sorted(words) if word in _SPLITS]
        split = splits[0] if splits else "more" if words & _MORE_SPLITS else ""
        role = "masks" if words & _MASKS else "pictures" if words & _PICTURES else ""
        known = _MORE_SPLITS | _MASKS | _PICTURES | _NO_MEANING | _AROUND
        rest = words - known - frozenset(_SPLITS)
        is_vague = not split and not rest and bool(role or words & _AROUND)
        return cls(split, role, rest, is_vague)


class _Tree:
    """Folders that hold files, as paths below a root, seen from a folder of it; and what it is, if no folder per class.

    Attributes:
        path: The folder.
        has_files: True if files lie directly in it.
    """

    def __init__(self, path: Path, folders: Iterable[str], command: str) -> None:
        self.path, self.has_files, self._command = path, False, command
        # The trees that files lie in, by name, each made when it is asked for.
        self.inner: defaultdict[str, list[str]] = defaultdict(list)
        for folder in folders:
            first, _, rest = folder.partition("/")
            if first:
                self.inner[first].append(rest)
            else:
                self.has_files = True

    def at(self, name: str) -> _Tree:
        return _Tree(self.path / name, self.inner[name], self._command)

    def only(self) -> _Tree:
        """Return the first tree on the way down that holds files, or several folders."""
        if self.has_files or len(self.inner) != 1:
            return self
        return self.at(next(iter(self.inner))).only()

    def read(self, are_classes: bool = True) -> tuple[str, str] | None:
        """Return what is wrong with it as a folder per class, and the right command."""
        if self.has_files or all(name.lower() in SPLIT_NAMES for name in self.inner):
            return None
        names = {name: _FolderName.of(name) for name in self.inner}
        found = self._masks(names) or self._splits(names)
        if found or not are_classes:
            return found
        return self._single() if len(names) == 1 else self._several(names)

    def _run(self, more: str = "", dst: str = "DST", path: Path | None = None) -> str:
        path = path or self.path
        boxes = "" if more else _annotations_of(path)
        return f"packdata {self._command} {shlex.quote(str(path))} {dst}{more}{boxes}"

    def _meant(self) -> str:
        """Return the command for a tree that lies inside another."""
        inside = self.only()
        found = inside.read()
        return found[1] if found else inside._run()

    def _masks(self, names: Mapping[str, _FolderName]) -> tuple[str, str] | None:
        """Pictures in one folder, masks in another: ``JPEGImages`` and ``SegmentationClass``."""
        for mask in (name for name, said in names.items() if said.role == "masks"):
            pictures = _pictures_of(mask, names)
            if pictures:
                what = f"it holds pictures and their masks ({few([pictures[0], mask], 4)}), not classes"
                inside = self.at(pictures[0]).only()
                return what, inside._run(_masks_at(self.at(mask), inside.path))
            if self.at(mask).inner.keys() & (names.keys() - {mask}):
                what = f"{mask} holds the masks of its other folders"
                return what, f"after moving {mask} elsewhere, {self._run()} --masks {mask}"
        return None

    def _splits(self, names: Mapping[str, _FolderName]) -> tuple[str, str] | None:
        """Splits under other names: ``train2017``, ``seg_test``."""
        alike: defaultdict[frozenset[str], dict[str, str]] = defaultdict(dict)
        for name, said in names.items():
            if said.split:
                alike[said.rest][name] = said.split
        for found in alike.values():
            is_known = {*found.values()} - {"more"}
            is_apart = len({*found.values()}) > 1 or len(found) == len(names)
            if len(found) > 1 and is_known and is_apart:
                what = f"it holds splits ({few([*found], 4)}), not classes"
                return what, self.each([*found])
        if len(names) == 1 and alike:
            return f"it holds a split ({next(iter(names))}), not classes", self._meant()
        return None

    def each(self, splits: Sequence[str]) -> str:
        """Return a command for each split: all have the classes of the first."""
        ordered = sorted(splits, key=lambda name: (_FolderName.of(name).split != "train", name))
        names = {name: _FolderName.of(name) for name in self.inner}
        masks = [n for n, said in names.items() if said.role == "masks" and n not in splits]
        commands, classes = [], ""
        for name in ordered:
            inside = self.at(name).only()
            dst = f"DST/{shlex.quote(name)}"
            more = "" if inside.has_files else classes
            of_these = [self.at(n) for n in masks if name in _pictures_of(n, names)]
            more += _masks_at(of_these[0], inside.path) if of_these else ""
            commands.append(inside._run(more, dst))
            classes = classes or f" --classes {dst}"
        return "; ".join(commands)

    def _single(self) -> tuple[str, str] | None:
        """One folder around all: ``archive``."""
        (name,) = self.inner
        inside = self.at(name)
        if inside.has_files and not _FolderName.of(name).is_vague:
            return None
        where = "in folders of " if not inside.has_files else "in "
        what = f"everything in it lies {where}{name}, which would be the only class"
        return what, self._meant()

    def _several(self, names: Mapping[str, _FolderName]) -> tuple[str, str] | None:
        """Parts of a dataset, or datasets, beside each other."""
        if all(said.is_vague for said in names.values()):
            what = f"its folders ({few(names, 4)}) are named like parts of one dataset, not like classes"
            listed = "of the columns path and label, or one folder with all files"
            listed_in = self._run(path=self.path / "list.csv")
            return what, f"a .csv list {listed}: {listed_in}"
        trees = [self.at(name) for name in names]
        is_deep = not any(each.has_files for each in trees)
        if is_deep and (found := _apart_below(names, trees) or _same_below(names, trees)):
            return found
        around = [t for t in trees if names[t.path.name].is_vague and not t.has_files]
        if around:
            what = f"{around[0].path.name} holds only folders: it is not a class, but a folder around classes"
            return what, around[0]._meant()
        return None


def check_layout(
    root: Path, folders: Sequence[str], command: str, *, are_classes: bool = True
) -> None:
    """Raise SourceError if folders that would be classes are something else.

    Args:
        root: The source.
        folders: Each folder below it that holds files itself, relative and with forward slashes.
        command: ``images`` or ``arrays``.
        are_classes: False where folders say nothing: only splits and masks are looked for.
    """
    found = _Tree(root, folders, command).read(are_classes)
    if found is not None:
        what, meant = found
        raise SourceError(what, root, f"You probably want: {meant} ({_OTHERWISE})")


def split_commands(root: Path, folders: Sequence[str], splits: Sequence[str], command: str) -> str:
    """Return the commands that pack the splits below a root, each by itself; see ``check_layout``."""
    return _Tree(root, folders, command).each(splits)


def masks_beside(root: Path) -> list[Path]:
    """Return the folders that by their names hold masks, beside one of pictures or beside the one that it lies in."""
    for pictures, split in ((root.resolve(), ""), (root.resolve().parent, root.resolve().name)):
        if _is_vaguely(pictures, "pictures"):
            beside = [f for f in _folders(pictures.parent) if _is_vaguely(f, "masks")]
            if found := [folder / split for folder in beside if (folder / split).is_dir()]:
                return found
    return []


def _is_vaguely(folder: Path, role: str) -> bool:
    name = _FolderName.of(folder.name)
    return name.is_vague and name.role == role


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir())
    except OSError:  # one above it that may not be listed
        return []


def _apart_below(names: Iterable[str], trees: Sequence[_Tree]) -> tuple[str, str] | None:
    """Splits, or pictures and masks, in each folder: ``VOC2007`` and ``VOC2012``, or samples."""
    for tree in trees:
        inner = {name: _FolderName.of(name) for name in tree.inner}
        if len(inner) < 2 or not (tree._masks(inner) or tree._splits(inner)):
            return None
    what = f"its folders ({few(names, 4)}) hold splits or masks ({few(trees[0].inner, 4)})"
    return what, f"{trees[0]._meant()} and so on; or a .csv list of all files"


def _same_below(names: Collection[str], trees: Sequence[_Tree]) -> tuple[str, str] | None:
    """The same folders in each of few: those are the classes."""
    first = trees[0].inner.keys()
    if len(first) < max(_MANY, len(names) + 1) or any(t.inner.keys() != first for t in trees):
        return None
    what = f"its folders ({few(names, 4)}) all hold folders of the same names ({few(first, 4)})"
    runs = [t._run(dst=f"DST/{shlex.quote(t.path.name)}") for t in trees]
    return what, "; ".join(runs)


def _pictures_of(mask: str, names: Mapping[str, _FolderName]) -> list[str]:
    """Return the folders of pictures that the masks in another may be of, the likeliest first."""
    said = names[mask]
    alike = {
        name: other for name, other in names.items() if name != mask and other.rest == said.rest
    }
    found = [name for name, other in alike.items() if other.role == "pictures"]
    plain = {
        name: other
        for name, other in alike.items()
        if not other.role and (said.rest or said.split)
    }
    found += [name for name, other in plain.items() if other.split == said.split]
    return sorted(found, key=lambda name: names[name].split != said.split)


def _annotations_of(pictures: Path) -> str:
    """Return the option for annotations that lie where public datasets have them; "" if there are none.

    COCO's beside the folder of a split or of all splits, VOC's beside ``JPEGImages``, and YOLO's in a folder
    ``labels`` with the same folders as ``images`` has.
    """
    beside, name = pictures.parent, pictures.name
    places = [
        *(folder / f"annotations/instances_{name}.json" for folder in (beside, beside.parent)),
        *([beside / "Annotations"] if name == "JPEGImages" else []),
        *([beside / "labels"] if name == "images" else []),
        *([beside.parent / "labels" / name] if beside.name == "images" else []),
    ]
    found = next((place for place in places if place.is_file() or _has_labels(place)), None)
    return "" if found is None else f" --annotations {shlex.quote(str(found))}"


def _has_labels(folder: Path) -> bool:
    return any(
        name.endswith((".txt", ".xml")) for _, _, files in os.walk(folder) for name in files
    )


def _masks_at(tree: _Tree, pictures: Path) -> str:
    masks = tree.only().path
    suffix = _suffix_between(_first_name(pictures), _first_name(masks))
    more = f" --mask-suffix {shlex.quote(suffix)}" if suffix else ""
    return f" --masks {shlex.quote(str(masks))}{more}"


def _first_name(folder: Path) -> str:
    """Return the first file of a folder, or of the first folder in it that has some, without its suffix."""
    for _, folders, files in os.walk(folder):
        folders.sort()
        shown = [name for name in files if not name.startswith(".")]
        if shown:
            numbers_first = min(shown, key=lambda name: ("labelids" not in name.lower(), name))
            return os.path.splitext(numbers_first)[0]
    return ""


def _suffix_between(picture: str, mask: str) -> str:
    """Return how a mask's name differs from its picture's at the end, as ``--mask-suffix`` takes it; or ""."""
    pairs = enumerate(zip(picture, mask, strict=False))
    num = next((i for i, (one, other) in pairs if one != other), min(len(picture), len(mask)))
    # Inside a word: to where it begins.
    if picture[num : num + 1].isalnum() or mask[num : num + 1].isalnum():
        num = max(picture.rfind(mark, 0, num) for mark in "_-. ")
    old, new = picture[max(num, 0) :], mask[max(num, 0) :]
    if num < 1 or old == new or any(end[1:2].isdecimal() for end in (old, new)):
        return ""
    return f"{old}={new}" if old else new
