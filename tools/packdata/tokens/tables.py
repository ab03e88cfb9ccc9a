"""Columns of a Parquet or Arrow file, in ranges of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from loaders.errors import SourceError
from packdata.sources.arrow import open_arrow
from packdata.sources.base import check_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packdata.tokens.contents import Content
    from packdata.tokens.documents import Documents
    from packdata.tokens.files import SourceFile


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Some rows.

    Attributes:
        file: The file.
        first: Number of the first row in the file.
        table: The columns that are read.
        content: What they hold.
    """

    file: SourceFile
    first: int
    table: pa.Table
    content: Content

    @property
    def where(self) -> str:
        """The file and the rows."""
        return f"{self.file.name}, rows {self.first} to {self.first + len(self.table) - 1}"

    def read(self) -> Documents:
        """Return each row as a document, less those that cannot be one."""
        try:
            table = _cast(self.table, self.content)
        except pa.ArrowException as error:
            raise SourceError(f"its values cannot be read ({error})", self.where) from error
        return self.content.of_table(
            table, lambda row: f"{self.file.name}, row {self.first + row}"
        )


def _cast(table: pa.Table, content: Content) -> pa.Table:
    types = content.types
    return pa.table(
        {n: table[n] if kind is None else table[n].cast(kind) for n, kind in types.items()}
    )


class RowFile(Protocol):
    """A file whose rows are read in ranges."""

    def ranges(self, nbytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (group of rows, first row, last row + 1, bytes) of parts of about so many bytes."""

    def part(self, group: int, first: int, last: int) -> RowsPart:
        """Return rows of a group."""


def open_rows(file: SourceFile, content: Content) -> RowFile:
    """Open a file of rows.

    Raises:
        SourceError: It is not what its name says, or lacks a column.
    """
    return (ArrowRows if file.kind == "arrow" else ParquetRows)(file, content)


def schema_of(file: SourceFile) -> pa.Schema:
    """Return the columns of a file of rows; SourceError if it cannot be read."""
    if file.kind == "arrow":
        return open_arrow(file.path).schema
    with _opened(file) as parquet:
        return parquet.schema_arrow


def _opened(file: SourceFile) -> Any:
    check_name(str(file.path), file.path)
    try:
        return pq.ParquetFile(file.path)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"it cannot be read as Parquet ({error})", file.path) from error


class ParquetRows:
    """A Parquet file; a row group is read when its first rows are asked for."""

    def __init__(self, file: SourceFile, content: Content) -> None:
        self.file, self.content = file, content
        with _opened(file) as parquet:
            content.check(parquet.schema_arrow, file.path)
            self._metadata = parquet.metadata
        rows = [self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)]
        self._firsts = [sum(rows[:i]) for i in range(len(rows))]
        self._read: tuple[int, Any] = (-1, None)

    def ranges(self, nbytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (row group, first row, last row + 1, bytes) of parts of about so many bytes."""
        for number in range(self._metadata.num_row_groups):
            group = self._metadata.row_group(number)
            chunks = [group.column(i) for i in range(group.num_columns)]
            mine = [c for c in chunks if c.path_in_schema.split(".")[0] in self.content.types]
            size, rows = max(1, sum(c.total_uncompressed_size for c in mine)), group.num_rows
            step = max(1, rows * nbytes // size)
            for first in range(0, rows, step):
                last = min(first + step, rows)
                yield number, first, last, size * (last - first) // rows

    def part(self, group: int, first: int, last: int) -> RowsPart:
        """Return rows of a row group."""
        if self._read[0] != group:
            try:
                with _opened(self.file) as parquet:
                    self._read = (
                        group,
                        parquet.read_row_group(group, columns=[*self.content.types]),
                    )
            except (OSError, pa.ArrowException) as error:
                what = f"row group {group} cannot be read ({error})"
                raise SourceError(what, self.file.path) from error
        table = self._read[1].slice(first, last - first)
        if last == self._metadata.row_group(group).num_rows:
            self._read = (-1, None)  # it is not needed again
        return RowsPart(self.file, self._firsts[group] + first, table, self.content)


class ArrowRows:
    """An Arrow file, mapped; all rows are one group."""

    def __init__(self, file: SourceFile, content: Content) -> None:
        self.file, self.content = file, content
        table = open_arrow(file.path)
        content.check(table.schema, file.path)
        self._table = table.select([*content.types])

    def ranges(self, nbytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (0, first row, last row + 1, bytes) of parts of about so many bytes."""
        rows, size = len(self._table), max(1, self._table.nbytes)
        step = max(1, rows * nbytes // size)
        for first in range(0, rows, step):
            last = min(first + step, rows)
            yield 0, first, last, size * (last - first) // rows

    def part(self, group: int, first: int, last: int) -> RowsPart:
        """Return some rows."""
        return RowsPart(self.file, first, self._table.slice(first, last - first), self.content)
