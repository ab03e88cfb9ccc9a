"""What kind of source a folder or file is, which splits it has, and of which kind are the annotations beside it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from loaders.data.manifest import MANIFEST_NAME
from loaders.errors import SourceError
from loaders.remote.url import Location
from packdata.copies import opened_in_order
from packdata.describe import few
from packdata.reading import File
from packdata.rows import suffix_inside
from packdata.sources.annotations import NO_LABELS, Annotations
from packdata.sources.coco import read_coco
from packdata.sources.columns import ColumnNames
from packdata.sources.folders import FolderSource
from packdata.sources.listed import Listing, look_at, relative_names
from packdata.sources.lists import LIST_SUFFIXES, ListSource
from packdata.sources.names import (
    PICTURES,
    SPLIT_NAMES,
    FileKind,
    foreign_hint,
    split_of,
    suffix_of,
)
from packdata.sources.row_kinds import ROW_KINDS, listed_files, row_kind, saved_splits
from packdata.sources.rows import RowsSource
from packdata.sources.tars import TAR_SUFFIX, TarSource
from packdata.sources.voc import read_voc
from packdata.sources.yolo import read_yolo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packdata.sources.base import Source

_ARCHIVES = (
    ", WebDataset .tar files, .parquet files with pictures, or folders of datasets.save_to_disk"
)
# Of Delta Lake, Iceberg and Hudi, by how a file in them ends: files of rows that were deleted since stay in the folder.
_LOGS = {"_delta_log": ".json", "metadata": ".metadata.json", ".hoodie": "hoodie.properties"}
_ANNOTATIONS = {
    ".json": ("COCO", read_coco),
    ".xml": ("VOC", read_voc),
    ".txt": ("YOLO", read_yolo),
}
_USUAL = ColumnNames()
Found = Listing | list[File]  # a folder, or files that are one source


def open_source(
    # A folder, a file, or a pattern of tar or Parquet files (``data/train-*.tar``); or what was found there.
    path: Location | str | Found,
    *,
    # Which files are looked for. Other kinds than pictures come in folders and lists.
    kind: FileKind = PICTURES,
    # Files of a folder whose names end so are skipped: masks beside their pictures.
    without: str = "",
    columns: ColumnNames = _USUAL,
) -> Source:
    """Recognize what lies at a path and list its items.

    Raises:
        SourceError: There is nothing, nothing known, or nothing that can be listed.
    """
    found = look_at(path) if isinstance(path, Location | str) else path
    if isinstance(found, Listing):
        check_folder(found)
        place, name = found.root, found.name
    else:
        place = found[0].path
        name = place.parent.name if found[1:] else place.name
    files = files_of(found, kind)
    archive = _kind_of_all(files, kind) if files else "folder"
    asked = [columns.file, columns.mask, None if archive == "tar" else columns.label]
    if archive in ("folder", "tar") and (named := [*filter(None, asked)]):
        raise SourceError(f"no columns, so none is called {named[0]!r}", place)
    if isinstance(found, Listing) and not files:
        return FolderSource(found, kind, without)
    opened_in_order(files)
    if archive == "tar":
        return TarSource(files, name, columns.label)
    if archive in ROW_KINDS.values():
        return RowsSource(files, name, columns)
    if files[1:]:
        raise several_sources([file.path for file in files])
    if suffix_inside(place.name) in LIST_SUFFIXES:
        return ListSource(files[0], kind, columns)
    hint = foreign_hint(place.name) or (
        f"Give a folder of {kind.names} ({' '.join(sorted(kind.suffixes))}) or of one folder per class, a .csv, .tsv "
        f"or .jsonl list of such files{_ARCHIVES if kind is PICTURES else '; packdata.pack takes lists in columns'}"
    )
    if suffix_of(place.name) in kind.suffixes:
        hint = "Give the folder of this file, with a file for each sample"
        hint += "" if kind is PICTURES else "; packdata.pack takes the rows of one array"
    raise SourceError("this kind of source is not known", place, hint)


def several_sources(paths: Sequence[Location]) -> SourceError:
    """Return the error for sources that cannot be read as one."""
    hint = "Pack each with the same classes=, then 'packdata merge' them"
    return SourceError(f"several sources ({few(map(str, paths), 3)})", paths[0], hint)


def check_folder(listing: Listing) -> None:
    """Raise SourceError for a dataset that is packed already, or a table that has a log of its files."""
    if listing.find(MANIFEST_NAME) is not None:
        hint = "'packdata copy', 'split', 'merge' and 'extend' work on packed datasets"
        raise SourceError("a packed dataset cannot be a source", listing.root, hint)
    for folder in listing.folders:
        end, log = _LOGS.get(folder.rpartition("/")[2]), listing.root / folder
        if end and any(name.endswith(end) for name in Listing(log, deep=False).names()):
            what = f"the table has a log ({log}): rows that were deleted or replaced may lie in its files"
            hint = "Write the rows that it has to a Parquet file; a pattern such as '*.parquet' takes all of them"
            raise SourceError(what, log.parent, hint)


def find_splits(listing: Listing, kind: FileKind = PICTURES) -> Mapping[str, Found] | None:
    """Return the folder or the files of each split in a folder by name, or None if it is one source.

    Splits are folders all named ``train``, ``training``, ``val``, ``valid``, ``validation``,
    ``test`` or ``testing``; or tar or Parquet files, all of whose names begin so and not all alike.

    Raises:
        SourceError: Two or more folders or files are splits and others are not, or folders and files
            are, or pictures lie beside them: no reading is safe.
    """
    if kind is PICTURES and (saved := saved_splits(listing)):
        return saved
    folders, archives = listing.subfolders(), _archives(listing, kind)
    named = [name for name in folders if name.lower() in SPLIT_NAMES]
    splits: dict[str, Found] = {name: listing.below(name) for name in named}
    others = [name for name in folders if name not in splits]
    if splits:  # what holds no files of the kind is neither a split nor a class
        others = [name for name in others if _holds(kind, listing.below(name))]
    if splits and not (others and len(splits) == 1):
        known = {None, *(name.lower() for name in splits)}
        others += [f.path.name for f in archives if split_of(f.path.name) not in known]
        others += [name for name in listing.names() if suffix_of(name) in kind.suffixes]
    else:
        of = [(split_of(file.path.name), file) for file in archives]
        splits = {name: [file for split, file in of if split == name] for name, _ in of if name}
        if len(splits) < 2:
            return None
        _check_alone(listing, archives)
        others = [file.path.name for split, file in of if split is None]
    if others:
        what = f"splits ({', '.join(splits)}) beside {few(others)}"
        hint = "Pack each split by itself, with the same classes=, or move the others away"
        raise SourceError(what, listing.root, hint)
    ranked = sorted((SPLIT_NAMES.index(name.lower()), name) for name in splits)
    return {name: splits[name] for _, name in ranked}


def _holds(kind: FileKind, listing: Listing) -> bool:
    return any(suffix_of(path) in kind.suffixes for path in listing)


def _check_alone(listing: Listing, archives: Sequence[File]) -> None:
    """Raise SourceError if pictures lie beside tars or files of rows, or in folders there."""
    if _holds(PICTURES, listing):
        what = f"pictures beside {few([file.path.name for file in archives])}"
        hint = "Move either away, or pack one by itself: a folder, a file or a pattern of files"
        raise SourceError(what, listing.root, hint)


def _archives(listing: Listing, kind: FileKind) -> list[File]:
    """Return the tars and files of rows."""
    if kind is not PICTURES:
        return []
    if (listed := listed_files(listing)) is not None:
        return listed
    return listing.files(name for name in listing.names() if _archive_kind(name))


def _archive_kind(name: str) -> str:
    return "tar" if suffix_of(name) == TAR_SUFFIX else row_kind(name)


def _kind_of_all(files: Sequence[File], kind: FileKind) -> str:
    """Return the kind of archive that files are, "" for others; SourceError if they are of several."""
    kinds = {_archive_kind(file.path.name) if kind is PICTURES else "" for file in files}
    if len(kinds) > 1:
        names = few([file.path.name for file in files])
        hint = "Pack the files of each kind by themselves"
        raise SourceError(f"files of several kinds ({names})", files[0].path.parent, hint)
    return kinds.pop()


def files_of(found: Found, kind: FileKind) -> list[File]:
    """Return the files that are a source; none if it is a folder of pictures."""
    if not isinstance(found, Listing):
        return found
    files = _archives(found, kind)
    if not files or any(suffix_of(name) in kind.suffixes for name in found.names()):
        return []
    _check_alone(found, files)
    return files


def read_annotations(path: Location | str, split: str) -> Annotations:
    """Read a file or folder of annotations as what it is: COCO's JSON, VOC's XML or YOLO's labels.

    Of several COCO files the one is read whose path has the name of the split.

    Raises:
        SourceError: There are no annotations, or of several kinds, or they cannot be read.
    """
    listed = look_at(path)
    if isinstance(listed, Listing):
        names = [name for name in listed if not NO_LABELS.fullmatch(os.path.basename(name))]
        files = dict(zip(names, listed.files(names), strict=True))
    else:
        files = dict(zip(relative_names([file.path for file in listed]), listed, strict=True))
    suffixes = {suffix_of(name) for name in files} & _ANNOTATIONS.keys()
    if len(suffixes) != 1:
        what = f"annotations of several kinds ({', '.join(sorted(suffixes))})"
        hint = "COCO has .json files, VOC .xml files, YOLO folders of .txt files"
        raise SourceError(what if suffixes else "no annotations", path, hint)
    (suffix,) = suffixes
    files = {name: files[name] for name in sorted(files) if suffix_of(name) == suffix}
    kind, read = _ANNOTATIONS[suffix]
    found = Annotations(kind, path, split, files)
    read(found)
    return found
