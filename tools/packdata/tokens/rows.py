"""A stream of tokens in rows: the recipe that lays out the documents of pieces, and what packed rows hold.

Of a piece all rows are full but the last.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.codecs.tokenizer import decoder_of
from loaders.data.columns import Column, FixedColumn, VarColumn
from loaders.errors import SourceError
from loaders.schema import Array, Field, Schema, Tokens
from loaders.schema.tokens import DOCUMENT_ENDS, IGNORED, LABELS, NUM_TOKENS, TOKENS
from packdata.moments import percentiles
from packdata.recipe import Block, Recipe, Tally, Target
from packdata.tokens.documents import Documents, Refusal, joined
from packdata.tokens.files import identity_of
from packdata.tokens.ids import DEFAULT_DTYPE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loaders.data.view import View
    from packdata.recipe import Draw
    from packdata.tokens.source import Piece, TokenSource
    from packdata.tokens.tokenizer import Tokenizer
    from packdata.types import Flags

NO_TARGET = "no target"  # of documents that are counted
_ALL_IN_ONE = (
    "Documents are not divided, and equal ones stay together. "
    "Pass overwrite=True with another val_share=, seed=, or for text files documents="
)


class TokensRecipe(Recipe):
    """Turns each piece into a block of rows, whose number is known once its text is tokenized.

    Fields: ``tokens``; ``num_tokens``, how many of a row are valid (all but in the last row of a piece);
    ``document_ends``, behind which of them a document ends; ``labels`` beside the tokens, where the source has some.

    Args:
        source: Where the pieces come from, and how documents are divided and rows are filled.
        field: How ids are stored.
        bos: The id to put before documents.
        tokenizer: Of a text source; of a source of ids, what they stand for, if known.
    """

    is_of_blocks = can_shuffle = True

    def __init__(
        self, source: TokenSource, field: Tokens, bos: int | None, tokenizer: Tokenizer | None
    ) -> None:
        options = source.options
        self.source, self.field, self.bos, self.tokenizer = source, field, bos, tokenizer
        self.val_share, self.seed = options.val_share, options.seed
        about: dict[str, Any] = {
            "documents": options.documents,
            "text_column": options.text_column or "text",
            "tokenizer": field.tokenizer,
            "trained": options.train_bpe,
            "eod": field.eod,
            "vocab_size": field.vocab_size,
            "bin_dtype": options.bin_dtype or DEFAULT_DTYPE,
            "row_tokens": options.row_tokens,
            "val_share": options.val_share,
            "seed": options.seed,
            **({} if source.content is None else source.content.to_json()),
            **({} if bos is None else {"bos": bos}),
        }
        files = identity_of(source.files)
        self.identity = {"recipe": "tokens", "files": files, "cut": source.cut, **about}
        names = [file.name for file in source.files[:16]]
        self.provenance = {"recipe": "tokens", "source": names, **about}
        fields: dict[str, Field] = {TOKENS: field, NUM_TOKENS: Array(dtype="int32")}
        fields[DOCUMENT_ENDS] = Array(dtype=_ends_dtype(field.row_tokens), dims=(None,))
        if source.has_labels:
            fields[LABELS] = Array(dtype="int32", dims=(field.row_tokens,))
        kept = {tokenizer.name: tokenizer.file} if tokenizer and tokenizer.file else {}
        folders: Sequence[str] = ("",)
        if self.val_share:
            folders, self.why_empty = ("train", "val"), _ALL_IN_ONE
        self.targets: Sequence[Target] = [Target(f, Schema(fields), kept) for f in folders]
        self.runs, self.tally = source.runs, Tally()

    def __len__(self) -> int:
        return len(self.source)

    def items(self, start: int = 0) -> Iterator[Piece]:
        return self.source.pieces(start)

    def encode(self, item: Piece, draw: Draw | None = None) -> list[Block]:
        """Return the rows of a piece for each target, and the documents that are left out; SourceError."""
        if draw is not None and self.source.cut is not None:
            what = "this plan cuts documents, and cannot be shuffled"
            raise SourceError(what, item.where, "Plan with shuffle=")
        documents = item.read().without_empty()
        rejects, parts = [*documents.rejects], [replace(documents, rejects=())]
        if draw is not None:
            parts = [documents.take(draw(len(documents)))]
        if self.val_share:
            whole = parts[0]  # as it is packed: equal ones are equal
            if self.source.kind == "ids":  # of files of several types
                data = whole.data.astype(f"i{self.source.itemsize}", copy=False)
                whole = replace(whole, data=data)
            elif self.source.kind == "lists":  # of which some have begin and end already
                whole = self._enclose(whole)
            is_val = whole.hashes(self.seed) * 2.0**-64 < self.val_share
            parts = [parts[0].take(np.flatnonzero(some)) for some in (~is_val, is_val)]
        if not self.source.has_ids and self.tokenizer is not None:
            parts = [_encoded(part, self.tokenizer) for part in parts]
        parts = [_narrow(part, self.field) for part in parts]
        rejects += [reject for part in parts for reject in part.rejects]
        first, *more = map(self._block, parts)
        errors = [SourceError(what, str(where), hint) for where, what, hint in sorted(rejects)]
        return [replace(first, rejects=errors), *more]

    def _block(self, documents: Documents) -> Block:
        if self.source.kind != "ids":
            documents = self._enclose(documents)
        labels = documents.labels
        if labels is not None and len(documents):
            has_target = np.logical_or.reduceat(labels != IGNORED, documents.starts)
            self.tally.add(NO_TARGET, len(documents) - int(has_target.sum()))
        return block_of(documents.data, documents.ends, self.field.row_tokens, labels)

    def _enclose(self, documents: Documents) -> Documents:
        """Return ids with ``bos`` before and ``eod`` behind each document, None for none.

        Those that are not of texts have neither where they begin or end so already. All documents begin here where
        there is a ``bos``.
        """
        bos, eod = self.bos, self.field.eod
        ids, labels = documents.data, documents.labels
        starts, ends = documents.starts, documents.ends
        before, behind = np.full(len(ends), bos is not None), np.full(len(ends), eod is not None)
        if self.source.kind != "text" and len(ends):
            before &= ids[starts] != bos
            behind &= ids[ends - 1] != eod
        # Where one document ends the next one begins: its end comes first.
        at = np.concatenate([ends[behind], starts[before]])
        if not len(at):
            return documents
        added = np.repeat([eod or 0, bos or 0], [behind.sum(), before.sum()])
        if labels is not None:
            # An end is a target where what stands before it is one; a begin follows from nothing.
            targets = np.where(labels[at - 1] != IGNORED, added, IGNORED)
            targets[behind.sum() :] = IGNORED
            labels = np.insert(labels, at, targets.astype(labels.dtype))
        ids = np.insert(ids, at, added.astype(ids.dtype))
        ends = ends + np.cumsum(before) + np.cumsum(behind)
        return replace(documents, data=ids, ends=ends, labels=labels)


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
        reject = Refusal(documents.place(0), what)
        return replace(documents.take(numbers[:0]), rejects=(reject,))


def _narrow(documents: Documents, field: Tokens) -> Documents:
    """Return documents with ids as they are stored, less those with an id or label that does not fit."""
    ids, labels, dtype = documents.data, documents.labels, np.dtype(field.dtype)
    limit, faults = field.vocab_size or int(np.iinfo(dtype).max) + 1, dict[int, Refusal]()
    if labels is not None:
        most = min(limit, 1 << 31)  # labels are int32
        is_bad = ((labels < 0) | (labels >= most)) & (labels != IGNORED)
        for number, at in _first_of_each(documents, is_bad):
            what = f"label {int(labels[at])} is not {IGNORED}, and not in [0, {most})"
            faults[number] = Refusal(documents.place(at), what)
    if len(ids) and (int(ids.max()) >= limit or int(ids.min()) < 0):
        for number, at in _first_of_each(documents, (ids >= limit) | (ids < 0)):
            what = f"id {int(ids[at])} is not in [0, {limit})"
            faults[number] = Refusal(documents.place(at), what, "Pass vocab_size=, bin_dtype=")
    if not faults:
        return replace(documents, data=ids.astype(dtype, copy=False))
    good = documents.take(np.setdiff1d(np.arange(len(documents)), [*faults]))
    rejects = (*documents.rejects, *faults.values())
    return replace(good, data=good.data.astype(dtype), rejects=rejects)


def _first_of_each(documents: Documents, is_bad: Flags) -> Iterator[tuple[int, int]]:
    """Yield the documents with something bad, by number, and the position of the first."""
    bad = np.flatnonzero(is_bad)
    numbers, firsts = np.unique(np.searchsorted(documents.ends, bad, "right"), return_index=True)
    return zip(numbers.tolist(), bad[firsts].tolist(), strict=True)


def _ends_dtype(row_tokens: int) -> str:
    """Return the type of the positions, 1 to ``row_tokens``, at which documents end in a row."""
    return "uint16" if row_tokens < 1 << 16 else "uint32"


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
    if short := num_rows * row_tokens - len(values):
        values = np.concatenate([values, np.full(short, rest, values.dtype)])
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return FixedColumn(values.view(np.uint8).reshape(num_rows, row_tokens * values.itemsize))


def _ends_column(ends: npt.NDArray[np.int64], num_rows: int, row_tokens: int) -> VarColumn:
    rows = (ends - 1) // row_tokens
    inside = (ends - rows * row_tokens).astype(f"<u{np.dtype(_ends_dtype(row_tokens)).itemsize}")
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
    if (decoder := decoder_of(view.path, field)) is None:
        return " ".join(map(str, ids[:64].tolist())) + (" ..." if len(ids) > 64 else "")
    ends = sample[DOCUMENT_ENDS].astype(np.int64)
    return " ¶ ".join(map(decoder.decode, np.split(ids, ends[ends < len(ids)])))


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
        bounds = np.append(-open_tokens, ends)
        lengths.append(np.diff(bounds))
        open_tokens = len(ids) - int(bounds[-1])
    every = np.concatenate([*lengths, np.array([open_tokens] if open_tokens else [], np.int64)])
    rows = len(view) * field.row_tokens
    return {
        "num_tokens": num,
        "num_documents": len(every),
        "tokens_per_document": percentiles(every),
        "num_ids_used": int(seen.sum()),
        "unused_share": round(1 - num / max(1, rows), 6),
    }
