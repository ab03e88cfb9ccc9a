"""Slots that the trainer and its child have mapped, and batches on their way, whose bytes lie in them.

1. The trainer makes one memory file, as large as the machine's memory and empty: pages exist once they are written.
   Both map it; a place in it is a number.
2. The child takes slots from ``SharedSlots``. ``dump`` turns what holds tensors into a pickle: a tensor in a slot
   becomes its place there; a small one outside of any slot travels in the pickle, a large one is copied to a slot
   first. What a message is about is held until the trainer says that it is free.
3. ``MappedSlots.load`` turns the pickle into tensors over the trainer's map. Places whose last tensor has died are
   listed in the next message to the child (``free``).
4. A process that the trainer forks has the batches that the trainer has at that moment, and may read them for longer:
   their places are never free.
"""

from __future__ import annotations

import io
import logging
import mmap
import os
import pickle
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from loaders.buffers import Leases, Slots
from loaders.errors import LoadersError
from loaders.system.hugepages import HUGE, collapse, lay
from loaders.system.registry import WeakRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

logger = logging.getLogger(__name__)
UInt8Array = npt.NDArray[np.uint8]
INLINE_BYTES = 32 << 10  # a smaller tensor travels in the message: a lease would cost more

# Where a tensor lies: place and bytes, or its bytes; then the number of its dtype, its shape, stride and offset.
# Plain values, which a pickle does not have to look up by name.
Place = tuple[int, int, bytes | None, int, tuple[int, ...], tuple[int, ...], int]
_DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)
_NUMBERS = {dtype: number for number, dtype in enumerate(_DTYPES)}


