"""A stream of tokens divided by documents: rows are where it was cut for storage, and mean nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.codecs import codec_for
from loaders.errors import SchemaError
from loaders.schema import Schema, Tokens
from packdata.tokens.rows import DOCUMENT_ENDS, NUM_TOKENS, TOKENS, block_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from packdata.reader import PackedReader
    from packdata.recipe import Block, Records

    Indices = npt.NDArray[np.int64]


def has_tokens(schema: Schema) -> bool:
    """Tell whether samples are rows of a stream of tokens."""
    return isinstance(schema.fields.get(TOKENS), Tokens)


def check_no_stream(reader: PackedReader, doing: str) -> None:
    """Raise SchemaError where leaving rows out would tear documents apart."""
    if has_tokens(reader.schema):
        hint = "'packdata split' and 'packdata tokens --val-share' divide by documents"
        raise SchemaError(
            f"{reader.path} is a stream of tokens: {doing} would tear documents apart. {hint}"
        )


def check_whole_stream(reader: PackedReader, fields: Sequence[str]) -> None:
    """Raise SchemaError where a stream would lose the fields that say where its documents end."""
    lost = {TOKENS, NUM_TOKENS, DOCUMENT_ENDS} - set(fields)
    if has_tokens(reader.schema) and lost:
        what = f"{reader.path} is a stream of tokens, which is not read without its fields"
        raise SchemaError(f"{what} {', '.join(sorted(lost))}: keep them, too")


def num_documents(reader: PackedReader) -> int:
    """Return how many documents a stream has, one without an end included."""
    num, is_open = 0, False
    for ids, ends in shards_of(reader):
        num += len(ends)
        is_open = bool(len(ids)) and (not len(ends) or int(ends[-1]) < len(ids))
    return num + is_open


def rows_of_documents(
    reader: PackedReader, documents: Indices, tick: Callable[[int], object] = int
) -> Iterator[Records]:
    """Yield the rows of some documents, which follow each other as they did."""
    field = reader.schema.fields[TOKENS]
    assert isinstance(field, Tokens)
    chosen = np.zeros(num_documents(reader) + 1, bool)
    chosen[documents] = True
    ids, ends = np.empty(0, field.dtype), np.empty(0, np.int64)
    first = 0
    for more_ids, more_ends in shards_of(reader):
        kept, kept_ends = _select(more_ids, more_ends, chosen[first:])
        first += len(more_ends)
        ends = np.concatenate([ends, kept_ends + len(ids)])
        ids = np.concatenate([ids, kept])
        full = len(ids) // field.row_tokens * field.row_tokens
        yield from _rows(block_of(ids[:full], ends[ends <= full], field.row_tokens), tick)
        ids, ends = ids[full:], ends[ends > full] - full
    if len(ids):
        yield from _rows(block_of(ids, ends, field.row_tokens), tick)


def _select(
    ids: npt.NDArray[Any], ends: Indices, chosen: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[Any], Indices]:
    """Return the ids of chosen documents, of which the last may have no end, and their ends."""
    lengths = np.diff(np.concatenate([np.zeros(1, np.int64), ends, [len(ids)]]))
    keep = np.repeat(chosen[: len(lengths)], lengths)
    kept_ends: Indices = np.cumsum(keep, dtype=np.int64)[ends[chosen[: len(ends)]] - 1]
    return ids[keep], kept_ends


def _rows(block: Block, tick: Callable[[int], object]) -> Iterator[Records]:
    for row in range(len(block)):
        yield {name: column.row(row).tobytes() for name, column in block.columns.items()}
        tick(1)


def shards_of(reader: PackedReader) -> Iterator[tuple[npt.NDArray[Any], Indices]]:
    """Yield the valid ids of each shard, and the positions among them at which documents end."""
    codecs = {
        name: codec_for(reader.schema.fields[name]) for name in (TOKENS, NUM_TOKENS, DOCUMENT_ENDS)
    }
    for number, info in enumerate(reader.manifest.shards):
        first = reader.first_sample(number)
        ids, ends, total = [], [], 0
        for i in range(first, first + info.num_samples):
            records = reader.records(i, tuple(codecs))
            values = {name: codecs[name].decode(records[name]) for name in codecs}
            num = int(values[NUM_TOKENS])
            ids.append(values[TOKENS][:num])
            ends.append(values[DOCUMENT_ENDS].astype(np.int64) + total)
            total += num
        yield np.concatenate(ids), np.concatenate(ends)
