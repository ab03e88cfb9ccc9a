"""The records of one field of a store: which arrived, which were verified, and where each lies.

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

import ctypes
import errno
import mmap
import os
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from loaders.data.columns import FixedColumn, rows_between
from loaders.data.gather import Gather
from loaders.data.shards import PackedShard, RemoteShard
from loaders.data.verify import Seen, Verifier
from loaders.errors import ShardError
from loaders.system.libc import libc
from loaders.system.limits import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from loaders.data.columns import Column
    from loaders.data.finder import Rows
    from loaders.data.gather import Take
    from loaders.data.shards import Check, OpenShard, Shard
    from loaders.remote.url import Location

# No more is read of one question: the usual read-ahead (``force_page_cache_readahead`` in mm/readahead.c).
READ_BYTES = 128 << 10
_COPY_BYTES = 64 << 10  # stays in a core's cache
_MAX_PLACES = 1024  # of one call (UIO_MAXIOV)
_MIN_ROW_BYTES = 4 << 10  # smaller ones share pages, and the kernel reads ahead
_MEMORY_SHARE = 0.5  # of a machine's memory: what the page cache can be trusted to keep
_UNKNOWN, _SMALL, _LARGE = -1, 0, 1  # records of a shard
_WILLNEED = getattr(mmap, "MADV_WILLNEED", None)
_libc: Any = None if _WILLNEED is None else libc()

UInt8Array = npt.NDArray[np.uint8]
Span = tuple[int, int]  # an address, and how many bytes


class FieldRecords:
    """The records of one field in a store's shards, as these are open now.

    Thread-safe: two threads may request or verify the same record, and get it.
    """

    def __init__(
        self,
        field: str,
        shards: Sequence[Shard],  # of the store
        starts: npt.NDArray[np.int64],  # the number of the first sample of each
        # Opens one, by number; no method of the store, which would live on.
        shard: Callable[[int], OpenShard],
        check: Check,
        take: Take,  # how rows of one size are copied
    ) -> None:
        self._field, self._shards, self._starts, self._shard = field, shards, starts, shard
        self._verifier = Verifier(field, starts, shard, always=check == "always")
        self._take = take
        # Files of a cache are to be let go of as soon as can be.
        self._is_evictable = any(isinstance(shard, RemoteShard) for shard in shards)
        self._gather: Gather | None = None
        # A small file has no large records.
        sizes = [s.info.size_bytes if isinstance(s, PackedShard) else 0 for s in shards]
        least = [_MIN_ROW_BYTES * shard.num_samples for shard in shards]
        self._sizes = np.where(np.array(sizes) < np.array(least), _SMALL, _UNKNOWN)
        # Whether some may be large and are not here yet; else no record is looked at.
        self._may_be_large = bool(self._sizes.any())
        self._keeps = fits_memory(shards)
        self._arrived = Seen(sum(shard.num_samples for shard in shards))

    def needs_prefetch(self, rows: Rows) -> bool:
        """True if some of these records are not in memory yet, or may not be; opens no file."""
        return self._may_be_large and bool(self._awaited(rows).any())

    def prefetch(self, rows: Rows) -> None:
        """Have storage read some records, without waiting for them."""
        if new := self._new(rows):
            spans = [span_of(record) for record in self.views(new)]
            ask_for(dict.fromkeys(_blocks(*span) for span in spans) if self._keeps else spans)

    def wait_for(self, rows: Rows) -> None:
        """Wait for some records, whatever their size; ShardError if one of them cannot be read."""
        places = self._places(rows)
        self._wait_for(self._views(places), places)

    def verify(self, rows: Rows) -> None:
        """Wait for records, and hash the blocks that they lie in, unless that was done before.

        ShardError if one of them cannot be read, ChecksumError if one is damaged.
        """
        unknown = self._verifier.unknown(rows)
        if new := self._new(rows):
            self.wait_for(new)
            self._arrived.note(new.indices)
            if self._keeps and self._arrived.are_all():
                self._may_be_large = False
        if unknown is not None:
            views, places = list[UInt8Array](), list[tuple[int, int]]()
            for shard, number, size in unknown.blocks:
                if size > 1:
                    found = _neighbours(self._column(shard), number * size, (number + 1) * size)
                    views += found
                    places += [(shard, number * size + n) for n in range(len(found))]
            self._wait_for(views, places)
            self._verifier.verify(unknown)

    @property
    def is_all_verified(self) -> bool:
        """Whether nothing is left to be compared with its checksums."""
        return self._verifier.is_done

    def are_ready(self, rows: Rows) -> bool:
        """Tell whether all these records are verified, and either kept in memory or too small to wait for."""
        return self._verifier.unknown(rows) is None and self._new(rows) is None

    def gather(self, nbytes: int) -> Gather:
        """Return what finds records of so many bytes; ``verify`` them first."""
        if self._gather is None:
            shard, field = self._shard, self._field  # not self: it would keep itself alive
            self._gather = Gather(
                nbytes,
                self._starts,
                lambda number: shard(number).columns[field],
                lambda number, row: _refuse_size(shard(number), field, row, nbytes),
                self._take,
                is_evictable=self._is_evictable,
            )
        return self._gather

    def _wait_for(self, views: list[UInt8Array], places: list[tuple[int, int]]) -> None:
        if (bad := wait_for(views)) is not None:
            shard, row = places[bad]
            raise unreadable(self._shards[shard].path, row, self._field)

    def _awaited(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return which of some records may be large, and are not here or not kept."""
        awaited: npt.NDArray[np.bool_] = self._sizes.take(rows.shards) != _SMALL
        if self._keeps and awaited.any():
            is_new = self._arrived.new(rows.indices)
            awaited &= False if is_new is None else is_new
        return awaited

    def _new(self, rows: Rows) -> Rows | None:
        """Return which of some records are large, in files, and not here or not kept; None if none is."""
        if not self._may_be_large or not (awaited := self._awaited(rows)).any():
            return None
        for number in np.unique(rows.shards[awaited]).tolist():
            if self._sizes[number] == _UNKNOWN:
                column = self._column(number)
                is_large = column.nbytes >= _MIN_ROW_BYTES * len(column)
                self._sizes[number] = _LARGE if is_large else _SMALL
                self._may_be_large = bool(self._sizes.any())
        awaited &= self._sizes.take(rows.shards) == _LARGE
        return rows[awaited] if awaited.any() else None

    def _places(self, rows: Rows) -> list[tuple[int, int]]:
        """Return the shard of each record, and its row there."""
        numbers = rows.indices - self._starts.take(rows.shards)
        return list(zip(rows.shards.tolist(), numbers.tolist(), strict=True))

    def views(self, rows: Rows) -> list[UInt8Array]:
        """Return records as they lie in their shards."""
        return self._views(self._places(rows))

    def _views(self, places: list[tuple[int, int]]) -> list[UInt8Array]:
        columns = {shard: self._column(shard) for shard in {shard for shard, _ in places}}
        return [columns[shard].row(row) for shard, row in places]

    def _column(self, shard: int) -> Column:
        return self._shard(shard).columns[self._field]


