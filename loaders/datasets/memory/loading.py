"""Bringing records to where they stay: sizes first, so that memory is taken once and filled in place.

A ``ColumnToLoad`` knows the size of every record of one field, and how to fill them in. Whoever owns
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
from loaders.codecs.heads import MAX_PICTURE_MB, picture_size
from loaders.codecs.picture import PictureCodec
from loaders.data.columns import Column, FixedColumn, VarColumn, ends
from loaders.datasets.reading.coefficients import WholeImages, has_halves
from loaders.errors import CodecError, LoadersError
from loaders.progress import Meter
from loaders.schema import Array, Bytes, Field, Image, Mask
from loaders.system.limits import available_memory, cores_of_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from loaders.data.finder import Rows
    from loaders.data.store import Store
    from loaders.datasets.packed import PackedDataset

    UInt8Array = npt.NDArray[np.uint8]
    Lengths = npt.NDArray[np.int64]
    Report = Callable[[int], object]  # called with the bytes that were filled
    Blame = Callable[[int, str], LoadersError]  # a row and what is wrong with it, as an error
    Part = slice | npt.NDArray[np.int64]  # positions of some samples
    Records = Callable[[Part], Sequence[UInt8Array]]

logger = logging.getLogger(__name__)
_PART_BYTES, _PART_ROWS = 16 << 20, 4096  # between two steps of the progress bar
_COPIED_ROWS = 1 << 16  # the same, of records that are here
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
    rows = dataset.rows_of(np.arange(len(dataset)))
    plans = {}
    for name in names_to_load(dataset):
        field = dataset.schema.fields[name]
        if decode and isinstance(field, Image | Mask) and field.codec != "raw":
            records = _records_of(dataset.store, name, rows)
            blame, scale = dataset.sample_error, dataset.scale
            plans[name] = plan_pixels(
                field,
                [*rows.parts(_PICTURES)],
                records,
                blame,
                progress,
                scale,
                num_threads,
                dataset.max_picture_mb,
            )
        else:
            plans[name] = _plan_copy(dataset.store, name, field, rows)
    return plans


def copy_plan(column: Column) -> ColumnToLoad:
    """Plan to copy a column, whose records are bytes here."""
    field: Field = Bytes()
    if isinstance(column, FixedColumn):
        field = Array(dtype="uint8", dims=(column.data.shape[1],))

    def fill(out: Column, report: Report) -> None:
        for part in parts(len(out), _COPIED_ROWS):
            if isinstance(out, FixedColumn) and isinstance(column, FixedColumn):
                out.data[part] = column.data[part]
            else:
                for i in range(part.start, part.stop):
                    out.row(i)[:] = column.row(i)
            report(int(column.lengths[part].sum()))

    return ColumnToLoad(field, column.lengths, fill)


def names_to_load(dataset: PackedDataset[Any]) -> list[str]:
    """Return the fields of the dataset's samples that are stored, and the key."""
    names = [name for name in dataset.fields if name in dataset.schema.fields]
    return names + (["key"] if "key" in dataset.schema.fields and "key" not in names else [])


def _records_of(store: Store, name: str, rows: Rows) -> Records:
    def read(part: Part) -> list[UInt8Array]:
        store.prefetch(name, rows[part])
        return store.records(name, rows[part])

    return read


