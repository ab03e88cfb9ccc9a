"""What a source would become, as something to look at; and then the doing, which is alike for all."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from glob import glob
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from loaders.errors import PackError
from loaders.manifest import MANIFEST_NAME
from loaders.remote.url import is_url, place_of
from packdata.engine import Summary, pack_recipes
from packdata.part import Part, in_order
from packdata.parts import pack_part, pack_whole

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
    """Pack what was planned, or a part of it; see ``pack_recipes``.

    Raises:
        PackError: What ``pack_recipes`` raises, or the destination and a source hold one another.
    """
    check_outside(dst, plan.sources)
    part = settings.pop("part", None)
    recipes = in_order(plan.parts, settings.pop("shuffle", None))
    about: Any = {"format": plan.format, "is_unchanged": plan.is_unchanged, **settings}
    if part is not None:
        return pack_part(recipes, dst, Part.parse(part), **about)
    pack = pack_whole if is_url(dst) else pack_recipes
    summary = pack(recipes, dst, **about)
    if not summary.datasets:  # all was there
        return summary
    notes = (*summary.notes, *plan.notes(summary))
    return replace(summary, notes=notes, amount=plan.amount(summary))


def check_outside(dst: Path | str, sources: Sequence[Path | str]) -> None:
    """Raise PackError for a target that is a source, lies in one, or holds one: each is lost or changed by it.

    Names do not decide: links and bind mounts are followed, and a dataset is also known by its manifest
    file, which a copy by hard links shares.
    """
    if is_url(dst):
        _check_beside(str(place_of(dst)), [str(place_of(s)) for s in sources if is_url(s)])
        return
    target = os.path.realpath(dst)  # unlike Path.resolve(), it does not raise for a link to itself
    # Thousands of sources lie in a few folders.
    identity, above = cache(_identity), cache(_identities_above)
    for source in chain.from_iterable(_matches(s) for s in sources if not is_url(s)):
        real, what = os.path.realpath(source), None
        one, other = (os.path.join(folder, MANIFEST_NAME) for folder in (target, real))
        if identity(target) == identity(real) or identity(one) == identity(other):
            what = "it is the source" if target == real else f"it is the source {str(source)!r}"
        elif identity(real) in above(os.path.dirname(target)):
            what = f"it lies inside the source {str(source)!r}"
        elif identity(target) in above(os.path.dirname(real)):
            what = f"the source {str(source)!r} lies inside it"
        if what is not None:
            raise PackError(what, dst, "Choose a folder beside it; nothing was written")


def _check_beside(dst: str, sources: Sequence[str]) -> None:
    for source in sources:
        if f"{dst}/".startswith(f"{source}/") or f"{source}/".startswith(f"{dst}/"):
            what = f"it is the source {source}, or one lies inside the other"
            raise PackError(what, dst, "Choose a folder beside it; nothing was written")


def _matches(source: Path | str) -> list[Path | str]:
    """Return the files that a pattern means; what is there by that name is no pattern."""
    text = os.fspath(source)
    found = [] if os.path.lexists(text) else glob(text, recursive=True)
    return [*found] or [source]


def _identities_above(folder: str) -> set[tuple[int, int] | str]:
    """Return the identity of a folder, and of all above it."""
    return {_identity(folder), *(_identity(str(path)) for path in Path(folder).parents)}


def _identity(path: str) -> tuple[int, int] | str:
    """Return what all names of a file have in common; the path itself where nothing is there."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return path
    return about.st_dev, about.st_ino
