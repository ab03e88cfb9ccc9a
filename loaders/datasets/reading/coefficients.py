"""Serving ``dct`` and ``yuv420``: whole images, or the half that is left to the host.

- *Whole*: both halves on the host, sample by sample; then crops and flips as for raw pixels.
- *Host half*: a batch holds coefficients or planes, decompressed straight into its slot, and the crops and flips
  that were drawn (``with_moves``); a ``Finisher`` makes images of them, on the device.

Both give the same images (where a device resamples, within one step of uint8). At a scale below 1,
no more of a record is touched than it needs: the record's own checks stand in for those of its
shard, which are of whole records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from loaders.codecs import codec_for
from loaders.codecs.dct import DctCodec
from loaders.data.madvise import wait_for
from loaders.data.prefetch import unreadable
from loaders.data.seen import Seen
from loaders.datasets.reading.known import known_of
from loaders.device.augment import BatchAugment, Moves, draw_moves
from loaders.device.blocks import Cut, cut_around
from loaders.device.decode import Coefficients, DctFinish, Yuv420Finish, side_of, unit_of
from loaders.device.modes import without_autocast
from loaders.errors import SchemaError
from loaders.schema import Boxes, Field, Image, Keypoints, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from loaders.buffers import Memory
    from loaders.codecs.dct import Escapes
    from loaders.codecs.yuv import Size
    from loaders.data.finder import Rows
    from loaders.data.store import Store
    from loaders.datasets.reading.request import Request

    UInt8Array = npt.NDArray[np.uint8]

_MIN_ROWS = 16  # worth a thread: some 20 us each


def has_halves(field: Field | None) -> bool:
    """Tell whether a field's images can be finished on a device."""
    return isinstance(field, Image) and field.codec in ("dct", "yuv420")


def check_scale(fields: Mapping[str, Field | None], scale: float) -> None:
    """Raise unless the fields can be served at a scale.

    Raises:
        ValueError: There is no such scale.
        SchemaError: A field is no ``dct`` image, and would no longer fit them.
    """
    if side_of(scale) == 8:
        return
    for name, field in fields.items():
        if isinstance(field, Boxes | Keypoints | Mask) or (
            isinstance(field, Image) and field.codec != "dct"
        ):
            what = f"scale={scale:g} is for images of codec 'dct'; field {name!r} is {field.kind}"
            raise SchemaError(f"{what} of codec {field.codec!r}: leave it out with fields=[...]")


class WholeImages:
    """Both halves on the host: what a ``PictureReader`` takes for the codec of raw pixels, which are ``served``."""

    def __init__(self, field: Image, scale: float) -> None:
        self._codec: Any = codec_for(field)
        self._options: dict[str, Any] = {}
        size = field.size
        if isinstance(self._codec, DctCodec):
            self._options = {"side": side_of(scale), "multiply": _multiply}
            size = self._codec.grid.components[0].at(side_of(scale))
        options: dict[str, Any] = dict.fromkeys(("quality", "subsampling", "compression"))
        self.served = replace(field, codec="raw", size=size, **options)

    def decode(self, record: UInt8Array) -> UInt8Array:
        """Return H x W x C pixels."""
        image: UInt8Array = self._codec.decode(record, **self._options)
        return image


