"""Loading records into RAM: sizes first, so that memory is allocated once and filled in place.

A ``ColumnToLoad`` knows the size of every record of one field, and how to fill them in. The owner of
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
from loaders.datasets.reading.coefficients import WholeImages, has_halves
from loaders.errors import CodecError, LoadersError
from loaders.progress import Meter
from loaders.schema import Array, Bytes, Field, Image, Mask
from loaders.system.limits import available_memory, cores_of_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from loaders.data.finder import Rows
    from loaders.datasets.packed import PackedDataset

    UInt8Array = npt.NDArray[np.uint8]
    Lengths = npt.NDArray[np.int64]
    Report = Callable[[int], object]  # called with the bytes that were filled
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
    # Writes the records into a column of that shape, and reports bytes.
    fill: Callable[[Column, Report], None]

    @property
    def row_nbytes(self) -> int | None:
        """Bytes of each record if the field has fixed ones."""
        return self.field.record_nbytes

    @property
    def data_nbytes(self) -> int:
        """Bytes of all records."""
        return int(self.lengths.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the column."""
        return sum(self.array_nbytes)

    @property
    def array_nbytes(self) -> tuple[int, ...]:
        """Bytes of each array: the records, and where they vary in size, their starts and lengths."""
        places = () if self.row_nbytes is not None else (self.lengths.nbytes, self.lengths.nbytes)
        return self.data_nbytes, *places

    def column(self, arrays: Sequence[UInt8Array]) -> Column:
        """Lay the column out over arrays of these sizes; its records are yet to be filled in."""
        if self.row_nbytes is not None:
            return FixedColumn(arrays[0].reshape(len(self.lengths), self.row_nbytes))
        starts, lengths = (array.view(np.int64) for array in arrays[1:])
        lengths[:] = self.lengths
        starts[:] = ends(self.lengths) - self.lengths
        return VarColumn(arrays[0], starts, lengths)


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
            plans[name] = _plan_pixels(dataset, name, field, rows, progress, num_threads)
        else:
            plans[name] = _plan_copy(dataset, name, field, rows)
    return plans


def copy_plan(column: Column) -> ColumnToLoad:
    """Plan to copy a column, whose records are bytes here."""
    field: Field = Bytes()
    if isinstance(column, FixedColumn):
        field = Array(dtype="uint8", dims=(column.data.shape[1],))

    def fill(out: Column, report: Report) -> None:
        if isinstance(out, FixedColumn) and isinstance(column, FixedColumn):
            out.data[:] = column.data
        else:
            for i in range(len(out)):
                out.row(i)[:] = column.row(i)
        report(int(column.lengths.sum()))

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

    def fill(column: Column, report: Report) -> None:
        for part in rows.parts(part_rows):
            store.prefetch(name, rows[part])
            if not isinstance(column, FixedColumn):
                records = store.records(name, rows[part])
                for i, record in zip(positions(part), records, strict=True):
                    column.row(i)[:] = record
            elif isinstance(part, slice):
                store.gather(name, rows[part], column.data[part])
            else:
                found = np.empty((len(part), column.data.shape[1]), np.uint8)
                store.gather(name, rows[part], found)
                column.data[part] = found
            report(int(lengths[part].sum()))

    return ColumnToLoad(field, lengths, fill)


def positions(part: Part) -> Sequence[int]:
    """Return positions as numbers."""
    return range(part.start, part.stop) if isinstance(part, slice) else part.tolist()


def _plan_pixels(
    dataset: PackedDataset[Any],
    name: str,
    field: Image | Mask,
    rows: Rows,
    progress: bool,
    num_threads: int | None,
) -> ColumnToLoad:
    """Plan to turn encoded pictures into pixels; the field's size becomes known if they share one."""
    codec: Any = codec_for(field, dataset.max_picture_mb)
    if isinstance(field, Image) and has_halves(field):
        codec = WholeImages(field, dataset.scale)
        field = codec.served
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

    def fill(column: Column, report: Report) -> None:
        def fill_part(part: Part) -> int:
            store.prefetch(name, rows[part])
            for i, record in zip(positions(part), store.records(name, rows[part]), strict=True):
                try:
                    pixels = np.frombuffer(encode(decode(record)), np.uint8)
                except CodecError as error:
                    raise dataset.plan.sample_error(i, error) from error
                if len(pixels) != lengths[i]:
                    what = f"it is not of size {sizes[i].tolist()} after all"
                    raise dataset.plan.sample_error(i, what)
                column.row(i)[:] = pixels
            return int(lengths[part].sum())

        on_threads(fill_part, rows.parts(_PICTURES), num_threads or cores_of_rank(), report)

    return ColumnToLoad(raw, lengths, fill)


def on_threads(
    fill: Callable[[Any], int], pieces: Iterable[Part], num_threads: int, report: Report
) -> None:
    """Call ``fill`` for each piece on threads, and report what it returns, in order."""
    with ThreadPoolExecutor(num_threads) as threads:
        for nbytes in threads.map(fill, pieces):
            report(nbytes)


def parts(length: int, size: int) -> Iterator[slice]:
    """Cut a range into slices of one size, but for the last."""
    return (slice(first, min(first + size, length)) for first in range(0, length, size))


def check_fits(nbytes: int, progress: bool, what: str = "") -> None:
    """Say what so many bytes take of the available memory (on stderr, if it is much); LoadersError if too much."""
    available = available_memory()
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


def meter(total: int, show: bool, what: str = "loading into RAM", unit: str = "bytes") -> Meter:
    """Return what shows how far loading is, on a terminal, if it takes a second."""
    hidden = None if show else io.StringIO()
    return Meter(what, unit, total, stream=hidden, logs=False, delay_s=1.0)
