"""Columns in a sealed memory file, which a child process maps instead of copying them."""

from __future__ import annotations

import os
import sys
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.columns import Column, FixedColumn, VarColumn
from loaders.data.shards import MemoryShard
from loaders.datasets.memory.arena import Arena, open_sealed
from loaders.datasets.memory.loading import check_fits, meter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from loaders.datasets.memory.loading import ColumnPlan, Report

    UInt8Array = npt.NDArray[np.uint8]

_IDENTITY = "one process and its children"
_PIECE_ROWS = 1 << 16


class SealedFile:
    """A memory file with columns; its descriptor is open for as long as this lives."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        weakref.finalize(self, os.close, fd)
        self.columns: Mapping[str, Column] = open_sealed(fd, _IDENTITY).columns


@dataclass(frozen=True, slots=True)
class HeldShard(MemoryShard):
    """Columns of this process; ``file`` has them for its child.

    Attributes:
        files: None until somebody asked for it, or one.
    """

    files: list[SealedFile] = field(default_factory=list, compare=False)

    def file(self) -> SealedFile:
        """Return the memory file: the one in which the columns lie, else a copy that is made once.

        Raises:
            LoadersError: There is no room for a copy; the message has the figures.
        """
        if not self.files:
            plans = {name: CopyPlan(column) for name, column in self.columns.items()}
            nbytes = sum(sum(plan.array_nbytes) for plan in plans.values())
            check_fits(nbytes, False, " copied for a child process")
            self.files.append(_filled(plans, progress=False))
        return self.files[0]

    def __reduce__(self) -> Any:
        return HeldShard, (self.path, dict(self.columns))


def load_shard(
    path: Path, plans: Mapping[str, ColumnPlan | CopyPlan], progress: bool
) -> MemoryShard:
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
    file = _filled(plans, progress)
    return HeldShard(path, file.columns, [file])


def _filled(plans: Mapping[str, ColumnPlan | CopyPlan], progress: bool) -> SealedFile:
    arena = Arena(_IDENTITY, plans, None)
    try:
        with meter(sum(plan.data_nbytes for plan in plans.values()), progress) as bar:

            def report(nbytes: int) -> None:
                arena.filled(nbytes)
                bar.tick(nbytes)

            for name, plan in plans.items():
                plan.fill(arena.columns[name], report)
        fd = arena.seal()
    except BaseException:
        arena.discard()
        raise
    return SealedFile(fd)


class CopyPlan:
    """Fills a column of an arena with another one; what ``ColumnPlan`` is for records that are to be read."""

    def __init__(self, column: Column) -> None:
        self._column = column
        self.lengths = column.lengths
        self.data_nbytes = column.nbytes
        self.row_nbytes = column.data.shape[1] if isinstance(column, FixedColumn) else None
        is_fixed = self.row_nbytes is not None
        places = () if is_fixed else (self.lengths.nbytes, self.lengths.nbytes)
        self.array_nbytes: tuple[int, ...] = (self.data_nbytes, *places)

    def column(self, arrays: Sequence[UInt8Array]) -> Column:
        """Lay the column out over arrays of these sizes."""
        if self.row_nbytes is not None:
            return FixedColumn(arrays[0].reshape(len(self.lengths), self.row_nbytes))
        starts, lengths = (array.view(np.int64) for array in arrays[1:])
        lengths[:] = self.lengths
        starts[:] = np.cumsum(self.lengths) - self.lengths
        return VarColumn(arrays[0], starts, lengths)

    def fill(self, out: Column, report: Report) -> None:
        """Copy the records."""
        for first in range(0, len(out), _PIECE_ROWS):
            rows = slice(first, first + _PIECE_ROWS)
            if isinstance(out, FixedColumn) and isinstance(self._column, FixedColumn):
                out.data[rows] = self._column.data[rows]
            else:
                for i in range(len(out))[rows]:
                    out.row(i)[:] = self._column.row(i)
            report(int(out.lengths[rows].sum()))
