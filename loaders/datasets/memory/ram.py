"""``RAMDataset``: the same columns in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from loaders.checks import as_list, as_path, one_of, shown
from loaders.codecs.heads import MAX_PICTURE_MB, picture_size, pixels_within
from loaders.codecs.raw import cast_exactly
from loaders.data.columns import Column, FixedColumn, var_column
from loaders.data.store import ShardRuns, Store
from loaders.data.view import View
from loaders.datasets.base import SampleT, check_stored
from loaders.datasets.memory.loading import ColumnToLoad, check_fits, copy_plan, positions
from loaders.datasets.memory.resident import ResidentDataset
from loaders.datasets.memory.shared import HeldShard, load_samples, load_shard
from loaders.datasets.packed import PackedDataset
from loaders.datasets.reading.coefficients import has_halves
from loaders.datasets.reading.fixed import take_rows
from loaders.datasets.settings import SETTINGS, check_augment
from loaders.datasets.shard import ShardDataset
from loaders.device.accelerator import as_device
from loaders.errors import CodecError, SampleError, SchemaError, SourceError
from loaders.gone import gone
from loaders.remote.url import URL, Location
from loaders.schema import Array, Field, Image, Label, Mask, Schema, Text
from loaders.system.regular import read_regular

if TYPE_CHECKING:
    from loaders.data.shards import MemoryShard
    from loaders.datasets.packed import Transform

_SOURCE = (
    "a folder that packdata made, or a dataset of it (RAMDataset.from_arrays takes arrays, "
    "RAMDataset.from_files loose files)"
)
_CHANNELS = (1, 3, 4)  # of what is guessed to be pictures
_FILES, _FILE_THREADS = 64, 8  # read in one part, and threads that read
Targets = Sequence[int] | Sequence[str] | npt.NDArray[Any] | torch.Tensor


class RAMDataset(ResidentDataset[SampleT]):
    """The samples of a dataset, held in memory.

    Args:
        source: A folder that ``packdata`` made, or a dataset (then its settings are the defaults
            here).
        decode: False keeps records as they are stored, e.g. as JPEG; True keeps pixels.
        shared: True: one copy for all processes of this user in a machine or container, ranks and
            workers alike; the first one loads it, others map it, and it goes when the last one does.
            Linux only.
        device: ``"cuda"``: the columns lie in GPU memory, and batches are gathered and augmented
            there; the host chooses rows, no more. For pixels, tokens and tables: records of one
            size. Without ``decode`` the host keeps no copy: lookups read the mapped files.
        pin: True: the columns stay in host memory, page-locked, and the GPU gathers batches from it
            over the bus; needs Triton.
        progress: Show a bar while loading, on stderr.
        **settings: fields, augment, transform, batching, check, on_error, scale, max_picture_mb: as
            ``ShardDataset`` takes them. Only the fields that samples have, and the key, are loaded; what cannot
            be loaded is an error, also with ``on_error="replace"``, which is for what does not decode later.

    Raises:
        LoadersError: It does not fit into the memory that is available; the message has the
            figures. Or the process that loads the copy to be shared has failed or died.
    """

    def __init__(
        self,
        source: PackedDataset[SampleT] | Location | str,
        *,
        decode: bool = False,
        shared: bool = False,
        device: torch.device | str | None = None,
        pin: bool = False,
        progress: bool = True,
        **settings: Any,
    ) -> None:
        one_of("decode", decode, (True, False))
        if shared not in (True, False):
            hint = gone(f"RAMDataset(shared={shared!r})")
            raise ValueError(f"shared must be True or False, got {shown(shared)}{hint}")
        home = None
        if device is not None or pin:
            home = as_device(device or "cuda", "pin" if pin else "device")
        check_stored(source, "RAMDataset", "make it a subclass of RAMDataset")
        dataset: PackedDataset[SampleT]
        if isinstance(source, PackedDataset):
            dataset = source.replace(**settings) if settings else source
        else:
            place = source if isinstance(source, str | URL) else as_path("source", source, _SOURCE)
            dataset = ShardDataset(place, **settings)
        if home is not None and not (pin or decode or shared):  # straight from the files
            settings = {name: getattr(dataset, name) for name in (*SETTINGS, "leader")}
            PackedDataset.__init__(self, dataset.view, **settings)
            with self.view.fetching_ahead(by_shard=True):
                self._settle(home, is_pinned=False)
            return
        if not {*dataset.stored_fields, "key"} & {*dataset.schema.fields}:
            raise SchemaError(
                f"none of the fields {[*dataset.fields]} is stored: name fields to hold in memory"
            )
        origin = getattr(dataset, "path", Path("datasets joined"))
        with dataset.view.fetching_ahead(by_shard=True):
            shard, fields = load_samples(
                dataset, origin, decode=decode, progress=progress, shared=shared
            )
        self._init_from(shard, fields, dataset, dataset.fingerprint)
        self._settle(home, is_pinned=pin)

    def _init_from(
        self,
        shard: MemoryShard,
        fields: Mapping[str, Field],
        like: PackedDataset[Any] | None,
        fingerprint: str,
        /,  # a setting has the name of one of these
        **settings: Any,
    ) -> None:
        shown = tuple(name for name in fields if name != "key")
        if like is not None:
            shown = like.fields
            names = ("augment", "transform", "batching", "on_error", "leader", "max_picture_mb")
            settings = {name: getattr(like, name) for name in names}
            if any(has_halves(field) for field in fields.values()):  # else they are pixels by now
                settings["scale"] = like.scale
        stored = tuple(name for name in shown if name in fields)
        runs = None if like is None else ShardRuns.of_samples(like.view.packed_shards())
        PackedDataset.__init__(
            self,
            View(
                Store([shard], take=take_rows, runs=runs),
                Schema(fields, stored),
                fingerprint,
                shard.path,
            ),
            **({"fields": shown} | settings),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all columns, wherever they lie."""
        if self._resident is not None:
            return self._resident.nbytes
        return sum(column.nbytes for column in self.store.shard(0).columns.values())

    @classmethod
    def from_files(
        cls,
        paths: Sequence[Path | str],
        targets: Targets | None = None,
        *,
        decode: bool = False,
        progress: bool = True,
        **settings: Any,
    ) -> Self:
        """Load loose image files.

        Args:
            paths: Files of JPEG, PNG or WebP. Exif's orientation is not applied, where ``packdata images`` turns
                pictures upright.
            targets: One label each: class numbers, or names (numbered in sorted order).
            decode: Keep pixels instead of files; the images must then share a size, or each keeps
                its own.
            progress: Show a bar while loading, on stderr.
            **settings: As ``ShardDataset`` takes them.

        Raises:
            SourceError: A file cannot be read or is not an image; the message names it.
        """
        listed = as_list("paths", paths, "files, such as sorted(Path('photos').glob('*.jpg'))")
        files = [as_path(f"paths[{i}]", path, "a file") for i, path in enumerate(listed)]
        if not files:
            raise ValueError("paths is empty: does the pattern match a file?")
        max_mb = settings.get("max_picture_mb", MAX_PICTURE_MB)
        plans = {"image": _plan_files(files, pixels_within(max_mb))}
        check_fits(plans, progress)
        fields: dict[str, Field] = {"image": Image()}
        if targets is not None:
            fields["label"], labels = _label_column(targets, len(files))
            plans["label"] = copy_plan(labels)
        fields["key"] = Text()
        plans["key"] = copy_plan(var_column([_key_of(file) for file in files]))
        shard = load_shard(Path("files"), plans, progress)
        if decode:
            encoded = cls.__new__(cls)
            encoded._init_from(shard, fields, None, "", max_picture_mb=max_mb)
            try:
                shard, fields = load_samples(
                    encoded, shard.path, decode=True, progress=progress, shared=False
                )
            except SampleError as error:
                raise SourceError(error.what, files[error.index]) from error
        dataset = cls.__new__(cls)
        dataset._init_from(shard, fields, None, _fingerprint(shard.columns), **settings)
        return dataset

    @classmethod
    def from_frame(cls, *_: Any, **__: Any) -> NoReturn:
        """Raise AttributeError, which says what to use instead."""
        raise AttributeError(f"{cls.__name__} has no from_frame{gone('RAMDataset.from_frame')}")

    @classmethod
    def from_arrays(
        cls,
        *unnamed: Any,
        schema: Mapping[str, Field] | None = None,
        fields: Sequence[str] | None = None,
        augment: Sequence[Any] | None = None,
        transform: Transform | None = None,
        **arrays: Any,
    ) -> Self:
        """Serve arrays that are in memory.

        Args:
            *unnamed: None: every array has the name of a field.
            schema: Fields by name, where the guess below is not meant.
            fields: As ``ShardDataset`` takes them, like the next two.
            augment: Ops for images and masks.
            transform: A function of a sample, or ``{field: function}``.
            **arrays: numpy arrays or tensors with one row per sample. 4-D uint8 or uint16 is an
                ``Image``, ``(N, C, H, W)`` with C of 1, 3 or 4, else ``(N, H, W, C)``, which is
                not copied, and an error if neither can be; 1-D integers are a ``Label``; the rest is an ``Array``.
                Of a DataFrame: ``**packdata.arrays_of(frame, target=...)``.

        Raises:
            SchemaError: The arrays differ in length, or one does not fit its field.
            TypeError: An argument is of another kind.
        """
        what = "from_arrays takes arrays by name, such as image=..., label=..."
        if unnamed:
            raise TypeError(f"{what}, got {shown(unnamed[0])} without one")
        if not arrays:
            raise ValueError(f"{what}: at least one array")
        given = _checked_schema(schema, arrays)
        columns: dict[str, Column] = {}
        for name, value in arrays.items():
            array = _as_array(name, value)
            field, rows = (given[name], array) if name in given else _field_of(name, array)
            given[name], columns[name] = field, _array_column(name, field, rows)
        kinds = {name: given[name] for name in arrays}
        settings = {"fields": fields, "augment": augment, "transform": transform}
        check_augment(augment, kinds)
        dataset, shard = cls.__new__(cls), HeldShard(Path("arrays"), columns)
        dataset._init_from(shard, kinds, None, _fingerprint(columns), **settings)
        return dataset


