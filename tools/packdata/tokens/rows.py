"""Ids of a piece to rows of a shard: full ones, and a short one at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.columns import Column, FixedColumn, VarColumn
from packdata.recipe import Block

if TYPE_CHECKING:
    import numpy.typing as npt

    from packdata.tokens.documents import Documents

TOKENS, NUM_TOKENS, DOCUMENT_ENDS = "tokens", "num_tokens", "document_ends"


def ends_dtype(row_tokens: int) -> str:
    """Return the type of the positions, 1 to ``row_tokens``, at which documents end in a row."""
    return "uint16" if row_tokens < 1 << 16 else "uint32"


def add_eod(documents: Documents, eod: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return ids with ``eod`` behind each document, and where these end then."""
    ids, ends = documents.data, documents.ends
    behind = ends + np.arange(1, len(ends) + 1)
    out = np.empty(len(ids) + len(ends), ids.dtype)
    is_text = np.ones(len(out), bool)
    is_text[behind - 1] = False
    out[is_text] = ids
    out[behind - 1] = eod
    return out, behind


def block_of(ids: npt.NDArray[Any], ends: npt.NDArray[np.int64], row_tokens: int) -> Block:
    """Lay ids out in rows.

    Args:
        ids: 1-D, in the width that is stored.
        ends: Positions behind the documents that end in it.
        row_tokens: Tokens of a row; the last row is filled up with zeros.
    """
    num_rows = -(-len(ids) // row_tokens)
    short = num_rows * row_tokens - len(ids)
    if short:
        ids = np.concatenate([ids, np.zeros(short, ids.dtype)])
    ids = np.ascontiguousarray(ids, ids.dtype.newbyteorder("<"))
    num_tokens = np.full(num_rows, row_tokens, "<i4")
    num_tokens[-1:] -= short
    columns: dict[str, Column] = {
        TOKENS: FixedColumn(ids.view(np.uint8).reshape(num_rows, row_tokens * ids.itemsize)),
        NUM_TOKENS: FixedColumn(num_tokens.view(np.uint8).reshape(num_rows, 4)),
        DOCUMENT_ENDS: _ends_column(ends, num_rows, row_tokens),
    }
    return Block(columns)


def _ends_column(ends: npt.NDArray[np.int64], num_rows: int, row_tokens: int) -> VarColumn:
    rows = (ends - 1) // row_tokens
    inside = (ends - rows * row_tokens).astype(f"<u{np.dtype(ends_dtype(row_tokens)).itemsize}")
    lengths = np.bincount(rows, minlength=num_rows) * inside.itemsize
    last = np.cumsum(lengths, dtype=np.int64)
    return VarColumn(inside.view(np.uint8), last - lengths, lengths.astype(np.int64))
