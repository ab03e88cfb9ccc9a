"""``RAMDataset``: the same columns in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
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
from loaders.columns import Column, FixedColumn, VarColumn, ends, var_column
from loaders.datasets.packed import PackedDataset
from loaders.datasets.shard import ShardDataset
from loaders.datasets.store import MemoryShard, Store
from loaders.errors import CodecError, LoadersError, SchemaError, SourceError
from loaders.schema import Array, Field, Image, Label, Mask, Schema, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from loaders.datasets.store import Rows

_PART_BYTES, _PART_ROWS = 16 << 20, 4096  # between two steps of the progress bar
Targets = Sequence[int] | Sequence[str] | npt.NDArray[Any] | torch.Tensor
Blame = Callable[[int, str], LoadersError]  # a row and what is wrong with it, as an error
_SPARE_SHARE = 0.9  # of the memory that is available: the rest of the machine needs some


class RAMDataset(PackedDataset):
    """The samples of a dataset, held in memory.

    Args:
        source: A folder that ``packdata`` made, or a dataset (then its settings are the defaults
            here).
        decode: False keeps records as they are stored, e.g. as JPEG; True keeps pixels.
        progress: Show a bar while loading, on stderr.
        **settings: fields, augment, transform, batching, check, on_error: as ``ShardDataset``
            takes them. Only the fields that samples have, and the key, are loaded.

    Raises:
        LoadersError: It does not fit into the memory that is available; the message has the
            figures.
    """

    def __init__(
        self,
        source: PackedDataset | Path | str,
        *,
        decode: bool = False,
        progress: bool = True,
        **settings: Any,
    ) -> None:
        dataset: PackedDataset
        if isinstance(source, PackedDataset):
            dataset = source.replace(**settings) if settings else source
        else:
            dataset = ShardDataset(source, **settings)
        names = _names_to_load(dataset)
        fields = {name: dataset.schema.fields[name] for name in names}
        rows = dataset.rows_of(np.arange(len(dataset)))
        stored_nbytes = _stored_nbytes(dataset, names)
        _check_fits(stored_nbytes)
        with _Progress(stored_nbytes, progress) as bar:
            columns = {
                name: _load_column(dataset.store, name, field.record_nbytes, rows, bar)
                for name, field in fields.items()
            }
        if decode:
            for name, field in fields.items():
                if isinstance(field, Image | Mask) and field.codec != "raw":
                    fields[name], columns[name] = _decode_column(
                        field, columns[name], dataset.sample_error, progress
                    )
        origin = getattr(dataset, "path", Path("datasets joined"))
        self._init_from(columns, fields, dataset, origin, dataset.fingerprint)

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
            fields["image"], columns["image"] = _decode_column(
                Image(), column, lambda i, what: SourceError(what, files[i]), progress
            )
        dataset = cls.__new__(cls)
        dataset._init_from(columns, fields, None, Path("files"), _fingerprint(columns), **settings)
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
        dataset = cls.__new__(cls)
        dataset._init_from(columns, fields, None, Path("arrays"), _fingerprint(columns))
        return dataset


def _names_to_load(dataset: PackedDataset) -> list[str]:
    names = [name for name in dataset.fields if name in dataset.schema.fields]
    return names + (["key"] if "key" in dataset.schema.fields and "key" not in names else [])


def _stored_nbytes(dataset: PackedDataset, names: Sequence[str]) -> int:
    share = len(dataset) / max(1, len(dataset.store))
    shards = [dataset.store.shard(i) for i in range(len(dataset.store.shards))]
    return int(share * sum(shard.columns[name].nbytes for shard in shards for name in names))


def _load_column(
    store: Store, name: str, nbytes: int | None, rows: Rows, bar: _Progress
) -> Column:
    """Copy the records of some rows out of the maps, verified, to where they stay."""
    if nbytes is not None:
        data = np.empty((len(rows), nbytes), np.uint8)
        for part in _parts(len(rows), max(1, _PART_BYTES // nbytes)):
            store.gather(name, rows[part], data[part])
            bar.update(data[part].nbytes)
        return FixedColumn(data)
    column = _empty_column(_lengths(store, name, rows))
    for part in _parts(len(rows), _PART_ROWS):
        for i, record in enumerate(store.records(name, rows[part]), part.start):
            column.row(i)[:] = record
        bar.update(int(column.lengths[part].sum()))
    return column


def _parts(length: int, size: int) -> Iterator[slice]:
    return (slice(first, min(first + size, length)) for first in range(0, length, size))


def _lengths(store: Store, name: str, rows: Rows) -> npt.NDArray[np.int64]:
    """Return the size of each record."""
    lengths = np.empty(len(rows), np.int64)
    for number in np.unique(rows.shards).tolist():
        column, here = store.shard(number).columns[name], rows.shards == number
        inside = rows.indices[here] - store.starts[number]
        lengths[here] = (
            column.lengths[inside] if isinstance(column, VarColumn) else column.data.shape[1]
        )
    return lengths


def _empty_column(lengths: npt.NDArray[np.int64]) -> VarColumn:
    last = ends(lengths)
    return VarColumn(np.empty(int(lengths.sum()), np.uint8), last - lengths, lengths)


def _decode_column(
    field: Image | Mask, column: Column, blame: Blame, progress: bool
) -> tuple[Field, Column]:
    """Turn encoded pictures into pixels; the field's size becomes known if they share one."""
    sizes = np.array([picture_size(column.row(i)) for i in range(len(column))]).reshape(-1, 2)
    shared = tuple(sizes[0].tolist()) if len(sizes) and (sizes == sizes[0]).all() else None
    raw = replace(field, codec="raw", size=shared)
    pixel_nbytes = np.dtype(field.dtype).itemsize * (
        field.channels if isinstance(field, Image) else 1
    )
    header_nbytes = 0 if shared else 8  # height and width, where each picture has its own
    lengths = sizes.prod(axis=1) * pixel_nbytes + header_nbytes
    _check_fits(int(lengths.sum()))
    decoded = _empty_column(lengths)
    decode, encode = codec_for(field).decode, codec_for(raw).encode

    def fill(i: int) -> None:
        try:
            record = encode(decode(column.row(i)))
        except CodecError as error:
            raise blame(i, str(error)) from error
        decoded.row(i)[:] = np.frombuffer(record, np.uint8)

    _fill_rows(decoded, fill, os.cpu_count() or 1, progress)
    if raw.record_nbytes is None:
        return raw, decoded
    return raw, FixedColumn(decoded.buffer.reshape(-1, raw.record_nbytes))


