"""What kind of source a folder or file is, and which splits it has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from loaders.errors import SourceError
from packdata.reading import File, opened_in_order
from packdata.rows import suffix_inside
from packdata.sources.base import PICTURES, FileKind, Source, foreign_hint, suffix_of
from packdata.sources.folders import FolderSource
from packdata.sources.idx import IDX_SUFFIXES, IdxSource
from packdata.sources.listed import Listing, look_at
from packdata.sources.lists import LIST_SUFFIXES, ListSource
from packdata.sources.refused import SPLIT_NAMES, check_folder
from packdata.sources.row_kinds import ROW_KINDS, listed_files, row_kind, saved_splits
from packdata.sources.rows import RowsSource
from packdata.sources.tars import TAR_SUFFIX, TarSource
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SPLIT_FILE = re.compile(rf"({'|'.join(SPLIT_NAMES)}|t10k)([-_.].*)?", re.IGNORECASE)
_ARCHIVES = (
    ", WebDataset .tar files, .parquet files with pictures, folders of datasets.save_to_disk, or MNIST's "
    "images-idx3-ubyte"
)
Found = Listing | list[File]  # a folder, or files that are one source


def open_source(
    # A folder, a file, or a pattern of tar or Parquet files (``data/train-*.tar``); or what was found there.
    path: Path | str | Found,
    *,
    # The column of paths in a list, or of pictures in Parquet; None for the usual names, as for the other columns.
    image_column: str | None = None,
    mask_column: str | None = None,
    label_column: str | None = None,
    # Which files are looked for. Other kinds than pictures come in folders and lists.
    kind: FileKind = PICTURES,
    # Files of a folder whose names end so are skipped: masks beside their pictures.
    without: str = "",
) -> Source:
    """Recognize what lies at a path and list its items.

    Raises:
        SourceError: There is nothing, nothing known, or nothing that can be listed.
    """
    found = look_at(path) if isinstance(path, Path | str) else path
    columns = {
        "image_column": image_column,
        "mask_column": mask_column,
        "label_column": label_column,
    }
    files = found if isinstance(found, list) else _files_of(found, kind)
    if isinstance(found, Listing) and not files:
        _check_columns_unused(found.root, columns)
        return FolderSource(found, kind, without)
    first = files[0].path
    name = first.name if len(files) == 1 else first.parent.name
    if isinstance(found, Listing):
        name = found.name
    opened_in_order(files)
    archive = _one_kind(files) if kind is PICTURES else ""
    if archive == "tar":
        _check_columns_unused(first, columns | {"label_column": None})
        return TarSource(files, name, label_column=label_column)
    if archive in ROW_KINDS:
        return RowsSource(files, name, **columns)
    if len(files) > 1:
        names = few([file.path.name for file in files], 3)
        raise SourceError(f"several sources ({names})", first.parent, "Choose one")
    if archive == "idx":
        _check_columns_unused(first, columns)
        return IdxSource(files[0])
    if suffix_inside(first.name) in LIST_SUFFIXES:
        return ListSource(files[0], kind, **columns)
    hint = foreign_hint(first.name) or (
        f"Give a folder of {kind.names} ({' '.join(sorted(kind.suffixes))}) or of one folder per class, a .csv, .tsv "
        f"or .jsonl list of such files{_ARCHIVES if kind is PICTURES else ''}"
    )
    if suffix_of(first.name) in kind.suffixes:
        hint = "Give the folder that holds it, with a file for each sample; packdata.pack takes the rows of one array"
    raise SourceError("this kind of source is not known", first, hint)


def find_splits(listing: Listing, kind: FileKind = PICTURES) -> Mapping[str, Found] | None:
    """Return the folder or the files of each split in a folder by name, or None if it is one source.

    Splits are folders all named ``train``, ``training``, ``val``, ``valid``, ``validation``,
    ``test`` or ``testing``; or tar, Parquet or MNIST files, all of whose names begin so and not all
    alike.

    Raises:
        SourceError: Two or more folders or files are splits and others are not, or folders and files
            are, or pictures lie beside them: no reading is safe.
    """
    archives = _archives(listing) if kind is PICTURES else []
    if kind is PICTURES and (saved := saved_splits(listing)):
        return saved
    folders = listing.subfolders()
    splits = {name: listing.below(name) for name in folders if name.lower() in SPLIT_NAMES}
    others = [name for name in folders if name not in splits]
    if splits:  # what holds no files of the kind is neither a split nor a class
        others = [name for name in others if _holds(kind, listing.below(name))]
    if not splits or (others and len(splits) == 1):
        return _split_files(listing, archives)
    known = {None, *(name.lower() for name in splits)}
    others += [f.path.name for f in archives if _named_split(f.path.name) not in known]
    others += [name for name in listing.names() if suffix_of(name) in kind.suffixes]
    if others:
        raise _no_safe_reading(listing, splits, others)
    return {name: splits[name] for name in sorted(splits, key=_split_rank)}


def _holds(kind: FileKind, listing: Listing) -> bool:
    return any(suffix_of(path) in kind.suffixes for path in listing)


def _no_safe_reading(
    listing: Listing, splits: Mapping[str, object], others: Sequence[str]
) -> SourceError:
    what = f"splits ({', '.join(splits)}) beside {few(others)}"
    return SourceError(what, listing.root, "Pack each split by itself, or move the others away")


def joined_splits(files: Sequence[Path]) -> list[str]:
    """Return a note if all files are of splits, by their names or folders, and of more than one.

    For sources that are read as one: tokens, tables, and what a pattern matches.
    """
    splits = {_named_split(file.name) or file.parent.name.lower() for file in files}
    if len(splits) < 2 or not splits <= {*SPLIT_NAMES}:
        return []
    names = ", ".join(sorted(splits, key=_split_rank))
    return [f"splits become one dataset ({names}): to keep them apart, pack each by itself"]


def _named_split(name: str) -> str | None:
    """Return the split that a file's name begins with, in lower case."""
    match = _SPLIT_FILE.fullmatch(name)
    return match and ("test" if match[1].lower() == "t10k" else match[1].lower())


