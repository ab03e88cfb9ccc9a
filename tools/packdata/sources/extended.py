"""A source with more columns than its own: annotations of its pictures, boxes and keypoints that are declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from packdata.sources.base import Column, Item, Source, broken_item, has_several

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class ExtendedSource:
    """The items of a source, with columns added or said to be something else; see ``Source``.

    Args:
        source: The items.
        labels: All columns.
        identity: What they depend on, beside the source.
        extend: Returns an item with the values of the columns that the source does not have; SourceError rejects it.
        notes: What is worth knowing.
    """

    def __init__(
        self,
        source: Source,
        labels: Mapping[str, Column],
        identity: Mapping[str, Any],
        extend: Callable[[Item], Item],
        notes: tuple[str, ...] = (),
    ) -> None:
        self.source, self.labels, self._extend, self.notes = source, labels, extend, notes
        self.kind, self.name = source.kind, source.name
        self.identity: Mapping[str, Any] = {**source.identity, "columns": identity}
        self.has_masks, self.pixels, self.ignored = source.has_masks, source.pixels, source.ignored
        self.has_several = has_several(source)
        self.suffixed: tuple[str, ...] = getattr(source, "suffixed", ())

    def __len__(self) -> int:
        return len(self.source)

    def items(self, start: int = 0) -> Iterator[Item]:
        """Yield items from number ``start`` on."""
        for item in self.source.items(start):
            try:
                yield self._extend(item)
            except SourceError as error:
                yield broken_item(item.key, error.what, item.where, error.hint)

    def keys(self) -> Iterator[str]:
        """Yield the key of each item."""
        return self.source.keys()

    def mask_heads(self) -> Iterator[bytes]:
        """Yield the head of each mask."""
        return self.source.mask_heads()
