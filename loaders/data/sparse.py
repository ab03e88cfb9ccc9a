"""Shards at URLs of which only some records are fetched: each range by a request, verified, kept in memory alone.

Such a shard has the columns of a whole one, over memory of its size that is empty at first. Before records are read
they are brought (``bring``): what is missing of their blocks is fetched, neighbours with what lies between them, and
compared with the checksums that the shard itself has. What was brought costs memory until the store lets go of it.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from loaders.data.columns import FixedColumn
from loaders.data.formats import columns_in, parse_checksums
from loaders.data.formats.checksums import hash_block
from loaders.data.shards import FileShard, OpenShard
from loaders.errors import ShardError
from loaders.system.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from loaders.data.manifest import Place
    from loaders.data.shards import MemoryShard
    from loaders.remote.origin import Origin

    UInt8Array = npt.NDArray[np.uint8]
    Indices = npt.NDArray[np.int64]

GAP_BYTES = 256 << 10  # fetching so many bytes more costs less than another request
_SMALL_BYTES = 64 << 10  # a column that is fetched with the places of the others
_ATTEMPTS = 3
_KEPT_BYTES = 256 << 20  # of records, in memory
MOST_BYTES = _KEPT_BYTES // 2  # of a column that is read by ranges
_MAP_NORESERVE = 0x4000  # Linux's: what is never written takes no memory


class Span(NamedTuple):
    """Bytes of a file, from ``start`` to ``end``."""

    start: int
    end: int


class BroughtSpan(NamedTuple):
    """A span of a file that came."""

    span: Span
    data: UInt8Array


@dataclass(slots=True)
class SparseShard(OpenShard):
    """A shard in use, of which some blocks are here."""

    file: FileShard = field(kw_only=True)  # which
    data: UInt8Array = field(kw_only=True)  # memory of its size
    # By field, which blocks have arrived and are right.
    here: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    cost_bytes: int = 0  # what was fetched of it, with what each request costs
    lock: ForkLock = field(default_factory=ForkLock)  # of what is written to the memory

    def missing(self, name: str, rows: Indices) -> list[int]:
        """Return the blocks of some rows that are not here."""
        blocks = np.unique(rows // self.checksums[name].rows_per_block)
        missing: list[int] = blocks[~self.here[name][blocks]].tolist()
        return missing

    def spans(self, name: str, blocks: Sequence[int]) -> list[Span]:
        """Return where the rows of some blocks lie."""
        column, size = self.columns[name], self.checksums[name].rows_per_block
        spans = []
        for block in blocks:
            rows = slice(block * size, min((block + 1) * size, len(column)))
            if isinstance(column, FixedColumn):
                base = int(column.data.ctypes.data) - int(self.data.ctypes.data)
                nbytes = column.data.shape[1]
                spans.append(Span(base + rows.start * nbytes, base + rows.stop * nbytes))
            else:
                starts, lengths = column.starts[rows], column.lengths[rows]
                spans += map(Span, starts.tolist(), (starts + lengths).tolist())
        return spans

    def take(self, name: str, blocks: Sequence[int], got: Sequence[BroughtSpan]) -> list[int]:
        """Take blocks from what came; return which differ from their checksums.

        Nothing else is written: what lies between them may be here, and is read by other threads.
        """
        with self.lock.plain:
            new = [block for block in blocks if not self.here[name][block]]
            _copy(self.spans(name, new), got, self.data)
            return self.wrong(name, new)

    def wrong(self, name: str, blocks: Sequence[int]) -> list[int]:
        """Return which of some blocks differ from their checksums; note the others as here."""
        sums, column = self.checksums[name], self.columns[name]
        bad = [
            block
            for block in blocks
            if hash_block(column, block, sums.rows_per_block) != sums.hashes[block]
        ]
        self.here[name][np.setdiff1d(blocks, bad).astype(np.int64)] = True
        return bad


class Ranges:
    """Which shards of a store are here in part.

    Args:
        shards: Of the store.

    Attributes:
        by_records: Whether all shards at URLs are read so; None: those of which few rows are expected.
        open: By number, those that are here in part.

    The store guards changes by its lock.
    """

    def __init__(self, shards: Sequence[FileShard | MemoryShard]) -> None:
        self._shards = shards
        origins = {shard.origin for shard in shards if isinstance(shard, FileShard)} - {None}
        modes = {origin.cache.mode for origin in origins if origin is not None}
        self.by_records: bool | None = True if modes == {"records"} else None
        self._can_be = bool(origins)
        self._expected = set[int]()
        self.open: dict[int, SparseShard] = {}
        self._num_bytes = 0

    def expect(self, numbers: Sequence[int]) -> None:
        """Note that few rows of these shards are to be read."""
        if self._can_be and self.by_records is None:
            self._expected.update(numbers)

    @property
    def are_used(self) -> bool:
        """Whether some shards are here in part, or will be."""
        return self._can_be and bool(self.open or self._expected or self.by_records)

    def takes(self, number: int) -> bool:
        """Tell whether a shard that is not open is to be read in part."""
        shard = self._shards[number]
        is_wanted = number in self._expected if self.by_records is None else self.by_records
        return is_wanted and isinstance(shard, FileShard) and not shard.is_here

    def open_some(self, numbers: Sequence[int]) -> dict[int, SparseShard]:
        """Open shards, those of one URL by one question."""
        opened: dict[int, SparseShard] = {}
        for some in self._by_origin(numbers):
            files = [self._file(n) for n in some]
            opened |= zip(some, open_sparse(files), strict=True)
            self._num_bytes += sum(_size(_index_spans(file)) for file in files)
        return opened

    def bring(self, field: str, rows: Mapping[int, Indices]) -> None:
        """Fetch records of shards that are here in part, those of one URL by one question."""
        opened = self.open  # another thread may give it up meanwhile
        for some in self._by_origin([n for n in rows if n in opened]):
            shards, wanted = [opened[n] for n in some], [rows[n] for n in some]
            self._num_bytes += bring(shards, field, wanted)

    def _file(self, number: int) -> FileShard:
        shard = self._shards[number]
        assert isinstance(shard, FileShard)
        return shard

    def _by_origin(self, numbers: Sequence[int]) -> list[list[int]]:
        groups: dict[Any, list[int]] = {}
        for number in numbers:
            groups.setdefault(self._file(number).origin, []).append(number)
        return list(groups.values())

    @property
    def are_to_go(self) -> bool:
        """Whether they take too much memory, or one has cost half of what all of it would."""
        return self._num_bytes > _KEPT_BYTES or bool(self._dear())

    def _dear(self) -> list[int]:
        if self.by_records:
            return []
        opened = tuple(self.open.items())  # at once: another thread may open one meanwhile
        return [n for n, shard in opened if 2 * shard.cost_bytes > shard.file.info.size_bytes]

    def give_up(self) -> None:
        """Forget what is here; shards that were dear will be fetched whole."""
        self._expected -= set(self._dear())
        self.open, self._num_bytes = {}, 0


def open_sparse(files: Sequence[FileShard]) -> list[SparseShard]:
    """Open some shards of one dataset: fetch where their records lie, their checksums, and small columns.

    Raises:
        RemoteError: They cannot be fetched.
        ShardError: What came is no such thing.
    """
    datas = [_memory(file.info.size_bytes) for file in files]
    spans = [_index_spans(file) for file in files]
    for attempt in range(1, _ATTEMPTS + 1):
        for data, some, got in zip(datas, spans, _fetch(files, spans), strict=True):
            _copy(some, got, data)
        try:
            return [_opened(file, data) for file, data in zip(files, datas, strict=True)]
        except ShardError:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError


def _index_spans(file: FileShard) -> list[Span]:
    info = file.info
    spans = [Span(info.checksums[0], sum(info.checksums))]
    for place in info.places.values():
        if place.lengths is not None:
            spans.append(Span(place.lengths, place.lengths + 4 * info.num_samples))
        if place.starts is not None:
            spans.append(Span(place.starts, place.starts + 8 * info.num_samples))
        if _is_small(place, info.num_samples):
            nbytes = (place.row_nbytes or 0) * info.num_samples
            spans.append(Span(place.offset, place.offset + nbytes))
    return spans


def _is_small(place: Place, num_rows: int) -> bool:
    return place.row_nbytes is not None and place.row_nbytes * num_rows <= _SMALL_BYTES


def _opened(file: FileShard, data: UInt8Array) -> SparseShard:
    info = file.info
    start, nbytes = info.checksums
    sums = parse_checksums(data[start : start + nbytes].tobytes(), file.path, info)
    columns = columns_in(data, info, file.path)
    shard = SparseShard(file.path, columns, sums, file=file, data=data)
    shard.here = {name: np.zeros(len(each.hashes), bool) for name, each in sums.items()}
    for name, place in info.places.items():
        if _is_small(place, info.num_samples):
            shard.wrong(name, range(len(sums[name].hashes)))  # what is wrong is fetched again
    return shard


def bring(shards: Sequence[SparseShard], name: str, rows: Sequence[Indices]) -> int:
    """Fetch the records of some rows of each of some shards, where they are not here; return how many bytes came.

    Raises:
        RemoteError: They cannot be fetched.
        ChecksumError: They differ from their checksums, each time that they are fetched.
    """
    wanted = [shard.missing(name, some) for shard, some in zip(shards, rows, strict=True)]
    total = 0
    files = [shard.file for shard in shards]
    for _ in range(_ATTEMPTS):
        if not any(wanted):
            return total
        spans = [shard.spans(name, some) for shard, some in zip(shards, wanted, strict=True)]
        came = list(zip(shards, wanted, _fetch(files, spans), strict=True))
        for shard, _, got in came:
            shard.cost_bytes += _size(piece.span for piece in got) + len(got) * GAP_BYTES
            total += _size(piece.span for piece in got)
        wanted = [shard.take(name, blocks, got) for shard, blocks, got in came]
    for shard, blocks in zip(shards, wanted, strict=True):
        if blocks:
            raise shard.error(name, blocks[0])
    return total


def coalesced(spans: Sequence[Span]) -> list[Span]:
    """Return spans in order, those as one that overlap or lie close together.

    Example:
        >>> coalesced([Span(900_000, 900_010), Span(0, 10), Span(200_000, 200_010)])
        [Span(start=0, end=200010), Span(start=900000, end=900010)]
    """
    joined: list[Span] = []
    for span in sorted(span for span in spans if span.end > span.start):
        if joined and span.start - joined[-1].end <= GAP_BYTES:
            joined[-1] = Span(joined[-1].start, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined


def _fetch(files: Sequence[FileShard], spans: Sequence[Sequence[Span]]) -> list[list[BroughtSpan]]:
    """Fetch spans of each file, with what lies between neighbours; return what came, in order."""
    pairs = [(n, span) for n, some in enumerate(spans) for span in coalesced(some)]
    got = _origin_of(files).ranges([(files[n].info.file, *span) for n, span in pairs])
    came: list[list[BroughtSpan]] = [[] for _ in files]
    for (n, span), data in zip(pairs, got, strict=True):
        came[n].append(BroughtSpan(span, np.frombuffer(data, np.uint8)))
    return came


def _copy(spans: Sequence[Span], got: Sequence[BroughtSpan], out: UInt8Array) -> None:
    """Copy spans of a file, of what came of it, to where they belong."""
    starts = [piece.span.start for piece in got]
    for start, end in spans:
        if end > start:
            (first, _), data = got[bisect_right(starts, start) - 1]
            out[start:end] = data[start - first : end - first]


def _size(spans: Iterable[Span]) -> int:
    return sum(span.end - span.start for span in spans)


def _origin_of(files: Sequence[FileShard]) -> Origin:
    origin = files[0].origin
    assert origin is not None
    return origin


def _memory(nbytes: int) -> UInt8Array:
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    memory = mmap.mmap(-1, nbytes, kind)
    memory.madvise(mmap.MADV_NOHUGEPAGE)  # or a small record would take 2 MiB
    return np.frombuffer(memory, np.uint8)
