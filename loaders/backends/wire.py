"""Slots that two processes have mapped, and messages about anything whose bytes lie in them.

Batches of one form after another take shorter ones: ``loaders.backends.forms``.

1. The child takes slots from ``SharedSlots``: anonymous memory (memfd), numbered from 0. It sends their
   descriptors, in this order, before the first message that names them; before them all that of the ledger, which
   has a byte per slot.
2. ``dump`` turns a batch into a message: a tensor in a slot becomes its place there; a small one
   outside of any slot travels in the message, a large one is copied to a slot first. ``SharedSlots`` holds the
   slots of a message until the ledger says that they are free.
   A slot that the child gives up (a larger one was asked for) is named to the parent, who unmaps it.
3. ``Mapped.load`` turns the message into tensors over the parent's own map. When the last of them has died, the
   parent writes so into the ledger, before it next asks for a batch: no message is needed, and the child sees it when
   it next wants a slot.
4. A process that the parent forks has the batches that the parent has at that moment, and may read them for longer:
   their slots are not used again.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import pickle
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from loaders.backends.channel import NO_DESCRIPTOR
from loaders.buffers import Leases, SlotPool, Slots
from loaders.errors import LoadersError
from loaders.hugepages import collapse, map_shared
from loaders.signals import Living

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)
UInt8Array = npt.NDArray[np.uint8]
INLINE_BYTES = 32 << 10  # a smaller tensor travels in the message: a lease would cost more
_MAX_SLOTS = 1 << 24  # that a child ever has: sizes grow by a quarter at least, forks keep some
_HELD, _FREE, _LEFT = 0, 1, 2  # in the ledger; what is left to a fork is not used again

# Where a tensor lies: the slot; or its bytes, in the message itself; the number of its dtype, shape, stride and offset.
# Plain values, which a pickle does not have to look up by name.
Place = tuple[int, bytes | None, int, tuple[int, ...], tuple[int, ...], int]
_DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)
_NUMBERS = {dtype: number for number, dtype in enumerate(_DTYPES)}


class SharedSlots(Slots):
    """Slots in memory that another process can map.

    Attributes:
        fds: Descriptors of slots that the other process does not know yet.
        given_up: Numbers of slots that are no more, and that the other process still has mapped.
    """

    def __init__(self) -> None:
        super().__init__(self._share)
        fd, ledger = _anonymous("loaders-ledger", _MAX_SLOTS)
        self._ledger = memoryview(ledger)  # type: ignore[arg-type]  # numpy says so from 2.5 on
        self.fds: deque[int] = deque([fd])
        self.given_up: deque[int] = deque()
        self._lock = threading.Lock()
        self._num_shared = 0
        self._numbers: dict[int, int] = {}  # by address
        self._held: dict[int, Any] = {}  # leases by number, of slots that the other process has
        self._held_lock = threading.Lock()
        self._left: set[int] = set()  # numbers of slots that are not to be used again

    def _new_pool(self) -> SlotPool:
        return SlotPool(allocate=self._share, is_usable=self._is_usable)

    def _is_usable(self, buffer: UInt8Array) -> bool:
        return not self._left or self._numbers.get(buffer.ctypes.data) not in self._left

    def take(self, name: str, nbytes: int) -> UInt8Array:
        """Lease a buffer, one that the other process has done with if there is such."""
        self.collect()
        return super().take(name, nbytes)

    def hold(self, leases: dict[int, Any]) -> None:
        """Keep the slots of a message that is about to be sent, until the other process has done with them."""
        with self._held_lock:
            for number in leases:
                self._ledger[number] = _HELD
            self._held |= leases

    def collect(self) -> None:
        """Let go of the slots that the other process has done with."""
        if not self._held:
            return
        # Under the lock: or a slot could be sent again between a look at the ledger and what follows.
        with self._held_lock:
            done = [number for number in self._held if self._ledger[number] != _HELD]
            self._left.update(number for number in done if self._ledger[number] == _LEFT)
            leases = [self._held.pop(number) for number in done]
        del leases  # outside of the lock: what a message held may be anything

    def _share(self, nbytes: int) -> UInt8Array:
        fd, buffer = _anonymous("loaders-slot", nbytes)
        collapse(buffer)
        with self._lock:  # pools of several fields may grow at the same time
            address, number = buffer.ctypes.data, self._num_shared
            self._num_shared += 1
            self._numbers[address] = number
            self.fds.append(fd)
        weakref.finalize(buffer, self._gone, address, number).atexit = False
        return buffer

    def _gone(self, address: int, number: int) -> None:
        """Forget a slot: its address may be another's at any moment."""
        if self._numbers.get(address) == number:
            del self._numbers[address]
        self._left.discard(number)
        self.given_up.append(number)

    def number_of(self, storage: torch.UntypedStorage) -> int | None:
        """Return the slot that a tensor's storage is, or None; a slot can be in one message only at a time."""
        number = self._numbers.get(storage.data_ptr())
        return None if number in self._held else number


