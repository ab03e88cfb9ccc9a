"""A source that was listed and what it would become, to look at first; and packing it, which is the same for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from loaders.checks import whole_number
from loaders.errors import SourceError
from loaders.remote.url import Location, is_url
from loaders.text import printable
from packdata.describe import describe_field
from packdata.packing.engine import Run, targets_of
from packdata.packing.target import check_outside
from packdata.parts.packing import pack_part
from packdata.parts.part import Part, ShuffledRecipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from packdata.packing.settings import PackSettings
    from packdata.packing.summary import Summary
    from packdata.recipe import Recipe

_USUAL_SEED = 0


@dataclass(frozen=True, repr=False)
class SourcePlan(ABC):
    """A source that was listed, with what would become of it; ``str`` says it in words."""

    sources: Sequence[Location]  # files, folders and patterns, as they were given
    splits: Sequence[tuple[str, Recipe]]  # (folder below the destination, recipe) of each
    settings: PackSettings  # as they were given, with the format that was chosen
    listed: Any  # what changes when one of the files does
    list_again: Callable[[], Any]  # returns that of the files as they are by now
    # Whether it is packed in a random order to a URL, unless ``shuffle`` is given.
    is_drawn_at_urls: ClassVar[bool] = False

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON types."""

    @abstractmethod
    def heading(self, split: str, recipe: Any) -> str:
        """Say in a line what a split is made of."""

    def __str__(self) -> str:
        lines: list[str] = []
        for split, recipe in self.splits:
            lines.append(self.heading(split, recipe))
            for folder, target in targets_of((split, recipe)).items():
                lines.append(
                    f"  to {folder or 'the destination itself'}, as {self.settings.format}:"
                )
                for name, field in target.schema.fields.items():
                    default = "" if name in target.schema.defaults else " (on request)"
                    lines.append(f"    {name}: {describe_field(field)}{default}")
        return "\n".join(map(printable, [*lines, *self.notes()]))

    @abstractmethod
    def notes(self, packed: Summary | None = None) -> list[str]:
        """Say what may not be meant, or is worth knowing, also of what was ``packed``."""

    def amount(self, packed: Summary) -> str:
        """Say how much was ``packed``; "" where the number of samples says it."""
        return ""

    def is_unchanged(self) -> bool:
        """Tell whether the source is still as it was listed: names, sizes and times of its files."""
        try:
            return bool(self.list_again() == self.listed)
        except SourceError:  # what is gone has changed, too
            return False


def ordered(plan: SourcePlan, dst: Location | str) -> Sequence[tuple[str, Recipe]]:
    """Return the recipes in an order that is drawn by a seed, or in that of the source.

    Where nothing is asked for (``...``), pictures are drawn at random for a URL, whose shards are best read so.
    SchemaError where an order would read files in leaps.
    """
    shuffle = plan.settings.shuffle
    if shuffle is ...:
        can_all = all(recipe.can_shuffle for _, recipe in plan.splits)
        shuffle = _USUAL_SEED if plan.is_drawn_at_urls and is_url(dst) and can_all else None
    if shuffle is None:
        return plan.splits
    seed = whole_number("shuffle", shuffle)
    return [(split, ShuffledRecipe(recipe, seed)) for split, recipe in plan.splits]


def pack_plan(plan: SourcePlan, dst: Location | str) -> Summary:
    """Pack what was planned, or a part of it.

    Raises:
        PackError: What ``pack_recipes`` raises, or the destination and a source hold one another.
    """
    check_outside(dst, plan.sources)
    run, recipes = Run(plan.settings, plan.is_unchanged), ordered(plan, dst)
    if plan.settings.part is not None:
        return pack_part(run, recipes, dst, Part.parse(plan.settings.part))
    return described(plan, run.pack_to(dst, recipes))


def described(plan: SourcePlan, packed: Summary) -> Summary:
    """Return the summary of what was packed with what the plan says of that."""
    return replace(packed, notes=(*packed.notes, *plan.notes(packed)), amount=plan.amount(packed))
