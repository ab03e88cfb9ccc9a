"""Documents end to end: what every file gives, and every tokenizer takes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from loaders.errors import SourceError
from packdata.readers import UTF8_HINT

Place = Callable[[int], str]
Reject = tuple[str, SourceError]
IGNORED = -100  # as a label: torch's cross_entropy counts no such target


@dataclass(frozen=True, slots=True)
class Documents:
    """Some documents, one after the other."""

    data: npt.NDArray[Any]  # 1-D: UTF-8 bytes as uint8, or token ids of any integer type
    # int64 positions in ``data`` behind each document that ends here. What follows the last one goes on in the next
    # piece.
    ends: npt.NDArray[np.int64]
    place: Place  # of the element of a position, in the source
    rejects: tuple[Reject, ...] = ()  # place and error of each document that is left out
    # Aligned with ``data``, or None: -100 where there is no target; else the target of an id, 1 of a byte.
    labels: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        return np.concatenate([np.zeros(1, np.int64), self.ends])[: len(self.ends)]

    @property
    def has_targets(self) -> bool:
        return self.labels is not None and bool((self.labels != IGNORED).any())

    def without_empty(self) -> Documents:
        """Leave out documents of no length."""
        keep = self.ends > self.starts
        return self if keep.all() else replace(self, ends=self.ends[keep])

    def take(self, chosen: npt.NDArray[np.int64]) -> Documents:
        """Return some documents, by number, in any order, without the rejects; all of them must end here."""
        starts, stops = self.starts[chosen], self.ends[chosen]
        ends, bounds = (
            np.cumsum(stops - starts),
            [*zip(starts.tolist(), stops.tolist(), strict=True)],
        )

        def cut(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.concatenate([values[:0], *(values[a:b] for a, b in bounds)])

        def place(at: int) -> str:
            number = int(np.searchsorted(ends, at, "right"))
            return self.place(at + int(stops[number] - ends[number]))

        labels = None if self.labels is None else cut(self.labels)
        return Documents(cut(self.data), ends, place, labels=labels)

    def only_utf8(self) -> Documents:
        """Leave out documents that are not UTF-8; all of them must end here."""
        offsets = pa.py_buffer(np.append(0, self.ends))
        buffers = [None, offsets, pa.py_buffer(np.ascontiguousarray(self.data))]
        try:  # Arrow makes no strings to find that there is nothing to find
            pa.Array.from_buffers(pa.large_binary(), len(self), buffers).cast(pa.large_string())
            return self
        except pa.ArrowInvalid:
            data, good, rejects = self.data.tobytes(), [], [*self.rejects]
        bounds = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        for number, (start, end) in enumerate(bounds):
            try:
                str(memoryview(data)[start:end], "utf-8")
                good.append(number)
            except UnicodeDecodeError as error:
                at = start + error.start
                rejects.append(not_utf8(data[at], self.place(at)))
        return replace(self.take(np.array(good, np.int64)), rejects=tuple(rejects))

    def hashes(self, seed: int) -> npt.NDArray[np.uint64]:
        """Return a hash of each document's content."""
        data = memoryview(np.ascontiguousarray(self.data)).cast("B")  # type: ignore[arg-type]
        item = self.data.itemsize
        bounds = zip((self.starts * item).tolist(), (self.ends * item).tolist(), strict=True)
        digest, seed = xxhash.xxh3_64_intdigest, seed % 2**64
        return np.fromiter((digest(data[a:b], seed) for a, b in bounds), np.uint64, len(self))


def placed(ends: npt.NDArray[np.int64], place: Place) -> Place:
    """Return the place of a position of the data by the place of its row."""
    return lambda at: place(int(np.searchsorted(ends, at, "right")))


def joined(documents: Sequence[Documents]) -> Documents:
    """Return documents end to end."""
    if len(documents) == 1:
        return documents[0]
    firsts = [0, *accumulate(len(each.data) for each in documents[:-1])]

    def place(at: int) -> str:
        number = bisect_right(firsts, at) - 1
        return documents[number].place(at - firsts[number])

    data = np.concatenate([each.data for each in documents])
    ends = [each.ends + first for each, first in zip(documents, firsts, strict=True)]
    labels = [each.labels for each in documents if each.labels is not None]
    rejects = tuple(reject for each in documents for reject in each.rejects)
    with_labels = np.concatenate(labels) if labels else None
    return Documents(data, np.concatenate(ends), place, rejects, with_labels)


def rejected(where: str, why: str, hint: str = "") -> Reject:
    """Return the place and error of a document that is left out."""
    return where, SourceError(why, where, hint)


def not_utf8(byte: int, where: str) -> Reject:
    """Return the place and error of text that is not UTF-8."""
    return rejected(where, f"the file is not UTF-8: byte 0x{byte:02x}", UTF8_HINT)


def texts_of(documents: Documents) -> list[str]:
    """Return documents as strings."""
    data = documents.data.tobytes()
    starts, ends = documents.starts.tolist(), documents.ends.tolist()
    return [data[a:b].decode() for a, b in zip(starts, ends, strict=True)]
