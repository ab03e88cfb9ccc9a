"""A packed stream of tokens, shard by shard: its valid ids, and where its documents end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.schema import Tokens
from packdata.tokens.rows import DOCUMENT_ENDS, NUM_TOKENS, TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from loaders.data.view import View
    from loaders.schema import Schema

    Indices = npt.NDArray[np.int64]


def has_tokens(schema: Schema) -> bool:
    """Tell whether samples are rows of a stream of tokens."""
    return isinstance(schema.fields.get(TOKENS), Tokens)


def num_documents(view: View) -> int:
    """Return how many documents a stream has, one without an end included."""
    num, is_open = 0, False
    for ids, ends in shards_of(view):
        num += len(ends)
        is_open = bool(len(ids)) and (not len(ends) or int(ends[-1]) < len(ids))
    return num + is_open


def shards_of(view: View) -> Iterator[tuple[npt.NDArray[Any], Indices]]:
    """Yield the valid ids of each shard, and the positions among them at which documents end."""
    for ends, ids in streams_of(view, [TOKENS]):
        yield ids, ends


def streams_of(view: View, names: Sequence[str]) -> Iterator[list[npt.NDArray[Any]]]:
    """Yield of each shard where documents end, and the valid values of some columns."""
    store, dtype = view.store, view.schema.fields[DOCUMENT_ENDS].dtype
    for first, last in zip(store.starts.tolist(), store.ends.tolist(), strict=True):
        here = view.select(np.arange(first, last))
        counts = here.column(NUM_TOKENS).astype(np.int64)
        records = here.records(DOCUMENT_ENDS, np.arange(len(here)))
        ends = [np.frombuffer(record, dtype) for record in records]
        before = np.repeat(np.cumsum(counts) - counts, [len(each) for each in ends])
        columns = [np.concatenate(list(here.blocks(name))) for name in names]
        valid = [values[np.arange(values.shape[1]) < counts[:, None]] for values in columns]
        yield [np.concatenate(ends).astype(np.int64) + before, *valid]
