"""Streams of tokens for people: text of rows, and what can be counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.codecs.tokenizer import decoder_of
from loaders.errors import LoadersError, ShardError
from loaders.schema import Tokens
from packdata.tokens.rows import DOCUMENT_ENDS, NUM_TOKENS, TOKENS
from packdata.tokens.stream import shards_of

if TYPE_CHECKING:
    from loaders.data.view import View


def token_text(view: View, i: int) -> str:
    """Return the text of a row, its documents parted by ``¶``; ids where no tokenizer is kept."""
    field = view.schema.fields[TOKENS]
    assert isinstance(field, Tokens)
    sample = view.sample(i, [TOKENS, NUM_TOKENS, DOCUMENT_ENDS])
    ids = sample[TOKENS][: int(sample[NUM_TOKENS])]
    note = ""
    try:
        decoder = decoder_of(view.path, field)
    except ShardError:
        raise
    except LoadersError as error:
        decoder, note = None, f" ({error})"
    if decoder is None:
        return " ".join(map(str, ids[:64].tolist())) + (" ..." if len(ids) > 64 else "") + note
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
    for ids, ends in shards_of(view):
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
        "tokens_per_document": _spread(every),
        "num_ids_used": int(seen.sum()),
        "unused_share": round(1 - num / max(1, rows), 6),
    }


def _spread(lengths: Any) -> dict[str, float]:
    if not len(lengths):
        return {}
    levels = {"min": 0, "p5": 5, "p50": 50, "p95": 95, "max": 100}
    return {name: float(np.percentile(lengths, level)) for name, level in levels.items()}
