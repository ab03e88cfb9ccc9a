"""Arrays as their own bytes: little-endian, C order; pictures H x W x C.

Where several axes vary, a record begins with their lengths as little-endian uint32; where one varies, the size of the
record tells it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from loaders.errors import CodecError
from loaders.schema import Array, Field, Image


class RawCodec:
    """Values of one dtype and shape, or of a shape with free axes."""

    def __init__(self, field: Field) -> None:
        shape = field.shape
        if shape is None:
            raise CodecError(f"codec 'raw' stores arrays, not {field.kind}")
        self.field = field
        self.shape = (*shape[1:], shape[0]) if isinstance(field, Image) else shape
        self.dtype = np.dtype(field.dtype).newbyteorder("<")
        self._free = [axis for axis, n in enumerate(self.shape) if n is None]
        self.num_free = len(self._free)
        self._known = math.prod(n for n in self.shape if n is not None)

    def encode(self, value: Any) -> bytes:
        """Return the bytes of an array.

        Whole numbers must fit the field's dtype exactly; floats may be rounded to a narrower float.

        Raises:
            CodecError: The array has another shape, or values that the field's dtype or classes cannot hold.
        """
        array = as_array(value)
        if isinstance(self.field, Image) and array.ndim == 2:
            array = array[:, :, None]
        if array.shape != self.shape and (
            array.ndim != len(self.shape)
            or any(n not in (None, got) for n, got in zip(self.shape, array.shape, strict=True))
        ):
            raise CodecError(f"the field holds arrays of shape {self.shape}, got {array.shape}")
        array = cast_exactly(array, self.dtype)
        classes = self.field.classes if isinstance(self.field, Array) else None
        if classes is not None and ((array < 0) | (array >= len(classes))).any():
            raise CodecError(f"class numbers are in [0, {len(classes)}), got {array.tolist()}")
        lengths = [array.shape[axis] for axis in self._free] if self.num_free > 1 else []
        return np.array(lengths, "<u4").tobytes() + array.tobytes()

    def decode(self, record: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return the array, read-only: a view of the record where that is aligned, else a copy.

        Raises:
            CodecError: The record has another size than the field's arrays.
        """
        shape, data = self.shape_of(record)
        try:
            array: npt.NDArray[Any] = np.frombuffer(data, self.dtype).reshape(shape)
        except ValueError as error:
            what = f"a record of {len(record)} bytes does not hold {self.dtype.name} of shape {self.shape}"
            raise CodecError(what) from error
        array = array if array.flags.aligned else array.copy()
        array.flags.writeable = False
        return array

    def shape_of(
        self, record: npt.NDArray[np.uint8]
    ) -> tuple[tuple[int, ...], npt.NDArray[np.uint8]]:
        """Return the shape of a record's array and the bytes of its numbers, a view.

        Raises:
            CodecError: The record is too short for its shape.
        """
        if self.num_free == 0:
            return self.shape, record  # type: ignore[return-value]
        if self.num_free == 1:
            lengths = [len(record) // max(1, self._known * self.dtype.itemsize)]
        else:
            if len(record) < 4 * self.num_free:
                raise CodecError(f"a record of {len(record)} bytes has no room for its shape")
            lengths = np.frombuffer(record, "<u4", self.num_free).tolist()
            record = record[4 * self.num_free :]
        shape: list[Any] = list(self.shape)
        for axis, length in zip(self._free, lengths, strict=True):
            shape[axis] = length
        return tuple(shape), record


def as_array(value: Any) -> npt.NDArray[Any]:
    """Return a value as an array; CodecError if it is none."""
    try:
        return np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise CodecError(f"the value is not an array ({error})") from error


def cast_exactly(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return numbers in another dtype; floats may be rounded to a narrower float.

    Raises:
        CodecError: The dtype cannot hold a value, or these are no numbers.
    """
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "uifb":
        raise CodecError(f"the field holds {dtype.name}, got {array.dtype}")
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(dtype)
        if dtype.kind in "uib" or array.dtype.kind in "uib":
            # There and back shows what was cut off, but not a sign that turned: -1 as uint64.
            back = cast.astype(array.dtype)
            fits = np.array_equal(back, array) and np.array_equal(cast < 0, array < 0)
            fits = fits and _are_within(array, dtype) and _are_within(cast, array.dtype)
        else:
            fits = np.array_equal(np.isfinite(cast), np.isfinite(array))
    if not fits:
        raise CodecError(f"values of {array.dtype} do not fit the field's {dtype.name}")
    return cast


def _are_within(numbers: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Tell whether a cast to whole numbers is defined: of floats beyond them ARM makes the largest one."""
    if numbers.dtype.kind != "f" or dtype.kind not in "ui":
        return True
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    return bool(((numbers >= float(least)) & (numbers < float(most) + 1)).all())
