"""Table files by name, pattern or folder, each opened as what its suffix says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from glob import has_magic
from types import MappingProxyType
from typing import TYPE_CHECKING

from loaders.errors import SchemaError, SourceError
from packdata.delimited import CsvOptions, CsvRows
from packdata.jsonl import JsonRows
from packdata.options import changed
from packdata.rows import COMPRESSIONS, DELIMITED, JSON_LINES, RowFile, suffix_inside
from packdata.sources.base import foreign_hint, is_hidden, suffix_of
from packdata.sources.listed import (
    files_matching,
    list_sources,
    opened_in_order,
    place_of_source,
    real_path,
)
from packdata.sources.refused import check_folder, check_regular
from packdata.sources.row_kinds import ArrowRows, ParquetRows, listed_files
from packdata.tables.values import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from packdata.rows import Part, Rows
    from packdata.types import Kind

_KEYS_HINT = (
    'Let another tool read its keys as columns: pack_tables(duckdb.sql("from '
    "read_parquet('FOLDER/**/*.parquet', hive_partitioning=true)\"), dst)"
)
_CELLS = (*DELIMITED, ".txt")
_KINDS: dict[str, Callable[[Path], RowFile]] = {
    **dict.fromkeys(JSON_LINES, JsonRows),
    ".parquet": ParquetRows,
    **dict.fromkeys((".arrow", ".feather", ".ipc"), ArrowRows),
}
_SUFFIXES = (*DELIMITED, *_KINDS)
FOLDER = "folder"  # where the suffixes of files are counted


def list_tables(sources: Sequence[Path | str]) -> tuple[list[Path], Counter[str]]:
    """Return the files that paths, patterns and folders name: each once, in the order given, those of one sorted.

    Args:
        sources: Files, patterns such as ``data/*.csv``, and folders of table files; what lies in folders of those is
            not looked at.

    Returns:
        The files, and what else the folders hold: how many of which suffix, and folders.

    Raises:
        SourceError: There is no such file.
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
    folders = list(dict.fromkeys(path.parent for path in paths.values()))
    if len(folders) > 1 and "=" in folders[0].name:  # of which a pattern names the files
        raise SourceError("folders such as year=2024 are not read", folders[0], _KEYS_HINT)
    taken = {*paths, *map(real_path, sources)}
    ignored = Counter(other for real, other in others.items() if real not in taken)
    return list(paths.values()), ignored


class LazyTableFile(RowFile):
    """A file of a source: opened as what its suffix says, when it is first asked about.

    Args:
        path: The file.
        options: How CSV files are read.
        missing: Texts that stand for no value in these.
    """

    def __init__(self, path: Path, options: CsvOptions, missing: Sequence[str]) -> None:
        self.path, self._options, self._missing = path, options, tuple(missing)

    @cached_property
    def opened(self) -> RowFile:
        """The file itself; SourceError if it cannot be read, or is not a table."""
        return _open(self.path, self._options, self._missing)

    @property
    def unit(self) -> str:  # type: ignore[override]
        """What places in it are counted in."""
        return self.opened.unit

    @property
    def is_text(self) -> bool:  # type: ignore[override]
        """Whether reading it means parsing text."""
        return self.opened.is_text

    @property
    def columns(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """Its columns."""
        return None if suffix_inside(self.path.name) in JSON_LINES else self.opened.columns

    @property
    def guesses(self) -> frozenset[Kind]:  # type: ignore[override]
        """Of what kinds texts may be."""
        return self.opened.guesses

    def parts(self, number: int = 0) -> Iterator[Part]:
        """List the parts of the file."""
        return self.opened.parts(number)

    def read(
        self,
        part: Part,
        columns: Sequence[str] | None = None,
        kinds: Mapping[str, Kind] = MappingProxyType({}),
    ) -> Iterator[Rows]:
        """Read columns of a part."""
        yield from self.opened.read(part, columns, kinds)


def is_csv(path: Path) -> bool:
    """Tell whether a file is read as CSV."""
    return suffix_inside(path.name) in _CELLS


def opened(file: RowFile) -> RowFile:
    """Return what a file of a source is."""
    return file.opened if isinstance(file, LazyTableFile) else file


def open_tables(
    paths: Sequence[Path], options: CsvOptions | None = None, missing: Sequence[str] = ()
) -> list[RowFile]:
    """Return files to be opened.

    Args:
        paths: The files.
        options: How CSV files are read.
        missing: Texts that stand for no value in these.

    Raises:
        SchemaError: There are options for CSV files, but no such file.
    """
    opened_in_order(paths)
    options = CsvOptions() if options is None else options
    given = changed(options)
    if given and not any(map(is_csv, paths)):
        raise SchemaError(f"{', '.join(given)}: there is no CSV file among the sources")
    return [LazyTableFile(path, options, missing) for path in paths]


@dataclass(frozen=True, slots=True)
class CommonColumns:
    """The columns to read, which every file must have, once.

    Attributes:
        first: The first file that names its columns; None if all rows name their own.
        wanted: The columns that matter; None for all but ``drop``.
        drop: Columns that may differ.
    """

    first: RowFile | None
    wanted: Sequence[str] | None
    drop: Sequence[str] = ()

    @classmethod
    def of(
        cls, files: Iterable[RowFile], wanted: Sequence[str] | None, drop: Sequence[str] = ()
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

    def _of(self, file: RowFile) -> list[str]:
        dropped = {*self.drop}
        return [name for name in file.columns or () if name not in dropped]

    def check(self, file: RowFile) -> None:
        """Raise SourceError for a file that lacks one, or has more than one of a name, or others."""
        if file.columns is None or self.first is None:
            return
        mine, columns = Counter(self._of(file)), dict.fromkeys(self.columns or ())
        missing = [name for name in columns if name not in mine]
        more = [name for name in mine if self.wanted is None and name not in columns]
        if missing or more:
            found = [f"missing {in_words(missing)}"] if missing else []
            found += [f"unexpected {in_words(more)}"] if more else []
            what = f"columns differ from {self.first.path.name}: {'; '.join(found)}"
            hint = "features= names the columns to take, drop= those to leave out"
            raise SourceError(what, file.path, hint)
        twice = [name for name, n in mine.items() if n > 1 and name in columns]
        if twice:
            what = f"duplicate column {', '.join(map(repr, twice[:5]))}"
            hint = f"drop={twice} leaves them out"
            if isinstance(opened(file), CsvRows):
                hint += ", names= with skip_rows=1 gives other names; header=False if it has none"
            raise SourceError(what, file.path, hint)


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
    """Return what a folder holds."""
    inside = [path for path in sorted(folder.iterdir()) if not is_hidden(path.name)]
    listed = listed_files(folder, [path.name for path in inside])
    # Beside the files of a dataset lie their index, and what caches have left.
    if listed is not None:
        inside = [path for path in inside if path in listed or path.is_dir()]
    tables = {path for path in inside if suffix_inside(path.name) in _SUFFIXES}
    # Of a file and its compressed copy, the file.
    tables -= {
        path
        for path in tables
        if suffix_of(path.name) in COMPRESSIONS and path.with_suffix("") in tables
    }
    found: list[tuple[Path, str | None]] = []
    for path in inside:
        if path in tables:
            found.append((path, None))
        elif "=" in path.name and path.is_dir():
            raise SourceError("folders such as year=2024 are not read", path, _KEYS_HINT)
        else:
            found.append((path, FOLDER if path.is_dir() else suffix_of(path.name)))
    if not any(other is None for _, other in found):
        folders = [path for path in inside if path.is_dir()]
        below = (suffix_of(path.name) for each in folders for path in sorted(each.iterdir()))
        suffix = next((suffix for suffix in below if suffix in _SUFFIXES), None)
        hint = f"'{folder}/**/*{suffix}' takes those in its folders" if suffix else ""
        raise SourceError(f"the folder has no {', '.join(_SUFFIXES)}", folder, hint)
    return found


def _open(path: Path, options: CsvOptions, missing: Sequence[str]) -> RowFile:
    check_regular(path, path)
    suffix, is_packed = suffix_inside(path.name), suffix_of(path.name) in COMPRESSIONS
    is_text = suffix in _CELLS or suffix in JSON_LINES
    if (suffix not in _CELLS and suffix not in _KINDS) or (is_packed and not is_text):
        what = f"files of kind {suffix_of(path.name) or 'without suffix'} are not tables that can be packed"
        hint = foreign_hint(path.name) or f"It takes {', '.join(_SUFFIXES)}"
        if suffix_of(path.name) in (".xz", ".zip", *COMPRESSIONS):
            hint = f"Decompress the file; {', '.join(COMPRESSIONS)} are read behind CSV and JSON lines"
        raise SourceError(what, path, hint)
    try:
        return CsvRows(path, options, missing) if suffix in _CELLS else _KINDS[suffix](path)
    except OSError as error:
        what = f"the file cannot be read ({error.strerror or error})"
        raise SourceError(what, path) from error
