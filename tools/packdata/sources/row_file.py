"""A file of rows with named columns, whichever library wrote it: Arrow's types, read in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

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
    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a group; SourceError if they cannot be read."""

    def batches(self, group: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group, few at a time; SourceError where they cannot be read."""
        yield from self.read(group, self.schema.names).to_batches(BATCH_ROWS)
