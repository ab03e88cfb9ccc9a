"""Documents end to end: what every source gives, and every tokenizer takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
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
    # Aligned with ``data``, or None. Of ids: the target, -100 for none; of bytes: 1 where they are targets.
    labels: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        return np.concatenate([np.zeros(1, np.int64), self.ends])[: len(self.ends)]

    def without_empty(self) -> Documents:
        """Leave out documents of no length."""
        keep = self.ends > self.starts
        return self if keep.all() else replace(self, ends=self.ends[keep])

    def select(self, chosen: npt.NDArray[np.bool_]) -> Documents:
        """Return some of the documents; all of them must end here."""
        lengths = self.ends - self.starts
        keep = np.repeat(chosen, lengths)
        data = self.data[: len(keep)][keep]
        labels = None if self.labels is None else self.labels[: len(keep)][keep]
        return replace(self, data=data, ends=np.cumsum(lengths[chosen]), labels=labels)

    def in_order(self, order: npt.NDArray[np.int64]) -> Documents:
        """Return the documents in another order; all of them must end here."""
        return joined([self.one(i) for i in order.tolist()], self.rejects)

    def one(self, i: int) -> Documents:
        """Return a document by itself."""
        start, end = int(self.ends[i - 1]) if i else 0, int(self.ends[i])
        labels = None if self.labels is None else self.labels[start:end]
        return one_document(self.data[start:end], labels, lambda at: self.place(start + at))

    def only_utf8(self) -> Documents:
        """Leave out documents that are not UTF-8; all of them must end here."""
        data = self.data.tobytes()
        good, rejects = np.ones(len(self), bool), []
        bounds = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        for i, (start, end) in enumerate(bounds):
            try:
                str(memoryview(data)[start:end], "utf-8")
            except UnicodeDecodeError as error:
                good[i] = False
                rejects.append(
                    not_utf8(data[start + error.start], self.place(start + error.start))
                )
        return replace(self.select(good), rejects=(*self.rejects, *rejects))

    def hashes(self, seed: int) -> npt.NDArray[np.uint64]:
        """Return a hash of each document's content."""
        data = memoryview(np.ascontiguousarray(self.data)).cast("B")  # type: ignore[arg-type]
        item = self.data.itemsize
        bounds = zip((self.starts * item).tolist(), (self.ends * item).tolist(), strict=True)
        digest, seed = xxhash.xxh3_64_intdigest, seed % 2**64
        return np.fromiter((digest(data[a:b], seed) for a, b in bounds), np.uint64, len(self))


def placed(ends: npt.NDArray[np.int64], place: Place) -> Place:
    """Return the place of a position of the data by the place of its row, or document."""
    return lambda at: place(int(np.searchsorted(ends, at, "right")))


def one_document(
    data: npt.NDArray[Any], labels: npt.NDArray[Any] | None, place: Place
) -> Documents:
    """Return a single document."""
    return Documents(data, np.array([len(data)]), place, labels=labels)


def joined(documents: Sequence[Documents], rejects: Sequence[Reject] = ()) -> Documents:
    """Return documents end to end, with more that are left out."""
    if len(documents) == 1 and not rejects:
        return documents[0]
    firsts = [0, *accumulate(len(each.data) for each in documents)]

    def place(at: int) -> str:
        i = min(bisect_right(firsts, at), len(documents)) - 1
        return documents[i].place(at - firsts[i])

    data = np.concatenate([np.empty(0, np.uint8), *(each.data for each in documents)])
    ends = [each.ends + first for each, first in zip(documents, firsts, strict=False)]
    labels = [each.labels for each in documents if each.labels is not None]
    return Documents(
        data,
        np.concatenate([np.empty(0, np.int64), *ends]),
        place,
        (*rejects, *(reject for each in documents for reject in each.rejects)),
        np.concatenate(labels) if labels else None,
    )


def not_utf8(byte: int, where: str) -> Reject:
    """Return the error of text that is not UTF-8."""
    what = f"the file is not UTF-8: byte 0x{byte:02x}"
    return where, SourceError(what, where, UTF8_HINT)


def texts_of(documents: Documents) -> list[str]:
    """Return documents as strings."""
    data = documents.data.tobytes()
    starts, ends = documents.starts.tolist(), documents.ends.tolist()
    return [data[a:b].decode() for a, b in zip(starts, ends, strict=True)]


class Piece(Protocol):
    """A part of a source that one thread reads."""

    @property
    def where(self) -> str:
        """Its place, for messages."""

    def read(self) -> Documents:
        """Return what it holds; SourceError if that is damaged."""


class TokenSource(ABC):
    """Gives pieces in a fixed order.

    Attributes:
        kind: ``text``, ``chat``, ``lists`` (of ids, by document), or ``ids`` (files of them).
        has_ids: True if its documents are ids.
        has_labels: True if its documents have labels.
        itemsize: Bytes of its widest ids.
        cut: Pieces end at multiples of so many ids or bytes; None: only where a document ends.
        runs: As of a recipe.
        empty_files: Names of files that hold nothing.
    """

    kind: str
    has_ids = False
    has_labels = False
    itemsize = 4
    cut: int | None
    runs: Sequence[int] | None = None
    empty_files: list[str]
    _plan: Sequence[Any]  # what each piece is made of

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self._plan)

    @abstractmethod
    def pieces(self, start: int = 0) -> Iterator[Piece]:
        """Yield the pieces from number ``start`` on."""
