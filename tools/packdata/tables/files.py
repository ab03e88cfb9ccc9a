"""Table files by name, pattern or folder, each opened as what its suffix says."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from glob import has_magic
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from loaders.cached import cached_property
from loaders.errors import SchemaError, SourceError
from packdata.sources.base import foreign_hint, is_hidden, suffix_of
from packdata.sources.listed import (
    files_matching,
    list_sources,
    opened_in_order,
    place_of_source,
    real_path,
)
from packdata.sources.refused import check_folder, check_regular
from packdata.sources.row_kinds import listed_files
from packdata.tables.delimited import CsvOptions, DelimitedFile
from packdata.tables.jsonl import JsonLinesFile
from packdata.tables.typed import arrow_table, parquet_table
from packdata.tables.values import GUESSED, in_words
from packdata.wording import names_in_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from packdata.tables.delimited import Types
    from packdata.tables.parts import FilePart, Kind, TableFile, TableRows

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
    ignored = Counter(other for real, other in others.items() if real not in taken)
    return list(paths.values()), ignored


class LazyTableFile:
    """A file of a source: opened as what its suffix says, when it is first asked about.

    The keys of folders such as ``year=2024`` above it are columns of it.

    Args:
        path: The file.
        open_file: Opens it.
    """

    def __init__(self, path: Path, open_file: Callable[[Path], TableFile]) -> None:
        self.path, self._open_file = path, open_file
        self._keys = _keys_of_folders(path)

    @cached_property
    def opened(self) -> TableFile:
        """The file itself; SourceError if it cannot be read, or is not a table."""
        return self._open_file(self.path)

    @property
    def unit(self) -> str:
        """What places in it are counted in."""
        return self.opened.unit

    @property
    def is_text(self) -> bool:
        """Whether reading it means parsing text."""
        return self.opened.is_text

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Those of the file, and the keys."""
        if _KINDS.get(suffix_of(self.path.name)) is JsonLinesFile or self.opened.columns is None:
            return None
        own = self.opened.columns
        return (*own, *(key for key in self._keys if key not in own))

    def guesses(self, column: str) -> frozenset[str]:
        """Return what texts of a column may be: a folder's name declares nothing."""
        is_own = column not in self._keys or column in (self.opened.columns or ())
        return self.opened.guesses(column) if is_own else GUESSED

    def parts(self, number: int) -> Iterator[FilePart]:
        """List the parts of the file."""
        return self.opened.parts(number)

    def read(
        self, part: FilePart, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> Iterator[TableRows]:
        """Read columns of a part, the keys among them."""
        # None of JSON, of which a piece may have a column of a key's name.
        known = self.opened.columns
        keys = {
            key: value
            for key, value in self._keys.items()
            if key not in (known or ()) and (columns is None or key in columns)
        }
        own = columns
        # One at least: without any there are no rows.
        if columns is not None and known is not None:
            own = [name for name in columns if name not in keys] or known[:1]
        for rows in self.opened.read(part, own, kinds):
            table = rows.table
            for key, value in keys.items():
                if key not in table.column_names or table[key].null_count == len(table):
                    constant = pa.repeat(pa.scalar(value, pa.string()), len(table))
                    others = table.select([name for name in table.column_names if name != key])
                    table = others.append_column(key, constant)
            table = table if columns is None else table.select([*columns])
            yield replace(rows, table=table, cell=None if keys else rows.cell)


def opened(file: TableFile) -> TableFile:
    """Return what a file of a source is."""
    return file.opened if isinstance(file, LazyTableFile) else file


def open_tables(
    paths: Sequence[Path], options: CsvOptions | None = None, missing: Sequence[str] = ()
) -> list[TableFile]:
    """Return files to be opened.

    Args:
        paths: The files.
        options: How CSV files are read.
        missing: Texts that stand for no value.

    Raises:
        SchemaError: There are options for CSV files, but no such file.
    """
    opened_in_order(paths)
    options = CsvOptions() if options is None else options
    given = [name for name, value in options.to_json().items() if name != "delimiter"]
    if given and not any(suffix_of(path.name) in _DELIMITED for path in paths):
        raise SchemaError(f"{', '.join(given)}: there is no CSV file among the sources")
    open_file = partial(_open, options=options, missing=missing, alike={})
    return [LazyTableFile(path, open_file) for path in paths]


@dataclass(frozen=True, slots=True)
class CommonColumns:
    """The columns to read, which every file must have, once.

    Attributes:
        first: The first file that names its columns; None if all rows name their own.
        wanted: The columns that matter; None for all but ``drop``.
        drop: Columns that may differ.
    """

    first: TableFile | None
    wanted: Sequence[str] | None
    drop: Sequence[str] = ()

    @classmethod
    def of(
        cls, files: Iterable[TableFile], wanted: Sequence[str] | None, drop: Sequence[str] = ()
    ) -> CommonColumns:
        """Take what the first of some files has."""
        first = next((file for file in files if file.columns is not None), None)
        return cls(first, wanted, drop)

    @property
    def columns(self) -> list[str] | None:
        """Their names; None where rows name their own."""
        if self.wanted is not None:
            return list(self.wanted)
        return None if self.first is None else self._of(self.first)

    def _of(self, file: TableFile) -> list[str]:
        return [name for name in file.columns or () if name not in self.drop]

    def check(self, file: TableFile) -> None:
        """Raise SourceError for a file that lacks one, or has more than one of a name, or others."""
        if file.columns is None or self.first is None:
            return
        mine, columns = self._of(file), self.columns or ()
        lacking = [name for name in columns if name not in mine]
        more = [name for name in mine if self.wanted is None and name not in columns]
        if lacking or more:
            found = [f"it lacks {in_words(lacking)}"] if lacking else []
            found += (
                [f"it has {in_words(more)}, which {self.first.path.name} lacks"] if more else []
            )
            hint = "--features names the columns to take, --drop what to leave out"
            raise SourceError(" and ".join(found), file.path, hint)
        twice = [name for name, n in Counter(mine).items() if n > 1 and name in columns]
        if twice:
            what = f"it has {', '.join(map(repr, twice[:5]))} more than once"
            hint = f"--drop {shlex.quote(names_in_option(twice))} leaves them out"
            if isinstance(opened(file), DelimitedFile):
                hint += (
                    ", --names with --skip-rows 1 gives other names; --no-header if it has none"
                )
            raise SourceError(what, file.path, hint)


def _keys_of_folders(path: Path) -> dict[str, str | None]:
    keys: dict[str, str | None] = {}
    for folder in path.absolute().parents:
        key, is_one, value = folder.name.partition("=")
        if not is_one or not key:
            break
        keys.setdefault(unquote(key), None if value == _NO_KEY else unquote(value))
    return dict(reversed(keys.items()))


def _expand(source: Path | str) -> list[tuple[Path, str | None]]:
    """Return what a source names: tables, and of a folder what else is there, with its suffix or ``FOLDER``."""
    path = place_of_source(source)
    check_folder(path)
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
    # Beside the files of a dataset lie their index, and what caches have left.
    if listed is not None:
        inside = [path for path in inside if path in listed or path.is_dir()]
    tables = {path for path in inside if suffix_of(path.name) in _SUFFIXES}
    tables |= {*(listed or ())}
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


def _is_compressed_table(path: Path) -> bool:
    return suffix_of(path.name) in _COMPRESSED and suffix_of(path.stem) in _SUFFIXES


def _open(
    path: Path,
    options: CsvOptions,
    missing: Sequence[str],
    alike: dict[tuple[str, ...], Types],
) -> TableFile:
    check_regular(path, path)
    suffix = suffix_of(path.name)
    if suffix not in _DELIMITED and suffix not in _KINDS:
        what = f"files of kind {suffix or 'without suffix'} are not tables that can be packed"
        hint = "Decompress it" if suffix in _COMPRESSED else f"It takes {', '.join(_SUFFIXES)}"
        hint = foreign_hint(path.name) or hint
        raise SourceError(what, path, hint)
    try:
        if suffix in _DELIMITED:
            return DelimitedFile(path, options, missing, alike)
        return _KINDS[suffix](path, missing)
    except OSError as error:
        raise SourceError(f"it cannot be read ({error.strerror or error})", path) from error