def _anonymous(name: str, nbytes: int) -> tuple[int, UInt8Array]:
    """Return zeroed memory, and the descriptor by which another process can map it; the name is for ``/proc`` only."""
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise OSError(error.errno, NO_DESCRIPTOR) from error
    try:
        os.ftruncate(fd, nbytes)
        return fd, map_shared(fd, nbytes)
    except BaseException:
        os.close(fd)
        raise


@dataclass(frozen=True, slots=True)
class Message:
    """A batch on its way.

    Attributes:
        data: What the parent reads.
        leases: Slots by number, and what keeps each from being used again.
    """

    data: bytes
    leases: dict[int, Any]


def dump(batch: Any, slots: SharedSlots) -> Message:
    """Describe a batch, or whatever holds tensors, so that ``Mapped.load`` makes it again."""
    out = io.BytesIO()
    pickler = _Pickler(out, slots)
    pickler.dump(batch)
    return Message(out.getvalue(), pickler.leases)


class _Pickler(pickle.Pickler):
    def __init__(self, out: io.BytesIO, slots: SharedSlots) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self._slots = slots
        self.leases: dict[int, Any] = {}

    def persistent_id(self, value: Any) -> Place | None:
        if type(value) is not torch.Tensor or not is_plain(value):
            return None
        storage = value.untyped_storage()
        number = self._slots.number_of(storage)
        if number is None:
            return self._outside(value)
        self.leases.setdefault(number, storage)
        return _place(value, number, None, value.stride(), int(value.storage_offset()))

    def _outside(self, value: torch.Tensor) -> Place:
        """Pack a tensor of ordinary memory: keep the order of its axes in memory if it is dense."""
        shape, stride = tuple(value.shape), value.stride()
        extent = _extent(shape, stride)
        if extent != value.numel():
            value = value.contiguous()
            stride, extent = value.stride(), value.numel()
        if not extent:
            return _place(value, -1, b"", stride)
        flat = value.as_strided((extent,), (1,), value.storage_offset()).view(torch.uint8).numpy()
        if flat.nbytes < INLINE_BYTES:
            return _place(value, -1, flat.tobytes(), stride)
        lease = self._slots.take("outside", flat.nbytes)
        lease[:] = flat
        storage = torch.from_numpy(lease).untyped_storage()
        number = self._slots.number_of(storage)
        assert number is not None
        self.leases[number] = storage
        return _place(value, number, None, stride)


def _place(
    value: torch.Tensor, slot: int, data: bytes | None, stride: tuple[int, ...], offset: int = 0
) -> Place:
    return slot, data, _NUMBERS[value.dtype], tuple(value.shape), stride, offset


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


