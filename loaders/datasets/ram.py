"""``RAMDataset``: the same columns in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from loaders.codecs.picture import picture_size
from loaders.columns import Column, FixedColumn, var_column
from loaders.datasets.coefficients import has_halves
from loaders.datasets.loading import (
    ColumnPlan,
    Progress,
    check_fits,
    on_threads,
    parts,
    plan_columns,
    plan_pixels,
)
from loaders.datasets.packed import PackedDataset
from loaders.datasets.resident import ResidentDataset
from loaders.datasets.shard import ShardDataset
from loaders.datasets.shared import share_columns
from loaders.datasets.store import MemoryShard, Store
from loaders.errors import CodecError, SchemaError, SourceError
from loaders.schema import Array, Field, Image, Label, Schema, Text

if TYPE_CHECKING:
    from loaders.datasets.loading import Report

Targets = Sequence[int] | Sequence[str] | npt.NDArray[Any] | torch.Tensor


class RAMDataset(ResidentDataset):
    """The samples of a dataset, held in memory.

    Args:
        source: A folder that ``packdata`` made, or a dataset (then its settings are the defaults
            here).
        decode: False keeps records as they are stored, e.g. as JPEG; True keeps pixels.
        shared: True: one copy for all processes of this user on this machine, ranks and workers
            alike; the first one loads it, others attach, and it goes when the last one does.
            ``"all_users"``: one copy for all who say so, whoever they are. Linux only.
        device: ``"cuda"``: the columns lie in GPU memory, and batches are gathered and augmented
            there; the host chooses rows, no more. For pixels, tokens and tables: records of one
            size. Without ``decode`` the host keeps no copy: lookups read the mapped files.
        pin: True: the columns stay in host memory, page-locked, and the GPU gathers batches from it
            over the bus; needs Triton.
        progress: Show a bar while loading, on stderr.
        **settings: fields, augment, transform, batching, check, on_error, scale: as ``ShardDataset``
            takes them. Only the fields that samples have, and the key, are loaded.

    Raises:
        LoadersError: It does not fit into the memory that is available; the message has the
            figures. Or the process that loads the copy to be shared has failed or died.
    """

    def __init__(
        self,
        source: PackedDataset | Path | str,
        *,
        decode: bool = False,
        shared: bool | Literal["all_users"] = False,
        device: torch.device | str | None = None,
        pin: bool = False,
        progress: bool = True,
        **settings: Any,
    ) -> None:
        dataset: PackedDataset
        if isinstance(source, PackedDataset):
            dataset = source.replace(**settings) if settings else source
        else:
            dataset = ShardDataset(source, **settings)
        home = torch.device(device or "cuda") if device is not None or pin else None
        if home is not None and not (pin or decode or shared):  # straight from the files
            self.__dict__.update(dataset.__dict__)
            self._settle(home, is_pinned=False)
            return
        origin = getattr(dataset, "path", Path("datasets joined"))
        if shared:
            shard, fields = share_columns(dataset, origin, decode, progress, shared == "all_users")
        else:
            plans = plan_columns(dataset, decode=decode, progress=progress)
            check_fits(sum(plan.nbytes for plan in plans.values()))
            shard = MemoryShard(origin, _fill(plans, progress))
            fields = {name: plan.field for name, plan in plans.items()}
        self._init_from(shard, fields, dataset, dataset.fingerprint)
        self._settle(home, is_pinned=pin)

    def _init_from(
        self,
        shard: MemoryShard,
        fields: Mapping[str, Field],
        like: PackedDataset | None,
        fingerprint: str,
        **settings: Any,
    ) -> None:
        shown = tuple(name for name in fields if name != "key")
        if like is not None:
            shown = like.fields
            names = ("augment", "transform", "batching", "on_error")
            settings = {name: getattr(like, name) for name in names}
            if any(has_halves(field) for field in fields.values()):  # else they are pixels by now
                settings["scale"] = like.scale
        stored = tuple(name for name in shown if name in fields)
        PackedDataset.__init__(
            self,
            Store([shard]),
            Schema(fields, stored),
            fingerprint=fingerprint,
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
            paths: Files of JPEG, PNG or WebP.
            targets: One label each: class numbers, or names (numbered in sorted order).
            decode: Keep pixels instead of files; the images must then share a size, or each keeps
                its own.
            progress: Show a bar while loading, on stderr.
            **settings: As ``ShardDataset`` takes them.

        Raises:
            SourceError: A file cannot be read or is not an image; the message names it.
        """
        files = [Path(path) for path in paths]
        if not files:
            raise ValueError("paths is empty")
        column = _read_files(files, progress)
        columns: dict[str, Column] = {"image": column}
        fields: dict[str, Field] = {"image": Image()}
        if targets is not None:
            fields["label"], columns["label"] = _label_column(targets, len(files))
        fields["key"], columns["key"] = Text(), var_column([str(file).encode() for file in files])
        if decode:
            plan = plan_pixels(
                Image(),
                len(files),
                lambda part: [column.row(i) for i in range(part.start, part.stop)],
                lambda i, what: SourceError(what, files[i]),
                progress,
            )
            check_fits(plan.nbytes)
            fields["image"], columns["image"] = plan.field, _fill({"": plan}, progress)[""]
        dataset, shard = cls.__new__(cls), MemoryShard(Path("files"), columns)
        dataset._init_from(shard, fields, None, _fingerprint(columns), **settings)
        return dataset

    @classmethod
    def from_arrays(cls, *, schema: Mapping[str, Field] | None = None, **arrays: Any) -> Self:
        """Serve arrays that are in memory.

        Args:
            schema: Fields by name, where the guess below is not meant.
            **arrays: numpy arrays or tensors with one row per sample. 4-D uint8 or uint16 is an
                ``Image``, ``(N, C, H, W)`` with C of 1, 3 or 4, else ``(N, H, W, C)``, which is
                not copied; 1-D integers are a ``Label``; the rest is an ``Array``.

        Raises:
            SchemaError: The arrays differ in length, or one does not fit its field.
        """
        if not arrays:
            raise ValueError("from_arrays needs at least one array")
        if unknown := set(schema or ()) - set(arrays):
            raise SchemaError(f"there is no array for {sorted(unknown)} of the schema")
        fields: dict[str, Field] = {}
        columns: dict[str, Column] = {}
        for name, value in arrays.items():
            array = np.asarray(value.cpu() if isinstance(value, torch.Tensor) else value)
            fields[name], rows = (
                _field_of(array) if schema is None or name not in schema else (schema[name], array)
            )
            columns[name] = _array_column(name, fields[name], rows)
        dataset, shard = cls.__new__(cls), MemoryShard(Path("arrays"), columns)
        dataset._init_from(shard, fields, None, _fingerprint(columns))
        return dataset


