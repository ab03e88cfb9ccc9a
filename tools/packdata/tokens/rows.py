"""Ids of a piece to rows of a shard: full ones, and a short one at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.data.columns import Column, FixedColumn, VarColumn
from packdata.recipe import Block
from packdata.tokens.documents import IGNORED

if TYPE_CHECKING:
    import numpy.typing as npt

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
