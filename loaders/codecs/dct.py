"""``dct``: JPEG's own transform, stored so that nothing but decompression is left for the CPU.

A record holds the quantized coefficients of one image as bytes, coefficient-major, in four bands
from low to high frequencies, each compressed on its own. So a prefix of a record is the image at
1/8, 1/4 or 1/2. Values beyond int8 are kept exactly: their low byte stands among the others, what
is missing in a short list (*escapes*). FORMAT.md has the layout, byte by byte.
"""

from __future__ import annotations

import struct
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash
import zstandard

from loaders.codecs.coefficients import (
    BAND_ROWS,
    SIDES,
    Grid,
    Ints,
    restore,
    transform,
)
from loaders.codecs.yuv import (
    FloatArray,
    Plane,
    UInt8Array,
    as_pixels,
    check_planes,
    split_rgb,
)
from loaders.errors import CodecError
from loaders.schema import Field, Image

if TYPE_CHECKING:
    from collections.abc import Sequence

# Magic, layout, subsampling and compression, quality, height, width, number of escapes, bytes and
# checks of the bands, check of all this and the escapes.
_HEADER = struct.Struct("<BBBB HH I 4I 4I I")
_SIZES = struct.Struct("<8x I 4I")  # what serving needs of it
_MAX_SIDE = 0xFFFF
_UNCHECKED = _HEADER.size - 4
_MAGIC, _LAYOUT = 0xDC, 1
_SUBSAMPLINGS, _COMPRESSIONS = ("gray", "420", "444"), ("lz4", "zstd")
_ESCAPE = np.dtype([("gap", "<u2"), ("add", "i1")])  # 3 bytes
_MAX_GAP = 0xFFFF
# Reading is equally fast whatever it took to write; the levels above take three times as long for 1 % less.
_LEVELS = {"lz4": 10, "zstd": 15}
_ENCODERS = {"lz4": "lz4_raw", "zstd": "zstd"}
_MAX_WINDOW = 1 << 27  # what zstd may allocate for a frame, whatever it says
_DAMAGE = (OSError, ValueError, struct.error, zstandard.ZstdError)  # pyarrow raises the first two
_local = threading.local()


# Values beyond int8 of some rows: positions of coefficients, counted through all rows, and what is missing there:
# float32, multiples of 256.
Escapes = tuple[Ints, FloatArray]


