"""A file of rows with named columns, whichever library wrote it: Arrow's types, read in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loaders.errors import SourceError

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


def table_of(rows: Iterable[Mapping[str, Any]], schema: pa.Schema | None, where: str) -> pa.Table:
    """Return rows as a table; SourceError, which names ``where``, if values are not of the types of their columns."""
    try:
        return pa.Table.from_pylist([*rows], schema)
    except (pa.ArrowException, OverflowError) as error:
        raise SourceError(f"values do not match the column types ({error})", where) from error
