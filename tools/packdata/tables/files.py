"""What a table is made of: files by name, pattern or folder, each opened as its suffix says; or a table in memory."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import xxhash

from loaders.errors import SourceError
from loaders.remote.url import URL, Location
from loaders.system.limits import available_memory
from packdata.copies import opened_in_order
from packdata.delimited import CsvOptions, CsvRows
from packdata.describe import few
from packdata.jsonl import JsonRows
from packdata.rows import COMPRESSIONS, DELIMITED, JSON_LINES, RowFile, suffix_inside
from packdata.sources.duplicates import duplicates
from packdata.sources.listed import Listing, files_identity, look_at
from packdata.sources.names import foreign_hint, suffix_of
from packdata.sources.opening import check_folder
from packdata.sources.row_kinds import (
    PART_ROWS,
    ROW_KINDS,
    ArrowRows,
    listed_files,
    open_row_file,
    row_kind,
)
from packdata.types import plain, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from packdata.reading import File
    from packdata.rows import Names, Part, Rows
    from packdata.tables.options import TableOptions
    from packdata.types import Kind

_KEYS_HINT = (
    'Let another tool read its keys as columns: pack_tables(duckdb.sql("from '
    "read_parquet('FOLDER/**/*.parquet', hive_partitioning=true)\"), dst)"
)
_SUFFIXES = (*DELIMITED, *JSON_LINES, *ROW_KINDS)
MOST_BYTES = 1 << 30  # that are kept of text
FOLDER = "folder"  # where the suffixes of files are counted
# Of pandas, of Arrow and whatever speaks its protocol, of polars' LazyFrame, and of Hugging Face's Dataset.
_FRAME_ATTRIBUTES = ("iloc", "__arrow_c_stream__", "collect_schema", "with_format")


def list_tables(sources: Sequence[Location]) -> tuple[list[File], Counter[str]]:
    """Return the files that paths, patterns and folders name, in the order given, those of one sorted.

    Args:
        sources: Files, patterns such as ``data/*.csv``, and folders of table files; what lies in folders of those is
            not looked at.

    Returns:
        The files, and what else the folders hold: how many of which suffix, and folders.

    Raises:
        SourceError: There is no such file, or one is named twice.
    """
    files: list[File] = []
    ignored: Counter[str] = Counter()
    for source in sources:
        found = look_at(source, deep=False)
        files += _tables_in(found, ignored) if isinstance(found, Listing) else found
    if not files:
        raise SourceError("there is no table to pack", ", ".join(map(str, sources)))
    folders = list(dict.fromkeys(file.path.parent for file in files))
    if len(folders) > 1 and "=" in folders[0].name:  # of which a pattern names the files
        raise SourceError("folders such as year=2024 are not read", folders[0], _KEYS_HINT)
    in_rows = [file.path for file in files if suffix_inside(file.path.name) in JSON_LINES]
    if 0 < len(in_rows) < len(files):  # whose rows name their columns: what they lack is missing
        hint = "Pack each kind by itself, the second with like=, then 'packdata merge' both"
        raise SourceError("JSON lines beside other tables", in_rows[0], hint)
    if twice := duplicates(lambda: (_plain_name(file.path) for file in files)):
        raise SourceError("duplicate file", min(twice), "Pass the file once, compressed or not")
    return files, ignored


def _tables_in(folder: Listing, ignored: Counter[str]) -> list[File]:
    """Return the tables directly in a folder; SourceError without any."""
    check_folder(folder)
    if (files := listed_files(folder)) is None:
        names = [*folder.names()]
        if not (tables := [name for name in names if suffix_inside(name) in _SUFFIXES]):
            hint = "Pass the folder of the tables itself, or files, such as FOLDER/**/*.csv"
            raise SourceError(f"the folder has no {', '.join(_SUFFIXES)}", folder.root, hint)
        ignored.update(suffix_of(name) for name in names if suffix_inside(name) not in _SUFFIXES)
        files = folder.files(tables)
    ignored.update([FOLDER] * len(folder.subfolders()))
    return files


