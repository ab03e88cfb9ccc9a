"""The plan of pictures or arrays, files of a source: a recipe for each of its splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from loaders.errors import SourceError
from loaders.text import printable
from packdata.describe import counted, describe_field
from packdata.files.splits import contents, source_notes
from packdata.packing.engine import target_folders
from packdata.sources.base import files_identity
from packdata.sources.listed import are_given, list_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from loaders.schema import Field
    from packdata.files.recipe import FilesRecipe
    from packdata.packing.engine import Summary
    from packdata.packing.shards import Format


_R = TypeVar("_R", bound="FilesRecipe[Any]")


@dataclass(frozen=True, slots=True)
class FilesPlan(Generic[_R]):
    """The plan of pictures or arrays: a recipe for each split."""

    sources: Sequence[Path | str]  # as they were given
    parts: Sequence[tuple[str, _R]]  # (split, recipe) each
    format: Format  # of the shards
    list_again: Callable[[], Sequence[tuple[str, _R]]]  # returns the parts as the source is now

    @property
    def recipes(self) -> list[_R]:
        """The recipes."""
        return [recipe for _, recipe in self.parts]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON types."""
        return {
            "src": str(self.sources[0]) if len(self.sources) == 1 else [*map(str, self.sources)],
            "format": self.format,
            "items": sum(map(len, self.recipes)),
            "parts": [
                {
                    "split": split,
                    "kind": recipe.source.kind,
                    "items": len(recipe),
                    "ignored": dict(recipe.source.ignored),
                    "targets": {
                        folder: target.schema.to_json()
                        for folder, target in zip(
                            target_folders(split, recipe), recipe.targets, strict=True
                        )
                    },
                }
                for split, recipe in self.parts
            ],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        place = printable(", ".join(map(str, self.sources)))
        for split, recipe in self.parts:
            name = f"{split}: " if split else ""
            yield f"{name}{counted(len(recipe), 'item')} of kind {recipe.source.kind!r} in {place}"
            for folder, target in zip(target_folders(split, recipe), recipe.targets, strict=True):
                yield f"  to {folder or 'the destination itself'}, as {self.format}:"
                for field_name, field in target.schema.fields.items():
                    default = "" if field_name in target.schema.defaults else " (on request)"
                    yield f"    {field_name}: {printable(self.field_text(field))}{default}"
        yield from map(printable, self.notes())

    def field_text(self, field: Field) -> str:
        """Return a field in a few words."""
        return describe_field(field)

    def notes(self, packed: Summary | None = None) -> list[str]:
        """Say what is passed over, and what may not be meant."""
        splits = [recipe.split for recipe in self.recipes]
        return [*([] if packed is None else contents(splits)), *source_notes(splits)]

    def amount(self, packed: Summary) -> str:
        """Leave it to the number of samples."""
        return ""

    def is_unchanged(self) -> bool:
        """Tell whether the source is still as it was listed."""
        if are_given(self.sources):
            return True
        try:
            return self._identities() == [recipe.identity for recipe in self.recipes]
        except SourceError:  # what is gone has changed too
            return False

    def _identities(self) -> list[Mapping[str, Any]]:
        paths = [recipe.source.paths for recipe in self.recipes]
        if all(paths) and not any(recipe.masks for recipe in self.recipes):  # a few large files
            list_sources(self.sources)
            return [
                {**recipe.identity, "source": files_identity(recipe.source.kind, files)}
                for recipe, files in zip(self.recipes, paths, strict=True)
            ]
        return [recipe.identity for _, recipe in self.list_again()]
