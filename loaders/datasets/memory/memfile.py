"""Columns in one anonymous file of memory (a memfd), which child processes, and others of this user, can map.

It has no name in any file system: nothing is left when the last process that maps it has ended. Once filled it is
sealed: from then on neither its size nor a byte of it can change, in any process.

    bytes of the head, 8 | head, JSON | arrays, each on a page of its own

The head says what the columns are (identity), and of each its field, its rows and the bytes of its records.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import sys
import weakref
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.datasets.memory.loading import array_sizes, column_over, load_columns, meter
from loaders.errors import LoadersError
from loaders.schema import Field, field_from_json
from loaders.system.hugepages import collapse, lay

if sys.platform == "linux":
    import fcntl

    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loaders.data.columns import Column
    from loaders.datasets.memory.loading import ColumnToLoad

    UInt8Array = npt.NDArray[np.uint8]

_NAME = "loaders"
_PAGE = 4096
_PIECE_BYTES = 64 << 20  # of huge pages, between two steps of the progress bar


class Descriptor(NamedTuple):
    """Where a process has a memory file."""

    pid: int
    fd: int
    inode: int  # of the file, which tells it from a later one at this descriptor


class MemoryFile:
    """A sealed memory file, mapped for reading: its descriptor is closed when this dies; the columns may live on."""

    identity: str  # what it holds
    fields: dict[str, Field]  # what the records of each column are
    columns: dict[str, Column]  # over the file
    place: Descriptor  # where ``open_memory_file`` finds it, as long as this lives

    def __init__(self, fd: int) -> None:
        weakref.finalize(self, os.close, fd)
        status = os.fstat(fd)
        self.place = Descriptor(os.getpid(), fd, status.st_ino)
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise LoadersError("a memory file that is shared must be sealed")
        map_, start = lay(fd, status.st_size, is_writable=False)
        data = np.frombuffer(map_, np.uint8, status.st_size, start)
        self.identity, self.fields, self.columns = _contents(data)


def _contents(data: UInt8Array) -> tuple[str, dict[str, Field], dict[str, Column]]:
    """Return what the head of a file says, and the columns over the file."""
    end = 8 + int(data[:8].view(np.int64)[0])
    head = json.loads(data[8:end].tobytes())
    fields: dict[str, Field] = {}
    columns: dict[str, Column] = {}
    for name, (field, num_rows, nbytes) in head["columns"].items():
        fields[name], arrays = field_from_json(field), []
        for size in array_sizes(fields[name], num_rows, nbytes):
            start = _whole_pages(end)
            end = start + size
            arrays.append(data[start:end])
        columns[name] = column_over(arrays, fields[name], num_rows)
    return head["identity"], fields, columns


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


def _path_of(place: Descriptor) -> str:
    return f"/proc/{place.pid}/fd/{place.fd}"


def is_at(place: Descriptor) -> bool:
    """Whether this process descriptor is still an open memory file with that inode."""
    path = _path_of(place)
    try:
        is_ours = os.readlink(path).startswith(f"/memfd:{_NAME} ")
        return is_ours and os.stat(path).st_ino == place.inode
    except OSError:
        return False


def open_memory_file(place: Descriptor) -> MemoryFile | None:
    """Open what another process of this user has; None if it is gone, or in another PID namespace."""
    if not is_at(place):
        return None
    try:
        return MemoryFile(os.open(_path_of(place), os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return None


def fill_memory_file(
    identity: str, plans: Mapping[str, ColumnToLoad], progress: bool, what: str
) -> MemoryFile:
    """Load columns into a memory file."""
    columns = {
        name: (plan.field.to_json(), len(plan.lengths), plan.data_nbytes)
        for name, plan in plans.items()
    }
    head = json.dumps({"identity": identity, "columns": columns}).encode()
    sizes = [8 + len(head), *(nbytes for plan in plans.values() for nbytes in plan.array_nbytes)]
    fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.truncate(fd, sum(map(_whole_pages, sizes)))
        os.pwrite(fd, len(head).to_bytes(8, "little") + head, 0)
        _fill(fd, plans, progress, what)
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError:  # a cycle keeps a map that can be written to
            gc.collect()
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return MemoryFile(fd)


def _fill(fd: int, plans: Mapping[str, ColumnToLoad], progress: bool, what: str) -> None:
    """Fill columns, in huge pages where there are some: taken in pieces, or nothing is heard of it for minutes."""
    size = os.fstat(fd).st_size
    map_, start = lay(fd, size)
    map_.madvise(mmap.MADV_DONTFORK)  # a child could still write: the file could not be sealed
    data = np.frombuffer(map_, np.uint8, size, start)
    with meter(size, progress, "taking memory") as bar:
        for first in range(0, size, _PIECE_BYTES):
            collapse(data[first : first + _PIECE_BYTES])
            bar.tick(min(_PIECE_BYTES, size - first))
    load_columns(plans, _contents(data)[2], progress, what)
