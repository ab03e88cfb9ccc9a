"""IDX files, gzipped or not: the MNIST family, gray pixels in one file, labels in another.

Source: the format at the foot of Y. LeCun's MNIST page: two zero bytes, type (8: unsigned byte),
number of dimensions, each as a big-endian uint32, then the bytes.
"""

from __future__ import annotations

import gzip
import math
import re
import struct
import zlib
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from loaders.errors import SourceError
from packdata.sources.base import Item, Pixels, Source
from packdata.sources.columns import LABEL, Column
from packdata.sources.listed import Listing, files_identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packdata.reading import File

IDX_SUFFIXES = tuple(f"images{mark}idx3-ubyte{end}" for mark in "-." for end in ("", ".gz"))


class IdxSource(Source):
    """The images of an IDX file, with the labels of ``labels-idx1`` beside ``images-idx3``."""

    kind = "idx"

    def __init__(self, file: File) -> None:
        self.path, self.name = file.path, file.path.name
        images = _read_idx(file, num_axes=3)
        if not images.size:
            raise SourceError(f"no pictures: the shape is {images.shape}", self.path)
        self._images = images
        self.pixels = (images.shape[1], images.shape[2])
        name = re.sub(r"\.gz$", "", re.sub("(?i)images([-.])idx3", r"labels\1idx1", self.name))
        beside = Listing(self.path.parent, deep=False).files((name, f"{name}.gz"))[:1]
        self._labels, self.labels = None, {}
        if beside:
            self._labels, self.labels = _read_idx(beside[0], num_axes=1), {LABEL: Column("int")}
            if len(self._labels) != len(images):
                what = f"{len(self._labels)} labels for {len(images)} images of {self.name}"
                raise SourceError(what, beside[0].path)
        else:
            self.notes = [f"no label: {name} is not beside {self.name}"]
        self.identity = files_identity(self.kind, [file, *beside])

    def __len__(self) -> int:
        return len(self._images)

    def items(self, start: int = 0) -> Iterator[Item]:
        digits = len(str(len(self) - 1))
        for i in range(start, len(self)):
            labels = {} if self._labels is None else {LABEL: int(self._labels[i])}
            read = partial(self._images.__getitem__, i)
            yield Item(f"{i:0{digits}d}", f"{self.path}, image {i}", read, labels)


def _read_idx(file: File, num_axes: int) -> Pixels:
    data, start = file(), 4 + 4 * num_axes
    try:
        data = gzip.decompress(data) if file.path.name.lower().endswith(".gz") else data
        shape = struct.unpack_from(f">{num_axes}I", data, 4)
        if data[:4] != bytes([0, 0, 8, num_axes]) or len(data) != start + math.prod(shape):
            raise EOFError(f"{len(data)} bytes, shape {shape}")
    except (OSError, EOFError, zlib.error, struct.error) as error:
        what = f"not a whole IDX file of bytes with {num_axes} axes ({error})"
        raise SourceError(what, file.path, "Copy or download the file again") from error
    return np.frombuffer(data, np.uint8, math.prod(shape), start).reshape(shape)
