"""Shard files as columns: views of the mapped file.

Opening is the same for all formats: the manifest has the place of every column, so serving needs neither liblmdb nor
pyarrow. ``packdata.formats`` writes them.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.data.columns import Column, FixedColumn, VarColumn, ends
from loaders.data.formats.checksums import Checksums, load_checksums
from loaders.errors import ShardError
from loaders.system.libc import libc
from loaders.system.limits import available_memory
from loaders.system.regular import hash_file as hash_file
from loaders.system.regular import regular

if TYPE_CHECKING:
    from pathlib import Path

    from loaders.data.manifest import Place, ShardInfo
    from loaders.remote.url import Location

_PLACE_BYTES = 32  # of a record of its own size: start and length, and what comes and goes while they are read
_LARGE_BYTES = 1 << 30  # where it is looked what is free
RESTORE = "Run 'packdata verify'; restore the shard from a copy, or pack again"  # a damaged shard


def map_shard(path: Path, info: ShardInfo) -> npt.NDArray[np.uint8]:
    """Map a shard read-only; ShardError if it is missing, or of another size: a read past its end would be fatal."""
    try:
        with open(path, "rb", opener=regular) as file:
            size = os.fstat(file.fileno()).st_size
            if size != info.size_bytes:
                what = f"the file has {size} bytes, the manifest says {info.size_bytes}"
                raise ShardError(what, path, hint=RESTORE)
            return map_file(file.fileno(), size)
    except FileNotFoundError as error:
        raise ShardError("the shard is missing", path, hint=RESTORE) from error
    except OSError as error:
        is_limit = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
        hint = "See 'ulimit -n' and 'ulimit -v'" if is_limit else ""
        what = f"the shard cannot be mapped ({error.strerror or error})"
        raise ShardError(what, path, hint=hint) from error


def map_file(descriptor: int, size: int) -> npt.NDArray[np.uint8]:
    """Map a file read-only; unmapped when nothing refers to the bytes any more.

    Unlike ``mmap.mmap`` it keeps no descriptor: a dataset may have more shards than files may be open.
    """
    library = libc()
    if library is None or not hasattr(mmap, "PROT_READ") or not size:  # Windows, or an empty file
        return np.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ), np.uint8)
    return np.asarray(_Mapped(library, descriptor, size))


class _Mapped:
    """A map, as numpy looks at it."""

    def __init__(self, library: ctypes.CDLL, descriptor: int, size: int) -> None:
        address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._unmap = partial(library.munmap, address, size)
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        if hasattr(self, "_unmap"):
            self._unmap()


def open_columns(path: Path, info: ShardInfo) -> dict[str, Column]:
    """Map a shard (``map_shard``) and return its columns, without copying rows; ShardError if they lie outside."""
    return columns_in(map_shard(path, info), info, path, path)


def columns_in(
    data: npt.NDArray[np.uint8], info: ShardInfo, path: Location, file: Path | None = None
) -> dict[str, Column]:
    """Return the columns of a shard whose bytes are here, or mapped from ``file``; ShardError if rows lie outside."""
    num_varied = sum(place.row_nbytes is None for place in info.places.values())
    check_memory(num_varied * info.num_samples * _PLACE_BYTES, path, info.num_samples)
    places, n = info.places, info.num_samples
    return {name: _column(data, places[name], n, path, name, file) for name in places}


def check_memory(nbytes: int, path: Location | str, num_rows: int) -> None:
    """Raise ShardError if this takes more memory than is free: a sparse file claims any number of rows."""
    if nbytes > _LARGE_BYTES and nbytes > (free := available_memory()):
        what = f"{nbytes >> 20:,} MiB of memory are needed for its {num_rows:,} rows"
        raise ShardError(f"{what}, {free >> 20:,} MiB are free", path, hint=RESTORE)


def _column(
    data: npt.NDArray[np.uint8], place: Place, n: int, path: Location, name: str, file: Path | None
) -> Column:
    if place.row_nbytes is not None:
        rows = data[place.offset : place.offset + n * place.row_nbytes]
        return FixedColumn(rows.reshape(n, place.row_nbytes))
    lengths = _numbers(data, file, place.lengths or 0, n, "<i4")
    if place.starts is not None:
        starts = _numbers(data, file, place.starts, n, "<i8")
    else:
        starts = place.offset + ends(lengths + place.gap) - lengths
    bad = (lengths < 0) | (starts < 0) | (starts > len(data) - lengths)
    if bad.any():
        row = int(bad.argmax())
        where = f"{starts[row]} + {lengths[row]}"
        what = f"the record would lie at {where}, outside the file of {len(data)} bytes"
        raise ShardError(what, path, row, name, RESTORE)
    return VarColumn(data, starts, lengths)


def _numbers(
    data: npt.NDArray[np.uint8], path: Path | None, offset: int, n: int, dtype: str
) -> npt.NDArray[np.int64]:
    """Read numbers from the file that is mapped: what cannot be read there would end the process in the map."""
    wanted = np.frombuffer(data, dtype, n, offset)  # ValueError if they lie outside
    if path is None:
        return wanted.astype(np.int64)
    numbers = np.fromfile(path, dtype, n, offset=offset)
    if len(numbers) < len(wanted):
        raise ShardError("the file was cut while it was opened", path, hint=RESTORE)
    return numbers.astype(np.int64)


def open_checksums(path: Path, info: ShardInfo) -> dict[str, Checksums]:
    """Read the row checksums that a shard keeps of each column; ShardError if they cannot be read."""
    offset, nbytes = info.checksums
    check_memory(4 * nbytes, path, info.num_samples)
    try:
        with open(path, "rb", opener=regular) as file:
            file.seek(offset)
            text = file.read(nbytes)
    except OSError as error:
        what = f"the row checksums cannot be read ({error.strerror or error})"
        raise ShardError(what, path, hint=RESTORE) from error
    return parse_checksums(text, path, info)


def parse_checksums(text: bytes, path: Location, info: ShardInfo) -> dict[str, Checksums]:
    """Read the row checksums of each column from a shard's text of them; ShardError if it is none, or another's."""
    if info.checksums_xxh3_64 not in (None, xxhash.xxh3_64_hexdigest(text)):
        what = "the row checksums are not those of the manifest: is it a shard of another packing?"
        raise ShardError(what, path, hint=RESTORE)
    try:
        checksums = load_checksums(text, info.num_samples)
        return {name: checksums[name] for name in info.places}
    except (LookupError, ValueError, RecursionError) as error:
        what = f"the row checksums are damaged ({type(error).__name__}: {error})"
        raise ShardError(what, path, hint=RESTORE) from error
