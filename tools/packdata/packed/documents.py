"""A stream of tokens divided by documents: rows are where it was cut for storage, and mean nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.errors import SchemaError
from loaders.schema import Tokens
from packdata.packed.content import ViewContent, cut
from packdata.recipe import Block
from packdata.tokens.rows import DOCUMENT_ENDS, LABELS, NUM_TOKENS, TOKENS, block_of
from packdata.tokens.stream import has_tokens, num_documents, streams_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from loaders.data.view import View
    from loaders.schema import Schema

    Indices = npt.NDArray[np.int64]


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
                yield Block({n: cut(c, first, len(block)) for n, c in block.columns.items()})
            first = max(0, first - len(block))

    def _blocks(self) -> Iterator[Block]:
        kinds = self.view.schema.fields
        field = kinds[TOKENS]
        assert isinstance(field, Tokens)
        chosen = np.zeros(num_documents(self.view) + 1, bool)
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
