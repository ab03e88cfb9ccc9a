"""What a dataset that is written from a view will hold, as recipes of blocks.

A stream of tokens is divided by documents: its rows are where it was cut for storage, and mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.data.columns import Column, FixedColumn, column_of, rows_between
from loaders.data.shards import FileShard
from loaders.errors import CodecError, SchemaError, SourceError
from loaders.schema import Boxes, Image, Keypoints, Schema, Tokens
from packdata.describe import counted
from packdata.packed.recode import recoders_of
from packdata.recipe import Block, Recipe, Target
from packdata.sources.names import repeated, row_hashes
from packdata.tokens.rows import (
    DOCUMENT_ENDS,
    LABELS,
    NUM_TOKENS,
    TOKENS,
    block_of,
    count,
    has_tokens,
    streams_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from loaders.data.view import View
    from loaders.schema import Field
    from packdata.packed.recode import Recode, Recoding

UInt8Array = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
_BLOCK_BYTES = 1 << 20
_NOTHING: Mapping[str, Any] = MappingProxyType({})  # as identity: the command's plan says all
_MAX_ROWS, _MAX_PICTURES = 4096, 16  # of a block, and of one whose pictures are stored anew


@dataclass
class ViewContent(Recipe):
    """The samples of a view, some of their fields changed; an item is the range of a block."""

    view: View
    schema: Schema
    # By field, what stores its pictures anew.
    recoders: Mapping[str, Recode] = field(default_factory=dict)
    # By field, the records of all samples, in place of those of the view.
    values: Mapping[str, Column] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    # Shards that hold just these samples, to be used as they are: of a dataset that is written alone.
    whole: Sequence[FileShard] = ()
    identity, is_of_blocks = _NOTHING, True

    def __post_init__(self) -> None:
        self.targets = [Target("", self.schema)]
        # Rows of tokens are no samples: nobody counts them.
        self.num_samples = None if has_tokens(self.schema) else len(self.view)
        store = self.view.store
        nbytes = sum(
            shard.info.size_bytes
            if isinstance(shard, FileShard)
            else sum(column.nbytes for column in shard.columns.values())
            for shard in store.shards
        )
        most = _MAX_PICTURES if self.recoders else _MAX_ROWS
        self._step = max(1, min(most, _BLOCK_BYTES * len(store) // max(1, nbytes)))

    def __len__(self) -> int:
        return -(-len(self.view) // self._step)

    def items(self, start: int) -> Iterator[range]:
        """Yield the blocks of samples from number ``start`` on."""
        step, num = self._step, len(self.view)
        return (range(at, min(at + step, num)) for at in range(start * step, num, step))

    def name(self, item: range) -> str:
        """Return the place of the first sample."""
        return "{}, row {}".format(*self.view.place(item[0]))

    def encode(self, item: range) -> list[Block]:
        """Return the records of a block; ShardError where one is damaged."""
        positions = np.array(item)
        return [Block({name: self._column(name, positions) for name in self.schema.fields})]

    def _column(self, name: str, positions: Indices) -> Column:
        if name in self.values:
            return rows_between(self.values[name], int(positions[0]), int(positions[-1]) + 1)
        view, recode = self.view, self.recoders.get(name)
        nbytes = self.schema.fields[name].record_nbytes
        if recode is None and nbytes is not None:
            out = np.empty((len(positions), nbytes), np.uint8)
            view.store.gather(name, view.rows(positions), out)
            return FixedColumn(out)
        records = view.records(name, positions)
        if recode is None:
            return column_of([record.data for record in records], nbytes)
        stored = list[bytes | memoryview]()
        for i, record in zip(positions.tolist(), records, strict=True):
            try:
                stored.append(recode(record, partial(view.decode, i, name, record)))
            except CodecError as error:
                where = "{}, row {}".format(*view.place(i))
                raise SourceError(f"{name!r} cannot be stored: {error}", where) from error
        return column_of(stored, nbytes)


def content_of(
    view: View,
    known: Schema,
    recoding: Recoding,
    added: Mapping[str, tuple[Field, Column]] = MappingProxyType({}),
) -> ViewContent:
    """Return the samples of a view, their pictures stored anew, with the fields and records that are added.

    Boxes are in pixels of the first image of all that is stored (``known``). SchemaError where fields do not fit.
    """
    lost = {TOKENS, NUM_TOKENS, DOCUMENT_ENDS} - {*view.schema.fields}
    if has_tokens(known) and lost:
        what = f"{view.path} is a stream of tokens, which is not read without its fields"
        raise SchemaError(f"{what} {', '.join(sorted(lost))}: keep them, too")
    old = view.schema.fields
    recoders = recoders_of({n: f for n, f in old.items() if n not in added}, recoding)
    fields = {**old, **{name: field for name, (field, _) in added.items()}}
    fields |= {name: each.field for name, each in recoders.items()}
    before, after = (
        next((name for name, field in each.items() if isinstance(field, Image)), None)
        for each in (known.fields, fields)
    )
    boxes = [name for name, field in fields.items() if isinstance(field, Boxes | Keypoints)]
    if boxes and after not in (None, before):
        what = f"boxes {boxes[0]!r} are in pixels of {before!r}, the first image"
        raise SchemaError(f"{what}: keep it, before {after!r}, or leave out the boxes")
    new = [name for name in added if name not in old]
    values = {name: column for name, (_, column) in added.items()}
    schema = Schema(fields, (*view.schema.defaults, *new))
    return ViewContent(view, schema, recoders, values)


def check_keys(view: View, keys: Column | None = None) -> None:
    """Raise SchemaError if two samples of a view have one key: their own, or those that they get."""
    later, firsts = repeated(view.key_hashes() if keys is None else row_hashes(keys))
    if later:
        one, other = (f"{path}, row {row}" for path, row in map(view.place, (firsts[0], later[0])))
        key = view.key(later[0]) if keys is None else keys.row(later[0]).tobytes().decode()
        what = f"{counted(len(later), 'duplicate key')}, the first: {key!r} of {one} and {other}"
        hint = "leave samples out ('packdata copy --where', or select), or give others"
        raise SchemaError(f"{what}: {hint}")


def check_no_stream(view: View) -> None:
    """Raise SchemaError where choosing rows would tear documents apart."""
    if has_tokens(view.schema):
        what = f"{view.path} is a stream of tokens: choosing rows would tear documents apart"
        hint = "'packdata split' and 'packdata tokens --val-share' divide by documents"
        raise SchemaError(f"{what}. {hint}")


@dataclass
class DocumentContent(Recipe):
    """The rows of some documents of a stream, by their numbers, ascending; they follow each other as they did."""

    view: View
    documents: Indices
    provenance: Mapping[str, Any] = field(default_factory=dict)
    identity, is_of_blocks, recoders, whole = _NOTHING, True, _NOTHING, ()

    def __post_init__(self) -> None:
        self.schema = self.view.schema
        self.targets = [Target("", self.schema)]

    def __len__(self) -> int:
        return len(self.view.store.starts) + 1 if len(self.documents) else 0

    def name(self, item: Block) -> str:
        """Return the folder of the stream."""
        return str(self.view.path)

    def encode(self, item: Block) -> list[Block]:
        """Return the item."""
        return [item]

    def items(self, start: int) -> Iterator[Block]:
        """Yield the full rows that each shard adds, and the rest."""
        return islice(self._blocks(), start, None)

    def _blocks(self) -> Iterator[Block]:
        fields = self.schema.fields
        names, field = [name for name in (TOKENS, LABELS) if name in fields], fields[TOKENS]
        assert isinstance(field, Tokens)
        chosen = np.zeros(count(self.view)[1] + 2, bool)  # the last document may have no end
        chosen[self.documents] = True
        values, ends = [np.empty(0, fields[name].dtype) for name in names], np.empty(0, np.int64)

        def rows(num: int) -> Block:
            ids, *labels = (each[:num] for each in values)
            return block_of(ids, ends[ends <= num], field.row_tokens, *labels)

        for more_ends, *more in streams_of(self.view, names):
            lengths = np.diff(more_ends, prepend=0, append=len(more[0]))
            keep = np.repeat(chosen[: len(lengths)], lengths)
            kept_ends = np.cumsum(keep)[more_ends[chosen[: len(more_ends)]] - 1]
            chosen = chosen[len(more_ends) :]
            ends = np.concatenate([ends, kept_ends + len(values[0])])
            values = [np.concatenate([v, m[keep]]) for v, m in zip(values, more, strict=True)]
            full = len(values[0]) // field.row_tokens * field.row_tokens
            yield rows(full)
            values, ends = [v[full:] for v in values], ends[ends > full] - full
        yield rows(len(values[0]))


Content = ViewContent | DocumentContent  # the samples of a dataset, to be packed
