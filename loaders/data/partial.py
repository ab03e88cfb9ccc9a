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
from loaders.data.records import ask_for, fits_memory, span_of, unreadable, wait_for
from loaders.data.shards import PackedShard
from loaders.data.verify import Seen
from loaders.errors import ChecksumError, ShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.data.finder import Rows
    from loaders.data.store import Store
    from loaders.remote.url import Location

UInt8Array = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
_NONE = np.empty(0, np.int64)
_HEADER_BYTES = 256  # more than the sizes of all axes take


@dataclass(frozen=True, slots=True)
class RecordPart:
    """What will be read of one record."""

    shard: int  # the shard's number
    row: int  # the record's row there
    chunks: Indices  # the numbers, in the shard, of the chunks to look at
    data: list[UInt8Array]  # the bytes of each, views


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
        self._looks_again = store.check == "always" or not fits_memory(store.shards)

    def __reduce__(self) -> Any:
        return PartialRecords, (self._store, self._field)

    def find(self, rows: Rows) -> list[UInt8Array]:
        """Return the record of each sample as a view; those without chunks are verified."""
        store, shards = self._store, rows.shards.tolist()
        is_whole = np.array([self._chunks_of(shard) is None for shard in shards], bool)
        if is_whole.any():
            store.records(self._field, rows[is_whole])
        numbers = (rows.indices - store.starts[rows.shards]).tolist()
        places = list(zip(shards, numbers, strict=True))
        records = [store.shard(shard).columns[self._field].row(row) for shard, row in places]
        # An empty one has no chunk.
        new = [i for i, record in enumerate(records) if len(record) and self._is_new(*places[i])]
        bad = wait_for([records[i][:_HEADER_BYTES] for i in new])
        if bad is not None:
            shard, row = places[new[bad]]
            raise unreadable(self._path(shard), row, self._field)
        return records

    def _is_new(self, shard: int, row: int) -> bool:
        """Tell whether the first chunk of a record may not be in memory."""
        chunks = self._chunks[shard]
        if chunks is None:  # its records came as a whole
            return False
        return self._looks_again or chunks.known.new(chunks.first[row : row + 1]) is not None

    def _path(self, shard: int) -> Location:
        return self._store.shards[shard].path

    def _chunks_of(self, number: int) -> _Chunks | None:
        """Return the chunks of a shard that is mapped and has large records, else None."""
        if number not in self._chunks:
            self._chunks[number] = self._open(number)
        return self._chunks[number]

    def _open(self, number: int) -> _Chunks | None:
        shard = self._store.shard(number)
        is_file = isinstance(self._store.shards[number], PackedShard)
        column, sums = shard.columns[self._field], shard.checksums.get(self._field)
        if not is_file or column.nbytes < CHUNKED_ROW_BYTES * len(column):
            return None
        nbytes, hashes = (CHUNK_BYTES, None) if sums is None else (sums.chunk_bytes, sums.chunks)
        if not nbytes:
            return None
        counts = num_chunks(column, nbytes)
        if hashes is not None and len(hashes) != counts.sum():
            what = f"the checksums are of {len(hashes)} chunks, the rows have {counts.sum()}"
            raise ShardError(what, shard.path, None, self._field, shard.remedy)
        return _Chunks(nbytes, np.cumsum(counts) - counts, hashes, Seen(int(counts.sum())))

    def part(self, number: int, row: int, record: UInt8Array, spans: BoxBytes) -> RecordPart:
        """Name a part of a record that ``find`` returned, and have the kernel fetch what may not be in memory."""
        chunks = self._chunks_of(number)
        if chunks is None or (chunks.known.are_all() and not self._looks_again):
            return RecordPart(number, row, _NONE, [])
        first, nbytes = int(chunks.first[row]), chunks.nbytes
        if not self._looks_again and chunks.known.new(spans.upto(nbytes) + first) is None:
            return RecordPart(number, row, _NONE, [])
        touched = spans.chunks(nbytes) + first
        if not self._looks_again:
            is_new = chunks.known.new(touched)
            touched = _NONE if is_new is None else touched[is_new]
        touched = np.unique(touched)
        starts = ((touched - first) * nbytes).tolist()
        data = [record[start : start + nbytes] for start in starts]
        ask_for(map(span_of, data))  # they arrive while other parts are copied
        return RecordPart(number, row, touched, data)

    def verify(self, part: RecordPart) -> None:
        """Wait for the chunks that a part touches, and compare them, unless that was done before.

        ShardError if one cannot be read, ChecksumError if one is damaged.
        """
        chunks = self._chunks[part.shard]
        if chunks is None or not part.data:
            return
        if wait_for(part.data) is not None:
            raise unreadable(self._path(part.shard), part.row, self._field)
        if chunks.hashes is not None:
            for chunk, data in zip(part.chunks.tolist(), part.data, strict=True):
                if xxhash.xxh3_64_intdigest(data.data) != chunks.hashes[chunk]:
                    first = (chunk - int(chunks.first[part.row])) * chunks.nbytes
                    what = f"the checksum of its bytes {first} to {first + len(data) - 1} does not match"
                    shard = self._store.shard(part.shard)
                    raise ChecksumError(what, shard.path, part.row, self._field, shard.remedy)
        chunks.known.note(part.chunks)


@dataclass(frozen=True, slots=True)
class BoxBytes:
    """Bytes of a record that lie apart by the strides of an array: those of a box in it."""

    start: int  # the first byte
    lengths: Sequence[int]  # how often each axis steps; the last one in bytes
    strides: Sequence[int]  # the step of each axis in bytes, falling, 1 for the last
    header: int = 0  # how many bytes at the start of the record are read too

    def upto(self, chunk_bytes: int) -> Indices:
        """Return the numbers of all chunks up to the last one that is touched: sooner told than which are."""
        steps = zip(self.lengths, self.strides, strict=True)
        last = self.start + sum((length - 1) * stride for length, stride in steps)
        return np.arange(max(last, self.header - 1, 0) // chunk_bytes + 1)

    def chunks(self, chunk_bytes: int) -> Indices:
        """Return the number of every chunk that is touched, some of them repeatedly."""
        touched = _NONE if 0 in self.lengths else self._chunks(chunk_bytes)
        return np.append(np.arange(-(-self.header // chunk_bytes)), touched)

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