def _plain_name(path: Location) -> str:
    """Return what all names of a file, and of what it is compressed to, have in common."""
    name = str(path) if isinstance(path, URL) else os.path.realpath(path)
    return os.path.splitext(name)[0] if suffix_of(name) in COMPRESSIONS else name


def check_names(names: Sequence[str], columns: Collection[str], where: Location | str) -> None:
    """Raise SourceError, which names them all, if columns that are named are not there."""
    known = {*columns}
    if absent := [repr(name) for name in names if name not in known]:
        hint = f"The table has {few(map(repr, columns), 20)}"
        raise SourceError(f"missing column {few(absent, 8)}", where, hint)


def is_csv(path: Location) -> bool:
    """Tell whether a file is read as CSV."""
    return suffix_inside(path.name) in (*DELIMITED, ".txt")


class TableFiles:
    """The files of a table, each opened when it is first asked for, and held to the columns of the first.

    What was parsed of text is kept for a second reading: a GiB at most, and no more than a quarter of what is free.

    Args:
        files: The files, or what to call a table in memory.
        csv: How CSV files are read.
        options: Which columns matter, and what stands for no value in CSV files.
        table: The table in memory.
    """

    def __init__(
        self,
        files: Sequence[File],
        csv: CsvOptions,
        options: TableOptions,
        table: pa.Table | None = None,
    ) -> None:
        opened_in_order(files)
        self.files, self.paths, self.table = files, [file.path for file in files], table
        self._csv, self._options, self._dropped = csv, options, {*options.drop}
        self._opened: dict[int, RowFile] = {}
        self._checked: set[int] = set()
        self._kept: dict[Part, tuple[Rows, dict[str, pa.Array]]] = {}
        self._room, self._lock = min(MOST_BYTES, available_memory() // 4), threading.Lock()

    def __reduce__(self) -> tuple[type[TableFiles], tuple[Any, ...]]:
        """Leave what was opened and kept where it is: another machine reads the files itself."""
        return TableFiles, (self.files, self._csv, self._options, self.table)

    def identity(self) -> dict[str, Any]:
        """Return what changes when the files or the table in memory do."""
        if self.table is None:
            return files_identity("table", self.files)
        digest = xxhash.xxh3_128(str(self.table.schema).encode())
        for batch in self.table.to_batches(PART_ROWS):
            digest.update(batch.serialize())
        return {"kind": "frame", "digest": digest.hexdigest()}

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> RowFile:
        """Return a file; SourceError if it cannot be read, is not a table, or has other columns than the first."""
        file = self._open(number)
        if number not in self._checked and file.columns is not None:
            self._check(file.columns, file.path)
            self._checked.add(number)
        return file

    def _open(self, number: int) -> RowFile:
        if number not in self._opened:
            self._opened[number] = self._row_file(self.files[number])
        return self._opened[number]

    def _row_file(self, file: File) -> RowFile:
        name = file.path.name
        if self.table is not None:
            return ArrowRows(file, self.table)
        if is_csv(file.path):
            return CsvRows(file, self._csv, self._options.missing_values)
        if suffix_inside(name) in JSON_LINES:
            return JsonRows(file)
        if row_kind(name):
            return open_row_file(file)
        kind, compressed = suffix_of(name) or "without suffix", ", ".join(COMPRESSIONS)
        what = f"files of kind {kind} are not tables that can be packed"
        hint = f"Decompress or convert the file: {', '.join(_SUFFIXES)} are read, text with {compressed}, too"
        raise SourceError(what, file.path, foreign_hint(name) or hint)

    @cached_property
    def columns(self) -> list[str] | None:
        """The columns to read; None where rows name their own."""
        if self._options.wanted:
            return [*self._options.wanted]
        names = self._open(0).columns
        return None if names is None else [name for name in names if name not in self._dropped]

    def check_named(self) -> None:
        """Raise SourceError for columns that an option names, and no file has."""
        named, mine = self._options.named, self._open(0).columns
        if mine is not None and not {*named} <= {*mine}:
            columns = (self._open(number).columns or () for number in range(len(self)))
            check_names(named, dict.fromkeys(chain.from_iterable(columns)), self.paths[0])

    def _check(self, names: Sequence[str], path: Location) -> None:
        """Raise SourceError for a file that lacks a column, or has more than one of a name, or others."""
        mine = Counter(name for name in names if name not in self._dropped)
        known = dict.fromkeys(self.columns or ())
        if self._options.wanted:
            check_names([*known], names, path)
        elif mine.keys() != known.keys():
            missing = few([name for name in known if name not in mine], 8) or "none"
            more = few([name for name in mine if name not in known], 8) or "none"
            first = self.paths[0].name
            what = f"columns differ from {first}: missing {missing}; unexpected {more}"
            hint = "features= names the columns to take, drop= those to leave out"
            raise SourceError(what, path, hint)
        if twice := [name for name in known if mine[name] > 1]:
            what = f"duplicate column {few(map(repr, twice), 8)}"
            hint = f"drop={twice} leaves out both; of CSV names= with skip_rows=1 renames them"
            raise SourceError(what, path, hint)

    def parts(self) -> Iterator[Part]:
        """List the parts of all files."""
        for number in range(len(self)):
            yield from (part._replace(file=number) for part in self[number].parts())

    def keep(self, part: Part, rows: Rows, columns: Mapping[str, pa.Array]) -> None:
        """Keep the columns of a part, one array for each of the rows' own, beside those kept before."""
        nbytes = sum(array.nbytes for array in columns.values())
        with self._lock:
            if columns and nbytes <= self._room:
                self._room -= nbytes
                _, kept = self._kept.setdefault(part, (replace(rows, table=None), {}))
                kept.update(columns)

    def read(self, part: Part, columns: Names, kinds: Mapping[str, Kind]) -> Iterator[Rows]:
        """Read columns of a part, see ``RowFile.read``: from what was kept, if it has what shall be text as text."""
        rows, kept = self._kept.get(part, (None, {}))
        if rows is not None and columns is not None and {*columns} <= kept.keys():
            texts = [kept[name] for name in columns if kinds.get(name) == "text"]
            if all(pa.types.is_dictionary(each.type) for each in texts):
                yield replace(rows, table=pa.table({name: kept[name] for name in columns}))
                return
        yield from self[part.file].read(part, columns)

    def since(self, part: Part, row: int) -> Location | str:
        """Return the place of what is wrong from a row of a part on: of all of a file, its path."""
        file, line = self[part.file], part.line + row
        return file.path if line <= 1 else f"{file.path}, from {file.unit} {line} on"

    def value(self, column: str, part: Part, row: int) -> tuple[str, str]:
        """Return a value as it is written, and its place: the part is read once more."""
        file = self[part.file]
        for rows in file.read(part, [column]):
            if row < len(rows.table):
                return shown(plain(rows.table[column]), row), file.place(rows.line(row))
            row -= len(rows.table)
        raise SourceError("the file became shorter while it was read", file.path)


# -- tables in memory ------------------------------------------------------------------------------


def is_frame(source: Any) -> bool:
    """Tell whether a source is a table in memory, and no path."""
    return any(hasattr(source, name) for name in _FRAME_ATTRIBUTES)


def as_table(frame: Any) -> pa.Table:
    """Return a table in memory as one of Arrow; the index of a pandas DataFrame is no column."""
    try:
        frame = frame.to_frame() if hasattr(frame, "to_frame") else frame  # one column
        if hasattr(frame, "iloc"):
            named = frame.set_axis([str(column) for column in frame.columns], axis=1)
            return pa.Table.from_pandas(named, preserve_index=False)
        if hasattr(frame, "with_format"):
            frame = frame.with_format("arrow")[:]  # of its selection
        return pa.table(frame.collect() if hasattr(frame, "collect") else frame)
    except (pa.ArrowException, LookupError, OverflowError, TypeError, ValueError) as error:
        what = f"the source cannot be read as a table ({error})"
        hint = "A column has one kind of value"
        raise SourceError(what, type(frame).__name__, hint) from error
