"""Files that declare what their columns are, and tables in memory: one kind of table, read group by group."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.ipc
import xxhash

from loaders.errors import SourceError
from loaders.system.regular import regular
from packdata.sources.refused import check_name
from packdata.sources.row_kinds import ParquetRows
from packdata.tables.parts import FilePart, Kind, TableRows
from packdata.tables.values import as_text, combined, is_text, plain, without_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

BATCH_ROWS = 1 << 16
_UNREADABLE = (OSError, pa.ArrowException)


class TypedTable:
    """A table that declares what its columns are, counts its rows from 0, and is read group by group.

    Args:
        path: The file, or what to call it.
        columns: Their names, in order.
        sizes: Lists the groups: where each begins, as ``tables`` takes it, and its rows.
        tables: Yields a group, in one or more tables of the columns that are named.
        missing: Texts that stand for no value, as null does.
        digest: Hash of all values, if it is a table in memory.
    """

    unit = "row"
    is_text = False

    def __init__(
        self,
        path: Path,
        columns: Sequence[str],
        sizes: Callable[[], Iterable[tuple[int, int]]],
        tables: Callable[[int, list[str]], Iterator[pa.Table]],
        missing: Sequence[str] = (),
        digest: str = "",
    ) -> None:
        self.path, self._sizes, self._tables, self._missing = path, sizes, tables, missing
        self.digest = digest
        self.columns: tuple[str, ...] = tuple(columns)

    def guesses(self, column: str) -> frozenset[str]:
        """Return what texts may be: they are declared to be texts."""
        return frozenset()

    def parts(self, number: int) -> Iterator[FilePart]:
        """List the groups."""
        row = 0
        try:
            for start, size in self._sizes():
                yield FilePart(number, start, row + size, row)
                row += size
        except _UNREADABLE as error:
            raise self._unreadable(error, row) from error

    def read(
        self, part: FilePart, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> Iterator[TableRows]:
        """Read a group, some ten thousand rows at a time."""
        names, row = list(self.columns if columns is None else columns), part.line
        try:
            for group in self._tables(part.start, names):
                for first in range(0, len(group), BATCH_ROWS):
                    table = group.slice(first, BATCH_ROWS)
                    yield self._rows(table, kinds, row)
                    row += len(table)
        except _UNREADABLE as error:
            raise self._unreadable(error, row) from error

    def _unreadable(self, error: Exception, row: int) -> SourceError:
        return SourceError(f"it cannot be read ({error})", f"{self.path}, row {row}")

    def _rows(self, table: pa.Table, kinds: Mapping[str, Kind], row: int) -> TableRows:
        """Return rows from a number on; as texts what is to be text."""
        arrays = [
            _as_kind(plain(combined(column)), kinds.get(name))
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]
        table = pa.Table.from_arrays(arrays, names=table.column_names)
        return TableRows(without_words(table, self._missing), partial(int.__add__, row))


def _as_kind(array: pa.Array, kind: Kind | None) -> pa.Array:
    if kind != "text" or is_text(getattr(array.type, "value_type", array.type)):
        return array
    try:
        return as_text(array)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # who reads refuses it
        return array


def parquet_table(path: Path, missing: Sequence[str] = ()) -> TypedTable:
    """Open a Parquet file; its groups are the row groups."""
    file = ParquetRows(path)

    def tables(start: int, names: list[str]) -> Iterator[pa.Table]:
        for batch in file.batches(start, names, BATCH_ROWS):
            yield pa.Table.from_batches([batch])

    return TypedTable(path, file.schema.names, lambda: enumerate(file.groups), tables, missing)


def arrow_table(path: Path, missing: Sequence[str] = ()) -> TypedTable:
    """Open a file in Arrow's own format (Feather, IPC file or IPC stream); its groups are the batches."""
    check_name(str(path), path)
    with open(path, "rb", opener=regular) as file:
        is_file = file.read(6) == b"ARROW1"
    try:
        with _open_arrow(path, is_file) as reader:
            schema = reader.schema
    except _UNREADABLE as error:
        raise SourceError(f"it cannot be read as Arrow ({error})", path) from error
    if not is_file and any(pa.types.is_dictionary(field.type) for field in schema):
        raise SourceError("it is a stream with dictionaries", path, "Write it as a file")

    def tables(start: int, names: list[str]) -> Iterator[pa.Table]:
        batch = _arrow_batch(path, start, None if is_file else schema).select(names)
        batch.validate(full=True)  # places beyond the buffers, and text that is none
        yield pa.Table.from_batches([batch])

    sizes = partial(_sizes_of_file if is_file else _sizes_of_stream, path)
    return TypedTable(path, schema.names, sizes, tables, missing)


def _open_arrow(path: Path, is_file: bool) -> Any:
    source = pa.memory_map(os.fspath(path))
    return pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)


def _sizes_of_file(path: Path) -> Iterator[tuple[int, int]]:
    with _open_arrow(path, True) as reader:
        for i in range(reader.num_record_batches):
            yield i, len(reader.get_batch(i))


def _sizes_of_stream(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the offset of each batch, and its rows."""
    with pa.memory_map(os.fspath(path)) as source, pa.ipc.open_stream(source) as reader:
        while True:
            offset = source.tell()
            try:
                yield offset, len(reader.read_next_batch())
            except StopIteration:
                return


def _arrow_batch(path: Path, start: int, schema: pa.Schema | None) -> pa.RecordBatch:
    """Return a batch: of a file by its number, of a stream with a schema at its offset."""
    if schema is None:
        with _open_arrow(path, True) as reader:
            return reader.get_batch(start)
    with pa.memory_map(os.fspath(path)) as source:
        source.seek(start)
        return pa.ipc.read_record_batch(pa.ipc.read_message(source), schema)


def is_frame(source: Any) -> bool:
    """Tell whether a source is a table in memory, and no path."""
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "iloc")


def frame_table(frame: Any, missing: Sequence[str] = ()) -> TypedTable:
    """Open a table in memory; the index of a pandas DataFrame is no column of it."""
    path = Path(type(frame).__name__)
    table = _as_table(frame, path)
    digest = xxhash.xxh3_128(str(table.schema).encode())
    for batch in table.to_batches(BATCH_ROWS):
        digest.update(batch.serialize())

    def tables(start: int, names: list[str]) -> Iterator[pa.Table]:
        yield table.slice(start, BATCH_ROWS).select(names)

    firsts = range(0, len(table), BATCH_ROWS)
    sizes = [(first, min(BATCH_ROWS, len(table) - first)) for first in firsts]
    names = table.column_names
    return TypedTable(path, names, lambda: sizes, tables, missing, digest.hexdigest())


def _as_table(frame: Any, name: Path) -> pa.Table:
    try:
        if hasattr(frame, "iloc"):
            named = frame.set_axis([str(column) for column in frame.columns], axis=1)
            return pa.Table.from_pandas(named, preserve_index=False)
        return pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        what = f"it cannot be read as a table ({error})"
        raise SourceError(what, name, "Each column takes values of one kind") from error
