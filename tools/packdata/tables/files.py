"""Table files by name, pattern or folder, each opened as what its suffix says."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loaders.errors import SchemaError, SourceError
from loaders.remote.url import URL, place_of
from loaders.system.limits import available_memory
from packdata.delimited import CsvOptions, CsvRows
from packdata.jsonl import JsonRows
from packdata.options import changed
from packdata.reading import File, opened_in_order
from packdata.rows import COMPRESSIONS, DELIMITED, JSON_LINES, RowFile, suffix_inside
from packdata.sources.base import foreign_hint, suffix_of
from packdata.sources.listed import Listing, look_at
from packdata.sources.refused import check_folder
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
_KINDS: dict[str, Callable[[File], RowFile]] = {
    **dict.fromkeys(JSON_LINES, JsonRows),
    ".parquet": ParquetRows,
    **dict.fromkeys((".arrow", ".feather", ".ipc"), ArrowRows),
}
_SUFFIXES = (*DELIMITED, *_KINDS)
MOST_BYTES = 1 << 30  # that are kept of text
FOLDER = "folder"  # where the suffixes of files are counted


def list_tables(sources: Sequence[Path | str]) -> tuple[list[File], Counter[str]]:
    """Return the files that paths, patterns and folders name: each once, in the order given, those of one sorted.

    Args:
        sources: Files, patterns such as ``data/*.csv``, and folders of table files; what lies in folders of those is
            not looked at.

    Returns:
        The files, and what else the folders hold: how many of which suffix, and folders.

    Raises:
        SourceError: There is no such file.
    """
    files: dict[str, File] = {}
    others: dict[str, str] = {}
    for source in sources:
        found = look_at(source, deep=False)
        if isinstance(found, Listing):
            others |= _others_in(found)
        for file in _tables_in(found) if isinstance(found, Listing) else found:
            files.setdefault(_real(file.path), file)
    if not files:
        raise SourceError("there is no table to pack", ", ".join(map(str, sources)))
    folders = list(dict.fromkeys(file.path.parent for file in files.values()))
    if len(folders) > 1 and "=" in folders[0].name:  # of which a pattern names the files
        raise SourceError("folders such as year=2024 are not read", folders[0], _KEYS_HINT)
    taken = {*files, *(_real(place_of(source)) for source in sources)}
    ignored = Counter(other for real, other in others.items() if real not in taken)
    return list(files.values()), ignored


def _real(path: Path) -> str:
    """Return what all names of a file have in common; of a URL, itself."""
    return str(path) if isinstance(path, URL) else os.path.realpath(path)


def is_csv(path: Path) -> bool:
    """Tell whether a file is read as CSV."""
    return suffix_inside(path.name) in _CELLS


class TableFiles:
    """The files of a table, each opened when it is first asked for, and held to the columns of the first.

    What was parsed of text is kept for a second reading: a GiB at most, and no more than a quarter of what is free.

    Args:
        files: The files, or what to call a table in memory.
        csv: How CSV files are read.
        missing: Texts that stand for no value in these.
        wanted: The columns that matter, which every file must have once; none for all but ``drop``.
        drop: Columns that may differ.
        frame: The table in memory, with the ``digest`` of its values.

    Raises:
        SchemaError: There are options for CSV files, but no such file.
    """

    def __init__(
        self,
        files: Sequence[File],
        csv: CsvOptions,
        missing: Sequence[str],
        wanted: Sequence[str],
        drop: Sequence[str],
        frame: RowFile | None = None,
        digest: str = "",
    ) -> None:
        opened_in_order(files)
        self.files, self.paths = files, [file.path for file in files]
        self.digest = digest
        self._csv, self._missing, self._wanted, self._drop = csv, missing, wanted, drop
        self._opened: dict[int, RowFile] = {} if frame is None else {0: frame}
        self._checked: set[int] = set()
        self._kept: dict[Part, Rows] = {}
        self._room, self._lock = min(MOST_BYTES, available_memory() // 4), threading.Lock()
        if (given := changed(csv)) and not any(map(is_csv, self.paths)):
            raise SchemaError(f"{', '.join(given)}: there is no CSV file among the sources")

    def __reduce__(self) -> tuple[type[TableFiles], tuple[Any, ...]]:
        """Leave what was opened and kept where it is: another machine reads the files itself."""
        frame = self[0] if self.digest else None
        how = (self._csv, self._missing, self._wanted, self._drop)
        return TableFiles, (self.files, *how, frame, self.digest)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> RowFile:
        """Return a file; SourceError if it cannot be read, is not a table, or has other columns than the first."""
        file = self._open(number)
        if number not in self._checked:
            self._check(file)
            self._checked.add(number)
        return file

    def _open(self, number: int) -> RowFile:
        if number not in self._opened:
            self._opened[number] = _open(self.files[number], self._csv, self._missing)
        return self._opened[number]

    def names(self, number: int) -> tuple[str, ...]:
        """Return the columns of a file, none of JSON lines: such a file is not opened."""
        is_lines = suffix_inside(self.paths[number].name) in JSON_LINES
        return () if is_lines else self._open(number).columns or ()

    @cached_property
    def first(self) -> int | None:
        """Number of the first file that names its columns; None if all rows name their own."""
        return next((number for number in range(len(self)) if self.names(number)), None)

    @cached_property
    def columns(self) -> list[str] | None:
        """The columns to read; None where rows name their own."""
        if self._wanted:
            return [*self._wanted]
        return None if self.first is None else self._not_dropped(self.names(self.first))

    def _not_dropped(self, names: Iterable[str]) -> list[str]:
        dropped = {*self._drop}
        return [name for name in names if name not in dropped]

    def _check(self, file: RowFile) -> None:
        """Raise SourceError for a file that lacks a column, or has more than one of a name, or others."""
        if self.first is None or file.columns is None:
            return
        mine, columns = Counter(self._not_dropped(file.columns)), dict.fromkeys(self.columns or ())
        missing = [name for name in columns if name not in mine]
        more = [name for name in mine if not self._wanted and name not in columns]
        if missing or more:
            lists = {"missing": missing, "unexpected": more}
            found = [f"{word} {in_words(names)}" for word, names in lists.items() if names]
            what = f"columns differ from {self.paths[self.first].name}: {'; '.join(found)}"
            hint = "features= names the columns to take, drop= those to leave out"
            raise SourceError(what, file.path, hint)
        if twice := [name for name, n in mine.items() if n > 1 and name in columns]:
            what = f"duplicate column {', '.join(map(repr, twice[:5]))}"
            hint = f"drop={twice} leaves them out"
            if is_csv(file.path):
                hint += ", names= with skip_rows=1 gives other names; header=False if it has none"
            raise SourceError(what, file.path, hint)

    def keep(self, part: Part, rows: Rows, columns: Mapping[str, pa.Array]) -> None:
        """Keep the columns of a part, one array for each of the rows' own, if there is room."""
        table = pa.table(dict(columns))
        with self._lock:
            if columns and table.nbytes <= self._room:
                self._room -= table.nbytes
                self._kept[part] = replace(rows, table=table)

    def read(
        self, part: Part, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> Iterator[Rows]:
        """Read columns of a part, see ``RowFile.read``: from what was kept, if it has what shall be text as text."""
        kept = self._kept.get(part)
        if kept is not None and columns is not None:
            types = {field.name: field.type for field in kept.table.schema}
            texts = [name for name in columns if kinds.get(name) == "text"]
            if {*columns} <= types.keys() and all(pa.types.is_dictionary(types[n]) for n in texts):
                yield replace(kept, table=kept.table.select([*columns]))
                return
        yield from self[part.file].read(part, columns, kinds)


def _tables_in(folder: Listing) -> list[File]:
    """Return the tables directly in a folder, of a file and its compressed copy the file; SourceError without any."""
    check_folder(folder)
    if (listed := listed_files(folder)) is not None:
        return listed
    names = [name for name in folder.names() if suffix_inside(name) in _SUFFIXES]
    plain = {name for name in names if suffix_of(name) not in COMPRESSIONS}
    names = [name for name in names if name in plain or os.path.splitext(name)[0] not in plain]
    if not names:
        root = folder.root
        hint = (
            f"'{root}/**/*.csv' takes the CSV files in its folders, other suffixes in the same way"
        )
        if isinstance(root, URL):  # no patterns
            hint = "Name the folder of the tables itself, or a list of files"
        raise SourceError(f"the folder has no {', '.join(_SUFFIXES)}", root, hint)
    return folder.files(names)


