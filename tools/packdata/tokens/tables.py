"""Columns of Parquet, Arrow and other files of rows, in ranges of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loaders.errors import SourceError
from packdata.sources.rowfiles import open_row_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packdata.tokens.contents import DocumentForm
    from packdata.tokens.documents import Documents
    from packdata.tokens.files import SourceFile


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Some rows of a group of a file; ``table`` has the columns that are read, once they are wanted."""

    rows: RowRanges
    group: int
    first: int
    last: int
    table: pa.Table = None

    @property
    def run(self) -> object:
        """Of which parts follow one another: they are read at once."""
        return self.rows.file.path, self.group

    @property
    def where(self) -> str:
        start = self.rows.firsts[self.group]
        return f"{self.rows.file.name}, rows {start + self.first} to {start + self.last - 1}"

    def loaded(self) -> RowsPart:
        """Return it with its columns."""
        return replace(self, table=self.rows.read(self.group, self.first, self.last))

    def read(self) -> Documents:
        """Return each row as a document, less those that cannot be one."""
        content, name = self.rows.content, self.rows.file.name
        first = self.rows.firsts[self.group] + self.first
        try:
            table = _cast(self.table, content)
        except pa.ArrowException as error:
            raise SourceError(f"its values cannot be read ({error})", self.where) from error
        return content.of_table(table, lambda row: f"{name}, row {first + row}")


def _cast(table: pa.Table, content: DocumentForm) -> pa.Table:
    types = content.types
    return pa.table(
        {n: table[n] if kind is None else table[n].cast(kind) for n, kind in types.items()}
    )


class RowRanges:
    """The rows of a file in ranges; a group of rows is read when its first ones are asked for.

    Raises:
        SourceError: It is not what its name says, or lacks a column.
    """

    def __init__(self, file: SourceFile, content: DocumentForm) -> None:
        self.file, self.content = file, content
        self._rows = open_row_file(file.path)
        content.check(self._rows.schema, file.path)
        self.firsts = [0, *accumulate(self._rows.groups)]  # number of the first row of each group
        self._read: tuple[int, Any] = (-1, None)

    def parts(self, nbytes: int) -> Iterator[tuple[RowsPart, int]]:
        """Yield parts of about so many bytes, with the bytes that each has."""
        for group, rows in enumerate(self._rows.groups):
            size = max(1, self._rows.nbytes(group, [*self.content.types]))
            step = max(1, rows * nbytes // size)
            for first in range(0, rows, step):
                last = min(first + step, rows)
                yield RowsPart(self, group, first, last), size * (last - first) // rows

    def read(self, group: int, first: int, last: int) -> pa.Table:
        if self._read[0] != group:
            self._read = group, self._rows.read(group, [*self.content.types])
        table = self._read[1].slice(first, last - first)
        if last == self._rows.groups[group]:
            self._read = (-1, None)  # it is not needed again
        return table
