"""A source that was listed and what it would become, to look at first; and packing it, which is the same for all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from packdata.packing.engine import pack_recipes
from packdata.packing.target import check_outside
from packdata.parts.packing import pack_part
from packdata.parts.part import Part, in_order

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Unpack

    from packdata.packing.settings import PackSettings
    from packdata.packing.shards import Format
    from packdata.packing.summary import Summary
    from packdata.recipe import Recipe


class SourcePlan(Protocol):
    """A source that was listed, with what would become of it; ``str`` says it in words."""

    @property
    def sources(self) -> Sequence[Path | str]:
        """Files, folders and patterns, as they were given."""

    @property
    def splits(self) -> Sequence[tuple[str, Recipe]]:
        """(Folder below the destination, recipe) of each."""

    @property
    def format(self) -> Format:
        """Of the shards."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON types."""

    def notes(self, packed: Summary | None = None) -> list[str]:
        """Say what may not be meant, or is worth knowing, also of what was ``packed``."""

    def amount(self, packed: Summary) -> str:
        """Say how much was ``packed``; "" where the number of samples says it."""

    def is_unchanged(self) -> bool:
        """Tell whether the source is still as it was listed."""


def pack_plan(plan: SourcePlan, dst: Path | str, **settings: Unpack[PackSettings]) -> Summary:
    """Pack what was planned, or a part of it; see ``pack_recipes``.

    Raises:
        PackError: What ``pack_recipes`` raises, or the destination and a source hold one another.
    """
    check_outside(dst, plan.sources)
    part = settings.pop("part", None)
    recipes = in_order(plan.splits, settings.pop("shuffle", None))
    about: Any = {"format": plan.format, "is_unchanged": plan.is_unchanged, **settings}
    if part is not None:
        return pack_part(recipes, dst, Part.parse(part), **about)
    summary = pack_recipes(recipes, dst, **about)
    notes = (*summary.notes, *plan.notes(summary))
    return replace(summary, notes=notes, amount=plan.amount(summary))