def _blocks(start: int, nbytes: int) -> Span:
    """Return the whole blocks of a read that a record lies in; the kernel leaves out what is not mapped."""
    first = start // READ_BYTES * READ_BYTES
    return first, -(-(start + nbytes - first) // READ_BYTES) * READ_BYTES


def _neighbours(column: Column, first: int, end: int) -> list[UInt8Array]:
    """Return the bytes of some rows: with what lies between them, or of each where that is most, as in LMDB."""
    part = rows_between(column, first, end)
    if isinstance(part, FixedColumn):
        return [part.data]
    low, high = int(part.starts.min()), int((part.starts + part.lengths).max())
    if high - low > 4 * part.nbytes:
        return [part.row(n) for n in range(len(part))]
    return [part.buffer[low:high]]


def _refuse_size(shard: OpenShard, field: str, row: int, nbytes: int) -> NoReturn:
    found = shard.columns[field].lengths[row]
    raise ShardError(f"the record has {found} bytes, not {nbytes}", shard.path, row, field)


def unreadable(path: Location, row: int, field: str) -> ShardError:
    """Return what is raised for a record that storage does not bring."""
    hint = "The file was cut since it was opened, or its storage failed: run 'packdata verify'"
    return ShardError("the pages of the record cannot be read", path, row, field, hint)


def fits_memory(shards: Sequence[Shard]) -> bool:
    """Tell whether memory can be trusted to keep what was read of all files."""
    nbytes = sum(s.info.size_bytes for s in shards if isinstance(s, PackedShard))
    return nbytes < _MEMORY_SHARE * memory_bytes()


def ask_for(spans: Iterable[Span]) -> None:
    """Have the kernel read some spans of memory, without waiting for them; nothing where a system has no such call."""
    if _libc is None:
        return
    for start, nbytes in spans:
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        for at in range(first, start + nbytes, READ_BYTES):
            size = min(READ_BYTES, start + nbytes - at)
            _libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(size), _WILLNEED)


def wait_for(records: Sequence[npt.NDArray[Any]]) -> int | None:
    """Wait until some records are in memory, by having the kernel copy them to a buffer that is thrown away.

    One call waits for many records without the GIL. With a call for each, a thread that is busy in Python would keep
    the GIL for a switch interval after each call, 5 ms a record.

    Return the number of the first one that cannot be read: touching it would end the process. None if all can, and
    where the system does not tell.
    """
    if not records or not hasattr(_libc, "process_vm_readv"):
        return None
    starts, sizes = np.array([span_of(record) for record in records], np.int64).T
    counts = -(-sizes // _COPY_BYTES)
    owners = np.repeat(np.arange(len(records)), counts)
    before = (np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]) * _COPY_BYTES
    pieces = np.stack(
        [starts[owners] + before, np.minimum(sizes[owners] - before, _COPY_BYTES)], 1
    )
    buffer, targets = np.empty(_COPY_BYTES, np.uint8), pieces.copy()
    targets[:, 0] = span_of(buffer)[0]
    for first in range(0, len(pieces), _MAX_PLACES):
        some, there = pieces[first : first + _MAX_PLACES], targets[first : first + _MAX_PLACES]
        args = os.getpid(), span_of(there)[0], len(there), span_of(some)[0], len(some), 0
        copied = _libc.process_vm_readv(*map(ctypes.c_long, args))
        if copied < 0 and ctypes.get_errno() != errno.EFAULT:
            return None
        ends = np.cumsum(some[:, 1])
        if copied < ends[-1]:
            return int(owners[first + np.searchsorted(ends, max(copied, 0), "right")])
    return None


def span_of(array: npt.NDArray[Any]) -> Span:
    """Return the address of an array, and its size in bytes."""
    return array.__array_interface__["data"][0], array.nbytes
