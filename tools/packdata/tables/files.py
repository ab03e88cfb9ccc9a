"""What a table is made of: files by name, pattern or folder, each opened as its suffix says; or a table in memory."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import xxhash

from loaders.errors import SourceError
from loaders.remote.url import URL
from loaders.system.limits import available_memory
from packdata.delimited import CsvOptions, CsvRows
from packdata.jsonl import JsonRows
from packdata.reading import File, LocalFile, opened_in_order
from packdata.rows import COMPRESSIONS, DELIMITED, JSON_LINES, PART_ROWS, RowFile, suffix_inside
from packdata.sources.base import files_identity, foreign_hint, suffix_of
from packdata.sources.listed import Listing, look_at
from packdata.sources.refused import check_folder
from packdata.sources.row_kinds import ArrowRows, ParquetRows, listed_files
from packdata.tables.values import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from packdata.rows import Part, Rows
    from packdata.tables.options import TableOptions
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
# Of pandas, of Arrow and whatever speaks its protocol, of polars' LazyFrame, and of Hugging Face's Dataset.
_FRAME_ATTRIBUTES = ("iloc", "__arrow_c_stream__", "collect_schema", "with_format")


def list_tables(sources: Sequence[Path | str]) -> tuple[list[File], Counter[str]]:
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
    taken: set[str] = set()
    for file in files:
        if (name := _plain_name(file.path)) in taken:
            raise SourceError("duplicate file", file.path, "Pass it once, compressed or not")
        taken.add(name)
    return files, ignored


def _tables_in(folder: Listing, ignored: Counter[str]) -> list[File]:
    """Return the tables directly in a folder; SourceError without any."""
    check_folder(folder)
    files = listed_files(folder)
    if files is None:
        names = [*folder.names()]
        tables = [name for name in names if suffix_inside(name) in _SUFFIXES]
        if not tables:
            hint = "Pass the folder of the tables itself, or files, such as FOLDER/**/*.csv"
            raise SourceError(f"the folder has no {', '.join(_SUFFIXES)}", folder.root, hint)
        ignored.update(suffix_of(name) for name in names if suffix_inside(name) not in _SUFFIXES)
        files = folder.files(tables)
    ignored.update([FOLDER] * len(folder.subfolders()))
    return files


def _plain_name(path: Path) -> str:
    """Return what all names of a file, and of what it is compressed to, have in common."""
    name = str(path) if isinstance(path, URL) else os.path.realpath(path)
    return os.path.splitext(name)[0] if suffix_of(name) in COMPRESSIONS else name


def check_names(names: Sequence[str], columns: Sequence[str], where: Path | str) -> None:
    """Raise SourceError, which names them all, if columns that are named are not there."""
    known = {*columns}
    if absent := [name for name in names if name not in known]:
        what = f"missing column {in_words([*map(repr, absent)])}"
        raise SourceError(what, where, f"The table has {in_words([*map(repr, columns)], 20)}")


def is_csv(path: Path) -> bool:
    """Tell whether a file is read as CSV."""
    return suffix_inside(path.name) in _CELLS


class TableFiles:
    """The files of a table, each opened when it is first asked for, and held to the columns of the first.

    What was parsed of text is kept for a second reading: a GiB at most, and no more than a quarter of what is free.

    Args:
        files: The files, or what to call a table in memory.
        csv: How CSV files are read.
        options: Which columns matter, and what stands for no value in CSV files.
        frame: The table in memory, with the ``digest`` of its values.
    """

    def __init__(
        self,
        files: Sequence[File],
        csv: CsvOptions,
        options: TableOptions,
        frame: RowFile | None = None,
        digest: str = "",
    ) -> None:
        opened_in_order(files)
        self.files, self.paths = files, [file.path for file in files]
        self.digest, self._csv, self._options = digest, csv, options
        self._opened: dict[int, RowFile] = {} if frame is None else {0: frame}
        self._checked: set[int] = set()
        self._kept: dict[Part, Rows] = {}
        self._room, self._lock = min(MOST_BYTES, available_memory() // 4), threading.Lock()

    def __reduce__(self) -> tuple[type[TableFiles], tuple[Any, ...]]:
        """Leave what was opened and kept where it is: another machine reads the files itself."""
        frame = self[0] if self.digest else None
        return TableFiles, (self.files, self._csv, self._options, frame, self.digest)

    @property
    def identity(self) -> dict[str, Any]:
        """What changes when the files or the table in memory do."""
        frame = {"kind": "frame", "digest": self.digest}
        return frame if self.digest else files_identity("table", self.files)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> RowFile:
        """Return a file; SourceError if it cannot be read, is not a table, or has other columns than the first."""
        file = self._open(number)
        if number not in self._checked and file.columns is not None:
            self._check(file.columns, file.path)
            self._checked.add(number)
        return file

    def _open(self, number: int) -> RowFile:
        if number not in self._opened:
            missing = self._options.missing_values
            self._opened[number] = _open(self.files[number], self._csv, missing)
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
        if self._options.wanted:
            return [*self._options.wanted]
        return None if self.first is None else self._not_dropped(self.names(self.first))

    def _not_dropped(self, names: Iterable[str]) -> list[str]:
        dropped = {*self._options.drop}
        return [name for name in names if name not in dropped]

    def _check(self, names: Sequence[str], path: Path) -> None:
        """Raise SourceError for a file that lacks a column, or has more than one of a name, or others."""
        mine, columns = Counter(self._not_dropped(names)), self.columns or []
        if self._options.wanted:
            check_names(columns, names, path)
        elif mine.keys() ^ {*columns}:
            known = dict.fromkeys(columns)
            missing = in_words([name for name in known if name not in mine]) or "none"
            more = in_words([name for name in mine if name not in known]) or "none"
            first = self.paths[self.first or 0].name
            what = f"columns differ from {first}: missing {missing}; unexpected {more}"
            hint = "features= names the columns to take, drop= those to leave out"
            raise SourceError(what, path, hint)
        if twice := [name for name in dict.fromkeys(columns) if mine[name] > 1]:
            what = f"duplicate column {in_words([*map(repr, twice)])}"
            hint = (
                f"drop={twice} leaves them out; of CSV names= with skip_rows=1 gives other names"
            )
            raise SourceError(what, path, hint)

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


def _open(file: File, options: CsvOptions, missing: Sequence[str]) -> RowFile:
    name = file.path.name
    if is_csv(file.path):
        return CsvRows(file, options, missing)
    suffix = suffix_inside(name)
    if suffix in _KINDS and (suffix in JSON_LINES or suffix_of(name) not in COMPRESSIONS):
        return _KINDS[suffix](file)
    what = f"files of kind {suffix_of(name) or 'without suffix'} are not tables that can be packed"
    hint = f"Decompress or convert the file: {', '.join(_SUFFIXES)} are read, text with {', '.join(COMPRESSIONS)}, too"
    raise SourceError(what, file.path, foreign_hint(name) or hint)


# -- tables in memory ------------------------------------------------------------------------------


def is_frame(source: Any) -> bool:
    """Tell whether a source is a table in memory, and no path."""
    return any(hasattr(source, name) for name in _FRAME_ATTRIBUTES)


def open_frame(frame: Any) -> tuple[ArrowRows, str]:
    """Return a table in memory as a file, and a hash of its values; the index of a pandas DataFrame is no column."""
    path = Path(type(frame).__name__)
    table = _as_table(frame, path)
    digest = xxhash.xxh3_128(str(table.schema).encode())
    for batch in table.to_batches(PART_ROWS):
        digest.update(batch.serialize())
    return ArrowRows(LocalFile(path.name, path.name), table), digest.hexdigest()


def _as_table(frame: Any, name: Path) -> pa.Table:
    try:
        if hasattr(frame, "iloc"):
            named = frame.set_axis([str(column) for column in frame.columns], axis=1)
            return pa.Table.from_pandas(named, preserve_index=False)
        if hasattr(frame, "with_format"):
            return frame.with_format("arrow")[:]  # of its selection
        return pa.table(frame.collect() if hasattr(frame, "collect") else frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        what = f"the source cannot be read as a table ({error})"
        raise SourceError(what, name, "Each column takes values of one kind") from error
