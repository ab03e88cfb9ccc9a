"""What kind of source a path is, and which splits it has."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from loaders.errors import SourceError
from packdata.rows import suffix_inside
from packdata.sources.arrow import saved_splits
from packdata.sources.base import (
    PICTURES,
    FileKind,
    Source,
    foreign_hint,
    is_folder,
    is_hidden,
    suffix_of,
)
from packdata.sources.folders import FolderSource, Listing, files_below, scan
from packdata.sources.idx import IDX_IMAGES, IDX_SUFFIXES, IdxSource
from packdata.sources.layouts import SPLIT_NAMES
from packdata.sources.listed import files_matching, opened_in_order, place_of_source
from packdata.sources.lists import LIST_SUFFIXES, ListSource
from packdata.sources.refused import check_folder, check_regular, nothing_at
from packdata.sources.row_kinds import ROW_KINDS, listed_files, row_kind
from packdata.sources.rows import RowsSource
from packdata.sources.tars import TAR_SUFFIX, TarSource
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SPLIT_FILE = re.compile(rf"({'|'.join(SPLIT_NAMES)}|t10k)([-_.].*)?", re.IGNORECASE)
_ARCHIVES = (
    ", WebDataset .tar files, .parquet files with pictures, folders of datasets.save_to_disk, or MNIST's "
    "images-idx3-ubyte"
)


def open_source(
    # A folder, a file, or a pattern of tar or Parquet files (``data/train-*.tar``); or such files one by one, in
    # order.
    path: Path | str | Sequence[Path],
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
    paths = [place_of_source(path)] if isinstance(path, Path | str) else list(path)
    path = paths[0] if len(paths) == 1 else paths[0].parent
    columns = {
        "image_column": image_column,
        "mask_column": mask_column,
        "label_column": label_column,
    }
    name = path.resolve().name if path.exists() else path.name
    files = paths if len(paths) > 1 else _files_at(path, kind)
    if files is None:
        _check_columns_unused(path, columns)
        return FolderSource(path, kind, without)
    for file in files:
        check_regular(file, file)
    kinds = {_archive_kind(file.name) or suffix_of(file.name) or file.name for file in files}
    if len(kinds) > 1:
        raise SourceError(f"files of several kinds ({', '.join(sorted(kinds))})", path)
    opened_in_order(files)
    first = files[0]
    archive = _archive_kind(first.name) if kind is PICTURES else ""
    if archive == "tar":
        _check_columns_unused(path, columns | {"label_column": None})
        return TarSource(files, name, label_column=label_column)
    if archive in ROW_KINDS:
        return RowsSource(files, name, **columns)
    if len(files) > 1:
        names = few([file.name for file in files], 3)
        raise SourceError(f"several sources ({names})", path, "Choose one")
    if archive == "idx":
        _check_columns_unused(path, columns)
        return IdxSource(first)
    if suffix_inside(first.name) in LIST_SUFFIXES:
        return ListSource(first, kind, **columns)
    hint = foreign_hint(path.name) or (
        f"Give a folder of {kind.names} ({' '.join(sorted(kind.suffixes))}) or of one folder per class, a .csv, .tsv "
        f"or .jsonl list of such files{_ARCHIVES if kind is PICTURES else ''}"
    )
    if suffix_of(first.name) in kind.suffixes:
        hint = "Give the folder that holds it, with a file for each sample; packdata.pack takes the rows of one array"
    raise SourceError("this kind of source is not known", first, hint)


def find_splits(path: Path | str, kind: FileKind = PICTURES) -> dict[str, list[Path]] | None:
    """Return the folder or the files of each split below a folder by name, or None if it is one source.

    Splits are folders all named ``train``, ``training``, ``val``, ``valid``, ``validation``,
    ``test`` or ``testing``; or tar, Parquet or MNIST files, all of whose names begin so and not all
    alike.

    Raises:
        SourceError: Two or more folders or files are splits and others are not, or folders and files
            are, or pictures lie beside them: no reading is safe.
    """
    path = place_of_source(path)
    if not is_folder(path):
        return None
    if kind is PICTURES and (saved := saved_splits(path)):
        return {name: [folder] for name, folder in saved.items()}
    files, folders = _look_into(path)
    archives = _archives(path, files) if kind is PICTURES else []
    splits = {name: [path / name] for name in folders if name.lower() in SPLIT_NAMES}
    others = [name for name in folders if name not in splits]
    if splits:  # what holds no files of the kind is neither a split nor a class
        others = [name for name in others if _holds(path, name, kind)]
    if not splits or (others and len(splits) == 1):
        return _split_files(path, archives)
    if others:
        raise _no_safe_reading(path, splits, f"other folders ({few(others)})")
    known = {name.lower() for name in splits}
    if lost := [f.name for f in archives if _named_split(f.name) not in (None, *known)]:
        raise _no_safe_reading(path, splits, f"files of other splits ({few(lost)})")
    if lost := [name for name in files if suffix_of(name) in kind.suffixes]:
        raise _no_safe_reading(path, splits, f"{kind.names} beside them ({few(lost)})")
    return _in_order(splits)


def files_beside(splits: Mapping[str, Sequence[Path]]) -> Counter[str]:
    """Count the files that lie beside folders of splits, by suffix; none where splits are files."""
    parents = {path.parent for paths in splits.values() for path in paths if path.is_dir()}
    return Counter(suffix_of(name) for folder in parents for name in _look_into(folder)[0])


def _holds(path: Path, folder: str, kind: FileKind) -> bool:
    """Tell whether a folder inside another one, or one below it, holds files of a kind."""
    listing = Listing(path, kind)
    listing.add_below(folder)
    return len(listing.files) > 0


def _no_safe_reading(path: Path, splits: Mapping[str, object], others: str) -> SourceError:
    what = f"splits ({', '.join(splits)}) beside {others}"
    return SourceError(what, path, "Pack each split by itself, or move the others away")


def _in_order(splits: Mapping[str, list[Path]]) -> dict[str, list[Path]]:
    return {name: splits[name] for name in sorted(splits, key=_split_rank)}


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


def _look_into(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of files and folders in a folder; what is hidden is left out."""
    files, folders = scan(folder)
    names = [file.name for file in files if not is_hidden(file.name)]
    return names, [name for name in folders if not is_hidden(name)]