def _plan_files(files: Sequence[Path], max_pixels: int) -> ColumnToLoad:
    """Plan to load files as they are; many at a time, for they may be far away."""
    lengths = np.zeros(len(files), np.int64)
    for i, file in enumerate(files):
        with _naming(file):
            lengths[i] = file.stat().st_size

    def fill(column: Column, part: slice) -> None:
        for i in positions(part):
            with _naming(files[i]):
                data = read_regular(files[i])
                picture_size(data, max_pixels)
                column.row(i)[:] = np.frombuffer(data, np.uint8)

    num = len(files)
    parts = [slice(first, min(first + _FILES, num)) for first in range(0, num, _FILES)]
    return ColumnToLoad(Image(), lengths, fill, parts, _FILE_THREADS)


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # of another length, it has changed
        raise SourceError(getattr(error, "strerror", None) or str(error), file) from error


def _label_column(targets: Targets, num_samples: int) -> tuple[Field, Column]:
    plain: Any = targets.cpu() if isinstance(targets, torch.Tensor) else targets
    what = "one class number per path, or one name"
    plain = plain if hasattr(plain, "__array__") else as_list("targets", plain, what)
    values = np.asarray(plain)
    if values.dtype.kind in "OT":  # names, as pandas and Arrow have them
        values = np.asarray(plain := values.tolist())
    is_mixed = values.dtype.kind == "U" and not all(isinstance(each, str) for each in plain)
    if values.ndim != 1 or values.dtype.kind not in "biuU" or is_mixed:
        got = f"{shown(targets)} ({values.dtype})"
        raise TypeError(f"targets must be {what}, got {got}; packdata.Writer takes other targets")
    if len(values) != num_samples:
        raise ValueError(f"there are {num_samples} paths and {len(values)} targets")
    if values.dtype.kind == "U":
        names, numbers = np.unique(values, return_inverse=True)
        field = Label(classes=tuple(names.tolist()))
        return field, _array_column("label", field, numbers)
    return Label(), _array_column("label", Label(), values)