def _fill_rows(
    column: VarColumn, fill: Callable[[int], None], num_threads: int, progress: bool
) -> None:
    """Call ``fill`` for each row of a column, on threads."""

    def fill_part(part: slice) -> int:
        for i in range(part.start, part.stop):
            fill(i)
        return int(column.lengths[part].sum())

    with _Progress(column.nbytes, progress) as bar, ThreadPoolExecutor(num_threads) as threads:
        for nbytes in threads.map(fill_part, _parts(len(column), 64)):
            bar.update(nbytes)


def _read_files(files: Sequence[Path], progress: bool) -> VarColumn:
    lengths = np.array([_size(file) for file in files], np.int64)
    _check_fits(int(lengths.sum()))
    column = _empty_column(lengths)
    _fill_rows(column, lambda i: _read_image(files[i], column.row(i)), 8, progress)
    return column


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


def _check_fits(nbytes: int) -> None:
    available = available_memory()
    if nbytes > _SPARE_SHARE * available:
        need, have = nbytes / 1e9, available / 1e9
        raise LoadersError(
            f"RAMDataset needs {need:.3g} GB, and {have:.3g} GB of memory are available. "
            "Use ShardDataset, which maps the files, or pack smaller (packdata images --size)"
        )


class _Progress:
    """Shows a bar of bytes."""

    def __init__(self, nbytes: int, show: bool) -> None:
        self._nbytes, self._show = nbytes, show

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
