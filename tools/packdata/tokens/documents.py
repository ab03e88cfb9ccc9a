"""Documents end to end: what every file gives, range by range, and every tokenizer takes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from packdata.parsing import UTF8_HINT


class Where(NamedTuple):
    """A place in the source; those of a file are in order."""

    name: str  # of the file
    unit: str  # line, row or id
    number: int

    def __str__(self) -> str:
        return f"{self.name}, {self.unit} {self.number}"


Place = Callable[[int], Where]


class Refusal(NamedTuple):
    """Why a document is left out."""

    where: Where
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Documents:
    """Some documents, one after the other."""

    data: npt.NDArray[Any]  # 1-D: UTF-8 bytes as uint8, or token ids of any integer type
    # Positions in ``data`` behind each document; of ids that are cut, the rest goes on in the next piece.
    ends: npt.NDArray[np.int64]
    place: Place  # of the element of a position, in the source
    rejects: tuple[Refusal, ...] = ()  # of each document that is left out
    # Aligned with ``data``, or None: -100 where there is no target; else the target of an id, 1 of a byte.
    labels: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        return np.append(0, self.ends)[:-1]

    def _binary(self, values: npt.NDArray[Any]) -> pa.LargeBinaryArray:
        """Return what documents have of ``values`` as bytes of Arrow, without copying."""
        offsets = pa.py_buffer(np.append(0, self.ends) * values.itemsize)
        buffers = [None, offsets, pa.py_buffer(np.ascontiguousarray(values))]
        return pa.Array.from_buffers(pa.large_binary(), len(self), buffers)

    def slices(self) -> list[bytes]:
        """Return the bytes of each document."""
        slices: list[bytes] = self._binary(self.data).to_pylist()
        return slices

    def without_empty(self) -> Documents:
        """Leave out documents of no length."""
        return replace(self, ends=self.ends[self.ends > self.starts])

    def take(self, chosen: npt.NDArray[np.int64]) -> Documents:
        """Return some documents, by number, in any order, without the rejects; all of them must end here."""
        stops, lengths = self.ends[chosen], (self.ends - self.starts)[chosen]
        ends = np.cumsum(lengths)

        def cut(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            taken = self._binary(values).take(pa.array(chosen)).buffers()[2]
            return np.frombuffer(taken or b"", values.dtype)

        def place(at: int) -> Where:
            number = np.searchsorted(ends, at, "right")
            return self.place(at + int(stops[number] - ends[number]))

        labels = None if self.labels is None else cut(self.labels)
        return Documents(cut(self.data), ends, place, labels=labels)

    def where(self, kept: npt.NDArray[np.bool_]) -> Documents:
        """Leave out ids, such as padding; a document may be left without any."""
        before = np.append(0, np.cumsum(kept, dtype=np.int64))
        labels = None if self.labels is None else self.labels[kept]
        place = placed(before[1:], self.place)
        return Documents(self.data[kept], before[self.ends], place, self.rejects, labels)

    def only_utf8(self) -> Documents:
        """Leave out documents that are not UTF-8."""
        good, rejects = [], [*self.rejects]
        firsts = self.data[self.starts[self.starts < self.ends]]
        if not (firsts & 0xC0 == 0x80).any():  # then all are, if their bytes together are
            whole = replace(self, ends=np.array([len(self.data)]))
            with suppress(pa.ArrowInvalid):  # Arrow makes no strings for that
                whole._binary(self.data).cast(pa.large_string())
                return self
        for number, text in enumerate(self.slices()):
            try:
                text.decode()
                good.append(number)
            except UnicodeDecodeError as error:
                what = f"the file is not UTF-8: byte 0x{text[error.start]:02x}"
                where = self.place(int(self.starts[number]) + error.start)
                rejects.append(Refusal(where, what, UTF8_HINT))
        return replace(self.take(np.array(good, np.int64)), rejects=tuple(rejects))

    def hashes(self, seed: int) -> npt.NDArray[np.uint64]:
        """Return a hash of each document's content."""
        digest, seed = xxhash.xxh3_64_intdigest, seed % 2**64
        return np.fromiter((digest(each, seed) for each in self.slices()), np.uint64, len(self))


def placed(ends: npt.NDArray[np.int64], place: Place) -> Place:
    """Return the place of a position of the data by the place of its row."""
    return lambda at: place(int(np.searchsorted(ends, at, "right")))


def joined(documents: Sequence[Documents]) -> Documents:
    """Return documents end to end."""
    if len(documents) == 1:
        return documents[0]
    firsts = [0, *accumulate(len(each.data) for each in documents[:-1])]

    def place(at: int) -> Where:
        number = bisect_right(firsts, at) - 1
        return documents[number].place(at - firsts[number])

    labels = [each.labels for each in documents if each.labels is not None]
    return Documents(
        np.concatenate([each.data for each in documents]),
        np.concatenate([d.ends + first for d, first in zip(documents, firsts, strict=True)]),
        place,
        tuple(reject for each in documents for reject in each.rejects),
        np.concatenate(labels) if labels else None,
    )
