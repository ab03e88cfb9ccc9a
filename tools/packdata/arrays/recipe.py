"""The recipe ``packdata arrays``: arrays of numbers with labels and masks, in one dtype and order of axes.

The header of every file is read when the source is listed: where all arrays have one shape, so have
the samples, and a batch is one tensor; axes that differ vary. Numbers are kept bit for bit, NaN
included, unless ``dtype`` converts them, and then each has to fit.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.codecs import codec_for
from loaders.errors import CodecError, SchemaError, SourceError
from loaders.schema import Array, Text
from packdata.arrays.files import ArrayFiles, ArrayOptions, Axes
from packdata.files.recipe import FilesRecipe
from packdata.files.splits import open_splits
from packdata.recipe import Target
from packdata.sources.base import ARRAYS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from packdata.files.splits import SourceOptions, Split
    from packdata.sources.base import Item
    from packdata.sources.npy import ArrayHeader

ARRAY, MASK = "array", "mask"
_LOOKS, _LOOKS_AT_ONCE = 256, 16  # at headers: of a store, each is a request


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
        self.files = ArrayFiles(split.source, options, split.masks)
        listing = _HeadersTogether(self.files)
        self.axes, self.num_bytes = listing.axes, listing.num_bytes
        self._fields: dict[str, Array] = listing.fields()
        self._codecs = {name: codec_for(field) for name, field in self._fields.items()}
        self._key_codec = codec_for(Text())
        schema = self._schema(self._fields, {"key": Text()})
        self._set_targets([Target("", schema)], options.to_json())

    def encode(self, item: Item) -> list[dict[str, bytes]]:
        """Return the records of an item.

        Raises:
            SourceError: The array, its mask or its label is missing, damaged, too large, of
                another shape than it should be, or has numbers that do not fit.
        """
        shape = self.files.array_header(item).shape
        if len(shape) != self.axes.num:
            what = f"it has {len(shape)} axes {shape}, the first array {self.axes.num}"
            raise SourceError(what, item.where, "Pack arrays of each kind by themselves")
        records = {label.name: label.encode(item) for label in self.labels}
        records["key"] = self._key_codec.encode(item.key)
        # First: an array without one had no say in the shape of the field.
        if self.files.has_masks:
            mask = self.files.read_mask(item, self.axes.spatial_shape(shape))
            records[MASK] = self._encode(MASK, mask, item.where)
        array = self.axes.arrange(self.files.read_array(item))
        records[ARRAY] = self._encode(ARRAY, array, item.where)
        return [records]

    def _encode(self, name: str, array: npt.NDArray[Any], where: str) -> bytes:
        try:
            return self._codecs[name].encode(array)
        except CodecError as error:
            dtype = self._fields[name].dtype
            if array.dtype == np.dtype(dtype):
                raise SourceError(str(error), where) from error
            what = f"{'its mask has ' if name == MASK else ''}{_range(array)} that {dtype} cannot hold"
            option = "--mask-dtype" if name == MASK else "--dtype"
            raise SourceError(what, where, f"Give another {option}") from error


def _range(array: npt.NDArray[Any]) -> str:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return f"NaN or infinite values of {array.dtype.name}"
    return f"values of {array.dtype.name} from {array.min()} to {array.max()}, some"


def _headers(
    files: ArrayFiles, item: Item
) -> tuple[ArrayHeader, ArrayHeader | None] | SourceError:
    """Return the header of an item's array, and of its mask if there are masks; or why there is none."""
    try:
        return files.array_header(item), files.mask_header(item) if files.has_masks else None
    except SourceError as error:
        return error


class _HeadersTogether:
    """What the headers of all files say together."""

    def __init__(self, files: ArrayFiles) -> None:
        self._options = files.options
        self._shapes: dict[tuple[int, ...], None] = {}
        self._dtypes: dict[str, dict[str, str]] = {ARRAY: {}, MASK: {}}  # where each was first met
        self.num_bytes = 0
        error: SourceError | None = None
        items = files.source.items()
        with ThreadPoolExecutor(_LOOKS_AT_ONCE, "headers") as pool:
            while some := [*islice(items, _LOOKS)]:
                for item, found in zip(
                    some, pool.map(partial(_headers, files), some), strict=True
                ):
                    if isinstance(found, SourceError):  # it is rejected in its turn
                        error = error or found
                    else:
                        self._add(item, *found)
        if not self._shapes:
            raise error or SourceError("it holds no arrays", files.source.name)
        self.axes = Axes(len(next(iter(self._shapes))), self._options.channels)

    def _add(self, item: Item, header: ArrayHeader, mask: ArrayHeader | None) -> None:
        self._shapes[header.shape] = None
        self.num_bytes = max(self.num_bytes, header.nbytes)
        self._dtypes[ARRAY].setdefault(header.dtype.name, item.where)
        if mask is not None:
            self._dtypes[MASK].setdefault(mask.dtype.name, item.where)

    def fields(self) -> dict[str, Array]:
        """Return the fields of arrays."""
        axes, options = self.axes, self._options
        shapes = [axes.shape(shape) for shape in self._shapes if len(shape) == axes.num]
        dims = tuple(
            lengths[0] if len(set(lengths)) == 1 else None for lengths in zip(*shapes, strict=True)
        )
        dtype = options.dtype or self._dtype(ARRAY, "--dtype")
        fields = {ARRAY: Array(dtype=dtype, dims=dims, spatial=axes.spatial)}
        if self._dtypes[MASK]:
            dtype = options.mask_dtype or self._dtype(MASK, "--mask-dtype")
            dtype = "uint8" if dtype == "bool" else dtype
            spatial = dims[len(dims) - axes.spatial :]
            fields[MASK] = Array(dtype=dtype, dims=spatial, spatial=axes.spatial)
        elif options.mask_dtype is not None:
            hint = "give --masks, --mask-column or --mask-array, or leave --mask-dtype out"
            raise SchemaError(f"there are no masks to store as {options.mask_dtype}: {hint}")
        return fields

    def _dtype(self, name: str, option: str) -> str:
        found = self._dtypes[name]
        if len(found) > 1:
            listed = ", ".join(f"{dtype} ({where})" for dtype, where in list(found.items())[:3])
            raise SchemaError(
                f"the {name}s have several dtypes: {listed}; choose one with {option}"
            )
        return next(iter(found))
