"""``packdata arrays``: arrays of numbers with labels and masks, in one dtype and order of axes.

The header of every ``.npy`` and ``.npz`` file is read when the source is listed: where all arrays have one shape, so
have the samples, and a batch is one tensor; axes that differ vary. Numbers are kept bit for bit, NaN included, unless
``dtype`` converts them, and then each has to fit.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from loaders.codecs import codec_for
from loaders.errors import CodecError, SchemaError, SourceError
from loaders.schema import Array, Text
from packdata.files.labels import labelled
from packdata.files.recipe import FilesPlan, FilesRecipe
from packdata.files.splits import SourceOptions, open_splits, watched
from packdata.options import changed, check_options, opt, take, takes
from packdata.packing.pool import OrderedPool
from packdata.packing.settings import PackSettings
from packdata.plan import pack_plan
from packdata.reading import File
from packdata.recipe import Target
from packdata.sources.listed import listed_sources
from packdata.sources.names import ARRAYS
from packdata.sources.npy import read_array, read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from loaders.remote.url import Location
    from packdata.files.labels import Split
    from packdata.packing.shards import Format
    from packdata.packing.summary import Summary
    from packdata.sources.base import Item
    from packdata.sources.npy import ArrayHeader

_T = TypeVar("_T", "npt.NDArray[Any]", "ArrayHeader")  # an array, or what its header says
ARRAY, MASK = "array", "mask"
Channels = Literal["first", "last", "none"]
# By the number of axes: volumes, without channels and with.
_USUAL: dict[int, Channels] = {3: "none", 4: "first"}
_LARGE_BYTES = 1 << 20  # from here on a value of its own is better than a long column
_LOOKS_AT_ONCE = 16  # at headers: of a store, each is a request


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
        check_options(self)
        for dtype in filter(None, (self.dtype, self.mask_dtype)):
            if not isinstance(dtype, str):
                raise TypeError(f"a dtype is given by its name, such as 'float32', got {dtype!r}")
            Array(dtype=dtype)  # SchemaError if it is none
        if self.mask_dtype is not None and np.dtype(self.mask_dtype).kind not in "ui":
            raise SchemaError(f"masks are whole numbers, not {self.mask_dtype}")


class ArraysRecipe(FilesRecipe[ArrayOptions]):
    """Turns each array of a source into one sample; a ``packdata.recipe.Recipe``.

    Fields: ``array``, ``label`` and the other columns of the source, ``mask`` if there are masks,
    and ``key``. One instance serves all threads.
    """

    command = "arrays"

    def __init__(self, split: Split, options: ArrayOptions) -> None:
        super().__init__(split, options)
        self.num_bytes = 0  # of the largest array
        shapes, dtypes = self._look_at_headers()
        self.num_axes = len(shapes[0])  # in the files
        self._channels = _channels_of(self.num_axes, options.channels)
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
        found, place = self._read(item, read_array)
        array, mask = found[ARRAY], found.get(MASK)
        if array.ndim != self.num_axes:
            what = f"{array.ndim} axes {array.shape}, the first array has {self.num_axes}"
            raise SourceError(what, item.where, "Pack arrays of each kind by themselves")
        array = self._arranged(array)
        if mask is not None:
            shape = array.shape[-self._spatial :]
            if mask.shape not in (shape, (1, *shape), (*shape, 1)):
                what = f"a mask of shape {mask.shape}, the array (without channels) has {shape}"
                raise SourceError(what, place)
            records[MASK] = self._encode(MASK, mask.reshape(shape), item.where)
        records[ARRAY] = self._encode(ARRAY, array, item.where)
        return [records]

    @property
    def _spatial(self) -> int:
        """How many of a sample's last axes are spatial."""
        return self.num_axes - (self._channels in ("first", "last"))

    def _arranged(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array with its axes as they are served, channels first; a view."""
        if self._channels == "last":
            return np.moveaxis(array, -1, 0)
        return array[None] if self._channels == "none" else array

    def _encode(self, name: str, array: npt.NDArray[Any], where: str) -> bytes:
        try:
            return self._codecs[name].encode(array)
        except CodecError as error:
            hint = "dtype= and mask_dtype= choose what is stored"
            raise SourceError(f"the {name}: {error}", where, hint) from error

    # -- the headers of all files together --------------------------------------------------------

    def _look_at_headers(self) -> tuple[list[tuple[int, ...]], dict[str, dict[str, str]]]:
        """Return the shapes of all arrays, and where the dtypes of arrays and of masks were first met."""
        shapes: dict[tuple[int, ...], None] = {}
        dtypes: dict[str, dict[str, str]] = {ARRAY: {}, MASK: {}}
        first: SourceError | None = None
        with OrderedPool(self._headers, _LOOKS_AT_ONCE) as pool:
            for where, found in pool.map(self.source.items()):
                if isinstance(found, SourceError):  # it is rejected in its turn
                    first = first or found
                    continue
                shapes[found[ARRAY].shape] = None
                self.num_bytes = max(self.num_bytes, found[ARRAY].nbytes)
                for name, header in found.items():
                    dtypes[name].setdefault(header.dtype.name, where)
        if not shapes:
            raise first or SourceError("the source holds no arrays", self.source.name)
        return [*shapes], dtypes

    def _headers(self, item: Item) -> tuple[str, dict[str, ArrayHeader] | SourceError]:
        try:
            return item.where, self._read(item, read_header)[0]
        except SourceError as error:
            return item.where, error

    def _find_fields(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Mapping[str, Mapping[str, str]]
    ) -> dict[str, Array]:
        options, spatial = self.options, self._spatial
        alike = [np.broadcast_to(np.uint8(0), s) for s in shapes if len(s) == self.num_axes]
        served = [set(n) for n in zip(*(self._arranged(a).shape for a in alike), strict=True)]
        dims = tuple(lengths.pop() if len(lengths) == 1 else None for lengths in served)
        dtype = options.dtype or _one_dtype(ARRAY, dtypes[ARRAY])
        fields = {ARRAY: Array(dtype=dtype, dims=dims, spatial=spatial)}
        if self._has_masks:
            dtype = options.mask_dtype or _one_dtype(MASK, dtypes[MASK])
            dtype = "uint8" if dtype == "bool" else dtype
            fields[MASK] = Array(dtype=dtype, dims=dims[-spatial:], spatial=spatial)
        elif options.mask_dtype is not None:
            hint = "pass masks=, mask_column= or mask_array=, or leave mask_dtype= out"
            raise SchemaError(f"there are no masks to store as {options.mask_dtype}: {hint}")
        return fields

    # -- the files of an item ---------------------------------------------------------------------

    @property
    def _has_masks(self) -> bool:
        """True if every array has a mask."""
        return self.source.has_masks or self.options.mask_array is not None

    def _read(
        self, item: Item, read: Callable[[File, str | None], _T]
    ) -> tuple[dict[str, _T], str]:
        """Return what is read of an item's array, and of its mask if there are masks; and the place of the latter."""
        found, place = {ARRAY: read(_file_of(item), self.options.array)}, item.where
        if 0 in (shape := found[ARRAY].shape) or not shape:
            what = f"an empty array or a single number, of shape {shape}"
            raise SourceError(what, place, "Single numbers are columns of a list or a table")
        if self._has_masks:
            file = self._mask_of(item)
            found[MASK], place = read(file, self.options.mask_array), file.where
            if (dtype := found[MASK].dtype).kind not in "uib":
                hint = "Save masks as integers: mask.astype('uint8'), say"
                raise SourceError(f"a mask of {dtype}, not of whole numbers", place, hint)
        return found, place

    def _mask_of(self, item: Item) -> File:
        """Return the file of an item's mask."""
        file, own = item.read_mask, _file_of(item)
        if file is None or (isinstance(file, File) and file.path == own.path):
            # Of a single array ``mask_array`` would be the array itself.
            with own.open() as opened:
                file = own if zipfile.is_zipfile(opened) else None
        if isinstance(file, File):  # none of an empty cell
            return file
        hint = "masks= and mask_column= say where masks are, mask_array= in an .npz"
        raise SourceError("the mask is missing", item.where, hint)


def _channels_of(num: int, channels: Channels | None) -> Channels | None:
    """Return where the channels of files of so many axes are; None if there are none, nor shall be."""
    has_axis = channels in ("first", "last")
    if (has_axis and num < 2) or (channels is None and num > max(_USUAL)):
        what = f"the arrays have {num} axes, which channels={channels!r} does not say"
        raise SchemaError(f"{what}: pass channels='first' or 'last' of two or more, or 'none'")
    return channels or _USUAL.get(num)


def _one_dtype(name: str, found: Mapping[str, str]) -> str:
    if len(found) > 1:
        hint = "choose one with dtype= or mask_dtype="
        raise SchemaError(f"the {name}s have several dtypes: {dict(found)}; {hint}")
    return next(iter(found))


def _file_of(item: Item) -> File:
    if item.file is None:
        item.read()  # says why there is none
    assert item.file is not None
    return item.file


def plan_arrays(
    src: Location | str | Sequence[Location | str], **options: Any
) -> FilesPlan[ArraysRecipe]:
    """List a source and say what would become of it; the arguments are those of ``pack_arrays``.

    Raises:
        SourceError: The source cannot be listed or recognized.
        SchemaError: The options contradict each other, or do not fit the source.
    """
    settings = take(PackSettings, options)
    source = take(SourceOptions, options)
    array_options = ArrayOptions(**options)
    sources = listed_sources(src)
    open_again = partial(open_splits, sources, source, ARRAYS)
    opened = open_again()
    listed, list_again = watched(sources, opened, open_again)
    with_labels = labelled(opened, source.classes, source.multi_label)
    splits = [(split.name, ArraysRecipe(split, array_options)) for split in with_labels]
    largest = max(recipe.num_bytes for _, recipe in splits)
    usual: Format = "lmdb" if largest >= _LARGE_BYTES else "parquet"
    return FilesPlan(sources, splits, settings.or_usual(usual), listed, list_again)


@takes(ArrayOptions, SourceOptions, PackSettings, without="image_column")
def pack_arrays(
    src: Location | str | Sequence[Location | str],
    dst: Location | str,
    **options: Any,
) -> Summary:
    """Pack arrays as ``packdata arrays`` does.

    Args:
        src: A folder of ``.npy`` and ``.npz`` files, or of one folder per class; a ``.csv``,
            ``.tsv`` or ``.jsonl`` list of such files; or a folder of splits.
        dst: A folder that is new or empty.
        options: Those of ``ArrayOptions`` (``packdata.arrays``), ``SourceOptions`` (``packdata.files.splits``)
            and ``PackSettings`` (``packdata.packing.settings``). By default the format is LMDB for arrays of 1 MiB and
            more, else Parquet.

    Raises:
        SourceError: The source, or an array in it, cannot be packed.
        SchemaError: The options contradict each other.
        PackError: The target cannot be written, is in use, or holds something else.
    """
    return pack_plan(plan_arrays(src, **options), dst)