def _checked_schema(schema: Any, arrays: Mapping[str, Any]) -> dict[str, Field]:
    fields = {} if schema is None else schema
    if not isinstance(fields, Mapping) or not all(isinstance(f, Field) for f in fields.values()):
        what = "{name: field}, such as {'mask': Mask(codec='raw')}"
        raise TypeError(f"schema must be {what}, got {shown(schema)}")
    if unknown := set(fields) - set(arrays):
        raise SchemaError(f"the schema has {sorted(unknown)}, for which no array was given")
    return dict(fields)


def _as_array(name: str, value: Any) -> npt.NDArray[Any]:
    """Return an array of one row per sample; an error that says what else to do with other things."""
    try:
        array = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError) as error:  # a type that numpy has not; rows of different shapes
        what = f"array {name!r} cannot be stored: {error}"
        remedy = "convert it; packdata.Writer takes samples of different shapes"
        raise SchemaError(f"{what}: {remedy}") from error
    if np.ma.is_masked(value):
        raise SchemaError(
            f"array {name!r} has masked values, which are not stored: use .filled(...)"
        )
    if not array.ndim or array.dtype.kind not in "biuf":
        what = f"array {name!r} must be numbers, one row per sample, got {shown(value)}"
        raise SchemaError(
            f"{what} ({array.dtype}): number texts with numpy.unique(..., return_inverse=True), and pass options to "
            "RAMDataset(RAMDataset.from_arrays(...))"
        )
    return array


