"""Columns in one anonymous file of memory (a memfd), which child processes, and others of this user, can map.

It has no name in any file system: nothing is left when the last process that maps it has ended. Once filled it is
sealed: from then on neither its size nor a byte of it can change, in any process.

    bytes of the head, 8 | head, JSON | arrays, each on a page of its own

The head says what the columns are (identity), of which fields, and where their arrays lie, behind the head's last page.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import sys
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.data.columns import Column, FixedColumn, VarColumn
from loaders.data.shards import MemoryShard
from loaders.datasets.memory.loading import check_fits, copy_plan, meter
from loaders.errors import LoadersError
from loaders.schema import Field, field_from_json
from loaders.system.hugepages import collapse, lay
from loaders.system.locks import ForkLock

if sys.platform == "linux":
    import fcntl

    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from loaders.datasets.memory.loading import ColumnToLoad, Report

    UInt8Array = npt.NDArray[np.uint8]
    Place = tuple[int, int, int]  # process, descriptor, inode

_NAME = "loaders"
_OWN = "one process and its children"
_copying = ForkLock()  # loaders of one dataset may ask for its copy at one time
_PAGE = 4096


class MemoryFile:
    """A sealed memory file, mapped for reading.

    Args:
        fd: Its descriptor, which is closed when this dies; the columns may live on.

    Attributes:
        identity: What it holds.
        fields: What the records of each column are.
        columns: Over the file.
        place: Where ``open_memory_file`` finds it, as long as this lives.
    """

    def __init__(self, fd: int) -> None:
        weakref.finalize(self, os.close, fd)
        status = os.fstat(fd)
        self.place: Place = os.getpid(), fd, status.st_ino
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise LoadersError("a memory file that is shared must be sealed")
        map_, start = lay(fd, status.st_size, is_writable=False)
        data = np.frombuffer(map_, np.uint8, status.st_size, start)
        size = int(data[:8].view(np.int64)[0])
        head = json.loads(data[8 : 8 + size].tobytes())
        data = data[_whole_pages(8 + size) :]
        self.identity: str = head["identity"]
        self.fields: dict[str, Field] = {n: field_from_json(f) for n, f in head["fields"].items()}
        self.columns: dict[str, Column] = {}
        for name, (num_rows, row_nbytes, places) in head["columns"].items():
            arrays = [data[at : at + nbytes] for at, nbytes in places]
            if row_nbytes is not None:
                self.columns[name] = FixedColumn(arrays[0].reshape(num_rows, row_nbytes))
            else:
                offsets = (each.view(np.int64) for each in arrays[1:])
                self.columns[name] = VarColumn(arrays[0], *offsets)


def is_at(place: Place) -> bool:
    """Whether this process descriptor is still an open memory file with that inode."""
    pid, fd, inode = place
    path = f"/proc/{pid}/fd/{fd}"
    try:
        return os.readlink(path).startswith(f"/memfd:{_NAME} ") and os.stat(path).st_ino == inode
    except OSError:
        return False


def open_memory_file(place: Place) -> MemoryFile | None:
    """Open what another process of this user has; None if it is gone, or in another PID namespace."""
    if not is_at(place):
        return None
    pid, fd, _ = place
    try:
        return MemoryFile(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return None


def fill_memory_file(
    identity: str,
    plans: Mapping[str, ColumnToLoad],
    progress: bool,
    *,
    what: str = "loading into RAM",
) -> MemoryFile:
    """Load columns into a memory file."""
    end, columns = 0, {}
    for name, plan in plans.items():
        places = []
        for nbytes in plan.array_nbytes:
            places.append((end, nbytes))
            end += _whole_pages(nbytes)
        columns[name] = len(plan.lengths), plan.row_nbytes, places
    fields = {name: plan.field.to_json() for name, plan in plans.items()}
    head = json.dumps({"identity": identity, "fields": fields, "columns": columns}).encode()
    head = len(head).to_bytes(8, "little") + head
    first = _whole_pages(len(head))
    fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.pwrite(fd, head, 0)
        os.truncate(fd, first + end)
        with meter(sum(plan.data_nbytes for plan in plans.values()), progress, what) as bar:
            _fill(fd, first, [(plan, columns[name][2]) for name, plan in plans.items()], bar.tick)
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError:  # a cycle keeps a map that can be written to
            gc.collect()
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return MemoryFile(fd)


def _fill(
    fd: int,
    first: int,
    plans: Sequence[tuple[ColumnToLoad, Sequence[tuple[int, int]]]],
    report: Report,
) -> None:
    """Fill columns, in huge pages where there are some."""
    size = os.fstat(fd).st_size
    map_, start = lay(fd, size)
    map_.madvise(mmap.MADV_DONTFORK)  # a child could still write: the file could not be sealed
    data = np.frombuffer(map_, np.uint8, size, start)
    collapse(data)
    for plan, places in plans:
        arrays = [data[first + at : first + at + nbytes] for at, nbytes in places]
        plan.fill(plan.column(arrays), report)


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


@dataclass(frozen=True, slots=True)
class HeldShard(MemoryShard):
    """Columns of this process; ``file`` has them for its child."""

    # The one memory file, once there is one.
    files: list[MemoryFile] = field(default_factory=list, compare=False)

    def file(self) -> MemoryFile:
        """Return the memory file: the one in which the columns lie, else a copy that is made once.

        Raises:
            LoadersError: There is no room for a copy; the message has the figures.
        """
        with _copying.plain:
            if not self.files:
                plans = {name: copy_plan(column) for name, column in self.columns.items()}
                nbytes = sum(plan.nbytes for plan in plans.values())
                check_fits(nbytes, False, " copied for a child process")
                self.files.append(fill_memory_file(_OWN, plans, False))
        return self.files[0]

    def __reduce__(self) -> Any:
        return HeldShard, (self.path, dict(self.columns))


def load_shard(path: Path, plans: Mapping[str, ColumnToLoad], progress: bool) -> MemoryShard:
    """Load columns: into a memory file, where the system has such."""
    if sys.platform != "linux":
        columns = {
            name: plan.column([np.empty(n, np.uint8) for n in plan.array_nbytes])
            for name, plan in plans.items()
        }
        with meter(sum(plan.data_nbytes for plan in plans.values()), progress) as bar:
            for name, plan in plans.items():
                plan.fill(columns[name], bar.tick)
        return MemoryShard(path, columns)
    file = fill_memory_file(_OWN, plans, progress)
    return HeldShard(path, file.columns, [file])
