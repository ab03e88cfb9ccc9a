"""Several pictures in one record: their number, the size of each, and their files end to end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.codecs.picture import DEFAULT_QUALITY, PictureCodec
from loaders.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.schema import Images

UInt8Array = npt.NDArray[np.uint8]
_NUMBER = np.dtype("<u4")


class ImagesCodec:
    """Pictures that are all of one kind, any number of them; ``one`` is the codec of each."""

    def __init__(self, field: Images) -> None:
        self.field, self.one = field, PictureCodec(field.one)

    def encode(self, value: Sequence[Any], quality: int = DEFAULT_QUALITY) -> bytes:
        """Return the record of H x W x C arrays; CodecError if one of them cannot be stored."""
        return join_files([self.one.encode(picture, quality) for picture in value])

    def decode(self, record: UInt8Array) -> list[npt.NDArray[Any]]:
        """Return the pictures, each H x W x C; CodecError if the record or one of them is damaged."""
        return [self._decoded(i, file) for i, file in enumerate(split_files(record))]

    def _decoded(self, number: int, file: UInt8Array) -> npt.NDArray[Any]:
        try:
            return self.one.decode(file)
        except CodecError as error:
            raise CodecError(f"picture {number}: {error}") from error


def join_files(files: Sequence[bytes]) -> bytes:
    """Return the record of several encoded pictures, or of none.

    Example:
        >>> join_files([b"ab", b"c"]).hex()
        '020000000200000001000000616263'
    """
    numbers = np.array([len(files), *map(len, files)], _NUMBER)
    return b"".join([numbers.tobytes(), *files])


def split_files(record: UInt8Array) -> list[UInt8Array]:
    """Return the encoded pictures of a record, as views; CodecError if it contradicts itself."""
    nbytes, width = len(record), _NUMBER.itemsize
    num = int(record[:width].view(_NUMBER)[0]) if nbytes >= width else 0
    start = width + width * num
    sizes = record[width:start].view(_NUMBER).tolist() if nbytes >= start else []
    if start + sum(sizes) != nbytes:
        raise CodecError(
            f"a record of {nbytes} bytes does not hold the {num} pictures that it tells of"
        )
    files = []
    for size in sizes:
        files.append(record[start : start + size])
        start += size
    return files
