"""Messages about batches: their form is told once and named after that, and the rest is where the bytes are.

Batches of one loader differ in their bytes and in little else. What stays the same (fields, dtypes, shapes, strides)
takes longer to write and to read than all the rest of a message, so it is sent once: as a ``Form``, whose number both
ends count. A message is a header, and

- behind the number of a form: the slot of each tensor, then the bytes of those that lie in none;
- behind -1: whatever pickles, the form that it has if that is a new one, and the numbers of slots that are no more.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from loaders.backends.wire import INLINE_BYTES, Message, dump, is_plain
from loaders.datasets.reading.samples import SplitBatches, batch_type, is_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.backends.wire import Mapped, SharedSlots

    Status = tuple[int, int]

_HEAD = struct.Struct("<qiqq")  # a number, that of the form, and two numbers more
_NO_FORM = _NO_SLOT = -1
_MAX_FORMS = 64  # batches of ever new shapes are pickled


class TensorForm(NamedTuple):
    """What a tensor is, but for its bytes.

    Attributes:
        dtype: One that numpy has, too.
        shape: Of the tensor.
        stride: In values.
        offset: Of its first value in the slot, in values.
        num_inline: Its bytes in the message; 0 if it lies in a slot.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    num_inline: int


class Form(NamedTuple):
    """What a group is, but for its bytes.

    Attributes:
        names: Of the fields.
        sizes: Of several batches that share their tensors; None: it is one batch.
        tensors: Of each field.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...] | None
    tensors: tuple[TensorForm, ...]


class _Taken(NamedTuple):
    """A group taken apart: its form; of each tensor the slot, and the bytes if it is in none; what keeps each slot."""

    form: Form
    places: tuple[int, ...]
    inline: tuple[bytes, ...]
    leases: dict[int, Any]


class MessageWriter:
    """The sender's end.

    Args:
        slots: Where tensors may lie.
    """

    def __init__(self, slots: SharedSlots) -> None:
        self._slots = slots
        self._numbers: dict[Form, int] = {}

    def write(self, value: Any, number: int = 0, status: Status = (0, 0)) -> Message:
        """Describe a group of batches, or anything else, so that the ``MessageReader`` makes it again."""
        taken = self._take_apart(value)
        form = None if taken is None else taken.form
        known = None if form is None else self._numbers.get(form)
        if taken is None or known is None or self._slots.given_up:
            return self._whole(value, form if known is None else None, number, status)
        head = _HEAD.pack(number, known, *status)
        places = struct.pack(f"<{len(taken.places)}i", *taken.places)
        return Message(b"".join((head, places, *taken.inline)), taken.leases)

    def _whole(self, value: Any, form: Form | None, number: int, status: Status) -> Message:
        if len(self._numbers) >= _MAX_FORMS:
            form = None
        given_up = tuple(self._slots.given_up)
        message = dump((value, form, given_up), self._slots)
        for _ in given_up:  # not before it is written
            self._slots.given_up.popleft()
        if form is not None:
            self._numbers[form] = len(self._numbers)
        return Message(_HEAD.pack(number, _NO_FORM, *status) + message.data, message.leases)

    def _take_apart(self, group: Any) -> _Taken | None:
        """Return None for what has no form: what is not ours, or has values that are no tensors, or two in one slot."""
        names, sizes, tensors = _parts(group)
        taken = [self._take(tensor) for tensor in tensors]
        if not taken or None in taken:
            return None
        forms, places, inline, leases = zip(*taken, strict=True)
        by_slot = dict(zip(places, leases, strict=True))
        if len(by_slot) < len(places) - max(0, places.count(_NO_SLOT) - 1):
            return None
        by_slot.pop(_NO_SLOT, None)
        return _Taken(Form(names, sizes, forms), places, inline, by_slot)

    def _take(self, tensor: Any) -> tuple[TensorForm, int, bytes, Any] | None:
        if type(tensor) is not torch.Tensor or not is_plain(tensor) or not _numpys(tensor.dtype):
            return None
        storage = tensor.untyped_storage()
        slot = self._slots.number_of(storage)
        form = tensor.dtype, tensor.shape, tensor.stride()
        if slot is not None:
            return TensorForm(*form, int(tensor.storage_offset()), 0), slot, b"", storage
        if not 0 < tensor.nbytes < INLINE_BYTES or not tensor.is_contiguous():
            return None
        return TensorForm(*form, 0, tensor.nbytes), _NO_SLOT, tensor.numpy().tobytes(), None


def _parts(group: Any) -> tuple[tuple[str, ...], tuple[int, ...] | None, Sequence[Any]]:
    """Return the names of fields, the sizes of several batches, and values; none of what is not ours."""
    if isinstance(group, SplitBatches):
        return group.names, tuple(group.sizes), group.tensors
    if isinstance(group, list) and len(group) == 1:
        batch = group[0]
        if is_batch(batch) and not vars(batch):
            return batch._fields, None, batch
    return (), None, ()


@cache
def _numpys(dtype: torch.dtype) -> np.dtype[Any] | None:
    """Return numpy's counterpart of a dtype, None if there is none."""
    try:
        return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    except (TypeError, RuntimeError):
        return None


class MessageReader:
    """The receiver's end.

    Args:
        mapped: Its view of the slots.
    """

    def __init__(self, mapped: Mapped) -> None:
        self._mapped = mapped
        self._layouts: list[_Layout] = []

    def read(self, message: bytes | bytearray) -> tuple[int, Any, Status]:
        """Return the number, what was described, and the status."""
        number, form, first, second = _HEAD.unpack_from(message)
        rest = memoryview(message)[_HEAD.size :]
        if form != _NO_FORM:
            return number, self._layouts[form].group(rest, self._mapped), (first, second)
        value, new, given_up = self._mapped.load(rest)
        self._mapped.forget(given_up)
        if new is not None:
            self._layouts.append(_Layout(new))
        return number, value, (first, second)


class _Layout:
    """How to make a group of a form."""

    def __init__(self, form: Form) -> None:
        self._names, self._sizes, tensors = form
        self._places = struct.Struct(f"<{len(tensors)}i")
        self._tensors = [(each.num_inline, _in_numpy(each)) for each in tensors]

    def group(self, message: memoryview, mapped: Mapped) -> Any:
        """Make it of slots and bytes."""
        tensors, at = [], self._places.size
        places = self._places.unpack_from(message)
        for place, (num_inline, layout) in zip(places, self._tensors, strict=True):
            if place == _NO_SLOT:
                shape, dtype, offset, strides = layout
                array = np.ndarray(
                    shape, dtype, bytearray(message[at : at + num_inline]), offset, strides
                )
                at += num_inline
            else:
                array = mapped.lease(place, *layout)
            tensors.append(torch.from_numpy(array))
        if self._sizes is None:
            return [batch_type(self._names)._make(tensors)]
        return SplitBatches(self._names, tensors, list(self._sizes))


def _in_numpy(form: TensorForm) -> tuple[Any, ...]:
    """Return shape, dtype, offset and strides as ``np.ndarray`` takes them."""
    dtype = _numpys(form.dtype)
    assert dtype is not None
    strides = tuple(step * dtype.itemsize for step in form.stride)
    return form.shape, dtype, form.offset * dtype.itemsize, strides
