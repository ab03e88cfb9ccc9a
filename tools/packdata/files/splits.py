"""A source opened split by split, with what pictures and arrays have beside them: labels and masks."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from loaders.errors import SourceError
from loaders.remote.url import place_of
from loaders.schema import Array, Label
from packdata.describe import counted, passed_over
from packdata.files.labels import LABEL, LabelField, label_fields
from packdata.sources.base import LABEL_NAMES, PICTURES, FileKind, Source, is_folder
from packdata.sources.composed import join_splits
from packdata.sources.folders import FolderSource, MaskFolder, split_suffix
from packdata.sources.idx import IdxSource
from packdata.sources.layouts import check_layout
from packdata.sources.listed import list_sources, place_of_source
from packdata.sources.names import hash_of
from packdata.sources.opening import (
    are_of_one_archive,
    files_beside,
    find_splits,
    joined_splits,
    open_source,
)
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What is said of a source beside its path."""

    # A folder with one mask for each picture or array, of the same relative name, with any suffix; below it a folder
    # for each split, if there are splits.
    masks: Path | str | None = None
    # How names of masks differ from those of pictures: ``_mask``, or ``_leftImg8bit=_gtFine_labelIds``; without
    # ``masks``, they lie beside their pictures.
    mask_suffix: str = ""
    # What fixes the class numbers: names, a file with one a line, or a packed dataset.
    classes: Sequence[str] | Path | str | None = None
    column: str | None = None  # the column of paths or pictures, where the source has columns
    mask_column: str | None = None
    # The column there that becomes the field ``label``, where no value may be missing.
    label_column: str | None = None

    def absolute(self) -> SourceOptions:
        """Return the same for whatever folder is the working folder."""
        masks = None if self.masks is None else place_of(self.masks).absolute()
        classes = self.classes
        if isinstance(classes, Path | str):
            classes = place_of(classes).absolute()
        return replace(self, masks=masks, classes=classes)


class Split(NamedTuple):
    """One split, with what its recipe is made of."""

    name: str  # its own; ``""`` where the source has none
    source: Source  # lists its files
    labels: tuple[LabelField, ...]  # the fields of the source's columns
    # Where the masks are; None to take those of the source, if it has any.
    masks: MaskFolder | None
    beside: Mapping[str, int]  # files that lie beside the folders of the splits, by suffix


def open_splits(
    src: Path | str | Sequence[Path | str],
    options: SourceOptions | None = None,
    kind: FileKind = PICTURES,
    extend: Callable[[Source, str], Source] | None = None,
    has_annotations: bool = False,
) -> list[Split]:
    """Open each split of a source; of several sources, what they have together, in their order.

    ``extend`` adds columns to a source of a split. Folders are no classes where there are annotations.

    Raises:
        SourceError: The source cannot be listed or recognized, its folders are probably no classes and
            ``options`` name none, or the classes do not fit it, or one mask is that of files in two
            splits.
    """
    options = options or SourceOptions()
    beside: Counter[str] = Counter()
    sources = _open_all(src, options, kind, beside, has_annotations)
    if extend is not None:
        sources = {name: extend(source, name) for name, source in sources.items()}
    labels = label_fields(sources, options.classes)
    splits = [
        Split(name, source, labels[name], _masks_of(options, name, source, kind), beside)
        for name, source in sources.items()
    ]
    if len(splits) > 1:
        _check_masks_apart(splits)
    return splits


def listed_sources(src: Path | str | Sequence[Path | str]) -> list[Path | str]:
    """Return sources as a list."""
    return [src] if isinstance(src, Path | str) else list(src)


def _open_all(
    src: Path | str | Sequence[Path | str],
    options: SourceOptions,
    kind: FileKind,
    beside: Counter[str],
    has_annotations: bool,
) -> dict[str, Source]:
    """Return the source of each split, and count the files that lie ``beside`` them."""
    given = listed_sources(src)
    list_sources(given)
    if len(given) > 1 and are_of_one_archive(given):  # as a pattern of them is read
        one = {"": [*map(place_of_source, given)]}
        return {"": _open(one, options, kind, has_annotations)[""]}
    opened: list[dict[str, Source]] = []
    for path in given:
        splits_of = find_splits(path, kind)
        beside.update(files_beside(splits_of or {}))
        opened.append(
            _open(splits_of or {"": [place_of_source(path)]}, options, kind, has_annotations)
        )
    return opened[0] if len(opened) == 1 else join_splits(opened)


def _open(
    splits: Mapping[str, Sequence[Path]],
    options: SourceOptions,
    kind: FileKind,
    has_annotations: bool,
) -> dict[str, Source]:
    sources = {
        name: open_source(
            paths,
            kind=kind,
            image_column=options.column,
            mask_column=options.mask_column,
            label_column=options.label_column,
            without=split_suffix(options.mask_suffix)[1] if options.masks is None else "",
        )
        for name, paths in splits.items()
    }
    for source in sources.values():
        if options.classes is None:
            _check_layout(source, kind, has_annotations)
    return sources


