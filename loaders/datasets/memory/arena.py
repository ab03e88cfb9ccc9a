"""Columns in one anonymous file of memory (a memfd) that can be handed to other processes.

It has no name in any file system, so nothing remains when the last process lets go of it. Once
filled it is sealed: from then on neither its size nor a byte of it can change, in any process.

    magic | bytes of the layout | xxh3-128 of the layout | layout, JSON | arrays, each on its own page

The layout says what the bytes are (identity), what was stored with them (meta), and for each array
of each column its bytes and where it begins, counted from the first page after the layout.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import stat
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.data.columns import Column, FixedColumn, VarColumn
from loaders.datasets.memory.loading import meter
from loaders.errors import LoadersError
from loaders.system.hugepages import collapse, lay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from loaders.datasets.memory.loading import ColumnToLoad

UInt8Array = npt.NDArray[np.uint8]
_MAGIC = b"loaders1"
_PREAMBLE = struct.Struct("<8sQ16s")
_PAGE = 4096
_MAX_LAYOUT_BYTES = 64 << 20
_ROWS_AT_ONCE = 1 << 20
# Huge pages are asked for so much at a time, and so far ahead of what is filled.
_PIECE_BYTES, _AHEAD_BYTES = 64 << 20, 32 << 20


class SealedColumns(NamedTuple):
    """What a sealed arena holds; the arrays are read-only, and keep its memory alive."""

    columns: dict[str, Column]
    meta: Any
    nbytes: int


class Arena:
    """An arena that this process fills; ``meta`` is JSON to be stored with its columns."""

    def __init__(self, identity: str, plans: Mapping[str, ColumnToLoad], meta: Any) -> None:
        places, nbytes = _places(plans)
        layout = json.dumps({"identity": identity, "meta": meta, "columns": places}).encode()
        begin = _whole_pages(_PREAMBLE.size + len(layout))
        self.fd = os.memfd_create("loaders", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.truncate(self.fd, begin + nbytes)
            self._map, self._start = lay(self.fd, begin + nbytes)
            self._map.madvise(mmap.MADV_DONTFORK)  # a child could still write: see seal
        except BaseException:
            os.close(self.fd)
            raise
        self._nbytes, self._num_filled, self._num_huge = begin + nbytes, begin, 0
        self.filled(0)
        data = self._bytes(0, self._nbytes)
        head = _PREAMBLE.pack(_MAGIC, len(layout), xxhash.xxh3_128_digest(layout)) + layout
        data[: len(head)] = np.frombuffer(head, np.uint8)
        data = data[begin:]
        self.columns = {}  # to be filled; not to be kept beyond ``seal``
        for name, plan in plans.items():
            arrays = [data[first : first + size] for size, first in places[name]["arrays"]]
            self.columns[name] = plan.column(arrays)

    def _bytes(self, first: int, nbytes: int) -> UInt8Array:
        return np.frombuffer(self._map, np.uint8, nbytes, self._start + first)

    def filled(self, nbytes: int) -> None:
        """Say that so many bytes more were filled in, from first to last: what follows gets huge pages in time."""
        self._num_filled += nbytes
        while self._num_huge < min(self._num_filled + _AHEAD_BYTES, self._nbytes):
            piece = min(_PIECE_BYTES, self._nbytes - self._num_huge)
            collapse(self._bytes(self._num_huge, piece))
            self._num_huge += piece

    def seal(self) -> int:
        """Make what was written final; return the descriptor, which now is the caller's."""
        self.columns.clear()
        try:
            self._map.close()  # while somebody could still write, the kernel refuses to seal
        except BufferError:
            gc.collect()
            self._map.close()
        import fcntl

        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _seals() | fcntl.F_SEAL_SEAL)
        return self.fd

    def discard(self) -> None:
        """Give up what was not sealed."""
        self.columns.clear()
        os.close(self.fd)


