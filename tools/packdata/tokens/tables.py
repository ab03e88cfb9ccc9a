"""Columns of Parquet, Arrow and other files of rows, in ranges of rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loaders.errors import SourceError
from packdata.sources.rowfiles import open_row_file

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


class RowRanges:
    """The rows of a file in ranges; a group of rows is read when its first ones are asked for.

    Raises:
        SourceError: It is not what its name says, or lacks a column.
    """

    def __init__(self, file: SourceFile, content: Content) -> None:
        self.file, self.content = file, content
        self._rows = open_row_file(file.path)
        content.check(self._rows.schema, file.path)
        self._firsts = [0, *accumulate(self._rows.groups)]
        self._read: tuple[int, Any] = (-1, None)

    def ranges(self, nbytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (group, first row, last row + 1, bytes) of parts of about so many bytes."""
        for group, rows in enumerate(self._rows.groups):
            size = max(1, self._rows.nbytes(group, [*self.content.types]))
            step = max(1, rows * nbytes // size)
            for first in range(0, rows, step):
                last = min(first + step, rows)
                yield group, first, last, size * (last - first) // rows

    def part(self, group: int, first: int, last: int) -> RowsPart:
        """Return rows of a group."""
        if self._read[0] != group:
            self._read = group, self._rows.read(group, [*self.content.types])
        table = self._read[1].slice(first, last - first)
        if last == self._rows.groups[group]:
            self._read = (-1, None)  # it is not needed again
        return RowsPart(self.file, self._firsts[group] + first, table, self.content)