def _check_layout(source: Source, kind: FileKind, has_annotations: bool) -> None:
    """Raise SourceError for folders that are probably no classes."""
    if isinstance(source, FolderSource) and source.kind == "classes":
        check_layout(source.root, source.folders, kind.command, are_classes=not has_annotations)


def _masks_of(
    options: SourceOptions, split: str, source: Source, kind: FileKind
) -> MaskFolder | None:
    masks, suffix = options.masks, options.mask_suffix
    if masks is None and suffix:
        if (root := source.root) is None:
            what = "--mask-suffix is for masks in a folder"
            raise SourceError(what, source.name, "Give --masks, or --mask-column of a list")
        return MaskFolder(root, kind, suffix)
    if masks is None:
        return None
    list_sources([masks])
    inside = place_of_source(masks) / split
    has_own = is_folder(inside, "--masks takes a folder that you may read")
    return MaskFolder(inside if has_own else place_of_source(masks), kind, suffix)


def _check_masks_apart(splits: Sequence[Split]) -> None:
    """Raise SourceError if splits share a mask: where all masks lie in one folder, names may repeat."""
    taken: dict[tuple[Path, str], str] = {}
    for split in splits:
        for file in _used_masks(split):
            other = taken.setdefault(file, split.name)
            if other != split.name:
                what = f"{file[1]} would be a mask of both {other} and {split.name}"
                hint = "Give the masks of each split a folder of its name in this one"
                raise SourceError(what, file[0], hint)


def _used_masks(split: Split) -> Iterator[tuple[Path, str]]:
    """Yield folder and name of each mask that a file of a split has."""
    if split.masks is not None:
        files = filter(None, map(split.masks.files.get, split.source.keys()))
        yield from ((split.masks.root, file) for file in files)


def source_notes(splits: Sequence[Split]) -> list[str]:
    """Say which files and classes are passed over, and where no column is the label."""
    ignored: Counter[str] = Counter(splits[0].beside)
    unlabelled: dict[str, None] = {}
    for source in (split.source for split in splits):
        ignored.update(source.ignored)
        if source.kind in ("list", "parquet") and LABEL not in source.labels:
            unlabelled |= dict.fromkeys(source.labels)
    notes = passed_over(dict(ignored.most_common()))
    if empty := _empty_classes(splits):
        notes.append(f"empty folders are not classes: {few(empty)} (--classes can name them)")
    if suffixed := [file for split in splits for file in split.source.suffixed]:
        what = f"{counted(len(suffixed), 'file')} differ from others only in the suffix"
        notes.append(f"{what}, so their keys include it: {few(suffixed)}")
    if doubles := sorted({f.name for split in splits for f in split.labels if f.column.is_double}):
        notes.append(f"stored as float32, of 24 bits: {few(doubles)}")
    if gaps := _gaps(splits):
        notes.append(f"missing numbers, stored as NaN: {few(gaps)}")
    notes += [note for split in splits for note in joined_splits(split.source.paths)]
    notes += [*_numbered(splits), *_written_alike(splits), *_untrained(splits), *_pairs(splits)]
    notes += dict.fromkeys(note for split in splits for note in split.source.notes)
    notes += [*_unused_masks(splits), *_unused_splits(splits)]
    notes += _idx_without_labels(splits)
    if unlabelled:
        notes.append(
            f"no label: no column is called {', '.join(LABEL_NAMES[:-1])} or {LABEL_NAMES[-1]}; "
            f"--label-column NAME takes another ({few([*unlabelled])})"
        )
    return notes


def _classes_of(splits: Sequence[Split]) -> tuple[str, ...]:
    """Return the names of the classes: all splits have the same."""
    fields = [label.field for split in splits for label in split.labels if label.name == LABEL]
    return next((f.classes for f in fields if isinstance(f, Label) and f.classes), ())


def _arrays(splits: Sequence[Split]) -> list[Array]:
    fields = [label.field for split in splits for label in split.labels]
    return [field for field in fields if isinstance(field, Array)]


def contents(splits: Sequence[Split]) -> list[str]:
    """Name the splits and classes: what is wrong with a source, they often show."""
    classes = _classes_of(splits)
    found = []
    if splits[0].name:
        found.append(f"{counted(len(splits), 'split')}: {few([split.name for split in splits])}")
    if kinds := next((f.classes for f in _arrays(splits) if f.classes), ()):
        found.append(f"{counted(len(kinds), 'class')} of boxes: {few(kinds)}")
    if classes:
        found.append(f"{counted(len(classes), 'class')}: {few(classes)}")
    return found


