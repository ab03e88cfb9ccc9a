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
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from loaders.errors import SourceError
from packdata.sources.base import Column, Item, Pixels, Source, files_identity, read_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IDX_IMAGES = re.compile(r".*images[-.]idx3-ubyte(\.gz)?", re.IGNORECASE)
IDX_SUFFIXES = ("idx3-ubyte", "idx3-ubyte.gz")  # quicker to look for


class IdxSource(Source):
    """The images of an IDX file, with the labels of ``labels-idx1`` beside ``images-idx3``."""

    kind = "idx"

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        images = _read_idx(path, num_axes=3)
        if not images.size:
            raise SourceError(f"no pictures: the shape is {images.shape}", path)
        self._images = images
        self.pixels = (images.shape[1], images.shape[2])
        labels = _labels_beside(path)
        self._labels = None if labels is None else _read_idx(labels, num_axes=1)
        if self._labels is not None and len(self._labels) != len(images):
            what = f"{len(self._labels)} labels for {len(images)} images of {path.name}"
            raise SourceError(what, labels or path)
        self.labels = {} if labels is None else {"label": Column("int")}
        if labels is None:
            self.notes = [f"no label: {_labels_name(path)} is not beside {self.name}"]
        self.identity = files_identity(self.kind, [path] if labels is None else [path, labels])

    def __len__(self) -> int:
        return len(self._images)

    def items(self, start: int = 0) -> Iterator[Item]:
        for i, key in enumerate(islice(self.keys(), start, None), start):
            labels = {} if self._labels is None else {"label": int(self._labels[i])}
            read = partial(self._images.__getitem__, i)
            yield Item(key, f"{self.path}, image {i}", read, labels)

    def keys(self) -> Iterator[str]:
        digits = len(str(len(self._images) - 1))
        return (f"{i:0{digits}d}" for i in range(len(self._images)))


def _labels_name(path: Path) -> str:
    plain = re.sub(r"\.gz$", "", path.name)
    return re.sub("(?i)images([-.])idx3", r"labels\1idx1", plain)


def _labels_beside(path: Path) -> Path | None:
    name = _labels_name(path)
    found = [path.with_name(name + end) for end in ("", ".gz")]
    return next((file for file in found if file.name != path.name and file.is_file()), None)


def _read_idx(path: Path, num_axes: int) -> Pixels:
    data, start = read_file(path, str(path)), 4 + 4 * num_axes
    try:
        data = gzip.decompress(data) if path.name.endswith(".gz") else data
        shape = struct.unpack_from(f">{num_axes}I", data, 4)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        what = f"not a whole IDX file ({error})"
        raise SourceError(what, path, "Copy or download it again") from error
    if data[:4] != bytes([0, 0, 8, num_axes]) or len(data) != start + math.prod(shape):
        what = (
            f"not a whole IDX file of bytes with {num_axes} axes: {len(data)} bytes, shape {shape}"
        )
        raise SourceError(what, path, "Copy or download it again")
    return np.frombuffer(data, np.uint8, math.prod(shape), start).reshape(shape)
