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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from loaders.data.columns import Column, FixedColumn
from loaders.data.madvise import READ_BYTES, Span, ask_for, copy, wait_for
from loaders.data.shards import FileShard
from loaders.errors import ShardError
from loaders.system.limits import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from loaders.data.finder import Rows
    from loaders.data.shards import MemoryShard, OpenShard
    from loaders.data.verify import Unknown

_MIN_ROW_BYTES = 4 << 10  # smaller ones share pages, and the kernel reads ahead
_MEMORY_SHARE = 0.5  # of a machine's memory: what the page cache can be trusted to keep
_UNKNOWN, _SMALL, _LARGE = -1, 0, 1  # records of a shard


@dataclass(slots=True)
class _Map:
    """Where the records of one shard lie."""

    column: Column  # the records
    address: int  # of the first byte of what they lie in
    nbytes: int  # how many follow
    # For each block of it, whether it was asked for; None where records are asked for alone.
    asked: bytearray | None

    @classmethod
    def of(cls, column: Column, *, in_blocks: bool) -> _Map:
        """Look where a column's records lie."""
        data = column.data if isinstance(column, FixedColumn) else column.buffer
        asked = bytearray(-(-data.nbytes // READ_BYTES)) if in_blocks else None
        return cls(column, int(data.ctypes.data), data.nbytes, asked)

    def span(self, row: int) -> Span:
        """Return the address of a record, and its size."""
        if isinstance(self.column, FixedColumn):
            nbytes = self.column.data.shape[1]
            return self.address + row * nbytes, nbytes
        return self.address + int(self.column.starts[row]), int(self.column.lengths[row])

    def unasked(self, row: int) -> list[Span]:
        """Return what is to be asked for, and note that it is: a record, or those of its blocks that were not yet."""
        start, nbytes = self.span(row)
        if self.asked is None:
            return [(start, nbytes)]
        first = start - self.address
        blocks = range(first // READ_BYTES, -(-(first + nbytes) // READ_BYTES))
        new = [block for block in blocks if not self.asked[block]]
        for block in new:
            self.asked[block] = True
        return [self._block(block) for block in new]

    def _block(self, number: int) -> Span:
        start = number * READ_BYTES
        return self.address + start, min(READ_BYTES, self.nbytes - start)

    def spans(self, rows: range) -> list[Span]:
        """Return where neighbours lie: all of them as one if they are close together, or each."""
        if isinstance(self.column, FixedColumn):
            nbytes = self.column.data.shape[1]
            return [(self.address + rows.start * nbytes, len(rows) * nbytes)]
        starts = self.column.starts[rows.start : rows.stop]
        lengths = self.column.lengths[rows.start : rows.stop]
        first, end = int(starts.min()), int((starts + lengths).max())
        if end - first <= 4 * int(lengths.sum()):  # a file says where they are
            return [(self.address + first, end - first)]
        return list(zip((starts + self.address).tolist(), lengths.tolist(), strict=True))


class Shards(Protocol):
    """A store, as far as it is asked here."""

    shards: tuple[FileShard | MemoryShard, ...]
    starts: npt.NDArray[np.int64]

    def __len__(self) -> int: ...

    def shard(self, number: int) -> OpenShard:
        """Return a shard, which is opened when it is first touched."""


class Pages:
    """What is known of the pages of one field's records in a store.

    Thread-safe: two threads may ask for the same, and get it.
    """

    def __init__(self, store: Shards, field: str) -> None:
        self._store, self._field = store, field
        self._maps: dict[int, _Map] = {}
        self._sizes = np.array([_guess(shard) for shard in store.shards], np.int8)
        self._may_be_large = bool(self._sizes.any())  # and not here yet
        self._keeps = fits_memory(store.shards)
        self._asked = np.zeros(len(store), bool) if self._keeps else None
        self._arrived = np.zeros(len(store), bool)

    def needs_prefetch(self, rows: Rows) -> bool:
        """True if some of these records were not prefetched yet, or may not have been; opens no file."""
        if not self._may_be_large:
            return False
        if self._asked is not None and self._asked.take(rows.indices).all():
            return False
        new = self._sizes.take(rows.shards) != _SMALL
        if self._asked is not None:
            new &= ~self._asked.take(rows.indices)
        return bool(new.any())

    def prefetch(self, rows: Rows) -> None:
        """Have storage read some records, without waiting for them."""
        if new := self._new(rows, self._asked):
            ask_for([s for shard, row in self._places(new) for s in self._map(shard).unasked(row)])
            if self._asked is not None:
                self._asked[new.indices] = True

    def wait(self, rows: Rows) -> None:
        """Wait until some records are in memory; ShardError if one of them cannot be read."""
        self._wait(rows, self._arrived if self._keeps else None)

    def wait_once(self, rows: Rows, unknown: Unknown | None) -> None:
        """Wait for records that were never in memory, and for all that will be verified with them.

        Raises:
            ShardError: One of them cannot be read.
        """
        self._wait(rows, self._arrived)
        if unknown is not None:
            self._wait_for_neighbours(unknown)

    def are_here(self, rows: Rows) -> bool:
        """Tell whether some records were in memory before, or are not waited for at all."""
        return self._new(rows, self._arrived) is None

    def stay_here(self, rows: Rows) -> bool:
        """Tell whether some records were in memory before, and memory is trusted to keep them."""
        return not self._may_be_large or (self._keeps and self.are_here(rows))

    def copy_once(self, rows: Rows, out: npt.NDArray[np.uint8], unknown: Unknown | None) -> bool:
        """Copy records of one size to ``out`` if one of them was never in memory, else return False.

        And wait for all that will be verified with them; ShardError if one of them cannot be read.
        """
        is_copied = False
        if self._new(rows, self._arrived):
            places = self._places(rows)
            spans = [self._map(shard).span(row) for shard, row in places]
            if any(nbytes != out.shape[1] for _, nbytes in spans):
                return False  # of which ``Gather`` tells
            copied = copy(spans, out)
            if copied is not None and copied < len(places):
                raise self._error(*places[copied])
            is_copied = copied is not None
            self._note(rows)
        if unknown is not None:
            self._wait_for_neighbours(unknown)
        return is_copied

    def wait_for_small(self, rows: Rows) -> None:
        """Wait for some records, whatever their size; ShardError if one of them cannot be read."""
        self._wait_for(self._places(rows))

    def _wait(self, rows: Rows, known: npt.NDArray[np.bool_] | None) -> None:
        if new := self._new(rows, known):
            self._wait_for(self._places(new))
            self._note(new)

    def _note(self, arrived: Rows) -> None:
        self._arrived[arrived.indices] = True
        if self._keeps and self._arrived.all():  # it stops at the first that did not
            self._may_be_large = False

    def _wait_for(self, places: list[tuple[int, int]]) -> None:
        bad = wait_for([self._map(shard).span(row) for shard, row in places])
        if bad is not None:
            raise self._error(*places[bad])

    def _wait_for_neighbours(self, unknown: Unknown) -> None:
        blocks = zip(unknown.shards, unknown.local, unknown.sizes, strict=True)
        ranges = [
            (shard, range(block * size, min((block + 1) * size, self._num_rows(shard))))
            for shard, block, size in blocks
            if size > 1
        ]
        spans = [span for shard, rows in ranges for span in self._map(shard).spans(rows)]
        if wait_for(spans) is not None:  # in one of them, or between them
            self._wait_for([(shard, row) for shard, rows in ranges for row in rows])

    def _num_rows(self, shard: int) -> int:
        return self._store.shards[shard].num_samples

    def _error(self, shard: int, row: int) -> ShardError:
        return unreadable(self._store.shards[shard].path, row, self._field)

    def _new(self, rows: Rows, known: npt.NDArray[np.bool_] | None) -> Rows | None:
        """Return which of some records are large, in files, and not known; None if none is."""
        if not self._may_be_large or (known is not None and known.take(rows.indices).all()):
            return None
        sizes = self._sizes.take(rows.shards)
        if (sizes == _UNKNOWN).any():
            self._look(np.unique(rows.shards[sizes == _UNKNOWN]).tolist())
            sizes = self._sizes.take(rows.shards)
        new = sizes == _LARGE
        if known is not None:
            new &= ~known.take(rows.indices)
        return rows[new] if new.any() else None

    def _look(self, shards: list[int]) -> None:
        for number in shards:
            column = self._store.shard(number).columns[self._field]
            is_large = column.nbytes >= _MIN_ROW_BYTES * len(column)
            self._sizes[number] = _LARGE if is_large else _SMALL
        self._may_be_large = bool(self._sizes.any())

    def _places(self, rows: Rows) -> list[tuple[int, int]]:
        """Return the shard of each record, and its row there."""
        numbers = rows.indices - self._store.starts.take(rows.shards)
        return list(zip(rows.shards.tolist(), numbers.tolist(), strict=True))

    def _map(self, number: int) -> _Map:
        found = self._maps.get(number)
        if found is None:
            column = self._store.shard(number).columns[self._field]
            new = _Map.of(column, in_blocks=self._asked is not None)
            found = self._maps.setdefault(number, new)
        return found


def _guess(shard: FileShard | MemoryShard) -> int:
    """Tell from a shard's size whether its records can be large."""
    if (
        not isinstance(shard, FileShard)
        or shard.info.size_bytes < _MIN_ROW_BYTES * shard.num_samples
    ):
        return _SMALL
    return _UNKNOWN


def unreadable(path: Path, row: int, field: str) -> ShardError:
    """Return what is raised for a record that storage does not bring."""
    hint = "The file was cut since it was opened, or its storage failed: run 'packdata verify'"
    return ShardError("its pages cannot be read", path, row, field, hint)


def fits_memory(shards: Sequence[FileShard | MemoryShard]) -> bool:
    """Tell whether memory can be trusted to keep what was read of all files."""
    nbytes = sum(shard.info.size_bytes for shard in shards if isinstance(shard, FileShard))
    return nbytes < _MEMORY_SHARE * memory_bytes()
