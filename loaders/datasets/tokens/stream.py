"""Rows of tokens as what they are parts of: one stream, cut wherever one likes.

Rows that are full lie end to end in their shard, so any number of tokens from anywhere in such a
run is one strided copy. A run ends with a shard, and with a row that ends early; what crosses its
end is put together from both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from loaders.cached import cached_property
from loaders.data.columns import FixedColumn, VarColumn
from loaders.data.gather import AddressRange, rows_at, window_over
from loaders.errors import SchemaError, ShardError
from loaders.schema import Tokens
from loaders.system.locks import ForkLock

if TYPE_CHECKING:
    from loaders.datasets.packed import PackedDataset

Indices = npt.NDArray[np.int64]
TOKENS, NUM_TOKENS, DOCUMENT_ENDS = "tokens", "num_tokens", "document_ends"
LABELS = "labels"


class _Maps:
    """Where tokens of mapped shards lie, and which rows are verified; valid until the store closes its shards."""

    def __init__(self, closings: int, num_runs: int, verified: npt.NDArray[np.bool_]) -> None:
        self.closings, self.verified = closings, verified
        self.addresses = np.full(num_runs, -1, np.int64)
        self.low, self.high = 0, 0
        self.opened: dict[int, npt.NDArray[np.uint8]] = {}
        self.all_open = self.all_verified = False
        self.windows: dict[int, AddressRange] = {}


class TokenStream:
    """The valid tokens, or ``labels`` beside them, of a dataset in its own order, by position. Thread-safe.

    Raises:
        SchemaError: The dataset holds no tokens, or is a view of some of its rows.
        ShardError: Its rows contradict each other.
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
        counts = dataset.column(NUM_TOKENS).astype(np.int64)
        bad = (counts < 0) | (counts > field.row_tokens)
        if bad.any():
            row = int(bad.argmax())
            path, number = self._store.place(row)
            what = f"its row holds {counts[row]} tokens of {field.row_tokens}"
            raise ShardError(what, path, number, NUM_TOKENS, "Run 'packdata verify'")
        self._find_runs(counts)
        self._maps = self._no_maps()
        self._lock = ForkLock()

    def _no_maps(self) -> _Maps:
        rows = len(self._row_stops)
        maps = _Maps(self._store.closings, len(self._firsts), np.zeros(rows, bool))
        maps.all_verified = self._store.check == "never"
        return maps

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

    def __len__(self) -> int:
        return self.num_tokens

    def shards_of(self, starts: Indices, stops: Indices) -> Indices:
        """Return the shards of the store that some ranges of tokens lie in."""
        first, last = self._runs_of(starts), self._runs_of(np.maximum(stops - 1, starts))
        return self._shards[np.unique(_spans(first, last))]

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
            what = "its documents do not follow each other within the tokens of the row"
            raise ShardError(what, path, number, DOCUMENT_ENDS, "Pack it again")

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
        runs, maps = self._prepare(starts, starts + length)
        addresses = self._addresses_of(maps, starts, runs)
        over = starts + length > self._lasts[runs]
        if not over.any():
            self._copy(maps, addresses, out)
            return
        if not over.all():
            addresses[over] = addresses[~over][0]  # they are put right below
            self._copy(maps, addresses, out)
        for i in np.flatnonzero(over).tolist():
            self._join(maps, int(starts[i]), out[i])

    def gather_ranges(self, starts: Indices, lengths: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Copy ranges of different lengths, each within the stream, one behind the other."""
        item = self.dtype.itemsize
        runs, maps = self._prepare(starts, starts + lengths)
        addresses = self._addresses_of(maps, starts, runs)
        over = starts + lengths > self._lasts[runs]
        ends = np.cumsum(lengths)
        if not over.all():
            addresses -= (ends - lengths) * item
            each = np.repeat(addresses, lengths)
            each += np.arange(0, len(each) * item, item)
            if over.any():
                each[np.repeat(over, lengths)] = maps.low
            self._copy(maps, each, out.reshape(-1, item))
        for i in np.flatnonzero(over).tolist():
            part = out[int(ends[i] - lengths[i]) * item : int(ends[i]) * item]
            self._join(maps, int(starts[i]), part)

    def _runs_of(self, positions: Indices) -> Indices:
        if len(self._lasts) == 1:
            return np.zeros(len(positions), np.int64)
        return np.searchsorted(self._lasts, positions, "right")

    def _copy(self, maps: _Maps, addresses: Indices, out: npt.NDArray[np.uint8]) -> None:
        window = self._window(maps, out.shape[1])
        addresses -= window.low
        if torch.get_num_threads() > 1 and window.rows is not None:
            out[...] = window.rows[addresses]
            return  # torch would wait for threads of its own, for so little
        window.copy(addresses, out)

    def _window(self, maps: _Maps, nbytes: int) -> AddressRange:
        with self._lock.plain:
            window = maps.windows.get(nbytes)
            if window is None:
                if len(maps.windows) > 64:
                    maps.windows.clear()
                window = maps.windows[nbytes] = window_over(
                    maps.low, maps.high, nbytes, self._store.take
                )
            return window

    def _addresses_of(self, maps: _Maps, positions: Indices, runs: Indices) -> Indices:
        addresses: Indices = (positions - self._firsts[runs]) * self.dtype.itemsize
        addresses += maps.addresses[runs]
        return addresses

    def _join(self, maps: _Maps, start: int, out: npt.NDArray[np.uint8]) -> None:
        """Copy tokens that lie in several runs."""
        item, at = self.dtype.itemsize, 0
        length = len(out) // item
        run = int(np.searchsorted(self._lasts, start, "right"))
        while at < length:
            here = min(length - at, int(self._lasts[run]) - start - at)
            address = int(maps.addresses[run]) + (start + at - int(self._firsts[run])) * item
            view = rows_at(address, address + here * item, here * item)
            out[at * item : (at + here) * item] = view[0]
            at, run = at + here, run + 1

    # -- shards ------------------------------------------------------------------------------------

    def _prepare(self, starts: Indices, stops: Indices) -> tuple[Indices, _Maps]:
        """Map the shards of some ranges, verify their rows unless that was done; return their first runs, and maps."""
        runs, maps = self._runs_of(starts), self._maps
        if maps.closings != self._store.closings:
            maps = self._maps = self._no_maps()
        if not maps.all_open:
            lasts = self._runs_of(stops - 1)
            for number in np.unique(self._shards[_spans(runs, lasts)]).tolist():
                if number not in maps.opened:
                    self._open_shard(maps, number)
            maps.all_open = len(maps.opened) == len(np.unique(self._shards))
        if not maps.all_verified:
            self._verify(maps, starts, stops)
        return runs, maps

    def _open_shard(self, maps: _Maps, number: int) -> None:
        data = self._data(number)
        address, row_nbytes = int(data.ctypes.data), data.shape[1]
        with self._lock.plain:
            if number in maps.opened:  # by another thread, which may copy from there
                return
            if maps.high == 0:
                maps.low, maps.high = address, address + data.nbytes
            else:
                maps.low = min(maps.low, address)
                maps.high = max(maps.high, address + data.nbytes)
            maps.windows.clear()
            mine = np.flatnonzero(self._shards == number)
            rows = self._rows[mine] - self._store.starts[number]
            maps.addresses[mine] = address + rows * row_nbytes
            maps.opened[number] = data

    def _data(self, number: int) -> npt.NDArray[np.uint8]:
        shard = self._store.shard(number)
        column = shard.columns[self._column]
        nbytes = self.field.row_tokens * self.dtype.itemsize
        if not isinstance(column, FixedColumn) or column.data.shape[1] != nbytes:
            what = f"its rows of {self._column} are not {nbytes} bytes each, one after the other"
            raise ShardError(what, shard.path, None, self._column, "Pack it again")
        return column.data

    def _verify(self, maps: _Maps, starts: Indices, stops: Indices) -> None:
        firsts = np.searchsorted(self._row_starts, starts, "right") - 1
        lasts = np.searchsorted(self._row_starts, stops - 1, "right") - 1
        rows = np.unique(_spans(firsts, lasts))
        always = self._store.check == "always"
        if always or not maps.verified[rows].all():
            wanted = self._store.rows(rows)
            self._store.prefetch(self._column, wanted)
            self._store.verify(self._column, wanted)
            maps.verified[rows] = True
            maps.all_verified = not always and bool(maps.verified.all())


def _spans(firsts: Indices, lasts: Indices) -> Indices:
    """Return all numbers from each first to its last one."""
    lengths = lasts - firsts + 1
    ends = np.cumsum(lengths)
    return np.repeat(firsts - (ends - lengths), lengths) + np.arange(int(lengths.sum()))


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
