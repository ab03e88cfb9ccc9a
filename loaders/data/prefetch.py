"""Records on their way from storage: requested together, and waited for without the GIL.

A mapped page that is not in memory is read when it is touched: one after the other, and by a thread that may
hold the GIL, so that all others wait with it; and where it cannot be read, the process ends (SIGBUS). So all
records of a batch are requested as soon as the batch is known, and storage reads them at the same time. A reader waits
for its records first, and raises an error if they cannot be read.

Where a dataset fits into memory, this is done once for each record, and whole blocks are asked for: their
other records will be wanted, too, and storage prefers large reads. Where it does not fit, it is done every
time, and for the record alone. Small records are left to the kernel, and waited for when they are verified, with
all that have one checksum together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loaders.data.columns import Column, FixedColumn, rows_between
from loaders.data.madvise import READ_BYTES, Span, ask_for, span_of, wait_for
from loaders.data.seen import Seen
from loaders.data.shards import FileShard
from loaders.errors import ShardError
from loaders.system.limits import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from loaders.data.columns import UInt8Array
    from loaders.data.finder import Rows
    from loaders.data.shards import OpenShard, Shard
    from loaders.data.verify import Unknown

_MIN_ROW_BYTES = 4 << 10  # smaller ones share pages, and the kernel reads ahead
_MEMORY_SHARE = 0.5  # of a machine's memory: what the page cache can be trusted to keep
_UNKNOWN, _SMALL, _LARGE = -1, 0, 1  # records of a shard


class Pages:
    """What is known of the pages of one field's records in a store.

    Thread-safe: two threads may request the same record, and get it.
    """

    def __init__(
        self,
        field: str,
        shards: Sequence[Shard],  # of the store
        starts: npt.NDArray[np.int64],  # the number of the first sample of each
        shard: Callable[[int], OpenShard],  # opens one, by number
    ) -> None:
        self._field, self._shards, self._starts, self._shard = field, shards, starts, shard
        # A small file has no large records.
        sizes = [shard.info.size_bytes if isinstance(shard, FileShard) else 0 for shard in shards]
        least = [_MIN_ROW_BYTES * shard.num_samples for shard in shards]
        self._sizes = np.where(np.array(sizes) < np.array(least), _SMALL, _UNKNOWN)
        self._may_be_large = bool(self._sizes.any())  # and not here yet
        self._keeps = fits_memory(shards)
        self._arrived = Seen(sum(shard.num_samples for shard in shards))

    def needs_prefetch(self, rows: Rows) -> bool:
        """True if some of these records are not in memory yet, or may not be; opens no file."""
        if not self._may_be_large:
            return False
        new = self._arrived.new(rows.indices) if self._keeps else True
        return new is not None and bool((new & (self._sizes.take(rows.shards) != _SMALL)).any())

    def prefetch(self, rows: Rows) -> None:
        """Have storage read some records, without waiting for them."""
        if new := self._new(rows):
            spans = [span_of(record) for record in self._records(self._places(new))]
            ask_for([_blocks(*span) for span in spans] if self._keeps else spans)

    def wait(self, rows: Rows, unknown: Unknown | None = None) -> None:
        """Wait until some records are in memory, and all that will be verified with them.

        Raises:
            ShardError: One of them cannot be read.
        """
        if new := self._new(rows):
            self.wait_for(new)
            self._arrived.note(new.indices)
            if self._keeps and self._arrived.are_all():
                self._may_be_large = False
        if unknown is not None:
            self._wait_for_neighbours(unknown)

    def stay_here(self, rows: Rows) -> bool:
        """Tell whether some records are in memory, which is trusted to keep them, or are not waited for at all."""
        return self._new(rows) is None

    def wait_for(self, rows: Rows) -> None:
        """Wait for some records, whatever their size; ShardError if one of them cannot be read."""
        self._wait_for(self._places(rows))

    def _wait_for(self, places: list[tuple[int, int]]) -> None:
        bad = wait_for(self._records(places))
        if bad is not None:
            shard, row = places[bad]
            raise unreadable(self._shards[shard].path, row, self._field)

    def _wait_for_neighbours(self, unknown: Unknown) -> None:
        blocks = zip(unknown.shards, unknown.local, unknown.sizes, strict=True)
        records: list[UInt8Array] = []
        places: list[tuple[int, int]] = []
        for shard, block, size in blocks:
            if size > 1:
                column = self._column(shard)
                rows = range(block * size, min((block + 1) * size, len(column)))
                records += _neighbours(column, rows.start, rows.stop)
                places += [(shard, row) for row in rows]
        if wait_for(records) is not None:  # in one of them, or between them
            self._wait_for(places)

    def _new(self, rows: Rows) -> Rows | None:
        """Return which of some records are large, in files, and not here or not kept; None if none is."""
        is_new = self._arrived.new(rows.indices) if self._keeps else np.ones(len(rows), bool)
        if not self._may_be_large or is_new is None:
            return None
        sizes = self._sizes.take(rows.shards)
        if (sizes == _UNKNOWN).any():
            self._look(np.unique(rows.shards[sizes == _UNKNOWN]).tolist())
            sizes = self._sizes.take(rows.shards)
        is_new = is_new & (sizes == _LARGE)
        return rows[is_new] if is_new.any() else None

    def _look(self, shards: list[int]) -> None:
        for number in shards:
            column = self._column(number)
            is_large = column.nbytes >= _MIN_ROW_BYTES * len(column)
            self._sizes[number] = _LARGE if is_large else _SMALL
        self._may_be_large = bool(self._sizes.any())

    def _places(self, rows: Rows) -> list[tuple[int, int]]:
        """Return the shard of each record, and its row there."""
        numbers = rows.indices - self._starts.take(rows.shards)
        return list(zip(rows.shards.tolist(), numbers.tolist(), strict=True))

    def _records(self, places: list[tuple[int, int]]) -> list[UInt8Array]:
        columns = {shard: self._column(shard) for shard in {shard for shard, _ in places}}
        return [columns[shard].row(row) for shard, row in places]

    def _column(self, shard: int) -> Column:
        return self._shard(shard).columns[self._field]


def _blocks(start: int, nbytes: int) -> Span:
    """Return the whole blocks of a read that a record lies in; the kernel leaves out what is not mapped."""
    first = start // READ_BYTES * READ_BYTES
    return first, -(-(start + nbytes - first) // READ_BYTES) * READ_BYTES


def _neighbours(column: Column, first: int, end: int) -> list[UInt8Array]:
    """Return the bytes of neighbours: all of them as one if they are close together, or each."""
    part = rows_between(column, first, end)
    if isinstance(part, FixedColumn):
        return [part.data]
    low, high = int(part.starts.min()), int((part.starts + part.lengths).max())
    if high - low <= 4 * part.nbytes:  # a file says where they are
        return [part.buffer[low:high]]
    return [part.row(i) for i in range(len(part))]


def unreadable(path: Path, row: int, field: str) -> ShardError:
    """Return what is raised for a record that storage does not bring."""
    hint = "The file was cut since it was opened, or its storage failed: run 'packdata verify'"
    return ShardError("its pages cannot be read", path, row, field, hint)


def fits_memory(shards: Sequence[Shard]) -> bool:
    """Tell whether memory can be trusted to keep what was read of all files."""
    nbytes = sum(shard.info.size_bytes for shard in shards if isinstance(shard, FileShard))
    return nbytes < _MEMORY_SHARE * memory_bytes()
