"""One sample for each file of a source: what the recipes of pictures and of arrays share, and their plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from loaders.schema import Field, Schema
from packdata.describe import counted
from packdata.files.splits import contents, source_notes
from packdata.packing.engine import targets_of
from packdata.plan import SourcePlan
from packdata.recipe import Recipe
from packdata.sources.columns import BOX_LABELS, LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from packdata.files.labels import Split
    from packdata.packing.summary import Summary
    from packdata.recipe import Target
    from packdata.sources.base import Item

_BY_NUMBER = {"classes", "folder", "list"}  # kinds of sources of which any item can be asked for
_O = TypeVar("_O")  # the options of a recipe: what becomes of each file
_R = TypeVar("_R", bound="FilesRecipe[Any]")


class FilesRecipe(Recipe, Generic[_O]):
    """A recipe but for its targets (``_set_targets``) and ``encode``: what becomes of the files of a split."""

    command: str

    def __init__(self, split: Split, options: _O) -> None:
        self.split, self.options = split, options
        self.source, self.labels = split.source, split.labels
        self.can_shuffle = self.source.kind in _BY_NUMBER

    def _set_targets(self, targets: Sequence[Target], options: Mapping[str, Any]) -> None:
        source = self.source
        # With classes given, another separator may leave the schema as it is.
        separators = [label.separator for label in self.labels if label.separator]
        options = {**options, "multi_label": separators[0]} if separators else options
        self.targets = targets
        self.identity = {
            "recipe": self.command,
            "source": source.identity,
            "options": options,
            "schemas": [target.schema.to_json() for target in targets],
        }
        self.provenance = {
            "recipe": self.command,
            "source": source.name,
            "kind": source.kind,
            "masks": source.mask_folder or None,
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


class FilesPlan(SourcePlan, Generic[_R]):
    """The plan of pictures or arrays: a recipe for each split."""

    splits: Sequence[tuple[str, _R]]

    @property
    def recipes(self) -> list[_R]:
        """The recipes."""
        return [recipe for _, recipe in self.splits]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON types."""
        return {
            "src": str(self.sources[0]) if len(self.sources) == 1 else [*map(str, self.sources)],
            "format": self.settings.format,
            "items": sum(map(len, self.recipes)),
            "parts": [
                {
                    "split": split,
                    "kind": recipe.source.kind,
                    "items": len(recipe),
                    "ignored": dict(recipe.source.ignored),
                    "targets": {
                        folder: target.schema.to_json()
                        for folder, target in targets_of((split, recipe)).items()
                    },
                }
                for split, recipe in self.splits
            ],
        }

    def heading(self, split: str, recipe: _R) -> str:
        """Count the items of a split."""
        name, place = f"{split}: " if split else "", ", ".join(map(str, self.sources))
        return f"{name}{counted(len(recipe), 'item')} of kind {recipe.source.kind!r} in {place}"

    def notes(self, packed: Summary | None = None) -> list[str]:
        """Say what is skipped, and what may not be meant."""
        opened = [recipe.split for recipe in self.recipes]
        return [*([] if packed is None else contents(opened)), *source_notes(opened)]
