"""Loading records into RAM: sizes first, so that memory is allocated once and filled in place.

A ``ColumnToLoad`` knows the size of every record of one field, and how to fill them in, part by part. The owner of
the memory (this process, or a file that processes share) allocates it by the plan.
"""

from __future__ import annotations

import io
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.codecs import codec_for
from loaders.data.columns import Column, FixedColumn, VarColumn, ends
from loaders.datasets.reading.coefficients import pixels_of
from loaders.errors import CodecError, LoadersError
from loaders.progress import Meter
from loaders.schema import Array, Bytes, Field, Image, Mask
from loaders.system.limits import available_memory, cores_of_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from loaders.data.finder import Rows
    from loaders.datasets.packed import PackedDataset

    UInt8Array = npt.NDArray[np.uint8]
    Lengths = npt.NDArray[np.int64]
    Part = slice | npt.NDArray[np.int64]  # positions of some samples

logger = logging.getLogger(__name__)
_PART_BYTES, _PART_ROWS = 16 << 20, 4096  # between two steps of the progress bar
_PICTURES = 64  # that one thread decodes at a time
_MUCH = 64 << 20  # bytes: what takes time to load, and is worth a line
_SPARE_SHARE = 0.9  # of the memory that is available: the rest of the machine needs some


@dataclass(frozen=True, slots=True)
class ColumnToLoad:
    """One column that is to be in memory."""

    field: Field  # what its records will be
    lengths: Lengths  # ``(N,)`` int64, the bytes of each record
    # Writes a part of the records into a column of that shape.
    fill: Callable[[Column, Any], object]
    parts: Iterable[Part] = (slice(None),)  # all records
    num_threads: int = 1  # that fill parts at one time

    @property
    def data_nbytes(self) -> int:
        """Bytes of all records."""
        return int(self.lengths.sum())

    @property
    def array_nbytes(self) -> list[int]:
        """Bytes of each array: see ``column_over``."""
        return array_sizes(self.field, len(self.lengths), self.data_nbytes)

    def load(self, column: Column, report: Callable[[int], object]) -> None:
        """Fill a column, and report the bytes of each part."""
        if isinstance(column, VarColumn):
            column.lengths[:] = self.lengths
            column.starts[:] = ends(self.lengths) - self.lengths

        def fill(part: Part) -> int:
            self.fill(column, part)
            return int(self.lengths[part].sum())

        if self.num_threads == 1:
            for part in self.parts:
                report(fill(part))
            return
        with ThreadPoolExecutor(self.num_threads) as threads:
            for nbytes in threads.map(fill, self.parts):
                report(nbytes)


def array_sizes(field: Field, num_rows: int, data_nbytes: int) -> list[int]:
    """Return the bytes of the arrays of a column: records, and if they vary in size, starts and lengths."""
    return [data_nbytes] + ([8 * num_rows] * 2 if field.record_nbytes is None else [])


def column_over(arrays: Sequence[UInt8Array], field: Field, num_rows: int) -> Column:
    """Lay a column out over arrays of these sizes."""
    if field.record_nbytes is not None:
        return FixedColumn(arrays[0].reshape(num_rows, field.record_nbytes))
    return VarColumn(arrays[0], *(array.view(np.int64) for array in arrays[1:]))


def load_columns(
    plans: Mapping[str, ColumnToLoad], columns: Mapping[str, Column], progress: bool, what: str
) -> None:
    """Fill columns, under a bar that says ``what`` is done."""
    with meter(sum(plan.data_nbytes for plan in plans.values()), progress, what) as bar:
        for name, plan in plans.items():
            plan.load(columns[name], bar.tick)


def plan_columns(
    dataset: PackedDataset[Any], *, decode: bool, progress: bool, num_threads: int | None = None
) -> dict[str, ColumnToLoad]:
    """Plan to load the fields of a dataset's samples, and their keys.

    With ``decode`` pictures become pixels: their sizes are then read, and so all of them are verified, unless the
    schema has the size. ``num_threads`` decode; default: as many as this rank has cores.
    """
    rows = dataset.view.rows(np.arange(len(dataset)))
    plans = {}
    for name in names_to_load(dataset):
        field = dataset.schema.fields[name]
        if decode and isinstance(field, Image | Mask) and field.codec != "raw":
            threads = num_threads or cores_of_rank()
            plans[name] = _plan_pixels(dataset, name, field, rows, progress, threads)
        else:
            plans[name] = _plan_copy(dataset, name, field, rows)
    return plans


