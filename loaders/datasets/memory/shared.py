"""One copy per machine: the first process loads columns, the others attach to them.

1. Whoever can bind the copy's name (``keeper``) loads it into an arena (``arena``), seals that, and
   shares it from then on.
2. Whoever cannot connects, shows the progress of the other, and waits. An end of the connection
   before the copy came is an error, as is a silence of ``SILENCE_S``; a failure to load is
   reported to all who wait. What is received is checked before it is used.
3. An attached process shares the copy on when the one that it came from is gone.
4. A process holds it for as long as a dataset over it lives. Nothing is left by a process, however
   it ends: memory and name have no place in any file system.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.data.shards import MemoryShard
from loaders.datasets.memory.arena import SealedColumns, filled, open_sealed
from loaders.datasets.memory.keeper import Keeper, MeetingPlace, Peer, receive
from loaders.datasets.memory.loading import check_fits, meter, names_to_load, plan_columns
from loaders.errors import LoadersError
from loaders.schema import Field, field_from_json
from loaders.system.limits import usable_cores
from loaders.version import __version__

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from loaders.datasets.memory.loading import ColumnToLoad
    from loaders.datasets.packed import PackedDataset

    Plan = Callable[[], Mapping[str, ColumnToLoad]]

logger = logging.getLogger(__name__)
SILENCE_S = 60.0  # a loading process tells of itself twice a second
ATTACH_S = 5.0  # that a copy may be without a process that offers it, when one has ended
_RETRY_S = 0.01


def share_columns(
    dataset: PackedDataset[Any], origin: Path, decode: bool, progress: bool, all_users: bool
) -> tuple[MemoryShard, dict[str, Field]]:
    """Load the fields of a dataset for all processes of this machine, or attach to what one loaded.

    Return the columns, and what their records are. ``origin`` is for messages.
    """
    _check_platform()

    def plan() -> dict[str, ColumnToLoad]:
        cores = usable_cores()  # also those of other ranks, which wait for this one
        plans = plan_columns(dataset, decode=decode, progress=progress, num_threads=cores)
        nbytes = sum(plan.nbytes for plan in plans.values())
        check_fits(nbytes, progress, f" in one copy for this machine's {_processes()}")
        return plans

    shared = load(MeetingPlace(_identity(dataset, decode), all_users), plan, progress)
    fields = {name: field_from_json(field) for name, field in shared.sealed.meta.items()}
    return SharedShard(origin, shared.sealed.columns, shared), fields


def _identity(dataset: PackedDataset[Any], decode: bool) -> str:
    """Hash what decides the bytes."""
    fields = {name: dataset.schema.fields[name].to_json() for name in names_to_load(dataset)}
    said = {"release": __version__, "dataset": dataset.fingerprint, "fields": fields}
    return xxhash.xxh3_128_hexdigest(
        json.dumps(said | {"decode": decode, "scale": dataset.scale}).encode()
    )


def _processes() -> str:
    ranks = os.environ.get("LOCAL_WORLD_SIZE")
    return "processes" if ranks is None else f"{ranks} ranks and their workers"


def _check_platform() -> None:
    if not (sys.platform == "linux" and hasattr(os, "memfd_create")):
        raise LoadersError(
            "shared=True needs Linux (memfd and abstract sockets): leave it out, "
            "and each process has its own copy, or use ShardDataset, which shares the page cache"
        )


@dataclass(frozen=True, slots=True)
class SharedShard(MemoryShard):
    """Columns that processes share; pickling sends where to find them."""

    shared: SharedColumns

    def __reduce__(self) -> Any:
        return _attach_shard, (self.path, self.shared.name)


def _attach_shard(path: Path, name: MeetingPlace) -> SharedShard:
    shared = attach(name)
    return SharedShard(path, shared.sealed.columns, shared)


class SharedColumns:
    """This process's hold on a shared copy, which others find by its name; it lets go when it is collected."""

    def __init__(self, name: MeetingPlace, sealed: SealedColumns, keeper: Keeper) -> None:
        self.name, self.sealed = name, sealed
        weakref.finalize(self, keeper.close)


_held: weakref.WeakValueDictionary[MeetingPlace, SharedColumns] = weakref.WeakValueDictionary()


