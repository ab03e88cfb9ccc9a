"""What a dataset that is written from a view will hold, as blocks of records.

A stream of tokens is divided by documents: its rows are where it was cut for storage, and mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.data.columns import Column, FixedColumn, VarColumn, column_of
from loaders.data.shards import FileShard
from loaders.data.view import KEY_FIELD
from loaders.errors import SchemaError
from loaders.schema import Boxes, Image, Keypoints, Schema, Tokens
from loaders.system import opencv
from loaders.system.limits import usable_cores
from packdata.packing.pool import OrderedPool
from packdata.recipe import Block
from packdata.sources.names import row_hashes
from packdata.tokens.rows import DOCUMENT_ENDS, LABELS, NUM_TOKENS, TOKENS, block_of
from packdata.tokens.stream import count, has_tokens, streams_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from loaders.data.view import View
    from loaders.schema import Field
    from packdata.packed.recode import Recode, RecodeOptions

UInt8Array = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
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
        return row_hashes(self.values[KEY_FIELD])

    def _block(self, positions: Indices) -> Block:
        return Block({name: self._column(name, positions) for name in self.schema.fields})

    def _column(self, name: str, positions: Indices) -> Column:
        if name in self.values:
            return _cut(self.values[name], int(positions[0]), int(positions[-1]) + 1)
        nbytes = self.schema.fields[name].record_nbytes
        if nbytes is not None and name not in self.recoders:
            out = np.empty((len(positions), nbytes), np.uint8)
            self.view.store.gather(name, self.view.rows(positions), out)
            return FixedColumn(out)
        stored = zip(positions.tolist(), self.view.records(name, positions), strict=True)
        return column_of([self._record(name, i, record) for i, record in stored], nbytes)

    def _record(self, name: str, position: int, record: UInt8Array) -> bytes | memoryview:
        recode = self.recoders.get(name)
        if recode is None:
            return record.data
        return recode(record, lambda: self.view.decode(position, name, record))


def _cut(column: Column, first: int, last: int) -> Column:
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


def written_fields(
    view: View,
    names: Sequence[str],  # of its fields, those that are written
    added: Mapping[str, Field],  # some in place of those; what is new is served by default
    recode: RecodeOptions,
    known: Mapping[str, Field],  # all that are stored: boxes are in pixels of the first image
) -> tuple[Schema, dict[str, Recode]]:
    """Return the fields that are written of a view, and what stores pictures anew; SchemaError if they do not fit."""
    check_whole_stream(view, names)
    old = view.schema.fields
    recoders = recode.recoders({name: old[name] for name in names if name not in added})
    if recode.codec is not None and not recoders:
        what = f"no field that is kept has pictures for codec {recode.codec!r}"
        raise SchemaError(f"{view.path}: {what}")
    fields = {name: old[name] for name in names} | {**added}
    fields |= {name: each.field for name, each in recoders.items()}
    _check_boxes(known, fields)
    served = [name for name in view.schema.defaults if name in fields]
    # A field that is added may have the name of one that is left out.
    served += [name for name in added if name not in names]
    return Schema(fields, tuple(dict.fromkeys(served))), recoders


def _check_boxes(old: Mapping[str, Field], new: Mapping[str, Field]) -> None:
    """Raise SchemaError if boxes would be taken for those of another image than they were drawn on."""
    before, after = ([n for n, f in each.items() if isinstance(f, Image)] for each in (old, new))
    boxes = [name for name, field in new.items() if isinstance(field, Boxes | Keypoints)]
    if boxes and after and after[0] != before[0]:
        what = f"boxes {boxes[0]!r} are in pixels of {before[0]!r}, the first image"
        raise SchemaError(f"{what}: keep it, before {after[0]!r}, or leave out the boxes")


# -- documents of a stream of tokens ------------------------------------------------------------------


def check_no_stream(view: View, doing: str) -> None:
    """Raise SchemaError where leaving rows out would tear documents apart."""
    if has_tokens(view.schema):
        hint = "'packdata split' and 'packdata tokens --val-share' divide by documents"
        raise SchemaError(
            f"{view.path} is a stream of tokens: {doing} would tear documents apart. {hint}"
        )


def check_whole_stream(view: View, fields: Sequence[str]) -> None:
    """Raise SchemaError where a stream would lose the fields that say where its documents end."""
    lost = {TOKENS, NUM_TOKENS, DOCUMENT_ENDS} - set(fields)
    if has_tokens(view.schema) and lost:
        what = f"{view.path} is a stream of tokens, which is not read without its fields"
        raise SchemaError(f"{what} {', '.join(sorted(lost))}: keep them, too")


@dataclass(frozen=True, slots=True)
class DocumentContent:
    """The rows of some documents of a stream, by their numbers, ascending; they follow each other as they did."""

    view: View
    documents: Indices

    @property
    def schema(self) -> Schema:
        """The stream's."""
        return self.view.schema

    def __len__(self) -> int:
        return len(self.documents)

    def blocks(self, first: int = 0) -> Iterator[Block]:
        """Yield all rows from number ``first`` on."""
        for block in self._blocks():
            if first < len(block):
                yield Block({n: _cut(c, first, len(block)) for n, c in block.columns.items()})
            first = max(0, first - len(block))

    def _blocks(self) -> Iterator[Block]:
        kinds = self.view.schema.fields
        field = kinds[TOKENS]
        assert isinstance(field, Tokens)
        chosen = np.zeros(count(self.view)[1] + 2, bool)
        chosen[self.documents] = True
        names = [name for name in (TOKENS, LABELS) if name in kinds]
        values = [np.empty(0, kinds[name].dtype) for name in names]
        first, ends = 0, np.empty(0, np.int64)
        for more_ends, *more in streams_of(self.view, names):
            keep, kept_ends = _select(len(more[0]), more_ends, chosen[first:])
            first += len(more_ends)
            ends = np.concatenate([ends, kept_ends + len(values[0])])
            values = [np.concatenate([v, m[keep]]) for v, m in zip(values, more, strict=True)]
            full = len(values[0]) // field.row_tokens * field.row_tokens
            if full:
                yield _block(values, ends[ends <= full], full, field.row_tokens)
            values, ends = [v[full:] for v in values], ends[ends > full] - full
        if len(values[0]):
            yield _block(values, ends, len(values[0]), field.row_tokens)


Content = ViewContent | DocumentContent  # the samples of a dataset, as records


def _block(values: Sequence[npt.NDArray[Any]], ends: Indices, num: int, row_tokens: int) -> Block:
    ids, *labels = (v[:num] for v in values)
    return block_of(ids, ends, row_tokens, *labels)


def _select(
    num: int, ends: Indices, chosen: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.bool_], Indices]:
    """Return which tokens are of chosen documents, of which the last may have no end, and their ends."""
    lengths = np.diff(np.concatenate([np.zeros(1, np.int64), ends, [num]]))
    keep = np.repeat(chosen[: len(lengths)], lengths)
    kept_ends: Indices = np.cumsum(keep, dtype=np.int64)[ends[chosen[: len(ends)]] - 1]
    return keep, kept_ends