def _fill(plans: Mapping[str, ColumnPlan], progress: bool) -> dict[str, Column]:
    """Take memory for columns, and fill them."""
    columns = {
        name: plan.column([np.empty(n, np.uint8) for n in plan.array_nbytes])
        for name, plan in plans.items()
    }
    with Progress(sum(plan.data_nbytes for plan in plans.values()), progress) as bar:
        for name, plan in plans.items():
            plan.fill(columns[name], bar.update)
    return columns


def _read_files(files: Sequence[Path], progress: bool) -> Column:
    """Load files as they are; many at a time, for they may be far away."""
    lengths = np.array([_size(file) for file in files], np.int64)

    def fill(column: Column, report: Report) -> None:
        def read(part: slice) -> int:
            for i in range(part.start, part.stop):
                _read_image(files[i], column.row(i))
            return int(lengths[part].sum())

        on_threads(read, parts(len(files), 64), 8, report)

    plan = ColumnPlan(Image(), lengths, fill)
    check_fits(plan.nbytes)
    return _fill({"": plan}, progress)[""]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise SourceError(f"it cannot be read ({error.strerror})", file) from error


def _read_image(file: Path, out: npt.NDArray[np.uint8]) -> None:
    try:
        data = file.read_bytes()
        picture_size(data)
    except (OSError, CodecError) as error:
        raise SourceError(str(error), file) from error
    if _is_cut(data):
        raise SourceError("the picture is cut: its end is missing", file)
    if len(data) != len(out):
        raise SourceError("it changed while it was read", file)
    out[:] = np.frombuffer(data, np.uint8)


def _is_cut(data: bytes) -> bool:
    """Tell whether a file ends before its picture does, without decoding it."""
    if data.startswith(b"\xff\xd8"):  # the end marker follows the last scan; bytes may follow it
        return data.rfind(b"\xff\xd9") < data.rfind(b"\xff\xda")
    if data.startswith(b"RIFF"):
        return len(data) < 8 + int.from_bytes(data[4:8], "little")
    return b"IEND" not in data


def _label_column(targets: Targets, num_samples: int) -> tuple[Field, Column]:
    if len(targets) != num_samples:
        raise ValueError(f"there are {num_samples} paths and {len(targets)} targets")
    if isinstance(targets[0], str):
        classes = tuple(sorted(set(map(str, targets))))
        number = {name: i for i, name in enumerate(classes)}
        field, values = Label(classes=classes), [number[str(target)] for target in targets]
    else:
        field, values = Label(), [int(target) for target in targets]
    return field, _array_column("label", field, np.array(values))


def _field_of(array: npt.NDArray[Any]) -> tuple[Field, npt.NDArray[Any]]:
    if array.ndim == 4 and array.dtype in (np.uint8, np.uint16):
        rows = array.transpose(0, 2, 3, 1) if array.shape[1] in (1, 3, 4) else array
        return Image(
            channels=rows.shape[3], size=rows.shape[1:3], dtype=array.dtype.name, codec="raw"
        ), rows
    if array.ndim == 1 and array.dtype.kind in "ui":
        return Label(), array
    return Array(dtype=array.dtype.name, dims=array.shape[1:]), array


def _array_column(name: str, field: Field, array: npt.NDArray[Any]) -> Column:
    nbytes, shape = field.record_nbytes, field.shape
    if nbytes is None or shape is None:
        raise SchemaError(
            f"field {name!r} does not have records of one size; pack it with packdata.Writer"
        )
    if isinstance(field, Image):
        if array.shape[1:] == shape:
            array = array.transpose(0, 2, 3, 1)
        shape = (*shape[1:], shape[0])
    if not array.ndim or array.shape[1:] != shape:
        raise SchemaError(f"array {name!r} of shape {array.shape} does not fit {field}")
    rows = np.ascontiguousarray(array, np.dtype(field.dtype))
    return FixedColumn(rows.reshape(-1).view(np.uint8).reshape(len(rows), nbytes))


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
