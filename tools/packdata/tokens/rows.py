"""A stream of tokens in rows: ids of a piece are laid out in full rows and a short one; and what packed rows hold."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from loaders.codecs.tokenizer import decoder_of
from loaders.data.columns import Column, FixedColumn, VarColumn
from loaders.schema import Tokens
from packdata.moments import percentiles
from packdata.recipe import Block
from packdata.tokens.documents import IGNORED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from loaders.data.view import View
    from loaders.schema import Schema
    from packdata.tokens.documents import Documents

TOKENS, NUM_TOKENS, DOCUMENT_ENDS = "tokens", "num_tokens", "document_ends"
LABELS = "labels"


def ends_dtype(row_tokens: int) -> str:
    """Return the type of the positions, 1 to ``row_tokens``, at which documents end in a row."""
    return "uint16" if row_tokens < 1 << 16 else "uint32"


def enclose(
    documents: Documents, bos: int | None, eod: int | None, *, only_missing: bool
) -> Documents:
    """Return ids with ``bos`` before and ``eod`` behind each document, None for none.

    With ``only_missing``, not where a document begins or ends so already. All documents begin here where there is a
    ``bos``.
    """
    ids, labels, starts, ends = documents.data, documents.labels, documents.starts, documents.ends
    before, behind = np.full(len(ends), bos is not None), np.full(len(ends), eod is not None)
    if only_missing and len(ends):
        before &= ids[starts] != bos
        behind &= ids[ends - 1] != eod
    # Where one document ends the next one begins: its end comes first.
    at = np.concatenate([ends[behind], starts[before]])
    added = np.repeat([eod or 0, bos or 0], [behind.sum(), before.sum()])
    if labels is not None:
        # An end is a target where what stands before it is one; a begin follows from nothing.
        targets = np.where(labels[at - 1] != IGNORED, added, IGNORED)
        targets[behind.sum() :] = IGNORED
        labels = np.insert(labels, at, targets.astype(labels.dtype))
    ids = np.insert(ids, at, added.astype(ids.dtype))
    ends = ends + np.cumsum(before) + np.cumsum(behind)
    return replace(documents, data=ids, ends=ends, labels=labels)


def block_of(
    ids: npt.NDArray[Any],
    ends: npt.NDArray[np.int64],
    row_tokens: int,
    labels: npt.NDArray[Any] | None = None,
) -> Block:
    """Lay ids (1-D, in the width that is stored) out in rows of ``row_tokens``.

    ``ends`` are positions behind the documents that end among them. The last row is filled up with zeros, its labels
    with -100.
    """
    num_rows = -(-len(ids) // row_tokens)
    num_tokens = np.full(num_rows, row_tokens, "<i4")
    num_tokens[-1:] -= num_rows * row_tokens - len(ids)
    columns: dict[str, Column] = {
        TOKENS: _filled(ids, num_rows, row_tokens, 0),
        NUM_TOKENS: FixedColumn(num_tokens.view(np.uint8).reshape(num_rows, 4)),
        DOCUMENT_ENDS: _ends_column(ends, num_rows, row_tokens),
    }
    if labels is not None:
        columns[LABELS] = _filled(labels.astype(np.int32), num_rows, row_tokens, IGNORED)
    return Block(columns)


def _filled(values: npt.NDArray[Any], num_rows: int, row_tokens: int, rest: int) -> FixedColumn:
    short = num_rows * row_tokens - len(values)
    if short:
        values = np.concatenate([values, np.full(short, rest, values.dtype)])
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return FixedColumn(values.view(np.uint8).reshape(num_rows, row_tokens * values.itemsize))


def _ends_column(ends: npt.NDArray[np.int64], num_rows: int, row_tokens: int) -> VarColumn:
    rows = (ends - 1) // row_tokens
    inside = (ends - rows * row_tokens).astype(f"<u{np.dtype(ends_dtype(row_tokens)).itemsize}")
    lengths = np.bincount(rows, minlength=num_rows) * inside.itemsize
    last = np.cumsum(lengths, dtype=np.int64)
    return VarColumn(inside.view(np.uint8), last - lengths, lengths.astype(np.int64))


# -- packed rows, shard by shard --------------------------------------------------------------------


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
