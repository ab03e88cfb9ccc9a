"""What becomes of the files of ``packdata arrays``: the order of their axes, and other options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from loaders.errors import SchemaError
from loaders.schema import Array

Channels = Literal["first", "last", "none"]
_VOLUME_AXES = 3


@dataclass(frozen=True, slots=True)
class Axes:
    """How the axes of a file become those of a sample."""

    num: int  # axes in the file
    # ``first``, ``last``: there is an axis of channels; ``none``: one of length 1 is put in front; None: of four
    # axes the first is channels, three are a volume that gets such an axis, one or two stay as they are.
    channels: Channels | None

    def __post_init__(self) -> None:
        if self.channels not in (None, *get_args(Channels)):
            names = ", ".join(get_args(Channels))
            raise SchemaError(f"channels must be one of {names}, got {self.channels!r}")
        if self.channels in ("first", "last") and self.num < 2:
            raise SchemaError(f"channels {self.channels!r} needs two axes, the arrays have one")
        if self.num > _VOLUME_AXES + 1 and self.channels is None:
            raise SchemaError(
                f"the arrays have {self.num} axes: say --channels first, last or none"
            )

    @property
    def _is_added(self) -> bool:
        return self.channels == "none" or (self.channels is None and self.num == _VOLUME_AXES)

    @property
    def spatial(self) -> int:
        """How many of a sample's last axes are spatial."""
        if self.channels in ("first", "last") or self.num == _VOLUME_AXES + 1:
            return self.num if self._is_added else self.num - 1
        return self.num

    def arrange(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array with its axes as they are served, channels first; a view."""
        if self.channels == "last":
            return np.moveaxis(array, -1, 0)
        return array[None] if self._is_added else array

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that an array of this shape is served in."""
        if self.channels == "last":
            return (shape[-1], *shape[:-1])
        return (1, *shape) if self._is_added else shape

    def spatial_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the spatial lengths of an array of this shape."""
        served = self.shape(shape)
        return served[len(served) - self.spatial :]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayOptions:
    """What becomes of each array."""

    dtype: str | None = None  # to store, or None for that of the files
    mask_dtype: str | None = None  # the same for masks
    channels: Channels | None = None  # where the files have their channels; see ``Axes``
    array: str | None = None  # the name of the array in an ``.npz`` that holds several
    # The name of the mask in an ``.npz``; without masks of their own, in the array's.
    mask_array: str | None = None

    def __post_init__(self) -> None:
        for dtype in (self.dtype, self.mask_dtype):
            if not isinstance(dtype, str | None):
                raise TypeError(f"a dtype is given by its name, such as 'float32', got {dtype!r}")
            if dtype is not None:
                Array(dtype=dtype)  # SchemaError if it is none
        if self.mask_dtype is not None and np.dtype(self.mask_dtype).kind not in "ui":
            raise SchemaError(f"masks are whole numbers, not {self.mask_dtype}")
        Axes(2, self.channels)

    def to_json(self) -> dict[str, Any]:
        """Return the options as JSON types."""
        return {name: getattr(self, name) for name in self.__slots__}
