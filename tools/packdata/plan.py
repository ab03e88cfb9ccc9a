"""What a source would become, as something to look at; and then the doing, which is alike for all."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from loaders.errors import PackError
from packdata.engine import Summary, pack_recipes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from packdata.recipe import Recipe
    from packdata.settings import PackSettings
    from packdata.shards import Format


class Plan(Protocol):
    """A source that was listed, with what would become of it; ``str`` says it in words."""

    @property
    def sources(self) -> Sequence[Path | str]:
        """Files, folders and patterns, as they were given."""

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

    def amount(self, packed: Summary) -> str:
        """Say how much was ``packed``; "" where the number of samples says it."""

    def is_unchanged(self) -> bool:
        """Tell whether the source is still as it was listed."""


def pack_plan(plan: Plan, dst: Path | str, **settings: Unpack[PackSettings]) -> Summary:
    """Pack what was planned; see ``pack_recipes``.

    Raises:
        PackError: What ``pack_recipes`` raises, or the destination lies inside of a source.
    """
    check_outside(dst, plan.sources)
    summary = pack_recipes(
        plan.parts, dst, format=plan.format, is_unchanged=plan.is_unchanged, **settings
    )
    notes = (*summary.notes, *plan.notes(summary))
    return replace(summary, notes=notes, amount=plan.amount(summary))


def check_outside(
    dst: Path | str, sources: Sequence[Path | str], *, or_same: bool = False
) -> None:
    """Raise PackError for a destination inside of a folder to pack: it would become part of it.

    The folder would change while it is packed, and hold a class or a split too many ever after.
    With ``or_same`` the destination may be a source itself: a dataset that is replaced.
    """
    target = os.path.realpath(dst)  # unlike Path.resolve(), at peace with links to themselves
    for source in filter(os.path.isdir, sources):
        folder = os.path.realpath(source)
        if or_same and target == folder:
            continue
        if Path(target).is_relative_to(folder):
            where = (
                "it is the source"
                if target == folder
                else f"it lies inside of the source {source}"
            )
            raise PackError(where, dst, "Choose a folder beside it; nothing was written")
