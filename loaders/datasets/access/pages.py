"""Records on their way from storage: asked for together, and waited for without the interpreter's lock.

A mapped page that is not in memory is read when it is touched: one after the other, and by a thread that may
hold the lock, so that all others wait with it. So all records of a batch are asked for when it is begun, and
storage reads them at the same time; each thread then waits for its own, before Python looks at them.

Where a dataset fits into memory, this is done once for each record, and whole blocks are asked for: their
other records will be wanted, too, and storage prefers large reads. Where it does not fit, it is done every
time, and for the record alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loaders.columns import Column, FixedColumn
from loaders.datasets.access.advice import READ_BYTES, ask_for, wait_for
from loaders.datasets.access.shards import FileShard
from loaders.errors import ShardError
from loaders.limits import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from loaders.datasets.access.shards import MemoryShard
    from loaders.datasets.access.store import Rows, Store

_MIN_ROW_BYTES = 4 << 10  # smaller ones share pages, and the kernel reads ahead
_MEMORY_SHARE = 0.5  # of a machine's memory: what the page cache can be trusted to keep
_HINT = "The file was cut since it was opened, or its storage failed: run 'packdata verify'"


@dataclass(slots=True)
class _Map:
    """Where the records of one shard lie.

    Attributes:
        column: The records.
        address: Of the first byte of what they lie in.
        nbytes: How many follow.
        asked: For each block of it, whether it was asked for.
    """

    column: Column
    address: int
    nbytes: int
    asked: bytearray

    @classmethod
    def of(cls, column: Column) -> _Map:
        """Look where a column's records lie."""
        data = column.data if isinstance(column, FixedColumn) else column.buffer
        asked = bytearray(-(-data.nbytes // READ_BYTES))
        return cls(column, int(data.ctypes.data), data.nbytes, asked)

    def span(self, row: int) -> tuple[int, int]:
        """Return where a record begins, and its size."""
        if isinstance(self.column, FixedColumn):
            nbytes = self.column.data.shape[1]
            return row * nbytes, nbytes
        return int(self.column.starts[row]), int(self.column.lengths[row])

    def ask(self, row: int) -> None:
        """Ask for a record alone."""
        first, nbytes = self.span(row)
        ask_for(self.address + first, nbytes)

    def ask_blocks(self, row: int) -> None:
        """Ask for the blocks that a record lies in, each once."""
        first, nbytes = self.span(row)
        for block in range(first // READ_BYTES, -(-(first + nbytes) // READ_BYTES)):
            if not self.asked[block]:
                self.asked[block] = True
                start = block * READ_BYTES
                ask_for(self.address + start, min(READ_BYTES, self.nbytes - start))

    def wait(self, row: int) -> bool:
        """Wait for a record; False if it cannot be read."""
        first, nbytes = self.span(row)
        return wait_for(self.address + first, nbytes)


class Pages:
    """What is known of the pages of one field's records.

    Args:
        store: Whose records.
        field: Which.

    Thread-safe: two threads may ask for the same, and get it.
    """

    def __init__(self, store: Store, field: str) -> None:
        self._store, self._field = store, field
        self._maps: dict[int, _Map] = {}
        self._are_large: bool | None = None  # which the first shard that is met tells of all
        keeps = fits_memory(store.shards)
        self._asked = np.zeros(len(store), bool) if keeps else None
        self._arrived = np.zeros(len(store), bool) if keeps else None

    def ask(self, rows: Rows) -> None:
        """Have storage read some records, without waiting for them."""
        for found, _, row in self._new(rows, self._asked):
            if self._asked is None:
                found.ask(row)
            else:
                found.ask_blocks(row)

    def wait(self, rows: Rows) -> None:
        """Wait until some records are in memory.

        Raises:
            ShardError: One of them cannot be read.
        """
        for found, shard, row in self._new(rows, self._arrived):
            if not found.wait(row):
                path = self._store.shards[shard].path
                raise ShardError("its pages cannot be read", path, row, self._field, _HINT)

    def _new(
        self, rows: Rows, known: npt.NDArray[np.bool_] | None
    ) -> Iterator[tuple[_Map, int, int]]:
        """Yield map, shard and row of what is not known, and note it in the end."""
        indices, shards = rows.indices, rows.shards
        if self._are_large is None and len(shards):
            self._are_large = self._look(int(shards[0]))
        if not self._are_large:
            return
        if known is not None:
            new = ~known.take(indices)
            if not new.any():
                return
            indices, shards = indices[new], shards[new]
        numbers = (indices - self._store.starts[shards]).tolist()
        for shard, row in zip(shards.tolist(), numbers, strict=True):
            yield self._map(shard), shard, row
        if known is not None:
            known[indices] = True

    def _look(self, number: int) -> bool:
        """Tell whether records lie in files, and are large enough to be asked for one by one."""
        column = self._store.shard(number).columns[self._field]
        in_file = isinstance(self._store.shards[number], FileShard)
        return in_file and column.nbytes >= _MIN_ROW_BYTES * len(column)

    def _map(self, number: int) -> _Map:
        if number not in self._maps:
            self._maps[number] = _Map.of(self._store.shard(number).columns[self._field])
        return self._maps[number]


def fits_memory(shards: Sequence[FileShard | MemoryShard]) -> bool:
    """Tell whether memory can be trusted to keep what was read of all files."""
    nbytes = sum(shard.info.size_bytes for shard in shards if isinstance(shard, FileShard))
    return nbytes < _MEMORY_SHARE * memory_bytes()