def load(name: MeetingPlace, plan: Plan, progress: bool) -> SharedColumns:
    """Load what ``plan`` says, unless another process has it or is at it.

    Raises:
        LoadersError: Whoever is at it fails, dies, falls silent, or is not to be trusted.
    """
    shared, patience = _held.get(name), time.monotonic() + SILENCE_S
    while shared is None:
        listener = name.bind()
        shared = (
            _find(name, patience, progress)
            if listener is None
            else _fill(name, listener, plan, progress)
        )
    return _held.setdefault(name, shared)


def attach(name: MeetingPlace) -> SharedColumns:
    """Attach to a copy that some process of this machine has; LoadersError if none has."""
    shared, patience = _held.get(name), time.monotonic() + ATTACH_S
    while shared is None:
        shared = _find(name, patience, progress=False)
    return _held.setdefault(name, shared)


def _fill(
    name: MeetingPlace, listener: socket.socket, plan: Plan, progress: bool
) -> SharedColumns:
    """Load the copy, and share it from then on."""
    keeper = Keeper(name, listener=listener)
    try:
        plans = plan()
        meta = {name: plan.field.to_json() for name, plan in plans.items()}
        what = "loading one copy for all"
        fd = filled(name.identity, plans, progress, meta=meta, what=what, told=keeper.report)
        shared = SharedColumns(name, _open(name, fd), keeper)
    except BaseException as error:  # whatever it is: others must not wait any longer
        keeper.fail(f"{type(error).__name__}: {error}")
        raise
    keeper.ready(fd)
    return shared


def _open(name: MeetingPlace, fd: int) -> SealedColumns:
    """Open a copy; its descriptor is closed if that fails."""
    try:
        return open_sealed(fd, name.identity)
    except BaseException:
        os.close(fd)
        raise


def _find(name: MeetingPlace, patience: float, progress: bool) -> SharedColumns | None:
    """Get the copy from the process that has the name; None if it went before it said anything."""
    connection = name.connect()
    if connection is None:
        _pause(
            patience,
            f"no process of this machine offers the shared copy {name.identity}: "
            "those that had it have ended, or it was pickled on another machine. "
            "Make the dataset anew, from its path",
        )
        return None
    try:
        fd = _receive_copy(name, connection, progress)
        if fd is None:
            _pause(
                patience,
                f"process {Peer.of(connection).pid}, which has the name of the shared copy "
                f"{name.identity}, keeps closing the connection without an answer: end that process",
            )
            connection.close()
            return None
        sealed = _open(name, fd)
    except BaseException:
        connection.close()
        raise
    return SharedColumns(name, sealed, Keeper(name, connection=connection, fd=fd))


def _pause(patience: float, fault: str) -> None:
    """Wait a little before the next try; LoadersError if it was tried for long enough."""
    if time.monotonic() > patience:
        raise LoadersError(fault)
    time.sleep(_RETRY_S)


def _receive_copy(name: MeetingPlace, connection: socket.socket, progress: bool) -> int | None:
    """Wait for the copy, for as long as its process is heard of."""
    peer = Peer.of(connection)
    who, heard = f"process {peer.pid}, which was to load the shared copy,", False
    if not name.admits(peer):
        raise LoadersError(
            f"the shared copy is offered by process {peer.pid} of user {peer.uid}, which is neither "
            "root nor this user: shared='all_users' would trust it"
        )
    connection.settimeout(SILENCE_S)
    with meter(0, progress, f"process {peer.pid} loads one copy for all") as bar:
        while True:
            try:
                message, fd = receive(connection)
            except TimeoutError:
                raise LoadersError(f"{who} sent nothing for {SILENCE_S:.0f} s") from None
            if message is None and heard:
                raise LoadersError(
                    f"{who} died while loading it: start all processes that share it again"
                )
            if message is None:
                return None
            if message["state"] == "failed":
                raise LoadersError(f"{who} failed: {message['why']}")
            if fd is not None:
                connection.settimeout(None)
                return fd
            if message["state"] == "ready":
                raise LoadersError(
                    f"{who} said that it is ready, but sent no copy: end that process"
                )
            if not heard:
                logger.info("process %d loads the copy that this one will share", peer.pid)
            heard = True
            bar.show(message["done"], message["total"])
