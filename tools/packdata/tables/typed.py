"""Files that declare what their columns are, and tables in memory: one kind of table, read group by group."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from loaders.errors import SourceError
from packdata.rows import Part, RowFile, Rows
from packdata.sources.row_kinds import ArrowRows, ParquetRows
from packdata.sources.rows import class_names
from packdata.tables.values import combined, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from packdata.types import Kind

BATCH_ROWS = 1 << 16
_UNREADABLE = (OSError, pa.ArrowException)


class TypedTable(RowFile):
    """A table that declares what its columns are, counts its rows from 0, and is read group by group.

    Args:
        path: The file, or what to call it.
        columns: Their names, in order.
        sizes: Rows of each group.
        tables: Yields a group, by its number, in one or more tables of the columns that are named.
        digest: Hash of all values, if it is a table in memory.
        classes: Names of classes of columns that hold their numbers.
    """

    def __init__(
        self,
        path: Path,
        columns: Sequence[str],
        sizes: Sequence[int],
        tables: Callable[[int, list[str]], Iterator[pa.Table]],
        digest: str = "",
        classes: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        self.path, self._sizes, self._tables, self.digest = path, sizes, tables, digest
        self.classes = classes
        self.columns: tuple[str, ...] = tuple(columns)

    def guesses(self, column: str) -> frozenset[Kind]:
        """Return what texts may be: they are declared to be texts."""
        return frozenset()

    def parts(self, number: int = 0) -> Iterator[Part]:
        """List the groups."""
        row = 0
        for group, size in enumerate(self._sizes):
            yield Part(number, group, row + size, row)
            row += size

    def read(
        self,
        part: Part,
        columns: Sequence[str] | None = None,
        kinds: Mapping[str, Kind] = MappingProxyType({}),
    ) -> Iterator[Rows]:
        """Read a group, some ten thousand rows at a time."""
        names, row = list(self.columns if columns is None else columns), part.line
        try:
            for group in self._tables(part.start, names):
                for first in range(0, len(group), BATCH_ROWS):
                    table = group.slice(first, BATCH_ROWS)
                    arrays = [
                        plain(_named(combined(column), self.classes.get(name)))
                        for name, column in zip(table.column_names, table.columns, strict=True)
                    ]
                    named = pa.Table.from_arrays(arrays, names=table.column_names)
                    yield Rows(named, partial(int.__add__, row))
                    row += len(table)
        except _UNREADABLE as error:
            what = f"the file cannot be read ({error})"
            raise SourceError(what, f"{self.path}, row {row}") from error


def _named(array: pa.Array, classes: tuple[str, ...] | None) -> pa.Array:
    """Return numbers of classes by their names; -1 stands for none."""
    if classes is None or not pa.types.is_integer(array.type):
        return array
    numbers = pc.if_else(pc.equal(array, -1), pa.scalar(None, array.type), array).cast(pa.int32())
    return pa.DictionaryArray.from_arrays(numbers, pa.array(classes, pa.string()))


def parquet_table(path: Path) -> TypedTable:
    """Open a Parquet file; its groups are the row groups."""
    file = ParquetRows(path)

    def tables(group: int, names: list[str]) -> Iterator[pa.Table]:
        for batch in file.batches(group, names, BATCH_ROWS):
            yield pa.Table.from_batches([batch])

    names = class_names(file.schema)
    return TypedTable(path, file.schema.names, file.groups, tables, classes=names)


def arrow_table(path: Path) -> TypedTable:
    """Open a file in Arrow's own format (Feather, IPC file or IPC stream), mapped."""
    return _of_table(path, ArrowRows(path).rows)


def _of_table(path: Path, table: pa.Table, digest: str = "") -> TypedTable:
    def tables(group: int, names: list[str]) -> Iterator[pa.Table]:
        rows = table.slice(group * BATCH_ROWS, BATCH_ROWS).select(names)
        rows.validate(full=True)  # places beyond the buffers, and text that is none
        yield rows

    sizes = [min(BATCH_ROWS, len(table) - at) for at in range(0, len(table), BATCH_ROWS)]
    names = class_names(table.schema)
    return TypedTable(path, table.column_names, sizes, tables, digest, names)


def is_frame(source: Any) -> bool:
    """Tell whether a source is a table in memory, and no path."""
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "iloc")


def frame_table(frame: Any) -> TypedTable:
    """Open a table in memory; the index of a pandas DataFrame is no column of it."""
    path = Path(type(frame).__name__)
    table = _as_table(frame, path)
    digest = xxhash.xxh3_128(str(table.schema).encode())
    for batch in table.to_batches(BATCH_ROWS):
        digest.update(batch.serialize())
    return _of_table(path, table, digest.hexdigest())


def _as_table(frame: Any, name: Path) -> pa.Table:
    try:
        if hasattr(frame, "iloc"):
            named = frame.set_axis([str(column) for column in frame.columns], axis=1)
            return pa.Table.from_pandas(named, preserve_index=False)
        return pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        what = f"the source cannot be read as a table ({error})"
        raise SourceError(what, name, "Each column takes values of one kind") from error
