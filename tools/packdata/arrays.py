"""The recipe ``packdata arrays``: arrays of numbers with labels and masks, in one dtype and order of axes.

The header of every file is read when the source is listed: where all arrays have one shape, so have
the samples, and a batch is one tensor; axes that differ vary. Numbers are kept bit for bit, NaN
included, unless ``dtype`` converts them, and then each has to fit.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.codecs import codec_for
from loaders.errors import CodecError, SchemaError, SourceError
from loaders.schema import Array, Field, Schema, Text
from packdata.array_files import ArrayFiles, ArrayOptions, Axes, Channels
from packdata.labels import LABEL, LabelField, label_fields
from packdata.recipe import Target
from packdata.sources import Item, MaskFolder, Source, find_splits, open_source
from packdata.sources.base import ARRAYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ARRAY, MASK = "array", "mask"


def plan_arrays(
    src: Path | str,
    *,
    dtype: str | None = None,
    mask_dtype: str | None = None,
    channels: Channels | None = None,
    array: str | None = None,
    mask_array: str | None = None,
    masks: Path | str | None = None,
    classes: Sequence[str] | Path | str | None = None,
    array_column: str | None = None,
    mask_column: str | None = None,
) -> list[tuple[str, ArraysRecipe]]:
    """Return a recipe for each split of a source, named ``""`` if it has no splits.

    Args:
        src: A folder of ``.npy`` and ``.npz`` files, or of one folder per class; a ``.csv``,
            ``.tsv`` or ``.jsonl`` list of such files; or a folder of splits.
        dtype: To store; None for that of the files, which must then have one.
        mask_dtype: The same for masks, a type of whole numbers.
        channels: Where the files have their channels; see ``Axes``.
        array: The name of the array in an ``.npz`` that holds several.
        mask_array: The name of the mask in an ``.npz``; without ``masks``, in the array's.
        masks: A folder with one mask for each array, of the same relative name; below it a folder
            for each split, if there are splits.
        classes: What fixes the class numbers: names, a file with one a line, or a packed dataset.
        array_column: The column of paths, where the source is a list.
        mask_column: The column of masks there.

    Raises:
        SourceError: The source cannot be listed, or no array in it can be read.
        SchemaError: The options contradict each other or the files.
    """
    options = ArrayOptions(
        dtype=dtype, mask_dtype=mask_dtype, channels=channels, array=array, mask_array=mask_array
    )
    splits = find_splits(src) or {"": Path(src)}
    columns = {"image_column": array_column, "mask_column": mask_column}
    sources = {s: open_source(path, kind=ARRAYS, **columns) for s, path in splits.items()}
    labels = label_fields(sources, classes)
    return [
        (split, ArraysRecipe(source, options, labels[split], _masks_of(masks, split)))
        for split, source in sources.items()
    ]


def _masks_of(masks: Path | str | None, split: str) -> MaskFolder | None:
    if masks is None:
        return None
    inside = Path(masks) / split
    return MaskFolder(inside if inside.is_dir() else Path(masks), ARRAYS)


class ArraysRecipe:
    """Turns each array of a source into one sample; a ``packdata.recipe.Recipe``.

    Fields: ``array``, ``label`` and the other columns of the source, ``mask`` if there are masks,
    and ``key``. One instance serves all threads.

    Args:
        source: Where the arrays come from.
        options: What becomes of them.
        labels: The fields of the source's columns.
        masks: Where the masks are; None to take those of the source, if it has any.
    """

    def __init__(
        self,
        source: Source,
        options: ArrayOptions,
        labels: Sequence[LabelField] = (),
        masks: MaskFolder | None = None,
    ) -> None:
        self.source, self.options, self.files = source, options, ArrayFiles(source, options, masks)
        self._labels = tuple(labels)
        listing = _Listing(self.files)
        self.axes, self.num_bytes = listing.axes, listing.num_bytes
        self._fields: dict[str, Array] = listing.fields()
        self._codecs = {name: codec_for(field) for name, field in self._fields.items()}
        self._key_codec = codec_for(Text())
        self.targets: Sequence[Target] = [Target("", self._schema())]
        self.identity: Mapping[str, Any] = {
            "recipe": "arrays",
            "source": source.identity,
            "options": options.to_json(),
            "masks": masks and masks.identity,
            "schemas": [target.schema.to_json() for target in self.targets],
        }
        self.provenance: Mapping[str, Any] = {
            "recipe": "arrays",
            "source": source.name,
            "kind": source.kind,
            "masks": masks and masks.root.name,
            **options.to_json(),
        }

    def __len__(self) -> int:
        return len(self.source)

    def _schema(self) -> Schema:
        fields: dict[str, Field] = dict(self._fields)
        fields |= {label.name: label.field for label in self._labels}
        fields["key"] = Text()
        first = [name for name in (ARRAY, LABEL, MASK) if name in fields]
        rest = [name for name in fields if name not in first]
        return Schema({name: fields[name] for name in first + rest}, tuple(first))

    def items(self, start: int = 0) -> Iterator[Item]:
        """Yield the items of the source from number ``start`` on."""
        return self.source.items(start)

    def name(self, item: Item) -> str:
        """Return the place of an item."""
        return item.where

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
        records = {label.name: label.encode(item) for label in self._labels}
        records["key"] = self._key_codec.encode(item.key)
        array = self.axes.arrange(self.files.read_array(item))
        records[ARRAY] = self._encode(ARRAY, array, item.where)
        if self.files.has_masks:
            mask = self.files.read_mask(item, self.axes.spatial_shape(shape))
            records[MASK] = self._encode(MASK, mask, item.where)
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


class _Listing:
    """What the headers of all files say together."""

    def __init__(self, files: ArrayFiles) -> None:
        self._options = files.options
        self._shapes: dict[tuple[int, ...], None] = {}
        self._dtypes: dict[str, dict[str, str]] = {ARRAY: {}, MASK: {}}  # where each was first met
        self.num_bytes = 0
        error: SourceError | None = None
        for item in files.source.items():
            try:
                self._add(item, files)
            except SourceError as bad:  # it is rejected in its turn
                error = error or bad
        if not self._shapes:
            raise error or SourceError("it holds no arrays", files.source.name)
        self.axes = Axes(len(next(iter(self._shapes))), self._options.channels)

    def _add(self, item: Item, files: ArrayFiles) -> None:
        header = files.array_header(item)
        mask = files.mask_header(item) if files.has_masks else None
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
        return fields

    def _dtype(self, name: str, option: str) -> str:
        found = self._dtypes[name]
        if len(found) > 1:
            listed = ", ".join(f"{dtype} ({where})" for dtype, where in list(found.items())[:3])
            raise SchemaError(
                f"the {name}s have several dtypes: {listed}; choose one with {option}"
            )
        return next(iter(found))
