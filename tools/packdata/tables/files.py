"""Table files by name, pattern or folder, each opened as what its suffix says."""

from __future__ import annotations

import os
from collections import Counter
from glob import has_magic
from typing import TYPE_CHECKING
from urllib.parse import unquote

from loaders.errors import SchemaError, SourceError
from packdata.sources.base import FFCV_HINT, is_hidden, suffix_of
from packdata.sources.listed import (
    files_matching,
    list_sources,
    opened_in_order,
    place_of_source,
    real_path,
)
from packdata.sources.litdata import INDEX, is_litdata
from packdata.sources.regular import check_regular
from packdata.sources.rowfiles import listed_files, row_kind
from packdata.tables.delimited import CsvOptions, DelimitedFile
from packdata.tables.jsonl import JsonLinesFile
from packdata.tables.parts import PartitionedFile
from packdata.tables.typed import arrow_table, parquet_table, rows_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from packdata.tables.parts import TableFile

_NO_KEY = "__HIVE_DEFAULT_PARTITION__"
_DELIMITED = (".csv", ".tsv", ".txt")
_KINDS: dict[str, Callable[[Path, Sequence[str]], TableFile]] = {
    ".jsonl": JsonLinesFile,
    ".ndjson": JsonLinesFile,
    ".parquet": parquet_table,
    ".arrow": arrow_table,
    ".feather": arrow_table,
    ".ipc": arrow_table,
}
_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather", ".ipc")
FOLDER = "folder"  # where the suffixes of files are counted
_COMPRESSED = (".gz", ".bz2", ".zst", ".xz", ".lz4", ".zip")


def list_tables(sources: Sequence[Path | str]) -> tuple[list[Path], Counter[str]]:
    """Return the files that paths, patterns and folders name: each once, in the order given, those of one sorted.

    Args:
        sources: Files, patterns such as ``data/*.csv``, and folders of table files; what lies in folders of those is
            not looked at.

    Returns:
        The files, and what else the folders hold: how many of which suffix, and folders.

    Raises:
        SourceError: There is no such file, or one that is compressed among those of a folder.
    """
    paths: dict[str, Path] = {}
    others: dict[str, str] = {}
    list_sources(sources)
    for source in sources:
        for path, other in _expand(source):
            real = real_path(path)  # unlike Path.resolve(), at peace with links to themselves
            if other is None:
                paths.setdefault(real, path)
            else:
                others[real] = other
    if not paths:
        raise SourceError("there is no table to pack", ", ".join(map(str, sources)))
    taken = {*paths, *map(real_path, sources)}
    indexed = {os.path.dirname(real) for real, path in paths.items() if path.name == INDEX}
    ignored = Counter(
        other
        for real, other in others.items()
        if real not in taken and os.path.dirname(real) not in indexed
    )
    return list(paths.values()), ignored


def open_tables(
    paths: Sequence[Path], options: CsvOptions | None = None, missing: Sequence[str] = ()
) -> list[TableFile]:
    """Open files as what their suffixes say; the keys of folders such as ``year=2024`` above them are columns.

    Args:
        paths: The files.
        options: How CSV files are read.
        missing: Texts that stand for no value.

    Raises:
        SchemaError: There are options for CSV files, but no such file.
        SourceError: A file cannot be read, or is not a table.
    """
    opened_in_order(paths)
    options = CsvOptions() if options is None else options
    given = [name for name, value in options.to_json().items() if name != "delimiter"]
    if given and not any(suffix_of(path.name) in _DELIMITED for path in paths):
        raise SchemaError(f"{', '.join(given)}: there is no CSV file among the sources")
    return [_partitioned(_open(path, options, missing)) for path in paths]


def _partitioned(file: TableFile) -> TableFile:
    keys: dict[str, str | None] = {}
    for folder in file.path.absolute().parents:
        key, is_one, value = folder.name.partition("=")
        if not is_one or not key:
            break
        if key not in (file.columns or ()):
            keys.setdefault(unquote(key), None if value == _NO_KEY else unquote(value))
    return PartitionedFile(file, dict(reversed(keys.items()))) if keys else file


def _expand(source: Path | str) -> list[tuple[Path, str | None]]:
    """Return what a source names: tables, and of a folder what else is there, with its suffix or ``FOLDER``."""
    path = place_of_source(source)
    if (path / "manifest.json").exists():
        hint = "'packdata split', 'merge' and 'extend' work on packed datasets"
        raise SourceError("it is a packed dataset already", path, hint)
    if path.is_dir():
        return _list_folder(path)
    if path.exists() or not has_magic(str(source)):
        return [(path, None)]
    matches = sorted(files_matching(source))
    if not matches:
        raise SourceError("no file matches", source)
    return [(match, None) for match in matches if match.is_file()]


def _list_folder(folder: Path) -> list[tuple[Path, str | None]]:
    """Return what a folder holds, and what its folders such as ``year=2024`` do."""
    inside = [path for path in sorted(folder.iterdir()) if not is_hidden(path.name)]
    listed = listed_files(folder, [path.name for path in inside])
    if listed is not None:  # beside the files of a dataset lie those of caches
        inside = [p for p in inside if p in listed or suffix_of(p.name) not in _SUFFIXES]
    tables = {path for path in inside if suffix_of(path.name) in _SUFFIXES}
    tables |= {path for path in inside if _is_foreign(path)} | {*(listed or ())}
    found: list[tuple[Path, str | None]] = []
    for path in inside:
        if path in tables:
            found.append((path, None))
        elif _is_compressed_table(path) and path.with_suffix("") not in tables:
            pattern = f"{folder}/*{suffix_of(path.stem)}"
            hint = f"Decompress it, or leave it out by a pattern such as '{pattern}'"
            raise SourceError("tables that are compressed are not read", path, hint)
        elif "=" in path.name and path.is_dir():
            found += _list_folder(path)
        else:
            found.append((path, FOLDER if path.is_dir() else suffix_of(path.name)))
    if not any(other is None for _, other in found) and "=" not in folder.name:
        below = (suffix_of(path.name) for path in sorted(folder.glob("*/*")))
        suffix = next((suffix for suffix in below if suffix in _SUFFIXES), None)
        hint = f"'{folder}/**/*{suffix}' takes those in its folders" if suffix else ""
        raise SourceError(f"the folder has no {', '.join(_SUFFIXES)}", folder, hint)
    return found


def _is_foreign(path: Path) -> bool:
    return row_kind(path.name) in ("mds", "tfrecord")


def _is_compressed_table(path: Path) -> bool:
    return suffix_of(path.name) in _COMPRESSED and suffix_of(path.stem) in _SUFFIXES


def _open(path: Path, options: CsvOptions, missing: Sequence[str]) -> TableFile:
    check_regular(path, path)
    suffix = suffix_of(path.name)
    if _is_foreign(path) or is_litdata(path):
        return rows_table(path, missing)
    if suffix not in _DELIMITED and suffix not in _KINDS:
        what = f"files of kind {suffix or 'without suffix'} are not tables that can be packed"
        others = {".beton": FFCV_HINT, **dict.fromkeys(_COMPRESSED, "Decompress it")}
        hint = others.get(suffix) or f"It takes {', '.join(_SUFFIXES)}"
        raise SourceError(what, path, hint)
    try:
        if suffix in _DELIMITED:
            return DelimitedFile(path, options, missing)
        return _KINDS[suffix](path, missing)
    except OSError as error:
        raise SourceError(f"it cannot be read ({error.strerror or error})", path) from error