def _field_of(name: str, array: npt.NDArray[Any]) -> tuple[Field, npt.NDArray[Any]]:
    if array.ndim == 4 and array.dtype in (np.uint8, np.uint16):
        is_first = array.shape[1] in _CHANNELS
        if not is_first and array.shape[3] not in _CHANNELS:
            what = f"array {name!r} is {array.dtype} of {array.shape}: neither axis 1 nor axis 3 are 1, 3 or 4 channels"
            remedy = "Image(channels=..., size=(H, W), codec='raw'), or Array(dtype=..., dims=...)"
            raise SchemaError(f"{what}; say what it is: schema={{{name!r}: {remedy}}}")
        rows = array.transpose(0, 2, 3, 1) if is_first else array
        return Image(
            channels=rows.shape[3], size=rows.shape[1:3], dtype=array.dtype.name, codec="raw"
        ), rows
    if array.ndim == 1 and array.dtype.kind in "ui":
        return Label(), array
    return Array(dtype=array.dtype.name, dims=array.shape[1:]), array


def _array_column(name: str, field: Field, array: npt.NDArray[Any]) -> Column:
    nbytes, shape = field.record_nbytes, field.shape
    is_encoded = isinstance(field, Image | Mask) and field.codec != "raw"
    if nbytes is None or shape is None or is_encoded:
        raise SchemaError(
            f"field {name!r} cannot be held as arrays of one size; pack it with packdata.Writer"
        )
    if isinstance(field, Image):
        if array.shape[1:] == shape:
            array = array.transpose(0, 2, 3, 1)
        shape = (*shape[1:], shape[0])
    if array.shape[1:] != shape:
        raise SchemaError(f"array {name!r} of shape {array.shape} does not fit {field}")
    classes = field.classes if isinstance(field, Label) else None
    if classes and (most := int(array.max(initial=0))) >= len(classes):
        what = f"array {name!r} has labels up to {most}"
        raise SchemaError(f"{what}, there are {len(classes)} classes")
    try:
        rows = np.ascontiguousarray(cast_exactly(array, np.dtype(field.dtype)))
    except CodecError as error:
        raise SchemaError(f"array {name!r}: {error}") from error
    return FixedColumn(rows.reshape(-1).view(np.uint8).reshape(len(rows), nbytes))


def _key_of(file: Path) -> bytes:
    try:
        return str(file).encode()
    except UnicodeEncodeError as error:
        raise SourceError("the path is not UTF-8", ascii(str(file)), "Rename the file") from error


def _fingerprint(columns: Mapping[str, Column]) -> str:
    state = xxhash.xxh3_128()
    for name, column in columns.items():
        state.update(name.encode())
        if isinstance(column, FixedColumn):
            state.update(column.data.data)
        else:
            state.update(column.lengths.data)
            state.update(column.buffer.data)
    return state.hexdigest()
