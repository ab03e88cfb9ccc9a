"""Rows of tokens as what they are parts of: one stream, cut wherever one likes.

Rows that are full lie end to end in their shard, so any number of tokens from anywhere in such a
run is one strided copy. A run ends with a shard, and with a row that ends early; what crosses its
end is put together from both sides.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from loaders.data.columns import FixedColumn, VarColumn
from loaders.errors import SchemaError, ShardError
from loaders.sampling.permutation import spans
from loaders.schema import Tokens
from loaders.schema.tokens import DOCUMENT_ENDS, NUM_TOKENS, TOKENS

if TYPE_CHECKING:
    from loaders.data.gather import Found
    from loaders.datasets.packed import PackedDataset

Indices = npt.NDArray[np.int64]


class TokenStream:
    """The valid tokens, or ``labels`` beside them, of a dataset in its own order, by position. Thread-safe.

    SchemaError if the dataset holds no tokens, or some of its rows only; ShardError if rows contradict each other.
    """

    def __init__(self, dataset: PackedDataset, column: str = TOKENS) -> None:
        field = dataset.schema.fields.get(TOKENS)
        if not isinstance(field, Tokens):
            raise SchemaError(
                "there are no tokens in this dataset: pack them with 'packdata tokens'"
            )
        if not np.array_equal(
            dataset.view.numbers_of(np.arange(len(dataset))), np.arange(len(dataset.store))
        ):
            raise SchemaError(
                "selected rows are not a stream of tokens: to divide windows, use TokenWindows.split"
            )
        self._dataset, self._store, self.field = dataset, dataset.store, field
        self._column, self.dtype = column, np.dtype(dataset.schema.fields[column].dtype)
        self._row_nbytes = field.row_tokens * self.dtype.itemsize
        counts = dataset.column(NUM_TOKENS).astype(np.int64)
        bad = (counts < 0) | (counts > field.row_tokens)
        if bad.any():
            row = int(bad.argmax())
            path, number = self._store.place(row)
            what = f"the row holds {counts[row]} tokens of {field.row_tokens}"
            raise ShardError(what, path, number, NUM_TOKENS, "Run 'packdata verify'")
        self._find_runs(counts)

    def __reduce__(self) -> Any:
        return TokenStream, (self._dataset, self._column)  # where tokens lie is found anew

    def _find_runs(self, counts: Indices) -> None:
        begins = np.ones(len(counts), bool)
        begins[1:] = counts[:-1] < self.field.row_tokens
        begins[self._store.starts] = True
        rows = np.flatnonzero(begins)
        lengths = np.add.reduceat(counts, rows) if len(rows) else rows
        rows, lengths = rows[lengths > 0], lengths[lengths > 0]
        self._lasts = np.cumsum(lengths)
        self._firsts, self._rows = self._lasts - lengths, rows
        self._shards = self._store.shards_of(rows)
        self._row_stops = np.cumsum(counts)
        self._row_starts = self._row_stops - counts
        self.num_tokens = int(lengths.sum())

    def shards_of(self, starts: Indices, stops: Indices) -> Indices:
        """Return the shards of the store that some ranges of tokens lie in."""
        first, last = self._runs_of(starts), self._runs_of(np.maximum(stops - 1, starts))
        return self._shards[np.unique(spans(first, last - first + 1))]

    @property
    def shard_ends(self) -> Indices:
        """The position behind the last token of each shard that the rows were packed in."""
        ends = self._store.runs.ends
        return np.append(self._row_starts, self.num_tokens)[ends]

    @cached_property
    def document_ends(self) -> Indices:
        """Positions behind each document, ascending; the last one is ``num_tokens``."""
        field = self._dataset.schema.fields[DOCUMENT_ENDS]
        parts, start = [np.zeros(0, np.int64)], 0
        for number, column in enumerate(self._dataset.view.columns(DOCUMENT_ENDS)):
            if isinstance(column, FixedColumn):
                width = column.data.shape[1]
                starts = np.arange(len(column), dtype=np.int64) * width
                column = VarColumn(column.data.reshape(-1), starts, np.full(len(column), width))
            inside, rows = _values(column, field.dtype)
            rows += start
            parts.append(self._row_starts[rows] + inside)
            self._check_ends(parts[-1], rows)
            start += self._store.shards[number].num_samples
        ends = np.concatenate(parts)
        if self.num_tokens and (not len(ends) or ends[-1] < self.num_tokens):
            ends = np.append(ends, self.num_tokens)
        return ends

    def _check_ends(self, ends: Indices, rows: Indices) -> None:
        """Each end lies behind the one before it, and in its own row."""
        bad = (ends <= self._row_starts[rows]) | (ends > self._row_stops[rows])
        bad[1:] |= ends[1:] <= ends[:-1]
        if bad.any():
            row = int(rows[bad.argmax()])
            path, number = self._store.place(row)
            what = "documents do not follow each other within the tokens of the row"
            raise ShardError(what, path, number, DOCUMENT_ENDS, "Pack again")

    def read(self, start: int, stop: int) -> npt.NDArray[np.integer]:
        """Return the values from one position to another, a copy."""
        out = np.empty((1, (stop - start) * self.dtype.itemsize), np.uint8)
        if stop > start:
            self.gather(np.array([start], np.int64), stop - start, out)
        values: npt.NDArray[np.integer] = out.view(self.dtype)[0]
        return values

    def gather(self, starts: Indices, length: int, out: npt.NDArray[np.uint8]) -> None:
        """Copy ``length`` tokens from each of ``(N,)`` positions to ``(N, length * itemsize)`` uint8, C-contiguous."""
        if not len(starts):
            return
        runs = self._runs_of(starts)
        over = starts + length > self._lasts[runs]  # the end of a run
        if not over.all():
            self._verify(starts, starts + length)
            found, addresses = self._find(starts, runs)
            addresses[over] = addresses[over.argmin()]  # of another row, for now
            _copy(found, addresses, out)
        if over.any():
            rows = np.empty((int(over.sum()), out.shape[1]), np.uint8)
            self.gather_ranges(starts[over], np.full(len(rows), length), rows)
            out[over] = rows

    def gather_ranges(self, starts: Indices, lengths: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Copy ranges of different lengths, each within the stream, one behind the other."""
        if not len(starts):
            return
        self._verify(starts, starts + lengths)
        runs, item = self._runs_of(starts), self.dtype.itemsize
        if (starts + lengths > self._lasts[runs]).any():
            runs, starts, lengths = self._cut(starts, starts + lengths)
        found, addresses = self._find(starts, runs)
        addresses -= (np.cumsum(lengths) - lengths) * item
        each = np.repeat(addresses, lengths)
        each += np.arange(0, len(each) * item, item)
        _copy(found, each, out.reshape(-1, item))

    def _runs_of(self, positions: Indices) -> Indices:
        if len(self._lasts) == 1:
            return np.zeros(len(positions), np.int64)
        return np.searchsorted(self._lasts, positions, "right")

    def _cut(self, starts: Indices, stops: Indices) -> tuple[Indices, Indices, Indices]:
        """Cut ranges where runs end; return the run of each piece, its first position, and its length."""
        firsts, lasts = self._runs_of(starts), self._runs_of(stops - 1)
        counts = lasts - firsts + 1
        runs = spans(firsts, counts)
        starts = np.maximum(np.repeat(starts, counts), self._firsts[runs])
        return runs, starts, np.minimum(np.repeat(stops, counts), self._lasts[runs]) - starts

    def _find(self, positions: Indices, runs: Indices) -> tuple[Found, Indices]:
        """Return what keeps the shards of some positions mapped, and the address of each, given its run."""
        gather = self._store.field(self._column).gather(self._row_nbytes)
        found = gather.find(self._rows[runs], self._shards[runs])
        if not gather.lies_end_to_end:
            what = f"some rows of {self._column} are not {self._row_nbytes} bytes each, one after the other"
            raise ShardError(what, self._dataset.view.path, None, self._column, "Pack again")
        return found, found.addresses + (positions - self._firsts[runs]) * self.dtype.itemsize

    def _verify(self, starts: Indices, stops: Indices) -> None:
        """Compare the rows of some ranges with their checksums, unless that was done."""
        if self._store.field(self._column).is_all_verified:
            return
        firsts = np.searchsorted(self._row_starts, starts, "right") - 1
        lasts = np.searchsorted(self._row_starts, stops - 1, "right") - 1
        rows = self._store.rows(np.unique(spans(firsts, lasts - firsts + 1)))
        self._store.field(self._column).prefetch(rows)
        self._store.field(self._column).verify(rows)


def _copy(found: Found, addresses: Indices, out: npt.NDArray[np.uint8]) -> None:
    window = found.gather.window(out.shape[1])
    addresses -= window.low
    if torch.get_num_threads() > 1 and window.rows is not None:
        out[...] = window.rows[addresses]
        return  # torch would wait for threads of its own, for so little
    window.copy(addresses, out)


def _values(column: VarColumn, dtype: str) -> tuple[Indices, Indices]:
    """Return all numbers of rows of varying size, and the row of each."""
    item = np.dtype(dtype).itemsize
    counts = column.lengths // item
    rows = np.repeat(np.arange(len(column)), counts)
    before = np.cumsum(counts) - counts
    offsets = np.repeat(column.starts - before * item, counts) + np.arange(len(rows)) * item
    values = np.zeros(len(rows), np.int64)
    for byte in range(item):  # they are not aligned
        values |= column.buffer[offsets + byte].astype(np.int64) << (8 * byte)
    return values, rows
