"""Columns of one process, in a memory file that its child process maps instead of copying them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.data.shards import MemoryShard
from loaders.datasets.memory.loading import check_fits, copy_plan, meter
from loaders.datasets.memory.memfile import MemoryFile, fill_memory_file
from loaders.system.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from loaders.datasets.memory.loading import ColumnToLoad

_IDENTITY = "one process and its children"
_copying = ForkLock()  # loaders of one dataset may ask for its copy at one time


@dataclass(frozen=True, slots=True)
class HeldShard(MemoryShard):
    """Columns of this process; ``file`` has them for its child."""

    # None until somebody asked for it, or one.
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
                self.files.append(fill_memory_file(_IDENTITY, plans, False))
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
    file = fill_memory_file(_IDENTITY, plans, progress)
    return HeldShard(path, file.columns, [file])
