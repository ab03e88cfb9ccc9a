"""The columns of all shards of a dataset, reached by sample number, checked on the way.

A store does not decode: it finds records, verifies their checksums when they are first read, and
gathers rows of equal size from any number of mapped files in one call.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.data.finder import Rows, ShardFinder
from loaders.data.formats import check_memory
from loaders.data.gather import Found, Take, take_rows
from loaders.data.records import FieldRecords
from loaders.data.shards import RemoteShard
from loaders.remote.ahead import Ahead, Needs
from loaders.system.limits import most_maps
from loaders.system.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loaders.data.columns import Column
    from loaders.data.shards import Check, OpenShard, Shard
    from loaders.remote.origin import Origin
    from loaders.remote.url import Location
    from loaders.remote.wire import File

Indices = npt.NDArray[np.int64]
_ROW_BYTES = 2  # noted of each row while it is read
UInt8Array = npt.NDArray[np.uint8]


class ShardRuns(NamedTuple):
    """Which shard each sample was packed in, in runs: of a store that holds copies, those of another store."""

    ends: Indices  # the sample behind the last one of each run
    shards: Indices  # the shard number of each run

    @classmethod
    def of_samples(cls, shards: Indices) -> ShardRuns:
        """Return the runs of samples of which each lies in the shard of that number."""
        lasts = np.flatnonzero(np.diff(shards, append=-1))
        return cls(lasts + 1, shards[lasts])

    def __call__(self, samples: Indices) -> Indices:
        """Return the shard number of each of some samples."""
        found: Indices = self.shards[np.searchsorted(self.ends, samples, "right")]
        return found


class Store:
    """Columns by field over one or more shards.

    Thread-safe. Shards are opened when they are first touched. Pickling sends paths and opens
    anew.
    """

    def __init__(
        self,
        shards: Sequence[Shard],  # the shards, in sample order
        check: Check = "first",  # when to compare records with their checksums
        take: Take = take_rows,  # how rows of one size are copied; batches pass torch's way
        # About how many shards are open at a time: beyond it all are closed, and verified anew when they are opened
        # again. For readers that go from end to end, and keep no address of a record. None: all, or as many as the
        # system can map.
        max_open: int | None = None,
        # Which shards the samples were copied from; default: its own.
        runs: ShardRuns | None = None,
    ) -> None:
        if check not in ("first", "always", "never"):
            raise ValueError(f"check must be 'first', 'always' or 'never', got {check!r}")
        self.shards = tuple(shards)
        self.check: Check = check
        self.take = take
        self.max_open = most_maps(len(self.shards)) if max_open is None else max_open
        sizes = np.array([shard.num_samples for shard in self.shards], np.int64)
        self.ends = np.cumsum(sizes)
        self.starts = self.ends - sizes
        self._num_samples = int(self.ends[-1])
        largest = self.shards[int(sizes.argmax())]
        check_memory(_ROW_BYTES * self._num_samples, largest.path, self._num_samples)
        self.shards_of = ShardFinder(self.ends)
        self._given_runs = runs
        origins = (shard.origin for shard in self.shards if isinstance(shard, RemoteShard))
        self.remotes = list(dict.fromkeys(origins))  # what shards at URLs are fetched by
        self.is_remote = bool(self.remotes)
        self._lock = ForkLock()
        # The shard that was opened last: where a reader is that reads them in order.
        self.last_opened = 0
        self._close()

    def _close(self) -> None:
        """Close all shards; what still reads them keeps them."""
        self._num_open = 0
        self._mapped_bytes = 0  # of caches
        self._open: list[OpenShard | None] = [None] * len(self.shards)
        # Of a dataset that is joined to itself, each is mapped once.
        self._once: dict[Shard, OpenShard] = {}
        self._fields: dict[str, FieldRecords] = {}

    def __reduce__(self) -> Any:
        return Store, (self.shards, self.check, self.take, self.max_open, self._given_runs)

    def __len__(self) -> int:
        return self._num_samples

    @property
    def runs(self) -> ShardRuns:
        """Which shard each sample was packed in, by number."""
        return self._given_runs or ShardRuns(self.ends, np.arange(len(self.shards)))

    def shard(self, number: int) -> OpenShard:
        """Return a shard, opened."""
        return self._open[number] or self._open_shard(number)

    def _open_shard(self, number: int) -> OpenShard:
        self.last_opened, file = number, self.shards[number]
        nbytes, limit = 0, None
        if isinstance(file, RemoteShard):
            file.fetch()  # which is waited for before the lock is taken
            nbytes, limit = file.info.size_bytes, file.origin.map_limit(self)
        with self._lock.plain:
            shard = self._open[number]
            if shard is None:
                is_beyond = limit is not None and 0 < self._mapped_bytes > limit - nbytes
                if self._num_open == self.max_open or is_beyond:
                    self._close()
                shard = self._once.get(file)
                if shard is None:
                    shard = self._once[file] = file.open(self.check)
                    self._mapped_bytes += nbytes
                self._num_open += 1
                # Last: a reader that sees it takes the rest for granted.
                self._open[number] = shard
            return shard

    def close_beyond(self, max_bytes: int) -> None:
        """Close all shards, if those of caches have more bytes; what still reads them keeps them."""
        with self._lock.plain:
            if self._mapped_bytes > max_bytes:
                self._close()

    @property
    def is_all_open(self) -> bool:
        """Whether all shards are mapped."""
        return self._num_open == len(self.shards)

    def waits(self) -> list[str]:
        """Say what threads of this process wait for, of shards at URLs."""
        return [wait for each in self.remotes for wait in each.waits()]

    def files_at(self, origin: Origin) -> tuple[list[File], Indices]:
        """Return the shards at a URL, and for each shard its place among them: -1 if it lies elsewhere."""
        files: list[File] = []
        places = np.full(len(self.shards), -1, np.int64)
        for number, shard in enumerate(self.shards):
            if isinstance(shard, RemoteShard) and shard.origin is origin:
                places[number] = len(files)
                files.append(shard.file)
        return files, places

    @contextmanager
    def fetching_ahead(self, shards: Indices) -> Iterator[None]:
        """Have shards at URLs fetched ahead meanwhile: numbers in the order in which they are read first."""
        place_of = {number: n for n, number in enumerate(shards.tolist())}

        def needs_at(origin: Origin) -> Needs:
            files, places = self.files_at(origin)
            steps = enumerate(places[shards][:, None])
            return Needs(files, [(n, place) for n, place in steps if place >= 0])

        def position() -> tuple[int, bool]:
            return place_of.get(self.last_opened, 0), False

        with ExitStack() as stack:
            for origin in self.remotes:
                ahead = Ahead(origin, partial(needs_at, origin), position)
                ahead.start()
                stack.callback(ahead.close)
            yield

    def place(self, index: int) -> tuple[Location, int]:
        """Return the file of one sample and its row there."""
        number = int(self.shards_of(np.array([index], np.int64))[0])
        return self.shards[number].path, index - int(self.starts[number])

    def rows(self, indices: Indices) -> Rows:
        """Find the shards of some samples; their numbers must be in range."""
        return Rows(indices, self.shards_of(indices))

    def field(self, name: str) -> FieldRecords:
        """Return what is known of the records of a field, in shards as they are open now."""
        if (known := self._fields.get(name)) is None:
            # Not this store, nor a method of it: they would live on until garbage is collected, with all maps.
            here = weakref.proxy(self)
            known = FieldRecords(
                name, self.shards, self.starts, lambda n: here.shard(n), self.check, self.take
            )
            known = self._fields.setdefault(name, known)
        return known

    def record(self, field: str, rows: Rows) -> UInt8Array:
        """Return the record of one sample, in memory even if it is small and never verified.

        Error messages use it for the key of a sample whose other fields may be damaged.
        """
        self.field(field).wait_for(rows)
        return self.records(field, rows)[0]

    def records(self, field: str, rows: Rows) -> list[UInt8Array]:
        """Return the record of each sample as a view, in memory and verified."""
        self.field(field).verify(rows)
        return self.field(field).views(rows)

    def column(self, field: str) -> list[Column]:
        """Return the column of every shard, verified."""
        self.field(field).verify(self.rows(np.arange(len(self), dtype=np.int64)))
        return [self.shard(number).columns[field] for number in range(len(self.shards))]

    def gather(self, field: str, rows: Rows, out: UInt8Array) -> None:
        """Copy records of one size, verified, to the rows of ``out``, ``(N, nbytes)`` uint8, C-contiguous."""
        if not len(rows):
            return
        self.field(field).verify(rows)  # which may close all shards, and open others
        self.field(field).gather(out.shape[1])(rows.indices, rows.shards, out)

    def find(self, field: str, rows: Rows, nbytes: int) -> Found | None:
        """Return where records of one size lie, if nothing but copying is left to do: no waiting, and no check."""
        known = self.field(field)
        return (
            known.gather(nbytes).find(rows.indices, rows.shards) if known.are_ready(rows) else None
        )

    def is_settled(self, field: str, rows: Rows) -> bool:
        """Tell whether all these records are verified and stay in memory: reading them does not wait."""
        if self.is_remote and any(self._open[n] is None for n in set(rows.shards.tolist())):
            return False  # to look would fetch it
        return self.field(field).are_ready(rows)
