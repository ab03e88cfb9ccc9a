"""What a dataset that is written from a view will hold, as blocks of records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.data.columns import Column, FixedColumn, VarColumn, column_of, row_views
from loaders.data.shards import FileShard
from loaders.data.view import KEY_FIELD
from loaders.system import opencv
from loaders.system.limits import usable_cores
from packdata.packing.pool import OrderedPool
from packdata.recipe import Block

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from loaders.data.view import View
    from loaders.schema import Schema
    from packdata.packed.recode import Recode

UInt8Array = npt.NDArray[np.uint8]
_BLOCK_BYTES = 1 << 20
_MAX_ROWS, _MAX_PICTURES = 4096, 16  # of a block, and of one whose pictures are stored anew


@dataclass(frozen=True, slots=True)
class ViewContent:
    """The samples of a view, some of their fields changed."""

    view: View
    schema: Schema
    # By field, what stores its pictures anew.
    recoders: Mapping[str, Recode] = field(default_factory=dict)
    # By field, the records of all samples, in place of those of the view.
    values: Mapping[str, Column] = field(default_factory=dict)
    # By field, records by the position of the sample, in place of those of the view.
    changes: Mapping[str, Mapping[int, bytes]] = field(default_factory=dict)
    workers: int | None = None  # threads that store pictures anew; all cores by default

    def __len__(self) -> int:
        return len(self.view)

    def blocks(self, first: int = 0) -> Iterator[Block]:
        """Yield all samples from number ``first`` on."""
        num = len(self.view)
        most = _MAX_PICTURES if self.recoders else _MAX_ROWS
        step = max(1, min(most, _BLOCK_BYTES // max(1, _mean_nbytes(self.view))))
        parts = (np.arange(at, min(at + step, num)) for at in range(first, num, step))
        if not self.recoders:
            yield from map(self._block, parts)
            return
        workers = self.workers or usable_cores()
        with (
            opencv.one_thread(),
            OrderedPool(self._block, workers, size_of=lambda block: block.nbytes) as pool,
        ):
            yield from pool.map(parts)

    def key_hashes(self) -> npt.NDArray[np.uint64]:
        """Return the xxh3-64 of every sample's key."""
        if KEY_FIELD not in self.values:
            return self.view.key_hashes()
        keys = map(xxhash.xxh3_64_intdigest, row_views(self.values[KEY_FIELD]))
        return np.fromiter(keys, np.uint64, len(self.view))

    def _block(self, positions: npt.NDArray[np.int64]) -> Block:
        return Block({name: self._column(name, positions) for name in self.schema.fields})

    def _column(self, name: str, positions: npt.NDArray[np.int64]) -> Column:
        if name in self.values:
            return cut(self.values[name], int(positions[0]), int(positions[-1]) + 1)
        nbytes = self.schema.fields[name].record_nbytes
        if nbytes is not None and name not in self.recoders and not self.changes.get(name):
            out = np.empty((len(positions), nbytes), np.uint8)
            self.view.store.gather(name, self.view.rows(positions), out)
            return FixedColumn(out)
        changes = self.changes.get(name, {})
        stored = zip(positions.tolist(), self.view.records(name, positions), strict=True)
        records = [
            changes[i] if i in changes else self._record(name, i, record) for i, record in stored
        ]
        return column_of(records, nbytes)

    def _record(self, name: str, position: int, record: UInt8Array) -> bytes | memoryview:
        recode = self.recoders.get(name)
        if recode is None:
            return record.data
        return recode(record, lambda: self.view.decode(position, name, record))


def cut(column: Column, first: int, last: int) -> Column:
    """Return some rows of a column, as a view."""
    if isinstance(column, FixedColumn):
        return FixedColumn(column.data[first:last])
    return VarColumn(column.buffer, column.starts[first:last], column.lengths[first:last])


def _mean_nbytes(view: View) -> int:
    """Return about how many bytes a sample has in all fields, without opening a file."""
    total = sum(
        shard.info.size_bytes
        if isinstance(shard, FileShard)
        else sum(column.nbytes for column in shard.columns.values())
        for shard in view.store.shards
    )
    return total // max(1, len(view.store))
