"""A source with more columns than its own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from packdata.sources.base import Item, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from packdata.sources.base import Column


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
        self.source, self.labels, self._extend = source, labels, extend
        self.kind, self.name, self.listing = source.kind, source.name, source.listing
        self.identity = {**source.identity, "columns": identity}
        self.has_masks, self.has_several = source.has_masks, source.has_several
        self.pixels, self.ignored = source.pixels, source.ignored
        self.notes = notes

    def __len__(self) -> int:
        return len(self.source)

    def items(self, start: int = 0) -> Iterator[Item]:
        for item in self.source.items(start):
            try:
                yield self._extend(item)
            except SourceError as error:
                yield Item(
                    item.key, item.where, partial(_fail, error.what, item.where, error.hint)
                )

    def keys(self) -> Iterator[str]:
        return self.source.keys()


def _fail(what: str, where: str, hint: str) -> None:
    """Reject an item in its turn: the listing goes on."""
    raise SourceError(what, where, hint)