def copy_plan(column: Column) -> ColumnToLoad:
    """Plan to copy a column, whose records are bytes here."""
    field: Field = Bytes()
    if isinstance(column, FixedColumn):
        field = Array(dtype="uint8", dims=(column.data.shape[1],))

    def fill(out: Column, part: Part) -> None:
        if isinstance(out, FixedColumn) and isinstance(column, FixedColumn):
            out.data[part] = column.data[part]
        else:
            for i in range(len(out)):
                out.row(i)[:] = column.row(i)

    return ColumnToLoad(field, column.lengths, fill)


def names_to_load(dataset: PackedDataset[Any]) -> list[str]:
    """Return the fields of the dataset's samples that are stored, and the key."""
    names = [name for name in dataset.fields if name in dataset.schema.fields]
    return names + (["key"] if "key" in dataset.schema.fields and "key" not in names else [])


def _plan_copy(dataset: PackedDataset[Any], name: str, field: Field, rows: Rows) -> ColumnToLoad:
    """Plan to copy records out of the maps, verified."""
    store, nbytes = dataset.store, field.record_nbytes
    if nbytes is not None:
        lengths, part_rows = np.full(len(rows), nbytes, np.int64), max(1, _PART_BYTES // nbytes)
    else:
        lengths, part_rows = dataset.view.stored_lengths(name), _PART_ROWS

    def fill(column: Column, part: Part) -> None:
        store.field(name).prefetch(rows[part])
        if not isinstance(column, FixedColumn):
            for i, record in zip(positions(part), store.records(name, rows[part]), strict=True):
                column.row(i)[:] = record
        elif isinstance(part, slice):
            store.gather(name, rows[part], column.data[part])
        else:
            found = np.empty((len(part), column.data.shape[1]), np.uint8)
            store.gather(name, rows[part], found)
            column.data[part] = found

    return ColumnToLoad(field, lengths, fill, rows.pieces(part_rows))


def positions(part: Part) -> Sequence[int]:
    """Return positions as numbers."""
    return range(part.start, part.stop) if isinstance(part, slice) else part.tolist()


def _plan_pixels(
    dataset: PackedDataset[Any],
    name: str,
    field: Image | Mask,
    rows: Rows,
    progress: bool,
    num_threads: int,
) -> ColumnToLoad:
    """Plan to turn encoded pictures into pixels; the field's size becomes known if they share one."""
    codec, field = pixels_of(field, dataset)
    if field.size is None:
        with meter(len(rows), progress, "reading sizes", "pictures") as bar:
            sizes = dataset.view.sizes(name, dataset.max_picture_mb, bar.tick).astype(np.int64)
    else:
        sizes = np.tile(np.array(field.size, np.int64), (len(rows), 1))
    shared = tuple(sizes[0].tolist()) if len(sizes) and (sizes == sizes[0]).all() else None
    raw = replace(field, codec="raw", size=shared or field.size)
    channels = field.channels if isinstance(field, Image) else 1
    header_nbytes = 0 if raw.size else 8  # height and width, where each picture has its own
    lengths = sizes.prod(axis=1) * (np.dtype(field.dtype).itemsize * channels) + header_nbytes
    store, decode, encode = dataset.store, codec.decode, codec_for(raw).encode

    def fill(column: Column, part: Part) -> None:
        store.field(name).prefetch(rows[part])
        for i, record in zip(positions(part), store.records(name, rows[part]), strict=True):
            try:
                pixels = np.frombuffer(encode(decode(record)), np.uint8)
            except CodecError as error:
                raise dataset.view.sample_error(i, error) from error
            column.row(i)[:] = pixels

    return ColumnToLoad(raw, lengths, fill, rows.pieces(_PICTURES), num_threads)


def check_fits(plans: Mapping[str, ColumnToLoad], progress: bool, what: str = "") -> None:
    """Say what columns take of the available memory (on stderr, if it is much); LoadersError if too much."""
    nbytes, available = nbytes_of(plans), available_memory()
    if nbytes > _SPARE_SHARE * available:
        need, have = nbytes / 1e9, available / 1e9
        raise LoadersError(
            f"RAMDataset needs {need:.3g} GB, and {have:.3g} GB of memory are available. "
            "Use ShardDataset, which maps the files, or pack smaller (packdata images --size)"
        )
    said = f"RAMDataset: {nbytes / 1e9:.3g} GB{what}; {available / 1e9:.3g} GB are available"
    logger.info(said)
    if progress and nbytes >= _MUCH:
        print(said, file=sys.stderr)  # noqa: T201  (asked for)


def nbytes_of(plans: Mapping[str, ColumnToLoad]) -> int:
    """Return the bytes that columns take."""
    return sum(sum(plan.array_nbytes) for plan in plans.values())


def meter(total: int, show: bool, what: str, unit: str = "bytes") -> Meter:
    """Return what shows how far loading is, on a terminal, if it takes a second."""
    hidden = None if show else io.StringIO()
    return Meter(what, unit, total, stream=hidden, logs=False, delay_s=1.0)