def _numbered(splits: Sequence[Split]) -> Iterator[str]:
    """Say of classes called by numbers that their own numbers are others."""
    classes = _classes_of(splits)
    given = any(label.column.numbered for split in splits for label in split.labels)
    if given or not all(re.fullmatch(r"[0-9]+", name) for name in classes):
        return
    if [*classes] != sorted(classes) or all(int(name) == i for i, name in enumerate(classes)):
        return
    ordered = sorted(classes, key=int)
    name = next((a for a, b in zip(classes, ordered, strict=True) if a != b), classes[0])
    yield (
        f"classes are called by numbers, but numbered as names are sorted: {name!r} is class "
        f"{classes.index(name)} (as in torchvision); --classes FILE, a name a line, fixes an order"
    )


def _written_alike(splits: Sequence[Split]) -> Iterator[str]:
    """Name classes that differ in nothing but case, blanks, and how accents are encoded (folders copied from macOS)."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in _classes_of(splits):
        composed = unicodedata.normalize("NFC", name)
        shown = repr(name) if name == composed else ascii(name)
        alike[" ".join(composed.casefold().split())].append(shown)
    found = [" and ".join(names) for names in alike.values() if len(names) > 1]
    if found:
        yield f"classes whose names are almost the same: {few(found)}"


def _untrained(splits: Sequence[Split]) -> Iterator[str]:
    """Name the class folders of other splits that ``train`` has not, or has empty."""
    of_folders = (split for split in splits if split.source.kind == "classes")
    labels = {split.name: split.source.labels.get(LABEL) for split in of_folders}
    classes = {name: label.classes for name, label in labels.items() if label is not None}
    trained = {*classes.get("train", ())}
    for name, names in classes.items() if trained else ():
        if unknown := [each for each in names if each not in trained]:
            yield f"{name} has classes of which train has no file: {few(unknown)}"


def _pairs(splits: Sequence[Split]) -> Iterator[str]:
    """Say of two folders whose files have the same names that they may be no classes: ``HR`` and ``LR``."""
    counts, sums = Counter[str](), Counter[str]()  # of millions of names no set is made
    source, classes = splits[0].source, _classes_of(splits)
    if source.kind != "classes" or len(classes) != 2:
        return
    for key in source.keys():  # noqa: SIM118 - no mapping
        folder, _, file = key.partition("/")
        counts[folder] += 1
        sums[folder] += hash_of(file)
    first, second = classes
    if counts[first] > 1 and counts[first] == counts[second] and sums[first] == sums[second]:
        remedy = "a .jsonl list of [path, path] in a column images makes a sample of each pair"
        yield f"{first} and {second} hold files of the same names: if they are pairs, not classes, {remedy}"


def _gaps(splits: Sequence[Split]) -> list[str]:
    """Say of each column of numbers how many are missing."""
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    dtypes: dict[str, str] = {}
    for split in splits:
        for label in split.labels:
            counts[label.name] += label.column.num_missing
            totals[label.name] += len(split.source)
            dtypes.setdefault(label.name, label.field.dtype)
    return [
        f"{name} ({count:,} of {totals[name]:,}, {dtypes[name]})"
        for name, count in counts.items()
        if count
    ]


def _empty_classes(splits: Sequence[Split]) -> list[str]:
    """Return the folders that would be classes, but are empty in every split."""
    known = {*_classes_of(splits)}
    empty = {name for split in splits for name in split.source.empty_classes}
    return sorted(empty - known)


def _unused_masks(splits: Sequence[Split]) -> Iterator[str]:
    """Count the masks that no file asks for: a name that differs is easily overlooked."""
    left: dict[tuple[Path, str], None] = {}
    for masks in (split.masks for split in splits if split.masks is not None):
        left |= {(masks.root, file): None for file in masks.files.values()}
    for split in splits:
        for mask in _used_masks(split):
            left.pop(mask, None)
    names = [str(root / file) for root, file in left]
    if names:
        yield f"{counted(len(names), 'mask')} used by nothing in the source: {few(names)}"


def _unused_splits(splits: Sequence[Split]) -> Iterator[str]:
    """Say that a column divides samples which are packed as one dataset."""
    names = {label.name for split in splits for label in split.labels} & {"split", "subset"}
    if names and not splits[0].name:
        how = f"""packdata copy DST NEW --where '{min(names)} == "train"' makes a dataset of one part"""
        yield f"{min(names)} is packed as an ordinary column: {how}"


def _idx_without_labels(splits: Sequence[Split]) -> Iterator[str]:
    for source in (split.source for split in splits):
        if isinstance(source, IdxSource) and not source.labels:
            yield f"no label: {source.labels_name} does not lie beside {source.name}"
