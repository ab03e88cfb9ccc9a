"""Copying rows of one size, from anywhere in any number of maps, in one call.

An array with strides (1, 1) has a row at every byte: seen through a window over all the maps, a record is its address.
Between two maps the window covers memory that is not the dataset's, so its arithmetic is guarded: an address is
computed from a column that was checked against the size of its file when the shard was opened, and from a row number
that was checked against the number of rows.

Elements of such an array are counted in 63 bits: of rows of a megabyte, some terabytes. Arrays in memory, or volumes of
a very large dataset, may lie further apart: these rows are copied one by one.

Numpy's indexing does the copy here, and makes a second one. Batches pass torch's ``index_select``, which makes none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from loaders.data.columns import Column, FixedColumn, VarColumn
from loaders.system.locks import ForkLock

Indices = npt.NDArray[np.int64]
UInt8Array = npt.NDArray[np.uint8]
# From rows to what copies those of some numbers to the rows of another array.
Take = Callable[[UInt8Array], Callable[[Indices, UInt8Array], None]]
_UNKNOWN = -(1 << 62)
_MAX_ELEMENTS = 1 << 63  # of an array
_MAX_WINDOWS = 64
_COPY_BYTES = 1 << 20  # of numpy's first copy


class Gather:
    """Finds and copies records of one field."""

    def __init__(
        self,
        nbytes: int,  # size of every record
        starts: Indices,  # the number of the first sample of each shard
        column: Callable[[int], Column],  # opens a shard's column, by shard number
        # Raises the error that a row of a shard, given both numbers, has another size.
        refuse: Callable[[int, int], NoReturn],
        take: Take,  # how rows are copied
        *,
        is_evictable: bool = False,  # whether its files are to be let go of as soon as can be
    ) -> None:
        self._take, self._is_evictable = take, is_evictable
        self._nbytes, self._starts, self._column, self._refuse = nbytes, starts, column, refuse
        self._columns: dict[int, Column] = {}
        self._biases = np.full(len(starts), _UNKNOWN, np.int64)
        self._kinds = set[type[Column]]()
        self._odd: dict[int, Indices] = {}  # by shard: samples whose rows have another size
        self._of_starts: Gather | None = None  # of columns whose rows may lie anywhere
        self._low, self._high = 0, 0  # addresses between which all open columns lie
        self._windows: dict[int, Window] = {}  # by size of a row
        self._lock = ForkLock()

    def __call__(self, indices: Indices, shards: Indices, out: UInt8Array) -> None:
        """Copy the records of some samples to the rows of ``out``: ``(N, nbytes)`` uint8, C-contiguous."""
        self.find(indices, shards).copy(out)

    def find(self, indices: Indices, shards: Indices) -> Found:
        """Return where the records of some samples lie."""
        columns: object = self._columns
        if self._is_evictable or len(self._columns) < len(self._starts):
            numbers = np.unique(shards).tolist()
            self._open(numbers)
            columns = [self._columns[n] for n in numbers] if self._is_evictable else columns
        for number, odd in tuple(self._odd.items()):
            if len(bad := np.intersect1d(indices, odd)):
                self._refuse(number, int(bad[0] - self._starts[number]))
        addresses = self._biases.take(shards)
        if self.lies_end_to_end:  # none are open yet where no rows are asked for
            addresses += indices * self._nbytes
        else:
            addresses += self._starts_of(indices, shards)
        return Found(self, addresses, columns)

    @property
    def lies_end_to_end(self) -> bool:
        """Whether the rows of all columns that are open lie one after the other."""
        return self._kinds <= {FixedColumn}

    def window(self, nbytes: int) -> Window:
        """Return a window over all columns that are open, for rows of any size."""
        window = self._windows.get(nbytes)
        if window is None:
            with self._lock.plain:
                if len(self._windows) == _MAX_WINDOWS:
                    self._windows.clear()
                low, high, rows = self._low, self._high, None
                if (high - low) * nbytes < _MAX_ELEMENTS:
                    rows = rows_at(low, high, nbytes)
                window = Window(low, rows, None if rows is None else self._take(rows))
                self._windows[nbytes] = window
        return window

    def _starts_of(self, indices: Indices, shards: Indices) -> Indices:
        """Return where rows begin in their buffers: numbers of 8 bytes, gathered from all shards in one call, too."""
        if self._of_starts is None:
            columns, starts = self._columns, self._starts  # not self: it would keep itself alive
            self._of_starts = Gather(
                8,
                starts,
                lambda n: _starts_column(columns[n], int(starts[n])),
                self._refuse,
                self._take,
            )
        out = np.empty((len(indices), 8), np.uint8)
        self._of_starts(indices, shards, out)
        return out.view(np.int64).reshape(-1)

    def _open(self, shards: list[int]) -> None:
        with self._lock.plain:
            for number in shards:
                if number not in self._columns:
                    self._add(number, self._column(number))

    def _add(self, number: int, column: Column) -> None:
        data = column.data if isinstance(column, FixedColumn) else column.buffer
        address = int(data.ctypes.data)
        is_fixed = isinstance(column, FixedColumn)
        first = int(self._starts[number]) * self._nbytes if is_fixed else 0
        if not is_fixed and len(odd := np.flatnonzero(column.lengths != self._nbytes)):
            self._odd[number] = odd + self._starts[number]
        self._kinds.add(type(column))
        self._biases[number] = address - first
        low, high = address, address + data.nbytes
        if self._columns:
            low, high = min(low, self._low), max(high, self._high)
        self._low, self._high = low, high
        self._windows.clear()
        self._columns[number] = column


def _starts_column(column: Column, first: int) -> FixedColumn:
    """Return where rows begin, as ``_biases`` counts it, of a column whose first sample has that number."""
    if isinstance(column, VarColumn):
        starts = np.ascontiguousarray(column.starts, np.int64)
    else:
        starts = np.arange(first, first + len(column), dtype=np.int64) * column.data.shape[1]
    return FixedColumn(starts.view(np.uint8).reshape(-1, 8))


class Found(NamedTuple):
    """Where records lie."""

    gather: Gather
    addresses: Indices  # of their first bytes
    columns: object  # keeps what they lie in mapped

    def copy(self, out: UInt8Array, first: int = 0) -> None:
        """Copy as many rows as ``out`` has, from the ``first`` on."""
        if not len(out):  # no column may be open
            return
        window = self.gather.window(out.shape[1])
        window.copy(self.addresses[first : first + len(out)] - window.low, out)


class Window(NamedTuple):
    """Memory as rows of one size: one begins at each address from ``low`` on."""

    low: int
    rows: UInt8Array | None  # what ``rows_at`` returns, None where there are too many
    # Copies those of some numbers; None likewise.
    take: Callable[[Indices, UInt8Array], None] | None

    def copy(self, numbers: Indices, out: UInt8Array) -> None:
        """Copy the rows of some numbers, counted from ``low``, to those of ``out``."""
        if self.take is None:
            copy_each(numbers + self.low, out)
        else:
            self.take(numbers, out)


def take_rows(rows: UInt8Array) -> Callable[[Indices, UInt8Array], None]:
    """Return what copies rows by numpy's indexing."""
    step = max(1, _COPY_BYTES // rows.shape[1])

    def copy(numbers: Indices, out: UInt8Array) -> None:
        for first in range(0, len(out), step):
            out[first : first + step] = rows[numbers[first : first + step]]

    return copy


def copy_each(addresses: Indices, out: UInt8Array) -> None:
    """Copy rows one by one, as large rows can be."""
    nbytes, target = out.shape[1], int(out.ctypes.data)
    for i, address in enumerate(addresses.tolist()):
        ctypes.memmove(target + i * nbytes, address, nbytes)  # releases the GIL


def rows_at(low: int, high: int, nbytes: int) -> UInt8Array:
    """View memory as rows of ``nbytes`` bytes from every address in it: row ``i`` is what lies at ``low + i``.

    ``(high - low - nbytes + 1, nbytes)`` uint8; the caller keeps the memory alive.
    """
    place = {"data": (low, False), "shape": (high - low - nbytes + 1, nbytes), "strides": (1, 1)}
    described = {"__array_interface__": place | {"typestr": "|u1", "version": 3}}
    return np.asarray(SimpleNamespace(**described))
