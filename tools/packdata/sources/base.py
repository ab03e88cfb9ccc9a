"""What every source gives: items in a fixed order, each read only when it is packed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from loaders.errors import SourceError
from packdata.reading import File, RemoteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from packdata.sources.columns import Column


@dataclass(frozen=True, slots=True)
class Item:
    """One picture of a source with what is known of it."""

    # Its name, unique in the source: where there are paths a relative one, without suffix unless another file
    # differs in nothing else.
    key: str
    where: str  # its place: ``cats/1.jpg``, ``a.tar: 1.jpg``, ``list.csv, line 12 (1.jpg)``
    # Returns the bytes of the file; where items have several pictures, those of each file; SourceError.
    read: Callable[[], bytes | list[bytes]]
    # Value by field name; None where it is missing.
    labels: Mapping[str, Any] = field(default_factory=dict)
    # Returns the bytes of the mask, if the source has masks; SourceError.
    read_mask: Callable[[], bytes] | None = None
    # Height and width of the picture that its boxes were drawn on, where that is said.
    drawn_on: tuple[int, int] | None = None

    @property
    def file(self) -> File | None:
        """The file; None where the picture is a part of one."""
        return self.read if isinstance(self.read, File) else None

    @property
    def reads(self) -> list[RemoteFile]:
        """The objects of a store that it is read from, which ``fetched_ahead`` fetches."""
        return [each for each in (self.read, self.read_mask) if isinstance(each, RemoteFile)]


class Source(ABC):
    """Lists pictures (or other files) in a fixed order."""

    kind: str  # what it is: ``classes``, ``folder``, ``list``, ``tar``, ``parquet``, ...
    name: str  # its last path component
    # JSON: changes when the files do (names, sizes, modification times); no absolute paths.
    identity: Mapping[str, Any]
    labels: Mapping[str, Column]  # the label columns by field name; the same for every item
    has_masks: bool = False  # True if items come with ``read_mask``
    mask_folder: str = ""  # the name of the folder of masks, if they come from one
    has_several: bool = False  # True if items have any number of pictures each
    # Names of classes by column, or by member of a column: ``objects.category``.
    classes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    # How many other files were skipped, by suffix.
    ignored: Mapping[str, int] = MappingProxyType({})
    notes: Sequence[str] = ()
    # The large files that it is made of, if nothing else decides what is in it.
    files: Sequence[File] = ()

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items."""

    @abstractmethod
    def items(self, start: int = 0) -> Iterator[Item]:
        """Yield items from number ``start`` on, always in the same order."""


class ExtendedSource(Source):
    """The items of a source, with columns added or said to be something else."""

    def __init__(
        self,
        source: Source,
        labels: Mapping[str, Column],
        identity: Mapping[str, Any],  # what they depend on, beside the source
        # Returns an item with the values of the columns that the source does not have; SourceError rejects it.
        extend: Callable[[Item], Item],
        notes: Sequence[str] = (),
    ) -> None:
        for name in Source.__annotations__:  # all that a source says of itself
            if getattr(source, name) is not getattr(Source, name, None):  # a default stays one
                setattr(self, name, getattr(source, name))
        self._source, self._extend = source, extend
        self.identity = {"source": source.identity, "columns": identity}
        self.labels, self.files, self.notes = labels, (), [*source.notes, *notes]

    def __len__(self) -> int:
        return len(self._source)

    def items(self, start: int = 0) -> Iterator[Item]:
        for item in self._source.items(start):
            try:
                yield self._extend(item)
            except SourceError as error:
                yield Item(item.key, item.where, partial(fail, error))


def fail(error: SourceError) -> NoReturn:
    """Raise an error in the place of a file that an item lacks: it is rejected in its turn."""
    raise error
