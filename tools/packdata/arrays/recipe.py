"""The recipe ``packdata arrays``: arrays of numbers with labels and masks, in one dtype and order of axes.

The header of every file is read when the source is listed: where all arrays have one shape, so have
the samples, and a batch is one tensor; axes that differ vary. Numbers are kept bit for bit, NaN
included, unless ``dtype`` converts them, and then each has to fit.
"""

from __future__ import annotations

import math
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from loaders.codecs import codec_for
from loaders.errors import CodecError, SchemaError, SourceError
from loaders.schema import MAX_RECORD_NBYTES, Array, Text
from loaders.text import describe_size
from packdata.files.recipe import FilesRecipe
from packdata.files.splits import open_splits
from packdata.options import changed, opt
from packdata.reading import File
from packdata.recipe import Target
from packdata.sources.base import ARRAYS
from packdata.sources.npy import read_array, read_header

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from packdata.files.splits import SourceOptions, Split
    from packdata.sources.base import Item
    from packdata.sources.npy import ArrayHeader

ARRAY, MASK = "array", "mask"
Channels = Literal["first", "last", "none"]
_VOLUME_AXES = 3
_CUT = "Cut it into parts along an axis, a file each, or store a narrower type: dtype="
_LOOKS, _LOOKS_AT_ONCE = 256, 16  # at headers: of a store, each is a request


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
                f"the arrays have {self.num} axes: pass channels='first', 'last' or 'none'"
            )

    @property
    def spatial(self) -> int:
        """How many of a sample's last axes are spatial."""
        is_four = self.channels is None and self.num == _VOLUME_AXES + 1
        return self.num - 1 if self.channels in ("first", "last") or is_four else self.num

    def arrange(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array with its axes as they are served, channels first; a view."""
        if self.channels == "last":
            return np.moveaxis(array, -1, 0)
        is_volume = self.channels is None and self.num == _VOLUME_AXES
        return array[None] if self.channels == "none" or is_volume else array

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that an array of this shape is served in."""
        return self.arrange(np.broadcast_to(np.uint8(0), shape)).shape

    def spatial_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the spatial lengths of an array of this shape."""
        served = self.shape(shape)
        return served[len(served) - self.spatial :]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayOptions:
    """What becomes of each array."""

    dtype: str | None = opt(
        None,
        "type to store: bool, int8 to uint64, float16 to float64; values must fit (default: that of the files)",
        "DTYPE",
    )
    mask_dtype: str | None = opt(
        None, "the same for masks: int8 to uint64 (default: that of the files)", "DTYPE"
    )
    channels: Channels | None = opt(
        None,
        "channel axis of the files; none: add an axis of length 1 in front (default: first for 4 axes, none for 3; "
        "arrays of 1 or 2 axes stay as they are)",
        choices=get_args(Channels),
    )
    array: str | None = opt(None, "name of the array in an .npz that holds several", "NAME")
    mask_array: str | None = opt(
        None, "name of the mask in an .npz, the array's own or one of --masks", "NAME"
    )

    def __post_init__(self) -> None:
        for dtype in (self.dtype, self.mask_dtype):
            if not isinstance(dtype, str | None):
                raise TypeError(f"a dtype is given by its name, such as 'float32', got {dtype!r}")
            if dtype is not None:
                Array(dtype=dtype)  # SchemaError if it is none
        if self.mask_dtype is not None and np.dtype(self.mask_dtype).kind not in "ui":
            raise SchemaError(f"masks are whole numbers, not {self.mask_dtype}")
        Axes(2, self.channels)


def array_recipes(
    src: Path | str | Sequence[Path | str],
    options: ArrayOptions | None = None,
    source: SourceOptions | None = None,
) -> list[tuple[str, ArraysRecipe]]:
    """Return a recipe for each split of a source, or of several in order, named ``""`` if it has no splits.

    Raises:
        SourceError: The source cannot be listed, or no array in it can be read.
        SchemaError: The options contradict each other or the files.
    """
    options = options or ArrayOptions()
    return [
        (split.name, ArraysRecipe(split, options)) for split in open_splits(src, source, ARRAYS)
    ]


class ArraysRecipe(FilesRecipe[ArrayOptions]):
    """Turns each array of a source into one sample; a ``packdata.recipe.Recipe``.

    Fields: ``array``, ``label`` and the other columns of the source, ``mask`` if there are masks,
    and ``key``. One instance serves all threads.
    """

    command = "arrays"

    def __init__(self, split: Split, options: ArrayOptions) -> None:
        super().__init__(split, options)
        self.max_nbytes = MAX_RECORD_NBYTES  # of a record: larger ones are refused
        self.num_bytes = 0  # of the largest array
        shapes, dtypes = self._look_at_headers()
        self.axes = Axes(len(shapes[0]), options.channels)
        self._fields = self._find_fields(shapes, dtypes)
        self._codecs = {name: codec_for(field) for name, field in self._fields.items()}
        self._key_codec = codec_for(Text())
        schema = self._schema(self._fields, {"key": Text()})
        self._set_targets([Target("", schema)], changed(options))

    def encode(self, item: Item) -> list[dict[str, bytes]]:
        """Return the records of an item.

        Raises:
            SourceError: The array, its mask or its label is missing, damaged, too large, of
                another shape than it should be, or has numbers that do not fit.
        """
        records = {label.name: label.encode(item) for label in self.labels}
        records["key"] = self._key_codec.encode(item.key)

        def check(header: ArrayHeader) -> None:
            self._check_array(header, item.where)
            if (num := len(header.shape)) != self.axes.num:
                what = f"{num} axes {header.shape}, the first array has {self.axes.num}"
                raise SourceError(what, item.where, "Pack arrays of each kind by themselves")

        array = read_array(_file_of(item), self.options.array, check)
        if self._has_masks:
            mask = self._read_mask(item, self.axes.spatial_shape(array.shape))
            records[MASK] = self._encode(MASK, mask, item.where)
        records[ARRAY] = self._encode(ARRAY, self.axes.arrange(array), item.where)
        return [records]

    def _encode(self, name: str, array: npt.NDArray[Any], where: str) -> bytes:
        try:
            return self._codecs[name].encode(array)
        except CodecError as error:
            dtype = self._fields[name].dtype
            if array.dtype == np.dtype(dtype):
                raise SourceError(str(error), where) from error
            what = f"{'its mask has ' if name == MASK else ''}{_range(array)} that {dtype} cannot hold"
            option = "mask_dtype=" if name == MASK else "dtype="
            raise SourceError(what, where, f"Give another {option}") from error

    # -- the headers of all files together --------------------------------------------------------

    def _look_at_headers(self) -> tuple[list[tuple[int, ...]], dict[str, dict[str, str]]]:
        """Return the shapes of all arrays, and where the dtypes of arrays and of masks were first met."""
        shapes: dict[tuple[int, ...], None] = {}
        dtypes: dict[str, dict[str, str]] = {ARRAY: {}, MASK: {}}
        errors: list[SourceError] = []
        items = self.source.items()
        with ThreadPoolExecutor(_LOOKS_AT_ONCE, "headers") as pool:
            while some := [*islice(items, _LOOKS)]:
                for item, found in zip(some, pool.map(self._headers, some), strict=True):
                    if isinstance(found, SourceError):  # it is rejected in its turn
                        errors = errors or [found]
                        continue
                    header, mask = found
                    shapes[header.shape] = None
                    self.num_bytes = max(self.num_bytes, header.nbytes)
                    dtypes[ARRAY].setdefault(header.dtype.name, item.where)
                    if mask is not None:
                        dtypes[MASK].setdefault(mask.dtype.name, item.where)
        if not shapes:
            raise errors[0] if errors else SourceError("it holds no arrays", self.source.name)
        return [*shapes], dtypes

    def _headers(self, item: Item) -> tuple[ArrayHeader, ArrayHeader | None] | SourceError:
        """Return the header of an item's array, and of its mask if there are masks; or why there is none."""
        try:
            header = read_header(_file_of(item), self.options.array)
            self._check_array(header, item.where)
            if not self._has_masks:
                return header, None
            file = self._mask_of(item)
            mask = read_header(file, self.options.mask_array)
            _check_mask(mask, file.where)
            return header, mask
        except SourceError as error:
            return error

    def _find_fields(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Mapping[str, Mapping[str, str]]
    ) -> dict[str, Array]:
        axes, options = self.axes, self.options
        served = [axes.shape(shape) for shape in shapes if len(shape) == axes.num]
        dims = tuple(
            lengths[0] if len(set(lengths)) == 1 else None for lengths in zip(*served, strict=True)
        )
        dtype = options.dtype or _one_dtype(ARRAY, dtypes[ARRAY], "dtype=")
        fields = {ARRAY: Array(dtype=dtype, dims=dims, spatial=axes.spatial)}
        if dtypes[MASK]:
            dtype = options.mask_dtype or _one_dtype(MASK, dtypes[MASK], "mask_dtype=")
            dtype = "uint8" if dtype == "bool" else dtype
            spatial = dims[len(dims) - axes.spatial :]
            fields[MASK] = Array(dtype=dtype, dims=spatial, spatial=axes.spatial)
        elif options.mask_dtype is not None:
            hint = "pass masks=, mask_column= or mask_array=, or leave mask_dtype= out"
            raise SchemaError(f"there are no masks to store as {options.mask_dtype}: {hint}")
        return fields

    # -- the files of an item ---------------------------------------------------------------------

    @property
    def _has_masks(self) -> bool:
        """True if every array has a mask."""
        given = self.masks is not None or self.options.mask_array is not None
        return given or self.source.has_masks

    def _check_array(self, header: ArrayHeader, where: str) -> None:
        """Raise SourceError for an array that cannot be a sample's."""
        if not header.shape:
            hint = "Single numbers are columns of a list, or of 'packdata tables'"
            raise SourceError("a single number, not an array", where, hint)
        if 0 in header.shape:
            raise SourceError(f"an empty array of shape {header.shape}", where)
        nbytes = math.prod(header.shape) * np.dtype(self.options.dtype or header.dtype).itemsize
        if nbytes > self.max_nbytes:
            sizes = describe_size(nbytes), describe_size(self.max_nbytes)
            hint = "Pack it with format='lmdb'" if nbytes <= MAX_RECORD_NBYTES else _CUT
            raise SourceError(
                "it would take {}, a record holds up to {}".format(*sizes), where, hint
            )

    def _read_mask(self, item: Item, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Read the mask of an item whose spatial axes have these lengths; SourceError."""
        file = self._mask_of(item)

        def check(header: ArrayHeader) -> None:
            _check_mask(header, file.where)
            if header.shape not in (shape, (1, *shape), (*shape, 1)):
                what = f"a mask of shape {header.shape}, the array (without channels) has {shape}"
                raise SourceError(what, file.where)

        return read_array(file, self.options.mask_array, check).reshape(shape)

    def _mask_of(self, item: Item) -> File:
        """Return the file of an item's mask."""
        if self.masks is not None:
            file = self.masks.find(item)
        elif isinstance(item.read_mask, File):
            file = item.read_mask
        elif self.options.mask_array is None or self.source.has_masks:
            raise SourceError("the mask is missing, others have one", item.where)
        else:
            file = _file_of(item)
        if file != item.file:
            return file
        with file.open() as opened:
            if not zipfile.is_zipfile(opened):
                hint = "mask_array= names the mask of an .npz; masks= is for masks in files of their own"
                raise SourceError("a single array, with no mask beside it", item.where, hint)
        return file


def _check_mask(header: ArrayHeader, where: str) -> None:
    if header.dtype.kind not in "uib":
        hint = "Save it as integers: mask.astype('uint8'), say"
        raise SourceError(f"a mask of {header.dtype}, not of whole numbers", where, hint)


def _range(array: npt.NDArray[Any]) -> str:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return f"NaN or infinite values of {array.dtype.name}"
    return f"values of {array.dtype.name} from {array.min()} to {array.max()}, some"


def _one_dtype(name: str, found: Mapping[str, str], option: str) -> str:
    if len(found) > 1:
        listed = ", ".join(f"{dtype} ({where})" for dtype, where in list(found.items())[:3])
        raise SchemaError(f"the {name}s have several dtypes: {listed}; choose one with {option}")
    return next(iter(found))


def _file_of(item: Item) -> File:
    if item.file is None:
        raise SourceError("not a file", item.where)
    return item.file
