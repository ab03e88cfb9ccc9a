"""Shards of MosaicML Streaming (``.mds``), read without its package.

Source:
    mosaicml-streaming, ``streaming/base/format/mds``: a shard is the uint32 number of samples, the
    uint32 offset of each and of the end, a JSON object that describes the columns, and the samples:
    the uint32 size of each column that has no fixed one, then the columns. ``index.json`` lists the
    shards; one may be compressed as a whole. All little-endian.
"""

from __future__ import annotations

import io
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from PIL import Image

from loaders.errors import SourceError
from packdata.sources.base import read_file, suffix_of
from packdata.sources.row_file import COMPLETE, MappedRows, decompressed, map_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

INDEX, SUFFIX = "index.json", ".mds"
_COMPRESSIONS = {".zstd": "zstd", ".gz": "gzip", ".br": "brotli"}
COMPRESSED = tuple(f"{SUFFIX}{suffix}" for suffix in _COMPRESSIONS)
_VALUE_DTYPES = {
    8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4", 64: "<u8", 65: "<i8", 66: "<f8",
}  # fmt: skip
# Bytes of a pixel. A picture with a palette is none of them: the palette was not written.
_MODES = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "I;16": 2}
_SCALARS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")  # fmt: skip


def _text(data: bytes) -> str:
    return data.decode()


def _picture(data: bytes) -> bytes:
    """Return a picture of Pillow as the PNG file of its pixels.

    Before the pixels stand uint32 width, height and size of the mode, and the mode.
    """
    width, height, size = np.frombuffer(data, "<u4", 3).tolist()
    mode, pixels = data[12 : 12 + size].decode(), data[12 + size :]
    nbytes = width * height * _MODES.get(mode, 0)
    if not nbytes or len(pixels) != nbytes:  # before memory is taken for it
        raise ValueError(f"{len(pixels)} bytes are no {height} x {width} picture of mode {mode!r}")
    file = io.BytesIO()
    Image.frombytes(mode, (width, height), pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _scalar(dtype: str, data: bytes) -> Any:
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))[0].item()


DECODERS: dict[str, tuple[pa.DataType, Callable[[bytes], Any]]] = {
    "bytes": (pa.binary(), bytes),
    "jpeg": (pa.binary(), bytes),
    "png": (pa.binary(), bytes),
    "pil": (pa.binary(), _picture),
    "str": (pa.string(), _text),
    "json": (pa.string(), _text),
    "str_int": (pa.int64(), int),
    "str_float": (pa.float64(), float),
    "str_decimal": (pa.string(), _text),
    "int": (pa.int64(), partial(_scalar, "int64")),
    **{name: (pa.from_numpy_dtype(np.dtype(name)), partial(_scalar, name)) for name in _SCALARS},
    "float16": (pa.float32(), partial(_scalar, "float16")),
}


def mds_files(folder: Path, index: Mapping[str, Any]) -> list[Path]:
    """Return the shards that an ``index.json`` lists, those of no samples left out.

    Raises:
        SourceError: The index is of another version, or a shard is missing or of another size.
    """
    where = folder / INDEX
    if index.get("version") != 2 or not isinstance(index.get("shards"), list):
        raise SourceError(f"it has version {index.get('version')!r}", where, "Version 2 is read")
    try:
        return [_shard(folder, shard) for shard in index["shards"] if shard["samples"]]
    except (KeyError, TypeError) as error:
        raise SourceError(f"it does not describe its shards ({error!r})", where) from error


def _shard(folder: Path, shard: Mapping[str, Any]) -> Path:
    if shard["format"] != "mds":
        hint = "Pack its files as what they are"
        raise SourceError(f"its shards are {shard['format']}, not mds", folder / INDEX, hint)
    given = [info for info in (shard["raw_data"], shard["zip_data"]) if info]
    for info in given:
        path = folder / str(info["basename"])
        if path.name == info["basename"] and path.is_file():
            if not path.name.endswith((SUFFIX, *COMPRESSED)):
                hint = f"Decompress it; {', '.join(COMPRESSED)} are read"
                raise SourceError(f"it is compressed as {shard['compression']}", path, hint)
            if path.stat().st_size != info["bytes"]:
                what = f"it has {path.stat().st_size} bytes, {INDEX} says {info['bytes']}"
                raise SourceError(what, path, COMPLETE)
            return path
    raise SourceError("it is listed in index.json and is not there", folder / given[0]["basename"])


