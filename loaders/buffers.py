"""Batch slots: buffers that go back to their pool when the last tensor on them dies.

A fresh 20 MB buffer costs more in page faults than the copy that fills it, so buffers are used
again; and a user may keep a batch for any time, so they are used again only when no tensor
shares them any more.

1. ``take`` hands out a *lease*: an ndarray view of a buffer. ``torch.from_numpy(lease)`` keeps the
   lease alive for as long as any tensor shares its storage. Slice and reshape the tensor, never the
   lease: a view of an ndarray refers to the buffer below it, and the lease would end early.
2. When the lease dies, a note of it is appended to a deque, and nothing else happens: it may do so
   in any thread, at any moment, also while that thread is inside ``take`` (see ``Leases``).
3. The pool grows when nothing is free, so it holds as many buffers as were ever out at once.
4. Any thread may take.
5. Page-locked buffers are torch's, seen as ndarrays. A copy from one in the background
   keeps the tensor over the lease until the copy is done (``loaders.device.prefetch``).
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from loaders.system.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Allocate = Callable[[int], npt.NDArray[np.uint8]]
KeptT = TypeVar("KeptT")
SMALL_BYTES = 32 << 10  # smaller buffers are not worth a lease
_GROWTH = 1.25
_LINE_BYTES = 64  # of the cache


def aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Allocate bytes from the start of a cache line: malloc's begin 16 bytes behind one, and vector stores cross it."""
    block = np.empty(nbytes + _LINE_BYTES, np.uint8)
    start = -block.ctypes.data % _LINE_BYTES
    return block[start : start + nbytes]


def shown_as_writable(array: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """View an array as if it were writable: torch warns of memory that is not, such as a shared copy, or bytes."""
    place = array.__array_interface__ | {"data": (array.ctypes.data, False)}
    return np.asarray(SimpleNamespace(__array_interface__=place, kept=array))


class Leases(Generic[KeptT]):
    """Tells which leases have died, when asked; no Python code runs when one dies.

    It would run in the trainer's thread, once a batch, and a Ctrl-C inside it would be printed and forgotten.
    """

    def __init__(self) -> None:
        # By ``id``: a weak reference hashes as its array does, and arrays have no hash.
        self._kept: dict[int, tuple[weakref.ref[Any], KeptT]] = {}
        self._ended: deque[weakref.ref[Any]] = deque()

    def watch(self, lease: Any, kept: KeptT) -> None:
        """Have ``pop`` return ``kept`` once, after the lease has died."""
        watched = weakref.ref(lease, self._ended.append)
        self._kept[id(watched)] = watched, kept

    def pop(self) -> KeptT | None:
        """Return what was kept for the lease that died last, None if there is none; one thread at a time."""
        if not self._ended:
            return None
        return self._kept.pop(id(self._ended.pop()))[1]

    def __len__(self) -> int:
        return len(self._kept) - len(self._ended)

    def alive(self) -> list[KeptT]:
        """Return what is kept for the leases that have not died."""
        return [kept for lease, kept in tuple(self._kept.values()) if lease() is not None]


class SlotPool:
    """Reusable buffers of at least one size.

    Attributes:
        slot_bytes: Size of the next buffer; a larger request raises it.
        num_slots: Buffers there are, free or leased.
        nbytes: Their bytes together.
    """

    def __init__(
        self,
        allocate: Allocate | None = None,  # returns a new buffer: 1-D uint8, of any memory
    ) -> None:
        self._allocate = allocate or aligned
        self.slot_bytes = self.num_slots = self.nbytes = 0
        self._lock = ForkLock()  # to page-lock a buffer takes long, and a fork may come meanwhile
        self._leases: Leases[npt.NDArray[np.uint8]] = Leases()

    @property
    def num_leased(self) -> int:
        """Buffers whose lease lives."""
        return len(self._leases)

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Lease ``nbytes`` bytes of undefined content. They return when the last tensor over the lease dies."""
        with self._lock.plain:
            buffer = self._reuse(nbytes)
        lease = buffer[:nbytes]
        self._leases.watch(lease, buffer)
        return lease

    def _reuse(self, nbytes: int) -> npt.NDArray[np.uint8]:
        # The one used last: its lines may still be in the cache.
        while (buffer := self._leases.pop()) is not None:
            if len(buffer) >= nbytes:
                return buffer
            self.num_slots -= 1  # too small since a larger request came: let it go
            self.nbytes -= len(buffer)
        # With some room: sizes that grow a little would not use any buffer again.
        if nbytes > self.slot_bytes:
            self.slot_bytes = max(nbytes, int(self.slot_bytes * _GROWTH))
        buffer = self._allocate(self.slot_bytes)
        self.num_slots += 1
        self.nbytes += len(buffer)
        return buffer


class Memory:
    """Where batches come from: here, every buffer is new; ``Slots`` uses them again."""

    def take(self, name: str, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return ``nbytes`` bytes of undefined content."""
        return fresh(nbytes)


class Slots(Memory):
    """One pool per name: what a loader keeps between batches."""

    def __init__(self, allocate: Allocate | None = None) -> None:
        self._allocate = allocate
        self._pools: dict[str, SlotPool] = {}

    def take(self, name: str, nbytes: int) -> npt.NDArray[np.uint8]:
        """Lease a buffer from the pool of this name; a small one is new: a lease would cost more."""
        if nbytes < SMALL_BYTES:
            return fresh(nbytes)
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools.setdefault(name, SlotPool(self._allocate))
        return pool.take(nbytes)

    @property
    def num_leased(self) -> int:
        """Leases of the pool that has the most of them."""
        return max((pool.num_leased for pool in list(self._pools.values())), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers in the pools, free or leased."""
        return sum(pool.nbytes for pool in list(self._pools.values()))


def fresh(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return new bytes of undefined content; none of them, too, have a stride that torch can view by."""
    return np.empty(max(nbytes, 1), np.uint8)[:nbytes]


_local = threading.local()


def scratch(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return memory of this thread, of undefined content, until it asks again: new pages would cost faults."""
    buffer: npt.NDArray[np.uint8] | None = getattr(_local, "scratch", None)
    if buffer is None or len(buffer) < nbytes:
        buffer = _local.scratch = np.empty(max(nbytes, 1 << 20), np.uint8)
    return buffer[:nbytes]
