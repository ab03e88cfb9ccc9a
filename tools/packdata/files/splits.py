"""A source opened split by split, with what pictures and arrays have beside them: labels and masks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from loaders.remote.url import Location, place_of
from loaders.schema import Array, Label, MultiLabel
from packdata.describe import counted, few, passed_over
from packdata.files.labels import parts_of
from packdata.options import opt, parse_target
from packdata.sources.columns import BOX_LABELS, LABEL, LABEL_NAMES, ColumnNames
from packdata.sources.folders import FolderSource, MaskFolder, check_classes, split_suffix
from packdata.sources.listed import Listing, files_identity, listed_sources, look_at
from packdata.sources.names import PICTURES, FileKind, suffix_of
from packdata.sources.opening import Found, files_of, find_splits, open_source, several_sources
from packdata.sources.row_kinds import ROW_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from packdata.files.labels import Split
    from packdata.sources.base import Source

_COLUMN = "column of files or their paths (default: guessed)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What is said of a source beside its path."""

    masks: Location | str | None = opt(
        None,
        "folder with a mask for each file, under the same relative name, with any suffix",
        "FOLDER",
        type=parse_target,
    )
    mask_suffix: str = opt(
        "",
        "how mask names differ: _mask is added, _leftImg8bit=_gtFine_labelIds replaces; without --masks, masks lie "
        "beside their files",
        "SUFFIX|OLD=NEW",
    )
    classes: Sequence[str] | Location | str | None = opt(
        None,
        "class names, in the order of their numbers: a file with one per line, or a packed dataset",
        "FILE|DATASET",
        type=parse_target,
    )
    # The first is an option of pictures, the second of arrays.
    image_column: str | None = opt(None, _COLUMN, "NAME")
    array_column: str | None = opt(None, _COLUMN, "NAME")
    mask_column: str | None = opt(
        None, "column of masks (default: 'mask', if there is one)", "NAME"
    )
    label_column: str | None = opt(
        None,
        "column of labels, none missing (default: the first of label, class and target); missing numbers in other "
        "columns are stored as NaN",
        "NAME",
    )
    multi_label: str = opt(
        "", "what stands between several labels in a cell, such as '|': a 0 or 1 for each", "SEP"
    )


def open_splits(
    src: Location | str | Sequence[Location | str],
    options: SourceOptions | None = None,
    kind: FileKind = PICTURES,
    has_annotations: bool = False,
) -> dict[str, Source]:
    """Open each split of a source, with its masks; several tars or files of rows are one, as a pattern of them is.

    The name of the only one is "" where there are no splits. Folders are no classes where there are annotations.

    Raises:
        SourceError: The source cannot be listed or recognized, its folders are no classes and
            ``options`` name none, or a split has no masks.
    """
    options = options or SourceOptions()
    parts, beside = _parts_of(listed_sources(src), kind)
    without = split_suffix(options.mask_suffix)[1] if options.masks is None else ""
    columns = ColumnNames(
        options.image_column or options.array_column, options.mask_column, options.label_column
    )
    opened = partial(open_source, kind=kind, without=without, columns=columns)
    sources = {name: opened(each) for name, each in parts.items()}
    first = next(iter(sources.values()))
    first.ignored = Counter(first.ignored) + Counter(beside)
    in_folders = [s for s in sources.values() if isinstance(s, FolderSource) and s.labels]
    # Of splits with several classes: the only one of another, unlike ``images``, is one of these.
    named = [s.labels[LABEL].classes for s in in_folders]
    several = {name for each in named if len(each) > 1 for name in each}
    for source, own in zip(in_folders, named, strict=True) if options.classes is None else ():
        is_all = several.isdisjoint(own)
        check_classes(source, is_all=is_all, has_annotations=has_annotations)
    if options.masks is not None or options.mask_suffix:
        sources = {
            name: _masks_of(name, source, options, kind).masked(source)
            for name, source in sources.items()
        }
    return sources


def _parts_of(
    given: Sequence[Location], kind: FileKind
) -> tuple[Mapping[str, Found], Mapping[str, int]]:
    """Return what each split is made of, called "" if it is one source; and the files beside splits, by suffix."""
    found = [*map(look_at, given)]
    if (folder := next((each for each in found if isinstance(each, Listing)), None)) is None:
        return {"": [file for each in found if not isinstance(each, Listing) for file in each]}, {}
    if len(found) > 1:
        raise several_sources(given)
    if (splits := find_splits(folder, kind)) is None:
        return {"": folder}, {}
    # Where splits are files, the others are refused.
    are_folders = all(isinstance(each, Listing) for each in splits.values())
    return splits, Counter(map(suffix_of, folder.names() if are_folders else ()))


def watched(
    src: Sequence[Location],
    opened: Mapping[str, Source],
    open_again: Callable[[], Mapping[str, Source]],
) -> tuple[list[Any], Callable[[], list[Any]]]:
    """Return what changes when a file of a source does, and what returns that of the files as they are by then."""
    files = [source.files for source in opened.values()]
    if all(files):
        # What is in large files is not read again, nor fetched from a store.
        return [files_identity("", each) for each in files], partial(_states, src)
    return [source.identity for source in opened.values()], partial(_identities, open_again)


