"""Sources made of sources: several as one, and one with more columns than its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from packdata.sources.base import Column, Item, Source, broken_item, check_unique
from packdata.sources.names import twice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


class JoinedSource(Source):
    """The items of several sources, in their order.

    Where a key is in two of them, the name of its source is put before each key.

    Raises:
        SourceError: Their columns, or the sizes of their pictures, do not go together, or two have one name
            and a key in common.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        first = sources[0]
        kinds = dict.fromkeys(source.kind for source in sources)
        self.kind = ", ".join(kinds)
        self.name = ", ".join(source.name for source in sources)
        self.identity = {
            "kind": "joined",
            "sources": [{"name": each.name, **each.identity} for each in sources],
        }
        self.labels = {name: self._column(name) for name in first.labels}
        self.has_masks, self.has_several = first.has_masks, first.has_several
        self.pixels = first.pixels
        self.ignored = sum((Counter(s.ignored) for s in sources), Counter())
        self.notes = [*dict.fromkeys(note for each in sources for note in each.notes)]
        self.empty_classes = [name for each in sources for name in each.empty_classes]
        for other in sources[1:]:
            self._check_alike(first, other)
        self._heads = [""] * len(sources)
        if twice(self.keys):
            self._heads = [f"{source.name}/" for source in sources]
            check_unique(lambda: ((key, self.name) for key in self.keys()), self.name)

    @staticmethod
    def _check_alike(first: Source, other: Source) -> None:
        for what, one, two in (
            ("columns", set(first.labels), set(other.labels)),
            ("masks", first.has_masks, other.has_masks),
            ("numbers of pictures a sample", first.has_several, other.has_several),
            ("sizes of stored pixels", first.pixels, other.pixels),
        ):
            if one != two:
                hint = "Pack them one by one, and 'packdata merge' what has the same fields"
                raise SourceError(f"its {what} are not those of {first.name}", other.name, hint)

    def _column(self, name: str) -> Column:
        """Return what all sources together have in a column."""
        columns = [each.labels[name] for each in self.sources if name in each.labels]
        kinds = {column.kind for column in columns}
        if kinds == {"int", "float"}:
            kinds = {"float"}
        if len(kinds) > 1:
            what = f"column {name!r} holds {' in one and '.join(sorted(kinds))} in another source"
            raise SourceError(what, self.name, "Pack them one by one")
        same = all(column.classes == columns[0].classes for column in columns)
        names = {each for column in columns for each in column.classes}
        return replace(
            columns[0],
            kind=kinds.pop(),
            classes=columns[0].classes if same else tuple(sorted(names)),
            numbered=same and columns[0].numbered,
            is_double=any(column.is_double for column in columns),
            num_missing=sum(column.num_missing for column in columns),
        )

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    def items(self, start: int = 0) -> Iterator[Item]:
        for head, source in zip(self._heads, self.sources, strict=True):
            if start < len(source):
                for item in source.items(start):
                    yield self._named(item, source, head)
            start = max(0, start - len(source))

    def _named(self, item: Item, source: Source, head: str) -> Item:
        """Return an item with the names of its classes: another source numbers them otherwise."""
        names = {
            name: column.classes[value]
            for name, column in source.labels.items()
            if column.kind == "class"
            and isinstance(value := item.labels.get(name), int)
            and 0 <= value < len(column.classes)
        }
        return replace(item, key=f"{head}{item.key}", labels={**item.labels, **names})

    def keys(self) -> Iterator[str]:
        for head, source in zip(self._heads, self.sources, strict=True):
            yield from map(head.__add__, source.keys())

    def mask_heads(self) -> Iterator[bytes]:
        return chain.from_iterable(source.mask_heads() for source in self.sources)


def join_splits(opened: Sequence[Mapping[str, Source]]) -> dict[str, Source]:
    """Return each split of several sources that have the same ones.

    Raises:
        SourceError: They do not, or do not go together.
    """
    first = opened[0]
    for splits in opened[1:]:
        if set(splits) != set(first):
            one, other = (", ".join(filter(None, each)) or "none" for each in (first, splits))
            names = ", ".join(source.name for source in splits.values())
            what = f"its splits are {other}, those of the first source {one}"
            raise SourceError(what, names, "Pack each split by itself")
    return {name: JoinedSource([splits[name] for splits in opened]) for name in first}


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
        self.kind, self.name, self.root = source.kind, source.name, source.root
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
                yield broken_item(item.key, error.what, item.where, error.hint)

    def keys(self) -> Iterator[str]:
        return self.source.keys()

    def mask_heads(self) -> Iterator[bytes]:
        return self.source.mask_heads()
