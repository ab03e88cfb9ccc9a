"""Columns: rows of bytes that can be reached by number. Everything that is stored is columns.

A column does not know what its bytes mean, and does not own them: it is a view of a mapped file or of an arena.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.ma  # np.unique imports it when it is first called: on a thread, while others fork

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    UInt8Array = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class FixedColumn:
    """Rows of one size, one after the other."""

    data: UInt8Array  # ``(N, nbytes)`` uint8, C-contiguous

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows together."""
        return self.data.nbytes

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """``(N,)`` int64 sizes in bytes, all of them the same."""
        return np.full(len(self), self.data.shape[1], np.int64)

    def row(self, i: int) -> UInt8Array:
        """Return row ``i`` as a view."""
        row: UInt8Array = self.data[i]
        return row


@dataclass(frozen=True, slots=True)
class VarColumn:
    """Rows of any size, anywhere in one buffer."""

    buffer: UInt8Array  # 1-D uint8: the mapped file or arena
    starts: npt.NDArray[np.int64]  # ``(N,)`` int64 offsets into the buffer
    lengths: npt.NDArray[np.int64]  # ``(N,)`` int64 sizes in bytes

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows together."""
        return int(self.lengths.sum())

    def row(self, i: int) -> UInt8Array:
        """Return row ``i`` as a view."""
        start = self.starts.item(i)  # plain numbers: they slice in half the time
        return self.buffer[start : start + self.lengths.item(i)]


Column = FixedColumn | VarColumn


def row_views(column: Column) -> Iterator[memoryview]:
    """Yield every row's bytes; ``column.row(i)`` takes three times as long."""
    if isinstance(column, FixedColumn):
        nbytes = column.data.shape[1]
        view = memoryview(column.data.reshape(-1))  # type: ignore[arg-type]
        yield from (view[i * nbytes : (i + 1) * nbytes] for i in range(len(column)))
        return
    view = memoryview(column.buffer)  # type: ignore[arg-type]
    for start, nbytes in zip(column.starts.tolist(), column.lengths.tolist(), strict=True):
        yield view[start : start + nbytes]


def rows_between(column: Column, first: int, last: int) -> Column:
    """Return some rows of a column, as views."""
    if isinstance(column, FixedColumn):
        return FixedColumn(column.data[first:last])
    return VarColumn(column.buffer, column.starts[first:last], column.lengths[first:last])


def column_of(rows: Sequence[bytes | memoryview], nbytes: int | None) -> Column:
    """Lay records out as a column, of rows of one size if that is known."""
    if nbytes is None:
        return var_column(rows)
    return FixedColumn(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), nbytes))


def var_column(rows: Sequence[bytes | memoryview]) -> VarColumn:
    """Lay records of any size out as a column."""
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    return VarColumn(np.frombuffer(b"".join(rows), np.uint8), ends(lengths) - lengths, lengths)


def ends(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return where each of the rows laid end to end would end."""
    return np.cumsum(lengths, dtype=np.int64)
