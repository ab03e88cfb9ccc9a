"""Reading ``.npy`` and ``.npz`` files: the header first, and never a pickle.

What a file is, its first bytes say, not its name. Object arrays are pickles, which can run code:
they are refused.
"""

from __future__ import annotations

import lzma
import math
import threading
import tokenize
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.errors import LoadersError, SourceError
from packdata.describe import few

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packdata.reading import File

_ZIP_MAGIC = b"PK"
# NumPy parses a header with ``ast``, which in Python 3.11 fails at random where two threads do so
# at once (CPython issue 106905).
_PARSING = threading.Lock()
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, KeyError)


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """What a file says of its array; in Fortran's order the first axis varies fastest."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: File, name: str | None = None) -> ArrayHeader:
    """Read what an array is, without its numbers; ``name`` is that of the array in an ``.npz`` that holds several.

    Raises:
        SourceError: It cannot be read, is cut, or holds no array of numbers; it names the file's place.
    """
    with _opened(file, name) as (opened, size):
        return _read_header(opened, size, file.where)


def read_array(file: File, name: str | None = None) -> npt.NDArray[Any]:
    """Read an array as it is stored: any byte order, any order of axes in memory.

    Raises:
        SourceError: As ``read_header``, which says what ``name`` is.
    """
    with _opened(file, name) as (opened, size):
        header = _read_header(opened, size, file.where)
        flat = np.frombuffer(opened.read(header.nbytes), header.dtype)
        if not header.is_fortran:
            return flat.reshape(header.shape)
        return flat.reshape(header.shape[::-1]).transpose()


@contextmanager
def _opened(file: File, name: str | None) -> Iterator[tuple[IO[bytes], int]]:
    """Open the ``.npy`` that is the file, or inside it; give it and its size."""
    try:
        with file.open() as opened:
            is_zip = opened.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC
            size = opened.seek(0, 2)
            opened.seek(0)
            if not is_zip:
                yield opened, size
                return
            with zipfile.ZipFile(opened) as archive:
                info = _member(archive, file.where, name)
                with archive.open(info) as member:
                    yield member, info.file_size
    except LoadersError:  # also of a store that does not answer, which is a RuntimeError
        raise
    except _BROKEN as error:
        raise SourceError(f"the .npz is damaged ({error})", file.where) from error
    except (OSError, ValueError) as error:
        raise SourceError(f"the file cannot be read ({error})", file.where) from error


def _member(archive: zipfile.ZipFile, where: str, name: str | None) -> zipfile.ZipInfo:
    names = [each.removesuffix(".npy") for each in archive.namelist() if each.endswith(".npy")]
    chosen = names[0] if name is None and len(names) == 1 else name
    if chosen not in names:
        held = few(names, 8) or "no array"
        what = f"expected {'one array' if name is None else repr(name)}, the .npz holds {held}"
        raise SourceError(what, where, "Choose by name: array=NAME, mask_array=NAME of a mask")
    return archive.getinfo(f"{chosen}.npy")


def _read_header(file: IO[bytes], size: int, where: str) -> ArrayHeader:
    npy = np.lib.format
    try:
        with _PARSING:
            version = npy.read_magic(file)
            # Version 3 is version 2 in UTF-8, which only names of structured types need.
            read = npy.read_array_header_1_0 if version[0] == 1 else npy.read_array_header_2_0
            if version[0] not in (1, 2, 3):
                raise ValueError(f"version {version[0]}.{version[1]}")
            shape, is_fortran, dtype = read(file)
    except (ValueError, TypeError, SyntaxError, RecursionError, tokenize.TokenError) as error:
        raise SourceError(f"not a .npy file ({error})", where) from error
    if dtype.hasobject:
        hint = "Save arrays as numbers: array.astype('float32'), say"
        raise SourceError("Python objects: a pickle, never loaded", where, hint)
    if dtype.kind not in "uifb":
        raise SourceError(f"{dtype}, not numbers", where)
    header = ArrayHeader(tuple(shape), dtype, bool(is_fortran), file.tell())
    if (there := size - header.offset) != header.nbytes or min(shape, default=0) < 0:
        what = f"{there} bytes of numbers, the header says {header.nbytes} of shape {shape}"
        raise SourceError(what, where)
    return header
