"""Slots that the trainer and its child have mapped, and batches on their way, whose bytes lie in them.

1. The trainer makes one memory file, as large as the machine's memory and empty: pages exist once they are written.
   Both map it; a place in it is a number.
2. The child takes slots from ``SharedSlots``. Their ``dump`` turns what holds tensors into a pickle: a tensor in a slot
   becomes its place there; any other is copied to one first, or travels in the pickle if it is small. The storages of a
   message are held until the trainer says that their places are free.
3. ``MappedSlots.load`` turns the pickle into tensors over the trainer's map. Places whose last tensor has died are
   listed in the next message to the child (``free``).
4. A process that the trainer forks has the batches that the trainer has at that moment, and may read them for longer:
   their places are never free.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from loaders.buffers import Leases, Slots
from loaders.system.hugepages import HUGE, collapse, lay
from loaders.system.registry import WeakRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

UInt8Array = npt.NDArray[np.uint8]


def make_file() -> int:
    """Return the descriptor of a memory file for slots."""
    fd = os.memfd_create("loaders-slots", os.MFD_CLOEXEC)
    os.ftruncate(fd, os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // HUGE * HUGE)
    return fd


class _SharedFile:
    """The file, mapped."""

    def __init__(self, fd: int) -> None:
        self.nbytes = os.fstat(fd).st_size
        self._map, self._start = lay(fd, self.nbytes)
        self.address = int(self.array(0, 1).ctypes.data)

    def array(self, place: int, nbytes: int) -> UInt8Array:
        return np.frombuffer(self._map, np.uint8, nbytes, self._start + place)

    def remove(self, place: int, nbytes: int) -> None:
        """Give its pages back to the system."""
        self._map.madvise(mmap.MADV_REMOVE, self._start + place, nbytes)


class SharedSlots(Slots):
    """The child's slots, in the memory file."""

    def __init__(self, fd: int) -> None:
        super().__init__(self._share)
        self._memory = _SharedFile(fd)
        self._lock = threading.Lock()
        self._end = 0
        self._made = Leases[tuple[int, int]]()  # place and bytes of each slot
        self._held: dict[int, Any] = {}  # storages by place, that the trainer has
        self._changes: list[tuple[int, int]] = []

    def dump(self, value: Any) -> bytes:
        """Return a pickle of what holds tensors; their storages are held until ``free`` names their places."""
        out = io.BytesIO()
        pickler = _Pickler(out, self)
        pickler.dump(value)
        self._held |= pickler.storages
        return out.getvalue()

    def free(self, places: Iterable[int]) -> None:
        """Let go of what the trainer has done with."""
        for place in places:
            self._held.pop(place, None)

    def place_of(self, storage: torch.UntypedStorage) -> int | None:
        """Return where a tensor's storage lies, None if not here; it can be in one message only at a time."""
        place = storage.data_ptr() - self._memory.address
        is_here = 0 <= place < self._memory.nbytes
        return place if is_here and place not in self._held else None

    def changes(self) -> list[tuple[int, int]]:
        """Return the slots that were made since the last call, by place and bytes; those of 0 bytes are gone."""
        with self._lock:
            self._collect()
            changes, self._changes = self._changes, []
        return changes

    def _share(self, nbytes: int) -> UInt8Array:
        unit = HUGE if nbytes >= HUGE else mmap.PAGESIZE
        size = -(-nbytes // unit) * unit
        with self._lock:
            self._collect()
            place = -(-self._end // unit) * unit
            if place + size > self._memory.nbytes:
                raise MemoryError(f"no memory for a batch buffer of {size} bytes, beside {place}")
            self._end = place + size
            self._changes.append((place, size))
        slot = self._memory.array(place, size)
        collapse(slot)
        self._made.watch(slot, (place, size))
        return slot

    def _collect(self) -> None:
        while (dead := self._made.pop()) is not None:
            place, size = dead
            self._memory.remove(place, size)
            self._changes.append((place, 0))


class _Pickler(pickle.Pickler):
    def __init__(self, out: io.BytesIO, slots: SharedSlots) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self._slots = slots
        self.storages: dict[int, Any] = {}

    def persistent_id(self, value: Any) -> Any:
        """Return where a plain tensor lies (place and bytes, or its bytes), and how it is laid out there."""
        if type(value) is not torch.Tensor or not is_plain(value):
            return None
        where: tuple[int, int] | bytes
        if (place := self._slots.place_of(value.untyped_storage())) is None:
            # A tensor of ordinary memory keeps the order of its axes in memory if it is dense.
            lease = self._slots.take("outside", value.nbytes)
            strides = torch.empty_like(value).stride()
            flat = torch.from_numpy(lease).view(value.dtype)
            value = flat.as_strided(value.shape, strides).copy_(value)
            place = self._slots.place_of(value.untyped_storage())
            where = lease.tobytes() if place is None else b""
        if place is not None:
            storage = self.storages.setdefault(place, value.untyped_storage())
            where = place, storage.nbytes()
        kind = str(value.dtype).removeprefix("torch.")
        return where, kind, tuple(value.shape), value.stride(), value.storage_offset()


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is bytes and strides; any other pickles as torch does it."""
    is_dense = tensor.layout is torch.strided and tensor.device.type == "cpu"
    is_odd = tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
    return is_dense and not is_odd


class MappedSlots:
    """The trainer's view of the slots; ``lock`` page-locks one while its array lives."""

    def __init__(self, fd: int, lock: Callable[[UInt8Array], None] | None = None) -> None:
        self._memory, self._lock = _SharedFile(fd), lock
        self._leases = Leases[int]()
        self._slots: dict[int, UInt8Array] = {}
        self._seen_by_forks: set[int] = set()
        _mapped.add(self)

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return sum(map(len, list(self._slots.values())))

    @property
    def num_leased(self) -> int:
        """Arrays over slots that live."""
        return len(self._leases)

    def change(self, slots: Iterable[tuple[int, int]]) -> None:
        """Apply changes of the child's slots: see ``SharedSlots.changes``."""
        for place, nbytes in slots:
            if not nbytes:
                del self._slots[place]
                continue
            slot = self._slots[place] = self._memory.array(place, nbytes)
            if self._lock is not None:
                self._lock(slot)

    def load(self, data: bytes) -> Any:
        """Make what ``SharedSlots.dump`` described, over the slots."""
        return _Unpickler(io.BytesIO(data), self).load()

    def lease(self, place: int, nbytes: int) -> UInt8Array:
        """Return bytes; ``free`` lists the place when no tensor shares them any more."""
        lease = self._memory.array(place, nbytes)
        self._leases.watch(lease, place)
        return lease

    def free(self) -> list[int]:
        """Return the places that no tensor uses any more; not to be called in a fork: its tensors are copies."""
        places = []
        while (place := self._leases.pop()) is not None:
            if place in self._seen_by_forks:
                self._seen_by_forks.discard(place)
            else:
                places.append(place)
        return places


_mapped: WeakRegistry[MappedSlots] = WeakRegistry()


def _leave_to_fork() -> None:
    """Never use the places of living batches again: a fork of this process sees them, too."""
    for mapped in _mapped.all():
        mapped._seen_by_forks.update(mapped._leases.alive())


os.register_at_fork(after_in_parent=_leave_to_fork)


class _Unpickler(pickle.Unpickler):
    """Reads messages of our own child, over a private socket."""

    def __init__(self, data: io.BytesIO, mapped: MappedSlots) -> None:
        super().__init__(data)
        self._mapped = mapped
        self._leases: dict[int, torch.Tensor] = {}

    def persistent_load(self, given: Any) -> torch.Tensor:
        where, kind, shape, stride, offset = given
        dtype: torch.dtype = getattr(torch, kind)
        if not where:
            return torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
        if isinstance(where, bytes):
            flat = torch.frombuffer(bytearray(where), dtype=torch.uint8)
        elif where[0] in self._leases:
            flat = self._leases[where[0]]
        else:
            flat = self._leases[where[0]] = torch.from_numpy(self._mapped.lease(*where))
        whole = flat[: len(flat) // dtype.itemsize * dtype.itemsize].view(dtype)
        return whole.as_strided(shape, stride, offset)
