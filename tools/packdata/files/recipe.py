"""One sample for each file of a source: what the recipes of pictures and of arrays share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from loaders.schema import Field, Schema
from packdata.files.labels import LABEL
from packdata.recipe import Recipe
from packdata.sources.base import BOX_LABELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from packdata.files.splits import Split
    from packdata.recipe import Target
    from packdata.sources.base import Item


class Options(Protocol):
    """What becomes of each file."""

    def to_json(self) -> dict[str, Any]:
        """Return the options as JSON types."""


_O = TypeVar("_O", bound=Options)


class FilesRecipe(Recipe, Generic[_O]):
    """A recipe but for its targets (``_set_targets``) and ``encode``: what becomes of the files of a split."""

    command: str

    def __init__(self, split: Split, options: _O) -> None:
        self.split, self.options = split, options
        self.source, self.labels, self.masks = split.source, split.labels, split.masks

    def _set_targets(self, targets: Sequence[Target]) -> None:
        source, masks, options = self.source, self.masks, self.options.to_json()
        self.targets = targets
        self.identity = {
            "recipe": self.command,
            "source": source.identity,
            "options": options,
            "masks": masks and masks.identity,
            "schemas": [target.schema.to_json() for target in targets],
        }
        self.provenance = {
            "recipe": self.command,
            "source": source.name,
            "kind": source.kind,
            "masks": masks and masks.root.name,
            **options,
        }

    def _schema(self, files: Mapping[str, Field], more: Mapping[str, Field]) -> Schema:
        """Return the fields of files, labels and ``more``; a sample holds the files, ``label`` and boxes."""
        fields = {**files, **{label.name: label.field for label in self.labels}, **more}
        file, *masks = files
        shapes = [each.name for each in self.labels if each.column.form or each.name == BOX_LABELS]
        first = [file, *([LABEL] if LABEL in fields else []), *masks, *shapes]
        rest = [name for name in fields if name not in first]
        return Schema({name: fields[name] for name in first + rest}, tuple(first))

    def __len__(self) -> int:
        return len(self.source)

    def items(self, start: int = 0) -> Iterator[Item]:
        """Yield the items of the source from number ``start`` on."""
        return self.source.items(start)

    def name(self, item: Item) -> str:
        """Return the place of an item."""
        return item.where