def _states(src: Sequence[Location]) -> list[Any]:
    parts, _ = _parts_of(src, PICTURES)
    return [files_identity("", files_of(found, PICTURES)) for found in parts.values()]


def _identities(open_again: Callable[[], Mapping[str, Source]]) -> list[Any]:
    return [source.identity for source in open_again().values()]


def _masks_of(split: str, source: Source, options: SourceOptions, kind: FileKind) -> MaskFolder:
    """Return the masks of a split, which lie in a folder of its name; SourceError if there are none."""
    if options.masks is None:
        if not isinstance(source, FolderSource):
            what = "mask_suffix= is for masks in a folder"
            raise SourceError(what, source.name, "Pass masks=, or mask_column= of a list")
        masks = MaskFolder(source.listing, kind, options.mask_suffix)
        masks.check_used(source)
        return masks
    listing = look_at(options.masks)
    if not isinstance(listing, Listing):
        raise SourceError("masks= takes a folder", place_of(options.masks))
    if split and split not in listing.subfolders():
        hint = "Give the masks of each split a folder of its name, or pack the splits one by one"
        raise SourceError(f"no folder {split!r} with the masks of this split", listing.root, hint)
    return MaskFolder(listing.below(split) if split else listing, kind, options.mask_suffix)


def source_notes(splits: Sequence[Split]) -> list[str]:
    """Say which files are skipped, which numbers are stored as NaN, and where no column is the label."""
    ignored, gaps = Counter[str](), Counter[str]()
    unlabelled: dict[str, None] = {}
    notes: list[str] = []
    for split in splits:
        source = split.source
        ignored.update(source.ignored)
        gaps.update({label.name: label.column.num_missing for label in split.labels})
        if source.kind in {"list", *ROW_KINDS.values()} and LABEL not in source.labels:
            unlabelled |= {name: None for name, c in source.labels.items() if c.field is None}
        notes += source.notes
    numbers = [f"{name} ({num:,})" for name, num in gaps.items() if num]
    names = ", ".join(LABEL_NAMES)
    no_label = f"no label: no column is called {names}; label_column= takes another"
    what = {"missing numbers, stored as NaN": numbers, no_label: [*unlabelled]}
    return [
        *passed_over(dict(ignored.most_common())),
        *(f"{note}: {few(columns)}" for note, columns in what.items() if columns),
        *_class_notes(splits),
        *dict.fromkeys(notes),
    ]


def contents(splits: Sequence[Split]) -> list[str]:
    """Name the splits and classes: what is wrong with a source, they often show."""
    found = []
    if splits[0].name:
        found.append(f"{counted(len(splits), 'split')}: {few([split.name for split in splits])}")
    fields = {label.name: label.field for split in splits for label in split.labels}
    for name, field in fields.items():
        if isinstance(field, Label | MultiLabel | Array) and field.classes:
            of_boxes = " of boxes" if name == BOX_LABELS else ""
            number = counted(len(field.classes), "class")
            found.append(f"{number}{of_boxes}: {few(field.classes)}")
    return found


def _class_notes(splits: Sequence[Split]) -> Iterator[str]:
    """Say what names of classes seem to be, and are not."""
    classes: Sequence[str] = ()
    for column in BOX_LABELS, LABEL:
        labels = [label for split in splits for label in split.labels if label.name == column]
        fields = [label.field for label in labels if isinstance(label.field, Label | Array)]
        # All splits have the same ones.
        classes = next((field.classes for field in fields if field.classes), ())
        if not any(label.column.numbered for label in labels):
            yield from _number_notes(classes)
    yield from _joined_notes(classes)


def _number_notes(classes: Sequence[str]) -> Iterator[str]:
    """Say that classes called by numbers have others."""
    are_numbers = all(map(str.isdecimal, classes)) and [*classes] == sorted(classes)
    wrong = (pair for pair in enumerate(classes) if are_numbers and int(pair[1]) != pair[0])
    if first := next(wrong, None):
        number, name = first
        yield (
            f"classes are called by numbers, but numbered as names are sorted: {name!r} is class {number} "
            "(as in torchvision); classes= with a file, a name a line, fixes an order"
        )


def _joined_notes(classes: Sequence[str]) -> Iterator[str]:
    """Say that classes seem to be combinations of few labels, such as ``A|B``."""
    if classes and all(name[:1] + name[-1:] in ("[]", "{}", "()") for name in classes):
        yield f"classes such as {classes[0]!r} are lists: texts such as 'cat|dog' with multi_label='|' store each name"
    for mark in "|", ";", ",", " ":
        parts = {part for name in classes for part in parts_of(name, mark)}
        joined = next((name for name in classes if mark in name), "")
        if joined and len(parts) < len(classes):
            yield (
                f"{len(classes)} classes such as {joined!r} combine {len(parts)} labels: multi_label={mark!r} "
                "stores each of them"
            )
            return
