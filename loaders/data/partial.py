"""Records of which only a part is read: found without reading them, fetched and verified in parts.

1. Verified: a large record has checksums of its chunks beside its own (``formats.checksums``).
   Before a part is copied, the chunks that it touches are compared, each once (or always). Records
   without chunks are compared whole: they are small, or were packed before there were chunks.
2. Fetched: the kernel reads ahead of every page fault, by megabytes on many machines, and would so
   read most of a volume for a crop. The part's own pages are therefore asked for in advance (14
   times less was read so, in a tenth of the time, from an SSD that reads 8 MiB ahead): when a chunk
   is first touched, and every time where the shards do not fit into memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.data.formats.checksums import CHUNK_BYTES, CHUNKED_ROW_BYTES, num_chunks
from loaders.data.madvise import ask_for, wait_for
from loaders.data.prefetch import fits_memory, unreadable
from loaders.data.seen import Seen
from loaders.data.shards import FileShard
from loaders.errors import ChecksumError, ShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.data.finder import Rows
    from loaders.data.store import Store

UInt8Array = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
_NONE = np.empty(0, np.int64)
_HEADER_BYTES = 256  # more than the sizes of all axes take
_HINT = "Run 'packdata verify', and restore the shard"


@dataclass(frozen=True, slots=True)
class RecordPart:
    """What will be read of one record."""

    shard: int  # the shard's number
    row: int  # the record's row there
    record: UInt8Array  # the record, a view
    chunks: Indices  # the numbers, in the shard, of the chunks to look at


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The chunks of a column in one shard."""

    nbytes: int  # size of a chunk
    first: Indices  # the number of each row's first chunk
    hashes: npt.NDArray[np.uint64] | None  # of each chunk, or None if nothing is verified
    known: Seen  # which chunks were fetched, and verified where there are hashes


class PartialRecords:
    """The records of one field of a store, for readers of parts.

    Thread-safe, as the store is: two threads may verify the same chunk, and find the same.
    """

    def __init__(self, store: Store, field: str) -> None:
        self._store, self._field = store, field
        self._chunks: dict[int, _Chunks | None] = {}
        self._begun = Seen(len(store))  # records whose heads were waited for
        self._fits_memory = fits_memory(store.shards)

    def __reduce__(self) -> Any:
        return PartialRecords, (self._store, self._field)

    def find(self, rows: Rows) -> list[UInt8Array]:
        """Return the record of each sample as a view; those without chunks are verified.

        With ``check="always"`` a sample is refused if it is damaged anywhere, be it outside of the parts.
        """
        store, field = self._store, self._field
        numbers = rows.shards.tolist()
        whole = np.array([self._is_whole(number) for number in numbers], bool)
        if whole.any():
            store.records(field, rows[whole])
        columns = [store.shard(number).columns[field] for number in numbers]
        store.check_damage(rows)
        places = list(
            zip(numbers, (rows.indices - store.starts[rows.shards]).tolist(), strict=True)
        )
        records = [column.row(row) for column, (_, row) in zip(columns, places, strict=True)]
        self._wait_for_heads(rows.indices, places, records)
        return records

    def _wait_for_heads(
        self, indices: Indices, places: list[tuple[int, int]], records: list[UInt8Array]
    ) -> None:
        """Wait, the first time, for what tells of a record's shape."""
        is_new = self._begun.new(indices)
        if is_new is None:
            return
        new = np.flatnonzero(is_new).tolist()
        heads = [(_address(records[i]), min(len(records[i]), _HEADER_BYTES)) for i in new]
        bad = wait_for(heads)
        if bad is not None:
            number, row = places[new[bad]]
            raise unreadable(self._store.shards[number].path, row, self._field)
        self._begun.note(indices)

    def _is_whole(self, number: int) -> bool:
        """Tell whether a shard is mapped, and has no chunks."""
        if not isinstance(self._store.shards[number], FileShard):
            return False
        shard = self._store.shard(number)
        sums, column = shard.checksums.get(self._field), shard.columns[self._field]
        if sums is not None:
            return not sums.chunk_bytes
        return column.nbytes < CHUNKED_ROW_BYTES * len(column)

    def part(self, number: int, row: int, record: UInt8Array, spans: BoxBytes) -> RecordPart:
        """Name a part of a record that ``find`` returned, and have the kernel fetch what may not be in memory."""
        if number not in self._chunks:
            self._chunks[number] = self._open(number)
        chunks = self._chunks[number]
        always = not self._fits_memory or self._store.check == "always"
        nothing = RecordPart(number, row, record, _NONE)
        if chunks is None or (chunks.known.are_all() and not always):
            return nothing
        start = int(chunks.first[row])
        if not always and spans.are_within(chunks.known, start, chunks.nbytes):
            return nothing
        touched = spans.chunks(chunks.nbytes) + start
        if not always:
            is_new = chunks.known.new(touched)
            touched = _NONE if is_new is None else touched[is_new]
        if not len(touched):
            return nothing
        part = RecordPart(number, row, record, np.unique(touched))
        ask_for(_runs(part, chunks))  # the pages arrive while other parts are copied
        return part

    def verify(self, part: RecordPart) -> None:
        """Wait for the chunks that a part touches, and compare them, unless that was done before.

        Raises:
            ShardError: A chunk cannot be read.
            ChecksumError: It differs from its checksum.
        """
        chunks = self._chunks[part.shard]
        if chunks is None or not len(part.chunks):
            return
        if wait_for(_runs(part, chunks)) is not None:
            raise unreadable(self._store.shards[part.shard].path, part.row, self._field)
        if chunks.hashes is not None:
            for chunk in part.chunks.tolist():
                if self._store.check == "always" or not chunks.known.are_between(chunk, chunk + 1):
                    self._verify(part, chunk, chunks, chunks.hashes)
        chunks.known.note(part.chunks)

    def _verify(
        self, part: RecordPart, chunk: int, chunks: _Chunks, hashes: npt.NDArray[np.uint64]
    ) -> None:
        first = (chunk - int(chunks.first[part.row])) * chunks.nbytes
        data = part.record[first : first + chunks.nbytes]
        if xxhash.xxh3_64_intdigest(data.data) != hashes[chunk]:
            path = self._store.shard(part.shard).path
            what = f"the checksum of its bytes {first} to {first + len(data) - 1} does not match"
            raise ChecksumError(what, path, part.row, self._field, _HINT)

    def _open(self, number: int) -> _Chunks | None:
        """Return the chunks of a shard that is mapped and has large records, else None."""
        store, shard = self._store, self._store.shard(number)
        column, sums = shard.columns[self._field], shard.checksums.get(self._field)
        if not isinstance(store.shards[number], FileShard) or self._is_whole(number):
            return None
        nbytes = CHUNK_BYTES if sums is None else sums.chunk_bytes
        counts = num_chunks(column, nbytes)
        total = int(counts.sum())
        if sums is not None and total != len(sums.chunks):
            what = f"it has {len(sums.chunks)} checksums of chunks for {total} chunks"
            raise ShardError(what, shard.path, None, self._field, _HINT)
        hashes = None if sums is None else sums.chunks
        return _Chunks(nbytes, np.cumsum(counts) - counts, hashes, Seen(total))


