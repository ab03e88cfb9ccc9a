"""Parquet files, row group by row group, and Arrow (Feather) files and streams, batch by batch."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from loaders.errors import SourceError
from packdata.sources.base import check_name
from packdata.tables.parts import Kind, Part, Rows
from packdata.tables.values import as_text, combined

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_BATCH_ROWS = 1 << 16
_EXACT: dict[str, Any] = {"coerce_int96_timestamp_unit": "us"}  # nanoseconds end in 2262, and wrap


class ParquetTable:
    """A Parquet file.

    Args:
        path: The file.
    """

    unit = "row"

    def __init__(self, path: Path) -> None:
        self.path = path
        check_name(str(path), path)
        try:
            with pq.ParquetFile(path, **_EXACT) as file:
                self._metadata = file.metadata
                self.columns: tuple[str, ...] = tuple(file.schema_arrow.names)
        except (pa.ArrowException, ValueError) as error:
            raise SourceError(f"it cannot be read as Parquet ({error})", path) from error
        _check_names(self.columns, path)

    def parts(self, number: int) -> Iterator[Part]:
        """List the row groups."""
        row = 0
        for group in range(self._metadata.num_row_groups):
            size = self._metadata.row_group(group).num_rows
            yield Part(number, group, row + size, row)
            row += size

    def read(
        self, part: Part, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> Iterator[Rows]:
        """Read a row group, some ten thousand rows at a time."""
        names = list(self.columns if columns is None else columns)
        row = part.line
        try:
            with pq.ParquetFile(self.path, metadata=self._metadata, **_EXACT) as file:
                for batch in file.iter_batches(
                    _BATCH_ROWS, row_groups=[part.start], columns=names, use_threads=False
                ):
                    yield _rows(pa.Table.from_batches([batch]).select(names), kinds, row)
                    row += len(batch)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"it cannot be read ({error})", f"{self.path}, row {row}") from error


class ArrowTable:
    """A file in Arrow's own format: Feather, IPC file or IPC stream.

    Args:
        path: The file.
    """

    unit = "row"

    def __init__(self, path: Path) -> None:
        self.path = path
        check_name(str(path), path)
        with open(path, "rb") as file:
            self._is_file = file.read(6) == b"ARROW1"
        try:
            with self._open() as reader:
                self._schema = reader.schema
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"it cannot be read as Arrow ({error})", path) from error
        self.columns: tuple[str, ...] = tuple(self._schema.names)
        _check_names(self.columns, path)
        is_coded = any(pa.types.is_dictionary(field.type) for field in self._schema)
        if is_coded and not self._is_file:
            raise SourceError("it is a stream with dictionaries", path, "Write it as a file")

    def _open(self) -> Any:
        source = pa.memory_map(str(self.path))
        return pa.ipc.open_file(source) if self._is_file else pa.ipc.open_stream(source)

    def parts(self, number: int) -> Iterator[Part]:
        """List the batches."""
        row = 0
        try:
            for start, batch in self._batches():
                yield Part(number, start, row + len(batch), row)
                row += len(batch)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"it cannot be read ({error})", f"{self.path}, row {row}") from error

    def _batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield each batch with its number, in a stream with its offset."""
        if self._is_file:
            with self._open() as reader:
                for i in range(reader.num_record_batches):
                    yield i, reader.get_batch(i)
            return
        with pa.memory_map(str(self.path)) as source, pa.ipc.open_stream(source) as reader:
            while True:
                offset = source.tell()
                try:
                    yield offset, reader.read_next_batch()
                except StopIteration:
                    return

    def read(
        self, part: Part, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> Iterator[Rows]:
        """Read a batch."""
        names = list(self.columns if columns is None else columns)
        try:
            table = pa.Table.from_batches([self._batch(part.start)]).select(names)
        except (OSError, pa.ArrowException) as error:
            where = f"{self.path}, row {part.line}"
            raise SourceError(f"it cannot be read ({error})", where) from error
        for first in range(0, len(table), _BATCH_ROWS):
            yield _rows(table.slice(first, _BATCH_ROWS), kinds, part.line + first)

    def _batch(self, start: int) -> pa.RecordBatch:
        if self._is_file:
            with self._open() as reader:
                return reader.get_batch(start)
        with pa.memory_map(str(self.path)) as source:
            source.seek(start)
            return pa.ipc.read_record_batch(pa.ipc.read_message(source), self._schema)


def _check_names(names: Sequence[str], path: Path) -> None:
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        what = f"it has {', '.join(map(repr, twice[:5]))} more than once"
        raise SourceError(what, path, "Rename one of the columns")
    if not names:
        raise SourceError("it has no columns", path)


def _rows(table: pa.Table, kinds: Mapping[str, Kind], row: int) -> Rows:
    """Return rows of a file that counts from 0; texts of what is to be text."""
    for i, name in enumerate(table.column_names):
        array = _plain(combined(table[name]))
        if kinds.get(name) == "text":
            with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):  # who reads refuses it
                array = as_text(array)
        table = table.set_column(i, name, array)
    return Rows(table, partial(int.__add__, row))


def _plain(array: pa.Array) -> pa.Array:
    """Return values one by one, as a type that Arrow can compute with."""
    if pa.types.is_dictionary(array.type):
        return _plain(array.dictionary).take(array.indices)
    return array.cast(pa.large_string()) if pa.types.is_string_view(array.type) else array
