"""A file of rows with named columns, whichever library wrote it: Arrow's types, read in order."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loaders.errors import SourceError
from packdata.sources.base import open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

BATCH_ROWS = 32  # of pictures, say
COMPLETE = "Is it complete?"  # the remedy for damage


class RowFile(ABC):
    """One file; the class of its format sets the attributes, and reads its groups of rows."""

    path: Path
    schema: pa.Schema  # its columns, with Hugging Face's notes on them where there are some
    groups: list[int]  # rows of each part that can be read by itself

    @abstractmethod
    def nbytes(self, group: int, columns: Sequence[str]) -> int:
        """Return about how many bytes some columns of a group take."""

    @abstractmethod
    def _table(self, group: int) -> pa.Table:
        """Return a group; SourceError if it cannot be read."""

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a group; SourceError if they cannot be read."""
        return self._table(group).select([*columns])

    def batches(self, group: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group, few at a time; SourceError where they cannot be read."""
        yield from self._table(group).to_batches(BATCH_ROWS)


class MappedRows(RowFile):
    """A file that is mapped, and whose rows are read one by one; all of them are one group."""

    _data: Any  # the bytes: a map, or what was decompressed

    @abstractmethod
    def _row(self, number: int) -> Mapping[str, Any]:
        """Return the values of a row, by column; SourceError if it cannot be read."""

    def _rows(self, first: int, last: int) -> pa.Table:
        where = f"{self.path}, rows {first} to {last - 1}"
        return table_of(map(self._row, range(first, last)), self.schema, where)

    def nbytes(self, group: int, columns: Sequence[str]) -> int:
        """Return the bytes of the file: columns lie side by side."""
        return len(self._data)

    def _table(self, group: int) -> pa.Table:
        return self._rows(0, self.groups[0])

    def batches(self, group: int) -> Iterator[pa.RecordBatch]:
        for first in range(0, self.groups[0], BATCH_ROWS):
            yield from self._rows(first, min(first + BATCH_ROWS, self.groups[0])).to_batches()


def map_file(path: Path) -> mmap.mmap:
    """Map a file; SourceError if it cannot be read, or is empty."""
    with open_file(path, str(path)) as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise SourceError(f"it cannot be read ({error})", path, COMPLETE) from error


def decompressed(data: bytes, compression: str, path: Path) -> bytes:
    """Return what was compressed as ``gzip``, ``brotli`` or ``zstd``; SourceError if it is damaged."""
    try:
        found: bytes = pa.CompressedInputStream(pa.BufferReader(data), compression).read()
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"it cannot be read ({error})", path, COMPLETE) from error
    return found


def table_of(rows: Iterable[Mapping[str, Any]], schema: pa.Schema | None, where: str) -> pa.Table:
    """Return rows as a table; SourceError, which names ``where``, if values are not of the types of their columns."""
    try:
        return pa.Table.from_pylist([*rows], schema)
    except (pa.ArrowException, OverflowError) as error:
        raise SourceError(f"its values are not alike ({error})", where) from error
