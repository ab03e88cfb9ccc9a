"""Columns that are held in memory, of one process and its children, or in one copy for a machine.

Of a shared copy, the first process loads the columns, and the others map them:

1. A process that has the copy (``memfile``) has a line in a small file below the cache folder: process, descriptor,
   inode. Another one opens the descriptor of one of them, and adds a line; lines of what is gone are struck.
2. A process that finds none loads the copy. All of this happens under a lock of the file that belongs to one process
   (``lockf``: a fork of it does not have it), so the others wait. If the process that loads dies or fails, the lock is
   released, and the next one loads. One that is stopped is an error after ``SILENCE_S``.
3. A process has the copy as long as a dataset over it lives. No memory outlives its last process, however that ends.
   Processes that do not see each other (PID namespaces) have files, and copies, of their own.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import sys
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import numpy as np
import xxhash

from loaders.data.shards import MemoryShard
from loaders.datasets.memory.loading import (
    check_fits,
    column_over,
    copy_plan,
    load_columns,
    names_to_load,
    plan_columns,
)
from loaders.datasets.memory.memfile import (
    Descriptor,
    MemoryFile,
    fill_memory_file,
    is_at,
    open_memory_file,
)
from loaders.errors import CacheError, LoadersError
from loaders.remote.folder import default_folder, prepare
from loaders.system.limits import usable_cores
from loaders.system.locks import ForkLock
from loaders.version import __version__

if sys.platform == "linux":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from loaders.datasets.memory.loading import ColumnToLoad
    from loaders.datasets.packed import PackedDataset
    from loaders.remote.url import Location
    from loaders.schema import Field

    Plan = Callable[[], Mapping[str, ColumnToLoad]]

logger = logging.getLogger(__name__)
SILENCE_S = 60.0
_LOOK_S = 0.02
_FLOCK = "hhqqi"  # C's struct flock
_INTO_RAM = "loading into RAM"
_copying = ForkLock()  # loaders of one dataset may ask for its copy at one time
_loading = ForkLock()  # so may threads for a shared one, and the lock of a file is their process's


@dataclass(frozen=True, slots=True, eq=False)
class HeldShard(MemoryShard):
    """Columns of this process, and the memory file that they lie in, or that has a copy of them for its child."""

    files: list[MemoryFile] = field(default_factory=list, compare=False)  # none, or one
    shared_as: str = ""  # of a copy for all processes: what they find it by

    def file(self) -> MemoryFile:
        """Return the memory file, a copy that is made once where the columns lie in none; LoadersError without room."""
        with _copying.plain:
            if not self.files:
                plans = {name: copy_plan(column) for name, column in self.columns.items()}
                check_fits(plans, False, " copied for a child process")
                self.files.append(fill_memory_file("", plans, False, _INTO_RAM))
        return self.files[0]

    def __reduce__(self) -> Any:
        if self.shared_as:
            return _attach, (self.path, self.shared_as)
        return HeldShard, (self.path, dict(self.columns))


def _attach(path: Location, identity: str) -> HeldShard:
    def plan() -> NoReturn:
        what = f"no process of this PID namespace has the shared copy {identity} any more"
        raise LoadersError(f"{what}: make the dataset anew, from its path")

    file = _find_or_load(identity, plan, progress=False)
    return HeldShard(path, file.columns, [file], identity)


def load_shard(path: Location, plans: Mapping[str, ColumnToLoad], progress: bool) -> MemoryShard:
    """Load columns: into a memory file, where the system has such."""
    if sys.platform == "linux":
        file = fill_memory_file("", plans, progress, _INTO_RAM)
        return HeldShard(path, file.columns, [file])
    columns = {
        name: column_over(
            [np.empty(n, np.uint8) for n in plan.array_nbytes], plan.field, len(plan.lengths)
        )
        for name, plan in plans.items()
    }
    load_columns(plans, columns, progress, _INTO_RAM)
    return MemoryShard(path, columns)


def load_samples(
    dataset: PackedDataset[Any], path: Location, *, decode: bool, progress: bool, shared: bool
) -> tuple[MemoryShard, dict[str, Field]]:
    """Load the fields of a dataset's samples, ``shared`` for all processes of this user, unless one of them has.

    Return the columns, and what their records are. ``path`` is for messages.
    """
    if not shared:
        plans = plan_columns(dataset, decode=decode, progress=progress)
        check_fits(plans, progress)
        fields = {name: plan.field for name, plan in plans.items()}
        return load_shard(path, plans, progress), fields
    if sys.platform != "linux":
        remedy = "leave it out, and each process has its own copy, or use ShardDataset"
        raise LoadersError(f"shared=True needs Linux (memfd): {remedy}")

    def plan() -> dict[str, ColumnToLoad]:
        cores = usable_cores()  # also those of other ranks, which wait for this one
        plans = plan_columns(dataset, decode=decode, progress=progress, num_threads=cores)
        check_fits(plans, progress, " in one copy for this machine")
        return plans

    file = _find_or_load(_identity(dataset, decode), plan, progress)
    return HeldShard(path, file.columns, [file], file.identity), file.fields


def _identity(dataset: PackedDataset[Any], decode: bool) -> str:
    """Hash what decides the bytes."""
    fields = {name: dataset.schema.fields[name].to_json() for name in names_to_load(dataset)}
    parts = {"release": __version__, "dataset": dataset.fingerprint, "fields": fields}
    return xxhash.xxh3_128_hexdigest(
        json.dumps(parts | {"decode": decode, "scale": dataset.scale}).encode()
    )


_held: weakref.WeakValueDictionary[str, MemoryFile] = weakref.WeakValueDictionary()


def _find_or_load(identity: str, plan: Plan, progress: bool) -> MemoryFile:
    """Return the copy that this process or another one has; else load what ``plan`` says."""
    if (known := _held.get(identity)) is not None:
        return known  # without waiting for a thread that loads another one
    with _loading.plain:
        if (known := _held.get(identity)) is not None:
            return known
        with _listing(identity) as listing:
            _lock(listing)
            places = _places(listing.read())
            files = (file for place in places if (file := open_memory_file(place)) is not None)
            found = next((file for file in files if file.identity == identity), None)
            if found is None:
                found = fill_memory_file(identity, plan(), progress, "loading one copy for all")
            others = [place for place in places if is_at(place) and place != found.place]
            listing.seek(0)
            listing.writelines(
                f"{each.pid} {each.fd} {each.inode}\n" for each in [*others, found.place]
            )
            listing.truncate()  # a kill before it leaves the end of the text of before
        _held[identity] = found
        return found


def _listing(identity: str) -> TextIO:
    """Open the file that lists the processes that have a copy."""
    folder = prepare(default_folder()) / "ram"
    # Elsewhere the same numbers are other processes.
    path = folder / f"{identity}-{os.stat('/proc/self/ns/pid').st_ino}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        path.touch(0o600)
        return open(path, "r+", errors="replace")
    except OSError as error:
        raise CacheError(f"cannot be written ({error.strerror})", path) from error


def _lock(listing: TextIO) -> None:
    """Wait until no other process has the lock, which ends when the file is closed; CacheError if that is stopped."""
    known, since = 0, time.monotonic()
    while True:
        try:
            fcntl.lockf(listing, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder, now = _holder(listing), time.monotonic()
        except OSError as error:
            remedy = "Set LOADERS_CACHE to a folder on a local disk"
            what = f"cannot be locked ({error.strerror})"
            raise CacheError(what, listing.name, remedy) from error
        if not known:
            logger.info("process %s loads the copy that this one will share", holder)
        if holder != known or not _is_stopped(holder):
            known, since = holder, now
        elif now - since > SILENCE_S:
            what = f"process {holder}, which loads the copy, is stopped"
            raise CacheError(what, listing.name, "Let it go on, or end it")
        time.sleep(_LOOK_S)


def _holder(listing: TextIO) -> int:
    """Return the process that has the lock; 0 if none has it any more."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    pid: int = struct.unpack(_FLOCK, fcntl.fcntl(listing, fcntl.F_GETLK, asked))[4]
    return pid


def _is_stopped(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "Tt"


def _places(text: str) -> list[Descriptor]:
    lines = [line.split() for line in text.splitlines()]
    whole = [words for words in lines if len(words) == 3 and all(map(str.isdecimal, words))]
    return [Descriptor._make(map(int, words)) for words in whole]