class MdsRows(MappedRows):
    """One shard; all rows are one group.

    Raises:
        SourceError: It is damaged, or holds a column that is not read, such as a pickle.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        compression = _COMPRESSIONS.get(suffix_of(path.name))
        self._data: Any
        if compression is None:
            self._data = map_file(path)
        else:
            self._data = decompressed(read_file(path, str(path)), compression, path)
        self._offsets, columns = self._read_head()
        self._columns = [(name, *self._decoder(name, kind), size) for name, kind, size in columns]
        self.groups = [len(self._offsets) - 1]
        first = self._row(0) if self.groups[0] else {}
        nothing = pa.scalar(None)
        self.schema = pa.schema(  # of nested lists of numbers, as the first sample has them
            {name: kind or first.get(name, nothing).type for name, kind, *_ in self._columns}
        )

    def _read_head(self) -> tuple[list[int], list[tuple[str, str, int | None]]]:
        """Return where samples begin, and the last one ends; name, encoding and fixed size (or None) of each column."""
        data = self._data
        try:
            num = int(np.frombuffer(data, "<u4", 1)[0])
            offsets = np.frombuffer(data, "<u4", num + 1, 4).tolist()
            config = json.loads(bytes(data[4 * (num + 2) : offsets[0]]))
            if config["version"] != 2 or config["format"] != "mds":
                raise ValueError(f"version {config['version']} of {config['format']}")
            if offsets[-1] != len(data) or offsets != sorted(offsets):
                raise ValueError(f"its samples end at {offsets[-1]} of {len(data)} bytes")
            about = (config[f"column_{what}"] for what in ("names", "encodings", "sizes"))
            columns = [*zip(*about, strict=True)]
        except (ValueError, KeyError, TypeError) as error:
            what = f"it cannot be read as a shard of MosaicML Streaming ({error})"
            raise SourceError(what, self.path, COMPLETE) from error
        return offsets, columns

    def _decoder(self, name: str, kind: str) -> tuple[pa.DataType | None, Callable[[bytes], Any]]:
        encoding, _, options = kind.partition(":")
        if encoding == "ndarray":
            return None, partial(_array, options)
        if encoding not in DECODERS:
            hint = "Write it again without this column" + (
                ": reading a pickle may run any program" if encoding == "pkl" else ""
            )
            raise SourceError(f"column {name!r} is encoded as {kind!r}", self.path, hint)
        return DECODERS[encoding]

    def _row(self, number: int) -> dict[str, Any]:
        data = bytes(self._data[self._offsets[number] : self._offsets[number + 1]])
        columns = [(name, decode, size) for name, _, decode, size in self._columns]
        return decode_sample(data, columns, f"{self.path}, row {number}")


def decode_sample(
    data: bytes, columns: Sequence[tuple[str, Callable[[bytes], Any], int | None]], where: str
) -> dict[str, Any]:
    """Return the values of a sample: the uint32 size of each without a fixed one, then all of them.

    ``columns`` are name, decoder and fixed size (or None) of each value.

    Raises:
        SourceError: The sizes do not fit, or a value cannot be decoded.
    """
    varying = sum(not size for *_, size in columns)
    found, at = {}, 4 * varying
    try:
        sizes = iter(np.frombuffer(data, "<u4", varying).tolist())
        for name, decode, fixed in columns:
            size = fixed or next(sizes)
            found[name] = decode(data[at : at + size])
            at += size
        if at != len(data):
            raise ValueError(f"its values take {at} of {len(data)} bytes")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise SourceError(f"it cannot be read ({error})", where) from error
    return found


def _array(options: str, data: bytes) -> Any:
    """Return an array as nested lists: of ``DTYPE:SHAPE``, or what of these its own bytes tell."""
    dtype, _, axes = options.partition(":")
    shape, at = tuple(map(int, filter(None, axes.split(",")))), 0
    if not dtype:
        dtype, at = _VALUE_DTYPES[data[0]], 1
    if not shape:
        num_axes, width = data[at] >> 2, 1 << data[at] % 4
        shape = tuple(np.frombuffer(data, f"<u{width}", num_axes, at + 1).tolist())
        at += 1 + num_axes * width
    values = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), -1, at).reshape(shape)
    if values.dtype == np.float16:  # which Arrow makes of no Python float
        values = values.astype(np.float32)
    kind = pa.from_numpy_dtype(values.dtype)
    for _ in shape:
        kind = pa.list_(kind)
    return pa.scalar(values.tolist(), kind)