def _others_in(folder: Listing) -> dict[str, str]:
    """Return by real path what else a folder holds: the suffix of a file, or ``FOLDER``.

    Beside the files of a dataset lie their index, and what caches have left: those are not counted.
    """
    names = folder.names() if listed_files(folder) is None else ()
    found = {_real(folder.root / name): suffix_of(name) for name in names}
    return found | {_real(folder.root / name): FOLDER for name in folder.subfolders()}


def _open(file: File, options: CsvOptions, missing: Sequence[str]) -> RowFile:
    path = file.path
    suffix, is_packed = suffix_inside(path.name), suffix_of(path.name) in COMPRESSIONS
    is_text = suffix in _CELLS or suffix in JSON_LINES
    if not is_text and (suffix not in _KINDS or is_packed):
        what = f"files of kind {suffix_of(path.name) or 'without suffix'} are not tables that can be packed"
        hint = foreign_hint(path.name) or f"It takes {', '.join(_SUFFIXES)}"
        if suffix_of(path.name) in (".xz", ".zip", *COMPRESSIONS):
            hint = f"Decompress the file; {', '.join(COMPRESSIONS)} are read behind CSV and JSON lines"
        raise SourceError(what, path, hint)
    return CsvRows(file, options, missing) if suffix in _CELLS else _KINDS[suffix](file)