def filled(
    identity: str,
    plans: Mapping[str, ColumnToLoad],
    progress: bool,
    *,
    meta: Any = None,
    what: str = "loading into RAM",
    told: Callable[[int, int], object] = lambda done, total: None,
) -> int:
    """Fill an arena and seal it; return its descriptor. ``told`` of the bytes that are done, and of all."""
    total = sum(plan.data_nbytes for plan in plans.values())
    arena = Arena(identity, plans, meta)
    try:
        with meter(total, progress, what) as bar:

            def report(nbytes: int) -> None:
                arena.filled(nbytes)
                bar.tick(nbytes)
                told(bar.done, total)

            for name, plan in plans.items():
                plan.fill(arena.columns[name], report)
        return arena.seal()
    except BaseException:
        arena.discard()
        raise


def _places(plans: Mapping[str, ColumnToLoad]) -> tuple[dict[str, Any], int]:
    """Give each array of each column its place: (bytes, where it begins); and say where all end."""
    end = 0
    places: dict[str, Any] = {}
    for name, plan in plans.items():
        arrays = []
        for size in plan.array_nbytes:
            arrays.append((size, end))
            end += _whole_pages(size)
        places[name] = {"rows": len(plan.lengths), "row_nbytes": plan.row_nbytes, "arrays": arrays}
    return places, end


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


def open_sealed(fd: int, identity: str) -> SealedColumns:
    """Map an arena that may have come from anywhere.

    Raises:
        LoadersError: It is not sealed, not of this identity, or its layout is damaged.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or not _is_sealed(fd):
        raise LoadersError("the shared copy that was offered is not a sealed memory file")
    if status.st_size < _PREAMBLE.size:
        raise LoadersError(f"the shared copy has {status.st_size} bytes, less than its header")
    map_, start = lay(fd, status.st_size, is_writable=False)
    data = np.frombuffer(map_, np.uint8, status.st_size, start)
    layout, begin = _read_layout(data)
    if layout["identity"] != identity:
        raise LoadersError(f"the shared copy is of {layout['identity']}, not of {identity}")
    try:
        columns = {n: _column(n, data[begin:], c) for n, c in layout["columns"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise LoadersError(f"the layout of the shared copy is damaged ({error!r})") from error
    return SealedColumns(columns, layout["meta"], status.st_size)


def _seals() -> int:
    import fcntl  # of Unix, and not at load time: this file is loaded everywhere

    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def _is_sealed(fd: int) -> bool:
    import fcntl

    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _seals() == _seals()
    except OSError:  # a file that knows no seals
        return False


def _read_layout(data: UInt8Array) -> tuple[dict[str, Any], int]:
    """Return the layout of an arena, and where its arrays begin."""
    magic, length, digest = _PREAMBLE.unpack(data[: _PREAMBLE.size].tobytes())
    if magic != _MAGIC or length > min(_MAX_LAYOUT_BYTES, len(data) - _PREAMBLE.size):
        raise LoadersError("the shared copy does not begin as one of this release does")
    layout = data[_PREAMBLE.size : _PREAMBLE.size + length].tobytes()
    if xxhash.xxh3_128_digest(layout) != digest:
        raise LoadersError("the layout of the shared copy is damaged: its checksum does not match")
    return json.loads(layout), _whole_pages(_PREAMBLE.size + length)


def _column(name: str, data: UInt8Array, place: Mapping[str, Any]) -> Column:
    arrays = [_array(name, data, *array) for array in place["arrays"]]
    num_rows, row_nbytes = place["rows"], place["row_nbytes"]
    if row_nbytes is not None:
        return FixedColumn(arrays[0].reshape(num_rows, row_nbytes))
    starts, lengths = (array.view(np.int64) for array in arrays[1:])
    if not len(starts) == len(lengths) == num_rows:
        raise LoadersError(f"the layout of the shared copy is damaged: {name!r} has other rows")
    for first in range(0, num_rows, _ROWS_AT_ONCE):  # without two more arrays of that size
        some = slice(first, first + _ROWS_AT_ONCE)
        room = len(arrays[0]) - lengths[some]
        if min(starts[some].min(), lengths[some].min()) < 0 or (starts[some] > room).any():
            raise LoadersError(f"records of {name!r} lie outside the shared copy")
    return VarColumn(arrays[0], starts, lengths)


def _array(name: str, data: UInt8Array, nbytes: int, first: int) -> UInt8Array:
    if not 0 <= first <= first + nbytes <= len(data):
        raise LoadersError(f"column {name!r} lies outside the shared copy")
    return data[first : first + nbytes]
