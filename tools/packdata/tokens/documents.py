"""Documents end to end: what every file gives, range by range, and every tokenizer takes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from loaders.errors import SourceError
from packdata.readers import UTF8_HINT

if TYPE_CHECKING:
    from packdata.reading import RemoteFile

Place = Callable[[int], str]
Reject = tuple[str, SourceError]
IGNORED = -100  # as a label: torch's cross_entropy counts no such target


@dataclass(frozen=True, slots=True)
class Documents:
    """Some documents, one after the other."""

    data: npt.NDArray[Any]  # 1-D: UTF-8 bytes as uint8, or token ids of any integer type
    # Positions in ``data`` behind each document; of ids that are cut, the rest goes on in the next piece.
    ends: npt.NDArray[np.int64]
    place: Place  # of the element of a position, in the source
    rejects: tuple[Reject, ...] = ()  # place and error of each document that is left out
    # Aligned with ``data``, or None: -100 where there is no target; else the target of an id, 1 of a byte.
    labels: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        return np.append(0, self.ends)[:-1]

    def without_empty(self) -> Documents:
        """Leave out documents of no length."""
        return replace(self, ends=self.ends[self.ends > self.starts])

    def take(self, chosen: npt.NDArray[np.int64]) -> Documents:
        """Return some documents, by number, in any order, without the rejects; all of them must end here."""
        starts, stops = self.starts[chosen], self.ends[chosen]
        ends = np.cumsum(stops - starts)
        begins = np.append(True, starts[1:] != stops[:-1])[: len(ends)]  # not where the last ended
        firsts, lasts = starts[begins], stops[np.append(begins[1:], True)[: len(ends)]]

        def cut(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            data, item = values.tobytes(), values.itemsize  # slices of bytes take half as long
            bounds = zip((firsts * item).tolist(), (lasts * item).tolist(), strict=True)
            return np.frombuffer(b"".join([data[a:b] for a, b in bounds]), values.dtype)

        def place(at: int) -> str:
            number = np.searchsorted(ends, at, "right")
            return self.place(at + int(stops[number] - ends[number]))

        labels = None if self.labels is None else cut(self.labels)
        return Documents(cut(self.data), ends, place, labels=labels)

    def only_utf8(self) -> Documents:
        """Leave out documents that are not UTF-8."""
        offsets = pa.py_buffer(np.array([0, len(self.data)]))
        buffers = [None, offsets, pa.py_buffer(np.ascontiguousarray(self.data))]
        try:  # Arrow makes no strings to find that there is nothing to find
            pa.Array.from_buffers(pa.large_binary(), 1, buffers).cast(pa.large_string())
            return self
        except pa.ArrowInvalid:
            data, good, rejects = self.data.tobytes(), [], [*self.rejects]
        for number, (start, end) in enumerate(zip(self.starts, self.ends, strict=True)):
            try:
                data[start:end].decode()
                good.append(number)
            except UnicodeDecodeError as error:
                what = f"the file is not UTF-8: byte 0x{error.object[error.start]:02x}"
                rejects.append(rejected(self.place(start + error.start), what, UTF8_HINT))
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

    ends = [each.ends + first for each, first in zip(documents, firsts, strict=True)]
    labels = [each.labels for each in documents if each.labels is not None]
    return Documents(
        np.concatenate([each.data for each in documents]),
        np.concatenate(ends),
        place,
        tuple(reject for each in documents for reject in each.rejects),
        np.concatenate(labels) if labels else None,
    )


def rejected(where: str, why: str, hint: str = "") -> Reject:
    """Return the place and error of a document that is left out."""
    return where, SourceError(why, where, hint)


def texts_of(documents: Documents) -> list[str]:
    """Return documents as strings."""
    data = documents.data.tobytes()
    starts, ends = documents.starts.tolist(), documents.ends.tolist()
    return [data[a:b].decode() for a, b in zip(starts, ends, strict=True)]


class Range(NamedTuple):
    """What is read of a file at once."""

    file: DocumentFile
    where: str  # for messages
    start: int  # bytes, ids, or rows
    stop: int
    nbytes: int  # about what it holds
    # What must be read from its beginning, and is kept by this key: an unpacked file, a group of rows.
    key: Any = None
    stored: RemoteFile | None = None  # fetches its bytes ahead


class DocumentFile(ABC):
    """One file, whose documents are read range by range, each on any thread."""

    piece_bytes = 4 << 20  # of a range, and of what is packed together
    itemsize = 4  # of an id, of a file of ids

    @abstractmethod
    def ranges(self) -> Iterator[Range]:
        """Yield all ranges; SourceError if the file cannot be read, or lacks a column."""

    @abstractmethod
    def read(self, given: Range) -> Documents:
        """Return the documents of a range, less those that cannot be one; SourceError if it is damaged."""

    def ahead(self, given: Range) -> Range:
        """Return a range with what fetches it ahead, if it lies in a store."""
        return given


class Recent:
    """Keeps the last two of what several threads read: unpacked files, groups of rows."""

    def __init__(self) -> None:
        self._lock, self._kept = threading.Lock(), dict[Any, Any]()

    def __reduce__(self) -> tuple[type[Recent], tuple[()]]:
        return Recent, ()

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what is kept by a key, made first if there is none."""
        with self._lock:
            if key not in self._kept:
                self._kept = dict([*self._kept.items()][-1:])  # before more memory is taken
                self._kept[key] = make()
            return self._kept[key]
