"""A stream of tokens divided by documents: rows are where it was cut for storage, and mean nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.codecs import codec_for
from loaders.errors import SchemaError
from loaders.schema import Schema, Tokens
from packdata.tokens.rows import DOCUMENT_ENDS, LABELS, NUM_TOKENS, TOKENS, block_of

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
    names = [name for name in (TOKENS, LABELS) if name in reader.schema.fields]
    values = [np.empty(0, reader.schema.fields[name].dtype) for name in names]
    first, ends = 0, np.empty(0, np.int64)
    for more_ends, *more in _streams_of(reader, names):
        keep, kept_ends = _select(len(more[0]), more_ends, chosen[first:])
        first += len(more_ends)
        ends = np.concatenate([ends, kept_ends + len(values[0])])
        values = [np.concatenate([v, m[keep]]) for v, m in zip(values, more, strict=True)]
        full = len(values[0]) // field.row_tokens * field.row_tokens
        yield from _rows(_block(values, ends[ends <= full], full, field.row_tokens), tick)
        values, ends = [v[full:] for v in values], ends[ends > full] - full
    if len(values[0]):
        yield from _rows(_block(values, ends, len(values[0]), field.row_tokens), tick)


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


def _rows(block: Block, tick: Callable[[int], object]) -> Iterator[Records]:
    for row in range(len(block)):
        yield {name: column.row(row).tobytes() for name, column in block.columns.items()}
        tick(1)


def shards_of(reader: PackedReader) -> Iterator[tuple[npt.NDArray[Any], Indices]]:
    """Yield the valid ids of each shard, and the positions among them at which documents end."""
    for ends, ids in _streams_of(reader, [TOKENS]):
        yield ids, ends


def _streams_of(reader: PackedReader, names: Sequence[str]) -> Iterator[list[npt.NDArray[Any]]]:
    """Yield of each shard where documents end, and the valid values of some columns."""
    codecs = {
        name: codec_for(reader.schema.fields[name]) for name in (*names, NUM_TOKENS, DOCUMENT_ENDS)
    }
    for number, info in enumerate(reader.manifest.shards):
        first = reader.first_sample(number)
        found: list[list[npt.NDArray[Any]]] = [[] for _ in names]
        ends, total = [], 0
        for i in range(first, first + info.num_samples):
            records = reader.records(i, tuple(codecs))
            values = {name: codecs[name].decode(records[name]) for name in codecs}
            num = int(values[NUM_TOKENS])
            for name, rows in zip(names, found, strict=True):
                rows.append(values[name][:num])
            ends.append(values[DOCUMENT_ENDS].astype(np.int64) + total)
            total += num
        yield [np.concatenate(ends), *map(np.concatenate, found)]
