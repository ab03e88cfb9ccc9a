"""Pieces of text or ids to blocks of rows: what the packer runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.errors import SourceError
from loaders.schema import Array, Field, Schema
from packdata.recipe import Block, Recipe, Tally, Target
from packdata.tokens.documents import IGNORED, joined, rejected
from packdata.tokens.rows import (
    DOCUMENT_ENDS,
    LABELS,
    NUM_TOKENS,
    TOKENS,
    block_of,
    enclose,
    ends_dtype,
)
from packdata.tokens.tokenizer import narrow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from loaders.schema import Tokens
    from packdata.recipe import Draw
    from packdata.tokens.documents import Documents
    from packdata.tokens.options import TokenOptions
    from packdata.tokens.source import Piece, TokenSource
    from packdata.tokens.tokenizer import Tokenizer


NO_TARGET = "no target"  # of documents that are counted


class TokensRecipe(Recipe):
    """Turns each piece into a block of rows, whose number is known once its text is tokenized.

    Fields: ``tokens``; ``num_tokens``, how many of a row are valid (all but in the last row of a piece);
    ``document_ends``, behind which of them a document ends; ``labels`` beside the tokens, where the source has some.
    """

    is_of_blocks = True

    def __init__(
        self,
        source: TokenSource,  # where the pieces come from
        options: TokenOptions,
        field: Tokens,  # how ids are stored
        bos: int | None,  # the id to put before documents
        # Of a text source; of a source of ids, what they stand for, if known.
        tokenizer: Tokenizer | None,
        *,
        identity: Mapping[str, Any],  # what the source and options are
        provenance: Mapping[str, Any],  # the same for people
    ) -> None:
        self.source, self.field, self.bos, self.tokenizer = source, field, bos, tokenizer
        self.row_tokens, self.val_share = options.row_tokens, options.val_share
        self.seed = options.seed
        self.identity, self.provenance = identity, provenance
        fields: dict[str, Field] = {
            TOKENS: field,
            NUM_TOKENS: Array(dtype="int32"),
            DOCUMENT_ENDS: Array(dtype=ends_dtype(self.row_tokens), dims=(None,)),
        }
        if source.has_labels:
            fields[LABELS] = Array(dtype="int32", dims=(self.row_tokens,))
        files = {}
        if tokenizer is not None and tokenizer.file is not None:
            files[tokenizer.name] = tokenizer.file
        folders = ("train", "val") if self.val_share else ("",)
        self.targets: Sequence[Target] = [Target(f, Schema(fields), files) for f in folders]
        self.runs, self.tally = source.runs, Tally()
        self.divides = len(folders) > 1

    def __len__(self) -> int:
        return len(self.source)

    @property
    def why_empty(self) -> str:
        """Say why one of the two datasets may get no document."""
        why = "Documents are not divided, and equal ones stay together"
        hint = "Pass overwrite=True with another val_share=, seed=, or for text files documents="
        return f"{why}. {hint}" if self.divides else ""

    def items(self, start: int = 0) -> Iterator[Piece]:
        return self.source.pieces(start)

    def name(self, item: Piece) -> str:
        return item.where

    def encode(self, item: Piece, draw: Draw | None = None) -> list[Block]:
        """Return the rows of a piece for each target, and the documents that are left out; SourceError."""
        if draw is not None and self.source.cut is not None:
            raise SourceError("documents are cut", item.where, "Plan with shuffle=")
        documents = item.read().without_empty()
        rejects, parts = [*documents.rejects], [replace(documents, rejects=())]
        if draw is not None:
            parts = [documents.take(draw(len(documents)))]
        if self.val_share:
            is_val = parts[0].hashes(self.seed) * 2.0**-64 < self.val_share
            parts = [parts[0].take(np.flatnonzero(some)) for some in (~is_val, is_val)]
        if not self.source.has_ids and self.tokenizer is not None:
            parts = [_encoded(part, self.tokenizer) for part in parts]
        rejects += [reject for part in parts for reject in part.rejects]
        first, *more = map(self._block, parts)
        return [replace(first, rejects=tuple(rejects)), *more]

    def _block(self, documents: Documents) -> Block:
        documents = narrow(documents, self.field)
        if self.source.kind != "ids":
            only_missing = self.source.kind != "text"
            documents = enclose(documents, self.bos, self.field.eod, only_missing=only_missing)
        labels = documents.labels
        if labels is not None and len(documents):
            learned = np.append(0, np.cumsum(labels != IGNORED))
            is_none = learned[documents.ends] == learned[documents.starts]
            self.tally.add(NO_TARGET, int(is_none.sum()))
        return block_of(documents.data, documents.ends, self.row_tokens, labels)


def _encoded(documents: Documents, tokenizer: Tokenizer) -> Documents:
    """Return the ids of documents, less those that the tokenizer does not encode."""
    try:
        return tokenizer.encode(documents).without_empty()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of its library is no Exception
        numbers = np.arange(len(documents))
        if len(numbers) > 1:
            return joined([_encoded(documents.take(numbers[[i]]), tokenizer) for i in numbers])
        what = f"the tokenizer cannot encode the document ({type(error).__name__}: {error})"
        reject = rejected(documents.place(0), what)
        return replace(documents.take(numbers[:0]), rejects=(reject,))