class DctCodec:
    """RGB or gray images of one size as quantized coefficients; one instance serves all threads.

    A block is decoded to ``side`` pixels a side: 8 for full scale; 4, 2 or 1 for 1/2, 1/4 or 1/8, sides of images
    rounded up. ``band_nbytes`` has the bytes of each band, decompressed: one for each coefficient. CodecError at
    construction if the field holds something else.
    """

    def __init__(self, field: Field, side: int = 8) -> None:
        if not isinstance(field, Image) or field.channels not in (1, 3) or field.dtype != "uint8":
            raise CodecError("codec 'dct' stores images of 1 or 3 channels of uint8: take 'raw'")
        if field.size is None or max(field.size) > _MAX_SIDE:
            what = f"images of one size, up to {_MAX_SIDE} pixels a side"
            raise CodecError(
                f"codec 'dct' needs {what}: pass size= to the field, got {field.size}"
            )
        assert field.quality is not None
        assert field.subsampling is not None
        assert field.compression is not None
        self.grid = Grid(field.size, field.channels, field.subsampling)
        self.side, self.quality, self.compression = side, field.quality, field.compression
        if self.compression == "lz4":
            _lz4()  # imports pyarrow: not on the thread that decodes first
        name = "gray" if field.channels == 1 else field.subsampling
        mode = _SUBSAMPLINGS.index(name) | _COMPRESSIONS.index(field.compression) << 4
        self._settings = (mode, field.quality, *field.size)
        self.band_nbytes = tuple(rows * self.grid.num_blocks for rows in BAND_ROWS)
        ends = np.cumsum(self.band_nbytes).tolist()
        bounds = list(zip([0, *ends], ends, strict=False))  # where each band goes, decompressed
        self._places = {self.row_nbytes(side): bounds[: i + 1] for i, side in enumerate(SIDES)}

    def row_nbytes(self, side: int = 8) -> int:
        """Return the coefficients of an image where a block has ``side`` pixels a side."""
        return side * side * self.grid.num_blocks

    # -- encoding ----------------------------------------------------------------------------------

    def encode(self, value: Any) -> bytes:
        """Return the record of H x W x C uint8; CodecError if it is something else, or not of the field's size."""
        pixels = as_pixels(value, self.grid.channels, self.grid.size)
        if self.grid.channels == 1:
            return self._encode([Plane(pixels[:, :, 0].astype(np.int64) - 128, 1)])
        planes = split_rgb(pixels, halve=self.grid.is_halved)
        centred = Plane(planes[0].numbers - 128 * planes[0].units, planes[0].units)
        return self._encode([centred, *planes[1:]])

    def encode_planes(self, planes: tuple[UInt8Array, UInt8Array, UInt8Array]) -> bytes:
        """Return the record of the planes of a JPEG with halved chroma, not resampled."""
        if not self.grid.is_halved:
            raise CodecError("planes with halved chroma need subsampling '420'")
        check_planes(planes, self.grid.size)
        return self._encode([Plane(plane.astype(np.int64) - 128, 1) for plane in planes])

    def _encode(self, planes: Sequence[Plane]) -> bytes:
        return self.pack(transform(planes, self.grid, self.quality))

    def pack(self, coefficients: Ints) -> bytes:
        """Return the record of quantized coefficients, ``(64, num_blocks)`` as ``transform`` gives them."""
        coefficients = coefficients.reshape(-1)
        low = coefficients.astype(np.int8)  # wraps around
        ends = np.cumsum(self.band_nbytes).tolist()
        import pyarrow as pa

        codec = pa.Codec(_ENCODERS[self.compression], compression_level=_LEVELS[self.compression])
        bands = [
            codec.compress(low[end - nbytes : end].tobytes(), asbytes=True)
            for end, nbytes in zip(ends, self.band_nbytes, strict=True)
        ]
        escapes = _write_escapes(coefficients, low)
        head = _HEADER.pack(
            *(_MAGIC, _LAYOUT, *self._settings, len(escapes) // _ESCAPE.itemsize),
            *map(len, bands),
            *map(_check, bands),
            0,
        )[:_UNCHECKED]
        return b"".join([head, struct.pack("<I", _check(head + escapes)), escapes, *bands])

    # -- decoding ----------------------------------------------------------------------------------

    def decode(self, record: UInt8Array) -> UInt8Array:
        """Return H x W x C pixels; CodecError if the record is damaged, or of other settings than the field's."""
        return restore(self.unpack(record), self.grid, self.quality)

    def unpack(self, record: UInt8Array) -> npt.NDArray[np.float64]:
        """Return the quantized coefficients of a record: ``(side * side, num_blocks)`` whole numbers.

        Raises:
            CodecError: The record is damaged, or of other settings than the field's.
        """
        self.check(record)
        row = np.empty((1, self.row_nbytes(self.side)), np.uint8)
        positions, adds = self.fill([record], row)
        coefficients = row.view(np.int8).reshape(-1).astype(np.float64)
        coefficients[positions] += adds
        return coefficients.reshape(self.side**2, -1)

    def check(self, record: UInt8Array) -> None:
        """Compare a record with the checks in its head.

        Raises:
            CodecError: It is damaged, or of other settings than the field's.
        """
        if len(record) < _HEADER.size:
            raise CodecError(f"a record of {len(record)} bytes is cut within its header")
        values = _HEADER.unpack_from(record.data)
        (magic, layout), settings, num_escapes = values[:2], values[2:6], values[6]
        sizes, checks, check_of_head = values[7:11], values[11:15], values[15]
        if (magic, layout) != (_MAGIC, _LAYOUT):
            raise CodecError(f"the record begins with {magic:#x}, {layout}: not of codec 'dct'")
        at = _HEADER.size + num_escapes * _ESCAPE.itemsize
        checked = record[:_UNCHECKED].tobytes() + record[_HEADER.size : at].tobytes()
        if at > len(record) or check_of_head != _check(checked):
            raise CodecError("the record is damaged: the check of its header does not match")
        if settings != self._settings:
            what = "the record has mode, quality, height and width"
            raise CodecError(f"{what} {settings}, the field {self._settings}")
        for size, check in zip(sizes, checks, strict=True):
            if _check(record[at : at + size]) != check:
                raise CodecError("the record is damaged: a check of its bytes does not match")
            at += size
        if at != len(record):
            raise CodecError(f"the record has {len(record)} bytes, its header says {at}")

    def fill(self, records: Sequence[UInt8Array], out: UInt8Array) -> Escapes:
        """Decompress N records into rows ``(N, row_nbytes(side))``: the part of serving that is left for the CPU.

        They were checked, here or by the checksums of their shard. What is missing in ``out`` is returned; CodecError
        if one cannot be decompressed.
        """
        places = self._places[out.shape[1]]
        decompress = _FILLERS[self.compression]
        lists, flat, first = [], out.reshape(-1), 0
        for record in records:
            data = record.data
            try:
                num_escapes, *sizes = _SIZES.unpack_from(data)
                at = _HEADER.size + num_escapes * 3
                lists.append(data[_HEADER.size : at])
                decompress(data[at:], sizes, places, flat[first : first + out.shape[1]])
            except _DAMAGE as error:
                raise CodecError(f"the record cannot be decompressed ({error})") from error
            first += out.shape[1]
        return _read_escapes(lists, self.row_nbytes(), out.shape[1])


@cache
def _lz4() -> Any:
    """Return what decompresses for all threads."""
    import pyarrow as pa

    return pa.Codec("lz4_raw")


def _fill_lz4(
    data: memoryview, sizes: Sequence[int], places: Sequence[tuple[int, int]], row: UInt8Array
) -> None:
    """Decompress the bands that have a place, one by one."""
    at, decompress = 0, _lz4().decompress
    for size, (first, last) in zip(sizes, places, strict=False):
        plain = decompress(data[at : at + size], last - first, asbytes=True)
        row[first:last] = np.frombuffer(plain, np.uint8)
        at += size


def _fill_zstd(
    data: memoryview, sizes: Sequence[int], places: Sequence[tuple[int, int]], row: UInt8Array
) -> None:
    """Decompress the bands that have a place, straight to it: frames in a row read as one."""
    decompressor = getattr(_local, "zstd", None)
    if decompressor is None:  # each thread's own; a new one would cost more than a band
        decompressor = _local.zstd = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    end = sum(sizes[: len(places)])
    reader = decompressor.stream_reader(data[:end], read_across_frames=True)
    if end > len(data) or reader.readinto(row) != len(row):
        raise OSError("the data ends too early")


_FILLERS = {"lz4": _fill_lz4, "zstd": _fill_zstd}


def _check(data: Any) -> int:
    return xxhash.xxh3_64_intdigest(data) & 0xFFFFFFFF


def _write_escapes(coefficients: Ints, low: npt.NDArray[np.int8]) -> bytes:
    """List where bytes are not enough: steps from one to the next, and how often 256 is missing.

    The steps lead on to the end, so that those of many records, joined, count through all of them.
    """
    at = np.flatnonzero(coefficients != low)
    adds = np.append((coefficients[at] - low[at]) >> 8, 0)
    gaps = np.diff(at, prepend=0, append=len(low))
    bridges = gaps // _MAX_GAP  # entries that add nothing, where a step is too long for one
    escapes = np.zeros(len(gaps) + int(bridges.sum()), _ESCAPE)
    last = np.arange(len(gaps)) + np.cumsum(bridges)
    escapes["gap"] = _MAX_GAP
    escapes["gap"][last] = gaps - bridges * _MAX_GAP
    escapes["add"][last] = adds
    return escapes.tobytes()


def _read_escapes(lists: Sequence[Any], full_nbytes: int, row_nbytes: int) -> Escapes:
    """Return the escapes of all rows; those of frequencies that the rows do not have are left out."""
    listed = b"".join(lists)
    if len(listed) % _ESCAPE.itemsize:
        raise CodecError("a record ends in the middle of its escape codes")
    entries = np.frombuffer(listed, _ESCAPE)
    at = np.cumsum(entries["gap"], dtype=np.int64)
    ends = np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists))) // _ESCAPE.itemsize
    wanted = np.arange(1, len(lists) + 1) * full_nbytes
    kept = np.flatnonzero(entries["add"])
    if (
        len(at) < len(lists)
        or not np.array_equal(at[ends - 1], wanted)
        or (at[kept] >= wanted[np.searchsorted(ends, kept, "right")]).any()  # the next row's
    ):
        raise CodecError("the escape codes of a record do not match its coefficients")
    at, adds = at[kept], entries["add"][kept].astype(np.float32) * np.float32(256)
    if row_nbytes < full_nbytes:
        rows, at = np.divmod(at, full_nbytes)
        inside = at < row_nbytes
        at, adds = (rows * row_nbytes + at)[inside], adds[inside]
    return at, adds
