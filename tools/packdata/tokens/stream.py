"""A packed stream of tokens, shard by shard: its valid ids, where its documents end, and both for people."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from loaders.codecs.tokenizer import decoder_of
from loaders.schema import Tokens
from packdata.moments import percentiles
from packdata.tokens.rows import DOCUMENT_ENDS, NUM_TOKENS, TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from loaders.data.view import View
    from loaders.schema import Schema


def has_tokens(schema: Schema) -> bool:
    """Tell whether samples are rows of a stream of tokens."""
    return isinstance(schema.fields.get(TOKENS), Tokens)


def document_hashes(view: View) -> npt.NDArray[np.uint64]:
    """Return the xxh3-64 of each document's ids, one without an end included."""
    hashes, rest = array("Q"), b""
    for ends, ids in streams_of(view, [TOKENS]):
        *whole, behind = np.split(ids, ends)
        for document in whole:
            hashes.append(xxhash.xxh3_64_intdigest(rest + document.tobytes()))
            rest = b""
        rest += behind.tobytes()
    return np.array([*hashes, *([xxhash.xxh3_64_intdigest(rest)] if rest else [])], np.uint64)


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


def token_text(view: View, i: int) -> str:
    """Return the text of a row, its documents separated by ``¶``; ids where no tokenizer is kept."""
    field = view.schema.fields[TOKENS]
    assert isinstance(field, Tokens)
    sample = view.sample(i, [TOKENS, NUM_TOKENS, DOCUMENT_ENDS])
    ids = sample[TOKENS][: int(sample[NUM_TOKENS])]
    decoder = decoder_of(view.path, field)
    if decoder is None:
        return " ".join(map(str, ids[:64].tolist())) + (" ..." if len(ids) > 64 else "")
    ends = sample[DOCUMENT_ENDS].astype(np.int64)
    parts = np.split(ids, ends[ends < len(ids)])
    return " ¶ ".join(decoder.decode(part) for part in parts)


def count(view: View) -> tuple[int, int]:
    """Return the number of tokens, and of documents that end somewhere, without reading either."""
    field, nbytes = view.schema.fields[DOCUMENT_ENDS], int(view.lengths(DOCUMENT_ENDS).sum())
    return int(view.column(NUM_TOKENS).sum()), nbytes // np.dtype(field.dtype).itemsize


def token_stats(view: View) -> dict[str, Any]:
    """Return the number of tokens, documents and different ids, and how long documents are."""
    field = view.schema.fields[TOKENS]
    assert isinstance(field, Tokens)
    lengths, num, open_tokens = [np.empty(0, np.int64)], 0, 0
    seen = np.zeros(field.vocab_size or 1 << min(24, 8 * np.dtype(field.dtype).itemsize), bool)
    for ends, ids in streams_of(view, [TOKENS]):
        seen[ids[ids < len(seen)]] = True
        num += len(ids)
        if len(ends):
            lengths.append(np.diff(ends, prepend=-open_tokens))
            open_tokens = len(ids) - int(ends[-1])
        else:
            open_tokens += len(ids)
    every = np.concatenate([*lengths, np.array([open_tokens] if open_tokens else [], np.int64)])
    rows = len(view) * field.row_tokens
    return {
        "num_tokens": num,
        "num_documents": len(every),
        "tokens_per_document": percentiles(every),
        "num_ids_used": int(seen.sum()),
        "unused_share": round(1 - num / max(1, rows), 6),
    }