def _split_files(folder: Path, archives: Sequence[Path]) -> dict[str, list[Path]] | None:
    """Group ``train.tar``, ``train-00000-of-00002.parquet`` or MNIST's two files by split."""
    splits: dict[str, list[Path]] = {}
    for file in archives:
        if name := _named_split(file.name):
            splits.setdefault(name, []).append(file)
    if len(splits) < 2:
        return None
    if others := [file.name for file in archives if _named_split(file.name) is None]:
        raise _no_safe_reading(folder, splits, f"other files ({few(others)})")
    _check_alone(folder, archives)
    return _in_order(splits)


def _check_alone(folder: Path, archives: Sequence[Path]) -> None:
    """Raise SourceError if pictures lie beside tar, IDX or files of rows, or in folders there."""
    if picture := next(_pictures(folder), None):
        what = f"pictures ({picture}) beside {few([file.name for file in archives])}"
        hint = "Move either away, or pack one by itself: a folder, a file or a pattern of files"
        raise SourceError(what, folder, hint)


def _pictures(folder: Path) -> Iterator[str]:
    for relative, entries in files_below(folder):
        for name in (entry.name for entry in entries or ()):
            if suffix_of(name) in PICTURES.suffixes and not is_hidden(name):
                yield f"{relative}/{name}".lstrip("/")


def _archives(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the tar, IDX and files of rows; of an IDX file that is there twice, not the .gz."""
    if (listed := listed_files(folder, names)) is not None:
        return listed
    kinds = {name: kind for name in names if (kind := _archive_kind(name))}
    twice = {f"{name}.gz" for name, kind in kinds.items() if kind == "idx"}
    return [folder / name for name in kinds if name not in twice and (folder / name).is_file()]


def _archive_kind(name: str) -> str:
    if suffix_of(name) == TAR_SUFFIX:
        return "tar"
    is_idx = name.lower().endswith(IDX_SUFFIXES) and IDX_IMAGES.fullmatch(name)
    return row_kind(name) or ("idx" if is_idx else "")


def are_of_one_archive(paths: Sequence[Path | str]) -> bool:
    """Tell whether files are tars, or files of rows of one kind, all of them."""
    places = [*map(place_of_source, paths)]
    kinds = {_archive_kind(place.name) if place.is_file() else "" for place in places}
    return len(kinds) == 1 and kinds <= {"tar", *ROW_KINDS}


def _files_at(path: Path, kind: FileKind) -> list[Path] | None:
    """Return the files to read, or None for a folder of pictures."""
    if is_folder(path):
        check_folder(path)
        names, _ = _look_into(path)
        files = _archives(path, names) if kind is PICTURES else []
        if not files or any(suffix_of(name) in kind.suffixes for name in names):
            return None
        _check_alone(path, files)
        return files
    if path.exists():
        return [path]
    if files := sorted(files_matching(path), key=str) if kind is PICTURES else []:
        return files
    braces = "{" in str(path)  # as WebDataset writes them
    raise nothing_at(path, "A pattern has '*' in place of braces" if braces else "Check the path")


def _check_columns_unused(path: Path, columns: Mapping[str, str | None]) -> None:
    for column in columns.values():
        if column is not None:
            raise SourceError(f"no columns, so none is called {column!r}", path)
