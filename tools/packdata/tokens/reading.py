"""What reads a file: range by range, each on any thread; where the cuts lie follows from the file alone."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from packdata.sources.objects import RemoteFile
    from packdata.tokens.documents import Documents


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
    """One file, whose documents are read range by range.

    Attributes:
        piece_bytes: Size of a range, and of what is packed together.
        itemsize: Bytes of an id, of a file of ids.
    """

    piece_bytes = 4 << 20
    itemsize = 4

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
        self._lock = threading.Lock()
        self._kept: dict[Any, Any] = {}

    def __reduce__(self) -> tuple[type[Recent], tuple[()]]:
        return Recent, ()

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what is kept by a key, made first if there is none."""
        with self._lock:
            if key not in self._kept:
                self._kept = dict([*self._kept.items()][-1:])
                self._kept[key] = make()
            return self._kept[key]