class Mapped:
    """The parent's view of the slots.

    Args:
        next_fd: Returns the descriptor of the next slot.
        lock: Page-locks a slot for as long as the array lives; if it cannot, slots stay as they are from then on.

    Attributes:
        nbytes: Bytes of all slots.
    """

    def __init__(
        self, next_fd: Callable[[], int], lock: Callable[[UInt8Array], None] | None = None
    ) -> None:
        self.nbytes = 0
        self._next_fd, self._lock = next_fd, lock
        self._can_lock = lock is not None
        self._leases: Leases[int] = Leases()
        self._num_mapped = 0
        self._buffers: dict[int, UInt8Array] = {}
        self._left: set[int] = set()
        self._ledger = memoryview(b"")
        _mapped.add(self)

    @property
    def num_leased(self) -> int:
        """Arrays over slots that live."""
        return len(self._leases)

    def _map_next(self) -> UInt8Array:
        fd = self._next_fd()
        try:
            return map_shared(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)

    def _add(self) -> None:
        if not len(self._ledger):  # its descriptor comes first
            self._ledger = memoryview(self._map_next())  # type: ignore[arg-type]
        buffer = self._map_next()
        if self._can_lock:
            self._page_lock(buffer)
        self._buffers[self._num_mapped] = buffer
        self._num_mapped += 1
        self.nbytes += len(buffer)

    def _page_lock(self, buffer: UInt8Array) -> None:
        assert self._lock is not None
        try:
            self._lock(buffer)
        except LoadersError as error:  # who copies locks what is not: at the cost of one more copy
            self._can_lock = False
            what = str(error)  # a log that kept the error would keep its frames, and the slot
            logger.warning("batches come through memory that is not page-locked: %s", what)

    def forget(self, numbers: Sequence[int]) -> None:
        """Unmap slots that the child gave up, now or with the last tensor over them."""
        for number in numbers:
            self._reach(number)
            self.nbytes -= len(self._buffers.pop(number))

    def _reach(self, number: int) -> None:
        while self._num_mapped <= number:
            self._add()

    def load(self, data: bytes | memoryview) -> Any:
        """Make what ``dump`` described, over the slots."""
        return _Unpickler(io.BytesIO(data), self).load()

    def lease(
        self,
        number: int,
        shape: tuple[int, ...] | None = None,
        dtype: npt.DTypeLike = np.uint8,
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> npt.NDArray[Any]:
        """Return a slot's bytes, or an array in them; ``set_free`` tells the child when no tensor shares them."""
        self._reach(number)
        buffer = self._buffers[number]
        lease: npt.NDArray[Any] = np.ndarray(
            buffer.shape if shape is None else shape, dtype, buffer, offset, strides
        )
        self._leases.watch(lease, number)
        return lease

    def set_free(self) -> None:
        """Tell the child which slots nobody sees any more; not to be called in a fork: its tensors are copies."""
        while (number := self._leases.pop()) is not None:
            self._ledger[number] = _LEFT if number in self._left else _FREE
            self._left.discard(number)

    def leave(self) -> None:
        """Let the slots of batches that are seen not be used again: a fork sees them, too."""
        self._left.update(self._leases.alive())

    def let_go(self) -> None:
        """In a fork, keep no memory but that of batches that are seen; a driver's lock is not ours to end."""
        if self._lock is None:
            self._buffers.clear()


_mapped: Living[Mapped] = Living()


def _leave_to_fork() -> None:
    for mapped in _mapped.all():
        mapped.leave()


def let_go_of_inherited() -> None:
    """In a fork that is a child of ours: let go of the slots of others."""
    for mapped in _mapped.all():
        mapped.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_leave_to_fork)


class _Unpickler(pickle.Unpickler):
    """Reads messages of our own child, over a socket that nobody else has."""

    def __init__(self, data: io.BytesIO, mapped: Mapped) -> None:
        super().__init__(data)
        self._mapped = mapped
        self._leases: dict[int, torch.Tensor] = {}

    def persistent_load(self, place: Any) -> torch.Tensor:
        number, data, kind, shape, stride, offset = place
        dtype = _DTYPES[kind]
        if data is None:
            flat = self._leases.get(number)
            if flat is None:
                flat = self._leases[number] = torch.from_numpy(self._mapped.lease(number))
        elif not data:
            return torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
        else:
            flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if dtype is not torch.uint8:
            flat = flat[: len(flat) // dtype.itemsize * dtype.itemsize].view(dtype)
        return flat.as_strided(shape, stride, offset)
