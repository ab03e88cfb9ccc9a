"""Files that are mapped, and whose rows are read one by one; all of them are one group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

_BATCH_ROWS = 32


class MappedRows(ABC):
    """The way from rows to tables; who knows the file sets the attributes and reads rows.

    Attributes:
        groups: How many rows there are, as the only one.
    """

    groups: list[int]
    _data: Any  # the bytes: a map, or what was decompressed

    @abstractmethod
    def _rows(self, first: int, last: int) -> pa.Table:
        """Return some rows; SourceError if they cannot be read."""

    def nbytes(self, group: int, columns: Sequence[str]) -> int:
        """Return the bytes of the file: columns lie side by side."""
        return len(self._data)

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Return some columns."""
        return self._rows(0, self.groups[0]).select([*columns])

    def batches(self, group: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        for first in range(0, self.groups[0], _BATCH_ROWS):
            yield from self._rows(first, min(first + _BATCH_ROWS, self.groups[0])).to_batches()