def _plan_copy(store: Store, name: str, field: Field, rows: Rows) -> ColumnToLoad:
    """Plan to copy records out of the maps, verified."""
    if field.record_nbytes is not None:
        nbytes = field.record_nbytes
        lengths = np.full(len(rows), nbytes, np.int64)
        part_rows = max(1, _PART_BYTES // nbytes)
    else:
        lengths, part_rows = _lengths(store, name, rows), _PART_ROWS

    def fill(column: Column, report: Report) -> None:
        for part in rows.parts(part_rows):
            store.prefetch(name, rows[part])
            if isinstance(column, FixedColumn):
                gather_part(store, name, rows, part, column.data)
            else:
                records = store.records(name, rows[part])
                for i, record in zip(positions(part), records, strict=True):
                    column.row(i)[:] = record
            report(int(lengths[part].sum()))

    return ColumnToLoad(field, lengths, fill)


def gather_part(store: Store, name: str, rows: Rows, part: Part, out: UInt8Array) -> None:
    """Copy some rows to their positions."""
    if isinstance(part, slice):
        store.gather(name, rows[part], out[part])
    else:
        found = np.empty((len(part), out.shape[1]), np.uint8)
        store.gather(name, rows[part], found)
        out[part] = found


def positions(part: Part) -> Sequence[int]:
    """Return positions as numbers."""
    return range(part.start, part.stop) if isinstance(part, slice) else part.tolist()


def _lengths(store: Store, name: str, rows: Rows) -> Lengths:
    """Return the size of each record."""
    lengths = np.empty(len(rows), np.int64)
    for number in np.unique(rows.shards).tolist():
        column, here = store.shard(number).columns[name], rows.shards == number
        inside = rows.indices[here] - store.starts[number]
        lengths[here] = (
            column.lengths[inside] if isinstance(column, VarColumn) else column.data.shape[1]
        )
    return lengths


def plan_pixels(
    field: Image | Mask,  # what the pictures are
    pieces: Sequence[Part],  # the positions of all of them, some at a time
    records: Records,  # returns some of them, encoded; called on several threads
    blame: Blame,  # makes an error of a picture that cannot be decoded
    progress: bool,  # show a bar where reading their sizes takes long
    scale: float = 1,  # of the pixels, where the codec is ``dct``
    num_threads: int | None = None,  # that decode; default: as many as this rank has cores
    max_picture_mb: int = MAX_PICTURE_MB,  # memory of the largest, decoded
) -> ColumnToLoad:
    """Plan to turn encoded pictures into pixels; the field's size becomes known if they share one."""
    codec: Any = codec_for(field, max_picture_mb)
    if isinstance(field, Image) and has_halves(field):
        codec = WholeImages(field, scale)
        field = codec.served
    sizes = _picture_sizes(field, codec, pieces, records, blame, progress)
    shared = tuple(sizes[0].tolist()) if len(sizes) and (sizes == sizes[0]).all() else None
    raw = replace(field, codec="raw", size=shared or field.size)
    pixel_nbytes = np.dtype(field.dtype).itemsize * (
        field.channels if isinstance(field, Image) else 1
    )
    header_nbytes = 0 if raw.size else 8  # height and width, where each picture has its own
    lengths = sizes.prod(axis=1) * pixel_nbytes + header_nbytes
    decode, encode = codec.decode, codec_for(raw).encode

    def fill(column: Column, report: Report) -> None:
        def fill_part(part: Part) -> int:
            for i, record in zip(positions(part), records(part), strict=True):
                try:
                    pixels = np.frombuffer(encode(decode(record)), np.uint8)
                except CodecError as error:
                    raise blame(i, str(error)) from error
                if len(pixels) != lengths[i]:
                    raise blame(i, f"it is not of size {sizes[i].tolist()} after all")
                column.row(i)[:] = pixels
            return int(lengths[part].sum())

        on_threads(fill_part, pieces, num_threads or cores_of_rank(), report)

    return ColumnToLoad(raw, lengths, fill)


def _picture_sizes(
    field: Image | Mask,
    codec: Any,
    pieces: Sequence[Part],
    records: Records,
    blame: Blame,
    progress: bool,
) -> npt.NDArray[np.int64]:
    """Return height and width of each picture, of the schema or from its header; where it has none, it is decoded."""
    num_rows = sum(len(positions(part)) for part in pieces)
    if field.size is not None:
        return np.tile(np.array(field.size, np.int64), (num_rows, 1))
    is_file = isinstance(codec, PictureCodec)
    sizes = np.empty((num_rows, 2), np.int64)
    with meter(num_rows, progress, "reading sizes", "pictures") as bar:
        for part in pieces:
            for i, record in zip(positions(part), records(part), strict=True):
                try:
                    sizes[i] = (
                        picture_size(record, codec.max_pixels)
                        if is_file
                        else codec.decode(record).shape[:2]
                    )
                except CodecError as error:
                    raise blame(i, str(error)) from error
            bar.tick(len(positions(part)))
    return sizes


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
