"""Parquet files, row group by row group, Arrow (Feather) files and streams, batch by batch, and others of rows."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.ipc

from loaders.errors import SourceError
from packdata.readers import open_parquet
from packdata.regular import check_name
from packdata.sources.rowfiles import open_row_file
from packdata.tables.parts import Kind, Part, Rows
from packdata.tables.values import as_text, combined, plain, without_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

BATCH_ROWS = 1 << 16


class TypedFile:
    """A file that declares what its columns are, and counts its rows from 0.

    Args:
        path: The file.
        missing: Texts that stand for no value, as null does.
    """

    unit = "row"
    is_text = False
    columns: tuple[str, ...] = ()

    def __init__(self, path: Path, missing: Sequence[str] = ()) -> None:
        self.path, self._missing = path, missing

    def guesses(self, column: str) -> frozenset[str]:
        """Return what texts may be: they are declared to be texts."""
        return frozenset()

    def _rows(self, table: pa.Table, kinds: Mapping[str, Kind], row: int) -> Rows:
        """Return rows from a number on; as texts what is to be text."""
        arrays = []
        for name, column in zip(table.column_names, table.columns, strict=True):
            array = plain(combined(column))
            if kinds.get(name) == "text":
                with suppress(
                    pa.ArrowInvalid, pa.ArrowNotImplementedError
                ):  # who reads refuses it
                    array = as_text(array)
            arrays.append(array)
        table = pa.Table.from_arrays(arrays, names=table.column_names)
        return Rows(without_words(table, self._missing), partial(int.__add__, row))


class ParquetTable(TypedFile):
    """A Parquet file."""

    def __init__(self, path: Path, missing: Sequence[str] = ()) -> None:
        super().__init__(path, missing)
        with open_parquet(path) as file:
            self._metadata = file.metadata
            self.columns = tuple(file.schema_arrow.names)

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
            with open_parquet(self.path, self._metadata) as file:
                for batch in file.iter_batches(
                    BATCH_ROWS, row_groups=[part.start], columns=names, use_threads=False
                ):
                    yield self._rows(pa.Table.from_batches([batch]).select(names), kinds, row)
                    row += len(batch)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"it cannot be read ({error})", f"{self.path}, row {row}") from error


class ArrowTable(TypedFile):
    """A file in Arrow's own format: Feather, IPC file or IPC stream."""

    def __init__(self, path: Path, missing: Sequence[str] = ()) -> None:
        super().__init__(path, missing)
        check_name(str(path), path)
        with open(path, "rb") as file:
            self._is_file = file.read(6) == b"ARROW1"
        try:
            with self._open() as reader:
                self._schema = reader.schema
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"it cannot be read as Arrow ({error})", path) from error
        self.columns = tuple(self._schema.names)
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
            batch = self._batch(part.start).select(names)
            batch.validate(full=True)  # places beyond the buffers, and text that is none
        except (OSError, pa.ArrowException) as error:
            where = f"{self.path}, row {part.line}"
            raise SourceError(f"it cannot be read ({error})", where) from error
        table = pa.Table.from_batches([batch])
        for first in range(0, len(table), BATCH_ROWS):
            yield self._rows(table.slice(first, BATCH_ROWS), kinds, part.line + first)

    def _batch(self, start: int) -> pa.RecordBatch:
        if self._is_file:
            with self._open() as reader:
                return reader.get_batch(start)
        with pa.memory_map(str(self.path)) as source:
            source.seek(start)
            return pa.ipc.read_record_batch(pa.ipc.read_message(source), self._schema)


class RowsTable(TypedFile):
    """A file of rows that another library wrote, such as MDS, LitData or TFRecord."""

    def __init__(self, path: Path, missing: Sequence[str] = ()) -> None:
        super().__init__(path, missing)
        self._file = open_row_file(path)
        self.columns = tuple(self._file.schema.names)

    def parts(self, number: int) -> Iterator[Part]:
        """List the groups of rows."""
        row = 0
        for group, size in enumerate(self._file.groups):
            yield Part(number, group, row + size, row)
            row += size

    def read(
        self, part: Part, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> Iterator[Rows]:
        """Read a group."""
        names = list(self.columns if columns is None else columns)
        table = self._file.read(part.start, names)
        for first in range(0, len(table), BATCH_ROWS):
            yield self._rows(table.slice(first, BATCH_ROWS), kinds, part.line + first)