def _split_rank(name: str) -> tuple[int, str]:
    return SPLIT_NAMES.index(name.lower()), name


def _split_files(listing: Listing, archives: Sequence[File]) -> dict[str, list[File]] | None:
    """Group ``train.tar``, ``train-00000-of-00002.parquet`` or MNIST's two files by split."""
    splits: dict[str, list[File]] = {}
    for file in archives:
        splits.setdefault(_named_split(file.path.name) or "", []).append(file)
    others = splits.pop("", [])
    if len(splits) < 2:
        return None
    if others:
        raise _no_safe_reading(listing, splits, [file.path.name for file in others])
    _check_alone(listing, archives)
    return {name: splits[name] for name in sorted(splits, key=_split_rank)}


def _check_alone(listing: Listing, archives: Sequence[File]) -> None:
    """Raise SourceError if pictures lie beside tar, IDX or files of rows, or in folders there."""
    if _holds(PICTURES, listing):
        what = f"pictures beside {few([file.path.name for file in archives])}"
        hint = "Move either away, or pack one by itself: a folder, a file or a pattern of files"
        raise SourceError(what, listing.root, hint)


def _archives(listing: Listing) -> list[File]:
    """Return the tar, IDX and files of rows; of an IDX file that is there twice, not the .gz."""
    if (listed := listed_files(listing)) is not None:
        return listed
    names = dict.fromkeys(name for name in listing.names() if _archive_kind(name))
    return listing.files(n for n in names if not n.endswith(".gz") or n[:-3] not in names)


def _archive_kind(name: str) -> str:
    if suffix_of(name) == TAR_SUFFIX:
        return "tar"
    return row_kind(name) or ("idx" if name.lower().endswith(IDX_SUFFIXES) else "")


def _one_kind(files: Sequence[File]) -> str:
    """Return the kind of archive that files are, "" for others; SourceError if they are of several."""
    kinds = {_archive_kind(file.path.name) for file in files}
    if len(kinds) > 1:
        names = few([file.path.name for file in files])
        hint = "Pack the files of each kind by themselves"
        raise SourceError(f"files of several kinds ({names})", files[0].path.parent, hint)
    return kinds.pop()


def are_of_one_archive(found: Sequence[Found]) -> bool:
    """Tell whether sources are tars, or files of rows of one kind, all of them."""
    kinds = {
        "" if isinstance(each, Listing) or each[1:] else _archive_kind(each[0].path.name)
        for each in found
    }
    return len(kinds) == 1 and kinds <= {"tar", *ROW_KINDS}


def _files_of(listing: Listing, kind: FileKind) -> list[File]:
    """Return the files of a folder that are its source; none if it is one of pictures."""
    check_folder(listing)
    files = _archives(listing) if kind is PICTURES else []
    if files and not any(suffix_of(name) in kind.suffixes for name in listing.names()):
        _check_alone(listing, files)
        return files
    return []


def _check_columns_unused(path: Path, columns: Mapping[str, str | None]) -> None:
    for column in columns.values():
        if column is not None:
            raise SourceError(f"no columns, so none is called {column!r}", path)
