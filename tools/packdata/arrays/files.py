"""What lies in the files of ``packdata arrays``: the order of their axes, their masks, their limits."""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from loaders.errors import SchemaError, SourceError
from loaders.schema import MAX_RECORD_NBYTES, Array
from loaders.text import describe_size
from packdata.sources.npy import ArrayHeader, read_array, read_header

if TYPE_CHECKING:
    from packdata.sources.base import Item, Source
    from packdata.sources.folders import MaskFolder
    from packdata.sources.objects import RemoteFile

Channels = Literal["first", "last", "none"]
_VOLUME_AXES = 3
_CUT = "Cut it into parts along an axis, a file each, or store a narrower --dtype"


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


class ArrayFiles:
    """Finds and reads the arrays and masks of a source; records of more than ``max_nbytes`` are refused."""

    def __init__(self, source: Source, options: ArrayOptions, masks: MaskFolder | None) -> None:
        self.source, self.options, self.masks = source, options, masks
        self.max_nbytes = MAX_RECORD_NBYTES

    @property
    def has_masks(self) -> bool:
        """True if every array has a mask."""
        given = self.masks is not None or self.options.mask_array is not None
        return given or self.source.has_masks

    def array_header(self, item: Item) -> ArrayHeader:
        """Read the header of an item's array; SourceError if it cannot be a sample's."""
        header = read_header(_path_of(item), item.where, self.options.array)
        if not header.shape:
            hint = "Single numbers are columns of a list, or of 'packdata tables'"
            raise SourceError("it is a single number, not an array", item.where, hint)
        if 0 in header.shape:
            raise SourceError(f"it is empty: its shape is {header.shape}", item.where)
        self._check_nbytes(header, item.where)
        return header

    def _check_nbytes(self, header: ArrayHeader, where: str) -> None:
        dtype = header.dtype if self.options.dtype is None else np.dtype(self.options.dtype)
        nbytes = math.prod(header.shape) * dtype.itemsize
        if nbytes <= self.max_nbytes:
            return
        what = f"it would take {describe_size(nbytes)}, a record holds up to "
        what += describe_size(self.max_nbytes)
        fits_lmdb = nbytes <= MAX_RECORD_NBYTES
        raise SourceError(what, where, "Pack it with --format lmdb" if fits_lmdb else _CUT)

    def read_array(self, item: Item) -> npt.NDArray[Any]:
        """Read the array of an item; SourceError."""
        return read_array(_path_of(item), item.where, self.options.array)

    def mask_header(self, item: Item) -> ArrayHeader:
        """Read the header of an item's mask; SourceError if there is none or it holds no integers."""
        path, where = self._mask_of(item)
        if path == item.file and not zipfile.is_zipfile(
            path if isinstance(path, str) else path.open()
        ):
            hint = "--mask-array names the mask of an .npz; --masks is for masks in files of their own"
            raise SourceError("it is one array, with no mask beside it", where, hint)
        header = read_header(path, where, self.options.mask_array)
        if header.dtype.kind not in "uib":
            hint = "Save it as integers: mask.astype('uint8'), say"
            raise SourceError(f"its mask holds {header.dtype}, not whole numbers", where, hint)
        return header

    def read_mask(self, item: Item, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Read the mask of an item whose spatial axes have these lengths; SourceError."""
        found = self.mask_header(item).shape
        path, where = self._mask_of(item)
        if found not in (shape, (1, *shape), (*shape, 1)):
            what = f"its mask has the shape {found}, the array (without channels) {shape}"
            raise SourceError(what, where)
        return read_array(path, where, self.options.mask_array).reshape(shape)

    def _mask_of(self, item: Item) -> tuple[str | RemoteFile, str]:
        """Return the file of an item's mask, and what to call it."""
        path: str | RemoteFile
        if self.masks is not None:
            path, name = self.masks.find(item.key, item.where), self.masks.name(item.key)
        elif item.mask_file is not None:
            path, name = item.mask_file, item.mask_name
        elif self.options.mask_array is None or self.source.has_masks:
            raise SourceError("it has no mask, others have", item.where)
        else:
            return _path_of(item), item.where
        return path, item.place_of_mask(name)


def _path_of(item: Item) -> str | RemoteFile:
    if item.file is None:
        raise SourceError("it is not a file", item.where)
    return item.file