def _address(record: UInt8Array) -> int:
    return int(record.__array_interface__["data"][0])


def _runs(part: RecordPart, chunks: _Chunks) -> list[tuple[int, int]]:
    """Return where each run of a part's chunks lies in memory, and its size."""
    numbers = part.chunks - chunks.first[part.row]
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    first = numbers[np.append(0, breaks)] * chunks.nbytes
    last = (numbers[np.append(breaks, len(numbers)) - 1] + 1) * chunks.nbytes
    sizes = np.minimum(last, len(part.record)) - first
    return list(zip((_address(part.record) + first).tolist(), sizes.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class BoxBytes:
    """Bytes of a record that lie apart by the strides of an array: those of a box in it."""

    start: int  # the first byte
    lengths: Sequence[int]  # how often each axis steps; the last one in bytes
    strides: Sequence[int]  # the step of each axis in bytes, falling, 1 for the last
    header: int = 0  # how many bytes at the start of the record are read too

    def chunks(self, chunk_bytes: int) -> Indices:
        """Return the number of every chunk that is touched, some of them repeatedly."""
        touched = _NONE if 0 in self.lengths else self._chunks(chunk_bytes)
        if not self.header:
            return touched
        return np.append(np.arange(-(-self.header // chunk_bytes)), touched)

    def are_within(self, known: Seen, chunk: int, chunk_bytes: int) -> bool:
        """Tell whether all chunks from the first byte to the last are known, given the number of the record's first."""
        steps = zip(self.lengths, self.strides, strict=True)
        last = self.start + sum((length - 1) * stride for length, stride in steps)
        first, end = chunk + self.start // chunk_bytes, chunk + last // chunk_bytes + 1
        head = chunk + -(-self.header // chunk_bytes)
        return known.are_between(chunk, head) and known.are_between(first, end)

    def _chunks(self, chunk_bytes: int) -> Indices:
        axis, span = len(self.lengths), 1
        # Where steps are no longer than a chunk, no chunk lies between them.
        while axis and self.strides[axis - 1] <= chunk_bytes:
            axis -= 1
            span += (self.lengths[axis] - 1) * self.strides[axis]
        starts = np.array([self.start], np.int64)
        for length, stride in zip(self.lengths[:axis], self.strides[:axis], strict=True):
            starts = (starts[:, None] + np.arange(length) * stride).reshape(-1)
        first, last = starts // chunk_bytes, (starts + span - 1) // chunk_bytes
        most = int((last - first).max()) + 1
        touched: Indices = np.minimum(first[:, None] + np.arange(most), last[:, None])
        return touched.reshape(-1)