def make_file() -> int:
    """Return the descriptor of a memory file for slots."""
    fd = os.memfd_create("loaders-slots", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // HUGE * HUGE)
    except BaseException:
        os.close(fd)
        raise
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
        self._unused: list[tuple[int, int]] = []  # where slots were: bytes and place
        self._gone: deque[tuple[int, int]] = deque()  # the same, not looked at yet
        self._held: dict[int, Any] = {}  # storages by place, that the trainer has
        self._made: list[
            tuple[int, int]
        ] = []  # places, and bytes, since the last message; 0 bytes of what is gone

    def hold(self, storages: dict[int, Any]) -> None:
        """Keep the storages of a message alive until the trainer is done with them."""
        self._held |= storages

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
            made, self._made = self._made, []
        return made

    def _share(self, nbytes: int) -> UInt8Array:
        unit = HUGE if nbytes >= HUGE else mmap.PAGESIZE
        size = -(-nbytes // unit) * unit
        with self._lock:
            self._collect()
            place = self._find(size, unit)
            self._made.append((place, size))
        slot = self._memory.array(place, size)
        collapse(slot)
        weakref.finalize(slot, self._gone.append, (size, place)).atexit = False
        return slot

    def _find(self, size: int, unit: int) -> int:
        """Return a place for a slot: where one was that was as large, or behind all others."""
        for number, (room, place) in enumerate(self._unused):
            if room == size:
                del self._unused[number]
                return place
        place = -(-self._end // unit) * unit
        if place + size > self._memory.nbytes:
            raise MemoryError(
                f"no memory for another batch buffer of {size} bytes, beside {place} of them"
            )
        self._end = place + size
        return place

    def _collect(self) -> None:
        while self._gone:
            size, place = self._gone.popleft()
            self._memory.remove(place, size)
            self._unused.append((size, place))
            self._made.append((place, 0))


def dump(value: Any, slots: SharedSlots) -> tuple[bytes, dict[int, Any]]:
    """Return a pickle of what holds tensors, and the storages that it is about, by place."""
    out = io.BytesIO()
    pickler = _Pickler(out, slots)
    pickler.dump(value)
    return out.getvalue(), pickler.storages


class _Pickler(pickle.Pickler):
    def __init__(self, out: io.BytesIO, slots: SharedSlots) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self._slots = slots
        self.storages: dict[int, Any] = {}

    def persistent_id(self, value: Any) -> Place | None:
        if type(value) is not torch.Tensor or not is_plain(value):
            return None
        storage = value.untyped_storage()
        place = self._slots.place_of(storage)
        if place is None:
            return self._outside(value)
        self.storages.setdefault(place, storage)
        offset = int(value.storage_offset())
        return _place(value, place, storage.nbytes(), None, value.stride(), offset)

    def _outside(self, value: torch.Tensor) -> Place:
        """Pack a tensor of ordinary memory: keep the order of its axes in memory if it is dense."""
        shape, stride = tuple(value.shape), value.stride()
        extent = _extent(shape, stride)
        if extent != value.numel():
            value = value.contiguous()
            stride, extent = value.stride(), value.numel()
        if not extent:
            return _place(value, -1, 0, b"", stride)
        flat = value.as_strided((extent,), (1,), value.storage_offset()).view(torch.uint8).numpy()
        if flat.nbytes < INLINE_BYTES:
            return _place(value, -1, 0, flat.tobytes(), stride)
        lease = self._slots.take("outside", flat.nbytes)
        lease[:] = flat
        storage = torch.from_numpy(lease).untyped_storage()
        place = self._slots.place_of(storage)
        assert place is not None
        self.storages[place] = storage
        return _place(value, place, flat.nbytes, None, stride)


def _place(
    value: torch.Tensor,
    place: int,
    nbytes: int,
    data: bytes | None,
    stride: tuple[int, ...],
    offset: int = 0,
) -> Place:
    return place, nbytes, data, _NUMBERS[value.dtype], tuple(value.shape), stride, offset


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is bytes and strides; any other pickles as torch does it."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return how many values lie between the first and the last one, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))


class MappedSlots:
    """The trainer's view of the slots; ``lock`` page-locks one while its array lives, until it cannot."""

    def __init__(self, fd: int, lock: Callable[[UInt8Array], None] | None = None) -> None:
        self._memory, self._lock = _SharedFile(fd), lock
        self._leases: Leases[int] = Leases()
        self._slots: dict[int, UInt8Array] = {}
        self._left: set[int] = set()
        self.nbytes = 0  # bytes of all slots
        _mapped.add(self)

    @property
    def num_leased(self) -> int:
        """Arrays over slots that live."""
        return len(self._leases)

    def change(self, slots: Iterable[tuple[int, int]]) -> None:
        """Apply changes of the child's slots: see ``SharedSlots.changes``."""
        for place, nbytes in slots:
            if not nbytes:
                self.nbytes -= len(self._slots.pop(place))
                continue
            slot = self._slots[place] = self._memory.array(place, nbytes)
            self.nbytes += nbytes
            if self._lock is not None:
                self._page_lock(slot)

    def _page_lock(self, slot: UInt8Array) -> None:
        assert self._lock is not None
        try:
            self._lock(slot)
        except LoadersError as error:  # copies to a device then pin it first: one more copy
            self._lock = None
            what = str(error)  # a log that kept the error would keep its frames, and the slot
            logger.warning("batches come through memory that is not page-locked: %s", what)

    def load(self, data: bytes) -> Any:
        """Make what ``dump`` described, over the slots."""
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
            if place in self._left:
                self._left.discard(place)
            else:
                places.append(place)
        return places

    def leave(self) -> None:
        """Never use the places of living batches again: a fork of this process sees them, too."""
        self._left.update(self._leases.alive())


_mapped: WeakRegistry[MappedSlots] = WeakRegistry()


def _leave_to_fork() -> None:
    for mapped in _mapped.all():
        mapped.leave()


os.register_at_fork(after_in_parent=_leave_to_fork)


class _Unpickler(pickle.Unpickler):
    """Reads messages of our own child, over a private socket."""

    def __init__(self, data: io.BytesIO, mapped: MappedSlots) -> None:
        super().__init__(data)
        self._mapped = mapped
        self._leases: dict[int, torch.Tensor] = {}

    def persistent_load(self, given: Any) -> torch.Tensor:
        place, nbytes, data, kind, shape, stride, offset = given
        dtype = _DTYPES[kind]
        if data is None:
            flat = self._leases.get(place)
            if flat is None:
                flat = self._leases[place] = torch.from_numpy(self._mapped.lease(place, nbytes))
        elif not data:
            return torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
        else:
            flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if dtype is not torch.uint8:
            flat = flat[: len(flat) // dtype.itemsize * dtype.itemsize].view(dtype)
        return flat.as_strided(shape, stride, offset)
