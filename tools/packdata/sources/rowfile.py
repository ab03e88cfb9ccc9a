"""A file of rows with named columns, whichever library wrote it: Arrow's types, read in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

BATCH_ROWS = 32  # of pictures, say


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
    def _rows(self, first: int, last: int) -> pa.Table:
        """Return some rows; SourceError if they cannot be read."""

    def nbytes(self, group: int, columns: Sequence[str]) -> int:
        """Return the bytes of the file: columns lie side by side."""
        return len(self._data)

    def _table(self, group: int) -> pa.Table:
        return self._rows(0, self.groups[0])

    def batches(self, group: int) -> Iterator[pa.RecordBatch]:
        for first in range(0, self.groups[0], BATCH_ROWS):
            yield from self._rows(first, min(first + BATCH_ROWS, self.groups[0])).to_batches()
