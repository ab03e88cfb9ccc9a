"""What a source would become, as something to look at; and then the doing, which is alike for all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from packdata.engine import Summary, pack_recipes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Unpack

    from packdata.recipe import Recipe
    from packdata.settings import PackSettings
    from packdata.shards import Format


class Plan(Protocol):
    """A source that was listed, with what would become of it; ``str`` says it in words."""

    @property
    def parts(self) -> Sequence[tuple[str, Recipe]]:
        """(Folder below the destination, recipe) each."""

    @property
    def format(self) -> Format:
        """Of the shards."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON types."""

    def notes(self, packed: Summary | None = None) -> list[str]:
        """Say what may not be meant, or is worth knowing, also of what was ``packed``."""

    def is_unchanged(self) -> bool:
        """Tell whether the source is still as it was listed."""


def pack_plan(plan: Plan, dst: Path | str, **settings: Unpack[PackSettings]) -> Summary:
    """Pack what was planned; see ``pack_recipes``."""
    summary = pack_recipes(
        plan.parts, dst, format=plan.format, is_unchanged=plan.is_unchanged, **settings
    )
    return replace(summary, notes=(*summary.notes, *plan.notes(summary)))