def _multiply(
    matrix: npt.NDArray[np.float64], columns: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Leave the product to torch, which uses one thread where a worker asks."""
    return torch.mm(torch.from_numpy(matrix), torch.from_numpy(columns)).numpy()


class PrefixRecords:
    """The records of one ``dct`` field, of which only what a scale needs is read; in place of a ``Store``."""

    reads_whole = False

    def __init__(self, store: Store, codec: DctCodec, side: int) -> None:
        self._store, self._codec, self._side = store, codec, side
        self._known = Seen(len(store))

    def __reduce__(self) -> Any:
        return PrefixRecords, (self._store, self._codec, self._side)

    def records(self, field: str, rows: Rows) -> list[UInt8Array]:
        """Return the record of each sample as a view, its prefix in memory and verified."""
        store, found = self._store, []
        numbers = (rows.indices - store.starts[rows.shards]).tolist()
        for shard, row in zip(rows.shards.tolist(), numbers, strict=True):
            found.append(store.shard(shard).columns[field].row(row))
        is_new = self._known.new(rows.indices)
        new = [] if is_new is None else np.flatnonzero(is_new).tolist()
        if new:
            self._wait([found[i] for i in new], rows[np.array(new)], field)
        for i in new:
            if store.check != "never":
                self._codec.check(found[i], self._side)
        if new and store.check != "always":
            self._known.note(rows.indices)
        return found

    def _wait(self, records: list[UInt8Array], rows: Rows, field: str) -> None:
        """Wait for prefixes: each has its size in its header, behind what is needed to trust that."""
        codec, side = self._codec, self._side
        for nbytes in (
            lambda _: codec.header_nbytes,
            codec.head_nbytes,
            lambda record: codec.prefix_nbytes(record, side),
        ):
            bad = wait_for([record[: nbytes(record)] for record in records])
            if bad is not None:
                shard, index = int(rows.shards[bad]), int(rows.indices[bad])
                row = index - int(self._store.starts[shard])
                raise unreadable(self._store.shards[shard].path, row, field)


class Moved(NamedTuple):
    """A host half, and how its images are to be cropped and flipped."""

    half: Any  # ``Coefficients``, or planes
    moves: Moves  # for each sample, drawn as the host would have drawn it
    cut: Cut | None  # which part of the images is needed; ``moves`` are then as seen from there


def put_range(parts: dict[int, Any], first: int, last: int, value: Any) -> None:
    """Keep what was read for a range of rows.

    A range that failed, maybe in another field, is read again sample by sample: what overlaps goes.
    """
    for begun, (end, _) in list(parts.items()):
        if begun < last and end > first:
            parts.pop(begun, None)  # other threads put, and drop, ranges of theirs
    parts[first] = last, value


@dataclass(frozen=True, slots=True)
class CoefficientReader:
    """The host half of ``dct``: decompression into the slot, escapes beside it."""

    source: Store | PrefixRecords
    name: str
    codec: DctCodec
    side: int
    min_rows: int = _MIN_ROWS

    @property
    def names(self) -> tuple[str, ...]:
        """The field's name."""
        return (self.name,)

    @property
    def prefetched_field(self) -> str | None:
        """The field; None if only a prefix is read, whose size the first bytes of a record say."""
        return self.name if self.source.reads_whole else None

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        """Take the slot; escapes are kept by the range of rows that they were read with."""
        nbytes = self.codec.row_nbytes(self.side)
        flat = memory.take(self.name, num_samples * nbytes)
        parts: dict[int, tuple[int, Escapes]] = {}
        return [torch.from_numpy(flat).view(num_samples, nbytes), flat.reshape(-1, nbytes), parts]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        _, rows, parts = values
        records = request.records(self.source.records, self.name, first, last)
        put_range(parts, first, last, self.codec.fill(records, rows[first:last]))

    def finish(self, values: list[Any]) -> list[Any]:
        planes, rows, parts = values
        found = [(first * rows.shape[1], escapes) for first, (_, escapes) in sorted(parts.items())]
        at = [escapes.positions + first for first, escapes in found]
        positions = np.concatenate([*at, np.empty(0, np.int64)])
        adds = np.concatenate([*(escapes.adds for _, escapes in found), np.empty(0, np.float32)])
        return [Coefficients(planes, torch.from_numpy(positions), torch.from_numpy(adds))]


def dct_reader(store: Store, name: str, field: Image, scale: float) -> CoefficientReader:
    """Return the reader of the host half of a ``dct`` field."""
    codec, side = DctCodec(field), side_of(scale)
    return CoefficientReader(records_at(store, field, scale), name, codec, side)


def records_at(store: Store, field: Image, scale: float) -> Store | PrefixRecords:
    """Return where the records of a field come from, at a scale."""
    if field.codec != "dct" or side_of(scale) == 8:
        return store
    return PrefixRecords(store, DctCodec(field), side_of(scale))


class Half(NamedTuple):
    """What is known of the images of a field before they are made."""

    size: Size  # height and width, at the scale that they are served at
    unit: int  # pixels a side of the smallest part that can be made

    @classmethod
    def of(cls, field: Image, scale: float) -> Half:
        """Return that of a field that has halves."""
        if field.codec == "dct":
            grid, side = DctCodec(field).grid, side_of(scale)
            return cls(grid.components[0].at(side), unit_of(grid, side))
        assert field.size is not None
        return cls(field.size, Yuv420Finish.unit)


def with_moves(
    halves: Mapping[str, Half], ops: tuple[Any, ...], batch: Any, request: Request
) -> Any:
    """Return a batch of host halves, by field as ``Moved``: with what was drawn for them."""
    known = known_of(request, ops, 0, 0, len(request))
    draw: Any = {"seed": request.seed, "epoch": request.epoch, "draws": request.draws}
    moved = {}
    for name, half in halves.items():
        moves = draw_moves(ops, half.size, request.indices, known=known, **draw)
        cut, moves = cut_around(moves, half.size, half.unit) or (None, moves)
        moved[name] = Moved(getattr(batch, name), moves, cut)
    return batch._replace(**moved)


class Finisher:
    """The device half of a batch: makes images of each field, crops and flips them."""

    def __init__(self, modules: Mapping[str, torch.nn.Module], ops: tuple[Any, ...] = ()) -> None:
        self.modules, self.ops = dict(modules), ops
        self.augment = BatchAugment(ops) if ops else None

    def __call__(self, batch: Any) -> Any:
        """Return the batch, a named tuple on the device, with images in place of their host half."""
        with without_autocast():
            finished = {name: self._images(name, getattr(batch, name)) for name in self.modules}
        return batch._replace(**finished)

    def _images(self, name: str, value: Any) -> Any:
        if self.augment is None:
            return self.modules[name](value)
        return self.augment(self.modules[name](value.half, value.cut), moves=value.moves)


def make_finisher(
    fields: Mapping[str, Field | None],
    scale: float,
    ops: tuple[Any, ...],
    device: torch.device | str,
) -> Finisher | None:
    """Return the device half of these fields; None if none of them has halves."""
    modules: dict[str, torch.nn.Module] = {}
    for name, field in fields.items():
        if not isinstance(field, Image) or field.size is None or not has_halves(field):
            continue
        is_dct = field.codec == "dct"
        module = DctFinish.of(field, scale) if is_dct else Yuv420Finish(field.size)
        modules[name] = module.to(device)
    return Finisher(modules, ops) if modules else None
