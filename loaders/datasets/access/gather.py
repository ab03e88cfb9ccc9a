"""Copying rows of one size, from anywhere in any number of maps, in one call.

``index_select`` over a byte view with strides (1, 1) takes a row from any byte offset: seen
through a window over all the maps, a record is its address. Between two maps the window covers
memory that is not ours, so its arithmetic is guarded: an address is computed from a column that
was checked against the size of its file when the shard was opened, and from a row number that was
checked against the number of rows.

torch counts the elements of such a view in 63 bits: of rows of a megabyte, some terabytes. Further
apart may lie arrays in memory, or volumes of a very large dataset: these rows are copied one by one.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from loaders.columns import Column, FixedColumn, VarColumn
from loaders.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable

Indices = npt.NDArray[np.int64]
_UNKNOWN = -(1 << 62)
_MAX_ELEMENTS = 1 << 63  # of a tensor


class Gather:
    """Copies records of one field.

    Args:
        nbytes: Size of every record.
        starts: The number of the first sample of each shard.
        column: Opens a shard's column, by shard number.
        refuse: Raises the error that a row of a shard, given both numbers, has another size.
    """

    def __init__(
        self,
        nbytes: int,
        starts: Indices,
        column: Callable[[int], Column],
        refuse: Callable[[int, int], NoReturn],
    ) -> None:
        self._nbytes, self._starts, self._column, self._refuse = nbytes, starts, column, refuse
        self._columns: dict[int, Column] = {}
        self._biases = np.full(len(starts), _UNKNOWN, np.int64)
        self._kinds = set[type[Column]]()
        self._odd: dict[int, Indices] = {}  # by shard: samples whose rows have another size
        self._of_starts: Gather | None = None  # of columns whose rows may lie anywhere
        self._window = Window(0, 0, None)
        self._lock = ForkLock()

    def __call__(self, indices: Indices, shards: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Copy the records of some samples to the rows of ``out``: ``(N, nbytes)`` uint8, C-contiguous."""
        self.find(indices, shards).copy(out)

    def find(self, indices: Indices, shards: Indices) -> Found:
        """Return where the records of some samples lie."""
        if len(self._columns) < len(self._starts):
            self._open(np.unique(shards).tolist())
        if self._odd:
            self._check_sizes(indices)
        addresses, window = self._addresses(indices, shards), self._window
        addresses -= window.low
        return Found(window, addresses)

    def _check_sizes(self, indices: Indices) -> None:
        for number, odd in tuple(self._odd.items()):
            if len(found := np.intersect1d(indices, odd)):
                self._refuse(number, int(found[0] - self._starts[number]))

    def _addresses(self, indices: Indices, shards: Indices) -> Indices:
        addresses = self._biases.take(shards)
        if self._kinds == {FixedColumn}:
            addresses += indices * self._nbytes
        elif self._kinds == {VarColumn}:
            addresses += self._starts_of(indices, shards)
        else:  # shards of several formats can be concatenated
            is_var = np.array([isinstance(self._columns[n], VarColumn) for n in shards.tolist()])
            addresses[~is_var] += indices[~is_var] * self._nbytes
            addresses[is_var] += self._starts_of(indices[is_var], shards[is_var])
        return addresses

    def _starts_of(self, indices: Indices, shards: Indices) -> Indices:
        """Return where rows begin in their buffers: numbers of 8 bytes, gathered from all shards in one call, too."""
        if self._of_starts is None:
            self._of_starts = Gather(8, self._starts, self._starts_column, self._refuse)
        out = np.empty((len(indices), 8), np.uint8)
        self._of_starts(indices, shards, out)
        return out.view(np.int64).reshape(-1)

    def _starts_column(self, number: int) -> FixedColumn:
        column = self._columns[number]
        assert isinstance(column, VarColumn)
        starts = np.ascontiguousarray(column.starts, np.int64)
        return FixedColumn(starts.view(np.uint8).reshape(-1, 8))

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
        self._widen(address, address + data.nbytes)
        self._columns[number] = column

    def _widen(self, low: int, high: int) -> None:
        """Let the window cover one more range of addresses."""
        if self._columns:
            low, high = min(low, self._window.low), max(high, self._window.high)
        # One assignment: other threads use the window without the lock.
        self._window = window_over(low, high, self._nbytes)


class Found(NamedTuple):
    """Rows that are only to be copied.

    Attributes:
        window: What they are seen through.
        offsets: Where they begin in it.
    """

    window: Window
    offsets: Indices

    def copy(self, out: npt.NDArray[np.uint8], first: int = 0) -> None:
        """Copy as many rows as ``out`` has, from the ``first`` on."""
        self.window.copy(self.offsets[first : first + len(out)], out)


class Window(NamedTuple):
    """Addresses at which rows may begin.

    Attributes:
        low: Address of the first byte.
        high: Address behind the last byte.
        rows: What ``rows_at`` returns for them, None where there are too many.
    """

    low: int
    high: int
    rows: torch.Tensor | None

    def copy(self, offsets: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Copy the rows at some offsets from the first byte to those of ``out``."""
        if self.rows is None:
            copy_each(offsets + self.low, out)
            return
        torch.index_select(self.rows, 0, torch.from_numpy(offsets), out=torch.from_numpy(out))


def window_over(low: int, high: int, nbytes: int) -> Window:
    """Return a window for rows of ``nbytes`` bytes."""
    fits = (high - low) * nbytes < _MAX_ELEMENTS
    return Window(low, high, rows_at(low, high, nbytes) if fits else None)


def copy_each(addresses: Indices, out: npt.NDArray[np.uint8]) -> None:
    """Copy rows one by one: they are large, or nobody would ask."""
    nbytes, target = out.shape[1], int(out.ctypes.data)
    for i, address in enumerate(addresses.tolist()):
        ctypes.memmove(target + i * nbytes, address, nbytes)  # lets other threads run


def rows_at(low: int, high: int, nbytes: int) -> torch.Tensor:
    """View memory as rows of ``nbytes`` bytes from every address in it; the caller keeps the memory alive.

    Args:
        low: Address of the first byte.
        high: Address behind the last byte.
        nbytes: Of a row, at most ``high - low``.

    Returns:
        ``(high - low - nbytes + 1, nbytes)`` uint8: row ``i`` is what lies at ``low + i``.
    """
    memory = torch.from_numpy(np.asarray(_Memory(low, high - low)))
    return memory.as_strided((high - low - nbytes + 1, nbytes), (1, 1))


class _Memory:
    """Bytes at an address, for numpy to look at; whoever makes one keeps the owner alive."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }
