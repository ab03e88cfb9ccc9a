"""``RAMDataset``: the same columns in memory."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from tqdm import tqdm

from loaders.codecs import codec_for
from loaders.codecs.picture import picture_size
from loaders.columns import Column, FixedColumn, VarColumn, ends, fixed_column, var_column
from loaders.datasets.packed import PackedDataset
from loaders.datasets.shard import ShardDataset
from loaders.datasets.store import MemoryShard, Store
from loaders.errors import CodecError, LoadersError, SchemaError, SourceError
from loaders.schema import Array, Field, Image, Label, Mask, Schema, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SPARE_SHARE = 0.9  # of the memory that is available: the rest of the machine needs some


class RAMDataset(PackedDataset):
    """The samples of a dataset, held in memory.

    Args:
        source: A folder that ``packdata`` made, or a ``ShardDataset`` (then its settings are the
            defaults here).
        decode: False keeps records as they are stored, e.g. as JPEG; True keeps pixels.
        progress: Show a bar while loading, on stderr.
        **settings: fields, augment, transform, batching, check, on_error: as ``ShardDataset``
        takes them. Only the
            fields that samples have, and the key, are loaded.

    Raises:
        LoadersError: It does not fit into the memory that is available; the message has the
            figures.
    """

    def __init__(
        self,
        source: ShardDataset | Path | str,
        *,
        decode: bool = False,
        progress: bool = True,
        **settings: Any,
    ) -> None:
        if isinstance(source, ShardDataset):
            dataset = source.replace(**settings) if settings else source
        else:
            dataset = ShardDataset(source, **settings)
        names = _names_to_load(dataset)
        fields = {name: dataset.schema.fields[name] for name in names}
        rows = dataset.numbers_of(np.arange(len(dataset))) if dataset._view is not None else None
        with _Progress(_stored_nbytes(dataset, names, rows), progress) as bar:
            columns = {name: _load_column(dataset.store, name, rows, bar) for name in names}
        if decode:
            for name, field in fields.items():
                if isinstance(field, Image | Mask) and field.codec != "raw":
                    fields[name], columns[name] = _decode_column(field, columns[name], progress)
        self._init_from(columns, fields, dataset, dataset.path, dataset.fingerprint)

    def _init_from(
        self,
        columns: Mapping[str, Column],
        fields: Mapping[str, Field],
        like: PackedDataset | None,
        origin: Path,
        fingerprint: str,
        **settings: Any,
    ) -> None:
        shown = tuple(name for name in fields if name != "key")
        if like is not None:
            shown = like.fields
            settings = {
                k: getattr(like, k) for k in ("augment", "transform", "batching", "on_error")
            }
        stored = tuple(name for name in shown if name in fields)
        PackedDataset.__init__(
            self,
            Store([MemoryShard(origin, columns)]),
            Schema(fields, stored),
            fingerprint=fingerprint,
            **({"fields": shown} | settings),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(column.nbytes for column in self.store.shard(0).columns.values())

    @classmethod
    def from_files(
        cls,
        paths: Sequence[Path | str],
        targets: Sequence[int] | Sequence[str] | None = None,
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
        with (
            _Progress(sum(_size(file) for file in files), progress) as bar,
            ThreadPoolExecutor(8) as threads,
        ):
            records = list(bar.over(threads.map(_read_image, files), len))
        columns: dict[str, Column] = {"image": var_column(records)}
        fields: dict[str, Field] = {"image": Image()}
        if targets is not None:
            fields["label"], columns["label"] = _label_column(targets, len(files))
        fields["key"], columns["key"] = Text(), var_column([str(file).encode() for file in files])
        if decode:
            fields["image"], columns["image"] = _decode_column(Image(), columns["image"], progress)
        dataset = cls.__new__(cls)
        dataset._init_from(columns, fields, None, Path("files"), _fingerprint(columns), **settings)
        return dataset

    @classmethod
    def from_arrays(cls, *, schema: Mapping[str, Field] | None = None, **arrays: Any) -> Self:
        """Serve arrays that are in memory.

        Args:
            schema: Fields by name, where the guess below is not meant.
            **arrays: numpy arrays or tensors with one row per sample. 4-D uint8 or uint16 is an
            ``Image``, ``(N, C, H, W)``
                with C of 1, 3 or 4, else ``(N, H, W, C)``, which is not copied; 1-D integers are
                a ``Label``; the rest is an ``Array``.
        """
        fields: dict[str, Field] = {}
        columns: dict[str, Column] = {}
        for name, value in arrays.items():
            array = np.asarray(value.cpu() if isinstance(value, torch.Tensor) else value)
            fields[name], rows = (
                _field_of(array) if schema is None or name not in schema else (schema[name], array)
            )
            columns[name] = _array_column(name, fields[name], rows)
        dataset = cls.__new__(cls)
        dataset._init_from(columns, fields, None, Path("arrays"), _fingerprint(columns))
        return dataset


def _names_to_load(dataset: ShardDataset) -> list[str]:
    names = [name for name in dataset.fields if name in dataset.schema.fields]
    return names + (["key"] if "key" in dataset.schema.fields and "key" not in names else [])


def _stored_nbytes(
    dataset: ShardDataset, names: Sequence[str], rows: npt.NDArray[np.int64] | None
) -> int:
    share = 1.0 if rows is None else len(rows) / max(1, len(dataset.store))
    shards = [dataset.store.shard(i) for i in range(len(dataset.store.shards))]
    return int(share * sum(shard.columns[name].nbytes for shard in shards for name in names))


def _load_column(
    store: Store, name: str, rows: npt.NDArray[np.int64] | None, bar: _Progress
) -> Column:
    """Copy a column out of the maps, verifying it."""
    if rows is not None:
        return _join([_compact(store.records(name, store.rows(rows)))])
    parts = []
    for column in store.column(name):
        parts.append(
            _compact([column.row(i) for i in range(len(column))])
            if isinstance(column, VarColumn)
            else column
        )
        bar.update(column.nbytes)
    return _join(parts)


def _compact(rows: Sequence[npt.NDArray[np.uint8]]) -> VarColumn:
    return var_column(rows)  # type: ignore[arg-type]


def _join(parts: Sequence[Column]) -> Column:
    if all(isinstance(part, FixedColumn) for part in parts):
        return FixedColumn(np.concatenate([part.data for part in parts]))  # type: ignore[union-attr]
    buffers = [part.buffer for part in parts]  # type: ignore[union-attr]
    lengths = np.concatenate([part.lengths for part in parts])  # type: ignore[union-attr]
    return VarColumn(np.concatenate(buffers), ends(lengths) - lengths, lengths)


def _decode_column(field: Image | Mask, column: Column, progress: bool) -> tuple[Field, Column]:
    """Turn encoded pictures into pixels; the field's size becomes known if they share one."""
    sizes = {picture_size(column.row(i)) for i in range(len(column))}
    size = sizes.pop() if len(sizes) == 1 else None
    raw = replace(field, codec="raw", size=size)
    decode, encode = codec_for(field).decode, codec_for(raw).encode
    with (
        _Progress(len(column) * (raw.record_nbytes or 0), progress) as bar,
        ThreadPoolExecutor(os.cpu_count()) as threads,
    ):
        rows = list(
            bar.over(threads.map(lambda i: encode(decode(column.row(i))), range(len(column))), len)
        )
    return raw, var_column(rows) if raw.record_nbytes is None else fixed_column(
        rows, raw.record_nbytes
    )


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise SourceError(f"it cannot be read ({error.strerror})", file) from error


def _read_image(file: Path) -> bytes:
    try:
        data = file.read_bytes()
        picture_size(data)
    except (OSError, CodecError) as error:
        raise SourceError(str(error), file) from error
    return data


def _label_column(
    targets: Sequence[int] | Sequence[str], num_samples: int
) -> tuple[Field, Column]:
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
    nbytes = field.record_nbytes
    if nbytes is None:
        raise SchemaError(
            f"field {name!r} does not have records of one size; pack it with packdata.Writer"
        )
    rows = np.ascontiguousarray(array, np.dtype(field.dtype))
    if rows.nbytes != nbytes * len(rows):
        raise SchemaError(f"array {name!r} of shape {array.shape} does not fit {field}")
    return FixedColumn(rows.reshape(len(rows), -1).view(np.uint8))


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


def available_memory() -> int:
    """Return the bytes that this process can still take: of the machine, or of its container if that is less."""
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    available = int(fields["MemAvailable"].split()[0]) << 10
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no limit is set
        return available
    return min(available, limit - used)


class _Progress:
    """Refuses what does not fit, then shows a bar of bytes."""

    def __init__(self, nbytes: int, show: bool) -> None:
        self._nbytes, self._show = nbytes, show
        available = available_memory()
        if nbytes > _SPARE_SHARE * available:
            need, have = nbytes / 1e9, available / 1e9
            raise LoadersError(
                f"RAMDataset needs {need:.1f} GB, and {have:.1f} GB of memory are available. "
                "Use ShardDataset, which maps the files, or pack smaller (packdata images --size)"
            )

    def __enter__(self) -> Self:
        self._bar = tqdm(
            total=self._nbytes,
            unit="B",
            unit_scale=True,
            desc="loading into RAM",
            disable=not self._show,
            delay=1.0,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def update(self, nbytes: int) -> None:
        self._bar.update(nbytes)

    def over(self, values: Iterator[Any], size: Any) -> Iterator[Any]:
        """Pass values on, counting their bytes."""
        for value in values:
            self._bar.update(size(value))
            yield value
