"""One copy per machine: the first process loads columns, the others map them.

1. Who has the copy (``memfile``) has a line in a small file below the cache folder: process, descriptor, inode. Who
   comes opens the descriptor of one of them, and adds a line; lines of what is gone are struck.
2. Who finds none loads the copy. All of this happens under the file's lock, so the others wait. If the process that
   loads dies or fails, the lock is released, and the next one loads. A process that does not run, and has the lock, is
   an error after ``SILENCE_S``.
3. A process has the copy as long as a dataset over it lives. No memory outlives its last process, however that ends.
   Processes that do not see each other (PID namespaces) have files, and copies, of their own.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import xxhash

from loaders.data.shards import MemoryShard
from loaders.datasets.memory.loading import check_fits, names_to_load, plan_columns
from loaders.datasets.memory.memfile import (
    MemoryFile,
    fill_memory_file,
    is_at,
    open_memory_file,
)
from loaders.errors import CacheError, LoadersError
from loaders.remote.folder import default_folder, prepare
from loaders.system.limits import usable_cores
from loaders.version import __version__

if sys.platform == "linux":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from loaders.datasets.memory.loading import ColumnToLoad
    from loaders.datasets.memory.memfile import Place
    from loaders.datasets.packed import PackedDataset
    from loaders.schema import Field

    Plan = Callable[[], Mapping[str, ColumnToLoad]]

logger = logging.getLogger(__name__)
SILENCE_S = 60.0
_LOOK_S = 0.02
_LOADING = "loading"


@dataclass(frozen=True, slots=True)
class SharedShard(MemoryShard):
    """Columns that processes share; a pickle says where to find them."""

    file: MemoryFile

    def __reduce__(self) -> Any:
        return _attach, (self.path, self.file.identity)


def _attach(path: Path, identity: str) -> SharedShard:
    file = _find_or_load(identity, None, progress=False)
    return SharedShard(path, file.columns, file)


def share_columns(
    dataset: PackedDataset[Any], origin: Path, decode: bool, progress: bool
) -> tuple[MemoryShard, dict[str, Field]]:
    """Load the fields of a dataset for all processes of this user, or map what one of them has loaded.

    Return the columns, and what their records are. ``origin`` is for messages.
    """
    if sys.platform != "linux":
        raise LoadersError(
            "shared=True needs Linux (memfd): leave it out, and each process has its own copy, "
            "or use ShardDataset, which shares the page cache"
        )

    def plan() -> dict[str, ColumnToLoad]:
        cores = usable_cores()  # also those of other ranks, which wait for this one
        plans = plan_columns(dataset, decode=decode, progress=progress, num_threads=cores)
        nbytes = sum(plan.nbytes for plan in plans.values())
        check_fits(nbytes, progress, " in one copy for this machine")
        return plans

    file = _find_or_load(_identity(dataset, decode), plan, progress)
    return SharedShard(origin, file.columns, file), file.fields


def _identity(dataset: PackedDataset[Any], decode: bool) -> str:
    """Hash what decides the bytes."""
    fields = {name: dataset.schema.fields[name].to_json() for name in names_to_load(dataset)}
    parts = {"release": __version__, "dataset": dataset.fingerprint, "fields": fields}
    return xxhash.xxh3_128_hexdigest(
        json.dumps(parts | {"decode": decode, "scale": dataset.scale}).encode()
    )


_held: weakref.WeakValueDictionary[str, MemoryFile] = weakref.WeakValueDictionary()


def _find_or_load(identity: str, plan: Plan | None, progress: bool) -> MemoryFile:
    """Return the copy that this process or another one has; else load what ``plan`` says."""
    file = _held.get(identity)
    if file is not None:
        return file
    with Holders(identity) as holders:
        file = holders.find()
        if file is None and plan is None:
            what = f"no process of this PID namespace has the shared copy {identity} any more"
            raise LoadersError(f"{what}: make the dataset anew, from its path")
        if file is None:
            assert plan is not None
            holders.write(f"{_LOADING} {os.getpid()}")
            file = fill_memory_file(identity, plan(), progress, what="loading one copy for all")
        holders.add(file)
    return _held.setdefault(identity, file)


class Holders:
    """The file that lists the processes that have a copy, open and locked inside ``with``."""

    def __init__(self, identity: str) -> None:
        folder = prepare(default_folder()) / "ram"
        # Elsewhere the same numbers are other processes.
        self._path = folder / f"{identity}-{os.stat('/proc/self/ns/pid').st_ino}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CacheError(f"cannot be written ({error.strerror})", self._path) from error
        self._identity = identity

    def __enter__(self) -> Self:
        try:
            self._lock()
        except BaseException:
            os.close(self._fd)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # a process that was forked meanwhile has it, too
        os.close(self._fd)

    def _lock(self) -> None:
        """Wait until no other process has the lock, as long as the one that loads runs."""
        known, since = "", time.monotonic()
        while not self._try_lock():
            kind, _, pid = self._read().partition(" ")
            if kind == _LOADING and _runs(pid):
                since = time.monotonic()
                if not known:
                    logger.info("process %s loads the copy that this one will share", pid)
                known = pid
            elif time.monotonic() - since > SILENCE_S:
                what = f"a process that does not run has it locked ({known or 'unknown'})"
                remedy = "End this process, and those that it forked"
                raise CacheError(what, self._path, remedy)
            time.sleep(_LOOK_S)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            remedy = "Set LOADERS_CACHE to a folder on a local disk"
            raise CacheError(f"cannot be locked ({error.strerror})", self._path, remedy) from error
        return True

    def _read(self) -> str:
        return os.pread(self._fd, os.fstat(self._fd).st_size, 0).decode(errors="replace")

    def write(self, text: str) -> None:
        """Replace the text; who is killed between the two calls leaves the end of the text of before."""
        data = text.encode(errors="replace")
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))

    def find(self) -> MemoryFile | None:
        """Return the copy of a process that has it still."""
        for place in self._places():
            file = open_memory_file(place)
            if file is not None and file.identity == self._identity:
                return file
        return None

    def add(self, file: MemoryFile) -> None:
        """Add a line for this process."""
        places = [place for place in self._places() if is_at(place) and place != file.place]
        self.write("".join(f"{pid} {fd} {inode}\n" for pid, fd, inode in [*places, file.place]))

    def _places(self) -> list[Place]:
        lines = [line.split() for line in self._read().splitlines()]
        whole = [words for words in lines if len(words) == 3 and all(map(str.isdecimal, words))]
        return [(int(pid), int(fd), int(inode)) for pid, fd, inode in whole]


def _runs(pid: str) -> bool:
    """Tell whether a process is there, and not stopped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "TtZX"
