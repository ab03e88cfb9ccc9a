"""Records on their way from storage: asked for together, and waited for without the interpreter's lock.

A mapped page that is not in memory is read when it is touched: one after the other, and by a thread that may
hold the lock, so that all others wait with it; and where it cannot be read, the process ends (SIGBUS). So all
records of a batch are asked for as soon as the batch is known, storage reads them at the same time, and whoever
reads some of them waits for these first, and raises where they do not come.

Where a dataset fits into memory, this is done once for each record, and whole blocks are asked for: their
other records will be wanted, too, and storage prefers large reads. Where it does not fit, it is done every
time, and for the record alone. Small records are left to the kernel, and waited for when they are verified, with
all that have one checksum together.
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

    from loaders.datasets.access.finder import Rows
    from loaders.datasets.access.shards import MemoryShard
    from loaders.datasets.access.store import Store
    from loaders.datasets.access.verifier import Unknown

_MIN_ROW_BYTES = 4 << 10  # smaller ones share pages, and the kernel reads ahead
_MAX_BLOCK_BYTES = (
    1 << 20
)  # in which the records of one checksum lie: 64 KiB, with others between them
_MEMORY_SHARE = 0.5  # of a machine's memory: what the page cache can be trusted to keep
UNREADABLE = "its pages cannot be read"
UNREADABLE_HINT = (
    "The file was cut since it was opened, or its storage failed: run 'packdata verify'"
)


@dataclass(slots=True)
class _Map:
    """Where the records of one shard lie.

    Attributes:
        column: The records.
        address: Of the first byte of what they lie in.
        nbytes: How many follow.
        asked: For each block of it, whether it was asked for; None where records are asked for alone.
    """

    column: Column
    address: int
    nbytes: int
    asked: bytearray | None

    @classmethod
    def of(cls, column: Column, *, in_blocks: bool) -> _Map:
        """Look where a column's records lie."""
        data = column.data if isinstance(column, FixedColumn) else column.buffer
        asked = bytearray(-(-data.nbytes // READ_BYTES)) if in_blocks else None
        return cls(column, int(data.ctypes.data), data.nbytes, asked)

    def span(self, row: int) -> tuple[int, int]:
        """Return where a record begins, and its size."""
        if isinstance(self.column, FixedColumn):
            nbytes = self.column.data.shape[1]
            return row * nbytes, nbytes
        return int(self.column.starts[row]), int(self.column.lengths[row])

    def ask(self, row: int) -> None:
        """Ask for a record, or for those of its blocks that were not asked for."""
        first, nbytes = self.span(row)
        if self.asked is None:
            ask_for(self.address + first, nbytes)
            return
        for block in range(first // READ_BYTES, -(-(first + nbytes) // READ_BYTES)):
            if not self.asked[block]:
                self.asked[block] = True
                start = block * READ_BYTES
                ask_for(self.address + start, min(READ_BYTES, self.nbytes - start))

    def wait(self, row: int) -> bool:
        """Wait for a record; False if it cannot be read."""
        first, nbytes = self.span(row)
        return wait_for(self.address + first, nbytes)

    def wait_for_all(self, rows: range) -> int | None:
        """Wait for neighbours; return the first that cannot be read."""
        first, end = self._around(rows)
        is_near = end - first <= _MAX_BLOCK_BYTES  # their places are what a file says
        if is_near and wait_for(self.address + first, end - first):
            return None
        return next((row for row in rows if not self.wait(row)), None)

    def _around(self, rows: range) -> tuple[int, int]:
        """Return where the first byte of some records is, and the end of the last."""
        if isinstance(self.column, FixedColumn):
            nbytes = self.column.data.shape[1]
            return rows.start * nbytes, rows.stop * nbytes
        starts = self.column.starts[rows.start : rows.stop]
        ends = starts + self.column.lengths[rows.start : rows.stop]
        return int(starts.min()), int(ends.max())


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
        self._in_file = np.array([isinstance(shard, FileShard) for shard in store.shards])
        self._are_large = None if self._in_file.any() else False  # the first file tells of all
        self._keeps = fits_memory(store.shards)
        self._asked = np.zeros(len(store), bool) if self._keeps else None
        self._arrived = np.zeros(len(store), bool)

    def asks(self, rows: Rows) -> bool:
        """Tell whether some records were not asked for yet, or may not have been: no file is opened to see it."""
        return self._are_large is None or self._new(rows, self._asked) is not None

    def ask(self, rows: Rows) -> None:
        """Have storage read some records, without waiting for them."""
        if new := self._new(rows, self._asked):
            for shard, row in self._places(new):
                self._map(shard).ask(row)
            if self._asked is not None:
                self._asked[new.indices] = True

    def wait(self, rows: Rows) -> None:
        """Wait until some records are in memory.

        Raises:
            ShardError: One of them cannot be read.
        """
        self._wait(rows, self._arrived if self._keeps else None)

    def wait_once(self, rows: Rows, unknown: Unknown | None) -> None:
        """Wait for records that were never in memory, and for all that will be verified with them.

        Raises:
            ShardError: One of them cannot be read.
        """
        self._wait(rows, self._arrived)
        if unknown is not None:
            self._wait_for_neighbours(unknown)

    def _wait(self, rows: Rows, known: npt.NDArray[np.bool_] | None) -> None:
        if new := self._new(rows, known):
            for shard, row in self._places(new):
                if not self._map(shard).wait(row):
                    raise self._error(shard, row)
            self._arrived[new.indices] = True

    def _wait_for_neighbours(self, unknown: Unknown) -> None:
        blocks = zip(unknown.shards, unknown.local, unknown.sizes, strict=True)
        for shard, block, size in blocks:
            if size > 1:
                last = min((block + 1) * size, self._store.shards[shard].num_samples)
                bad = self._map(shard).wait_for_all(range(block * size, last))
                if bad is not None:
                    raise self._error(shard, bad)

    def _error(self, shard: int, row: int) -> ShardError:
        path = self._store.shards[shard].path
        return ShardError(UNREADABLE, path, row, self._field, UNREADABLE_HINT)

    def _new(self, rows: Rows, known: npt.NDArray[np.bool_] | None) -> Rows | None:
        """Return which of some records are large, in files, and not known; None if none is."""
        if self._are_large is None:
            self._are_large = self._look(rows)
        if not self._are_large or known is None:
            return rows if self._are_large else None
        is_known = known.take(rows.indices)
        return None if is_known.all() else rows[~is_known]

    def _look(self, rows: Rows) -> bool | None:
        """Tell whether records are large enough to be asked for one by one; None if none of these lies in a file."""
        found = rows.shards[self._in_file.take(rows.shards)]
        if not len(found):
            return None
        column = self._store.shard(int(found[0])).columns[self._field]
        return column.nbytes >= _MIN_ROW_BYTES * len(column)

    def _places(self, rows: Rows) -> Iterator[tuple[int, int]]:
        """Yield the shard of each record, and its row there."""
        numbers = rows.indices - self._store.starts.take(rows.shards)
        return zip(rows.shards.tolist(), numbers.tolist(), strict=True)

    def _map(self, number: int) -> _Map:
        found = self._maps.get(number)
        if found is None:
            column = self._store.shard(number).columns[self._field]
            new = _Map.of(column, in_blocks=self._asked is not None)
            found = self._maps.setdefault(number, new)
        return found


def fits_memory(shards: Sequence[FileShard | MemoryShard]) -> bool:
    """Tell whether memory can be trusted to keep what was read of all files."""
    nbytes = sum(shard.info.size_bytes for shard in shards if isinstance(shard, FileShard))
    return nbytes < _MEMORY_SHARE * memory_bytes()
