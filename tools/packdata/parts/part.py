"""One part of a packing: which items it has, in which order, and what all parts must have in common."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.errors import SchemaError
from loaders.rng import hash64, key64
from packdata.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from packdata.reading import RemoteFile
    from packdata.recipe import Block, Records

# What encodes, and writes: another version of one may make other bytes of the same picture.
_PACKAGES = (
    *("numpy", "opencv-python-headless", "opencv-python", "pillow", "simplejpeg", "tokenizers"),
    *("lmdb", "pyarrow", "zstandard", "xxhash"),
)
_SHUFFLE = 0x5BFF1E  # so that no other use of the same seed draws the same numbers


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a packing, by its number from 0 and how many there are.

    Raises:
        ValueError: There is no such part.

    Example:
        >>> Part.parse("3/10"), Part(3, 10).bounds(25)
        (Part(number=3, of=10), (7, 10))
    """

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.of:
            raise ValueError(f"of {self.of} parts the numbers are 0 to {self.of - 1}, got {self}")

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read ``I/N``."""
        number, slash, of = str(text).partition("/")
        if not (slash and number.isdecimal() and of.isdecimal()):
            raise ValueError(f"a part is I/N, such as 0/10 to 9/10, got {text!r}")
        return cls(int(number), int(of))

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"part-{self.number:05d}-of-{self.of:05d}"

    def bounds(self, num_items: int) -> tuple[int, int]:
        """Return the number of its first item, and of the first behind it."""
        return self.number * num_items // self.of, (self.number + 1) * num_items // self.of

    def cut(self, splits: Sequence[tuple[str, Recipe]]) -> list[tuple[str, Recipe]]:
        """Return what is this part's of the recipe of each split."""
        start, stop = self.bounds(sum(len(recipe) for _, recipe in splits))
        cut: list[tuple[str, Recipe]] = []
        for split, recipe in splits:
            inside = range(len(recipe))[max(0, start) : max(0, stop)]
            cut.append((split, PartRecipe(recipe, inside)))
            start, stop = start - len(recipe), stop - len(recipe)
        return cut


class PartRecipe(Recipe):
    """The items of a recipe from one number to another."""

    def __init__(self, recipe: Recipe, inside: range) -> None:
        self._recipe, self._inside = recipe, inside
        self.targets, self.identity = recipe.targets, recipe.identity
        self.provenance, self.tally = recipe.provenance, recipe.tally
        self.is_of_blocks, self.why_empty = recipe.is_of_blocks, recipe.why_empty
        self.num_samples = recipe.num_samples if len(inside) == len(recipe) else None

    def __len__(self) -> int:
        return len(self._inside)

    def items(self, start: int) -> Iterator[Any]:
        """Yield its items."""
        return islice(self._recipe.items(self._inside.start + start), len(self) - start)

    def name(self, item: Any) -> str:
        """Return the place of an item."""
        return self._recipe.name(item)

    def encode(self, item: Any) -> Sequence[Records | Block]:
        """Return the records of an item."""
        return self._recipe.encode(item)


class ShuffledRecipe(PartRecipe):
    """The items of a recipe in an order drawn by a seed.

    Of blocks, so are the samples in each. Those of a run (``Recipe.runs``) stay behind one another: to read any of
    them takes reading those before it.
    """

    def __init__(self, recipe: Recipe, seed: int) -> None:
        if not recipe.can_shuffle:
            what = "shuffle= takes pictures and arrays that are files of their own, in folders or a list"
            raise SchemaError(what)
        super().__init__(recipe, range(len(recipe)))
        self.identity = {**recipe.identity, "shuffle": seed}
        self.provenance = {**recipe.provenance, "shuffle": seed}
        self._seed = seed

    def items(self, start: int) -> Iterator[Any]:
        """Yield its items, with their numbers."""
        order = _drawn(key64(self._seed, _SHUFFLE), self._recipe.runs or len(self))[start:]
        # The ends of runs of neighbours: each run is listed at once.
        ends = np.flatnonzero(np.diff(order, append=-1) != 1) + 1
        for end, num in zip(ends, np.diff(ends, prepend=0), strict=True):
            first = int(order[end - num])
            yield from map(_Numbered, count(first), islice(self._recipe.items(first), int(num)))

    def name(self, item: Any) -> str:
        """Return the place of an item."""
        return self._recipe.name(item.item)

    def encode(self, item: Any) -> Sequence[Records | Block]:
        """Return the records of an item."""
        encode: Callable[..., Sequence[Records | Block]] = self._recipe.encode
        draw = partial(_drawn, key64(self._seed, _SHUFFLE, item.number))
        return encode(item.item, draw) if self.is_of_blocks else encode(item.item)


def _drawn(key: int, of: int | Sequence[int]) -> npt.NDArray[np.int64]:
    """Return an order of so many, or of those of these numbers; equal ones stay behind one another."""
    numbers = np.arange(of) if isinstance(of, int) else np.array(of)
    return np.argsort(hash64(key, numbers), kind="stable")


class _Numbered(NamedTuple):
    """An item, and its number in the source."""

    number: int
    item: Any

    @property
    def reads(self) -> Sequence[RemoteFile]:
        """What the item reads, which is fetched ahead."""
        return getattr(self.item, "reads", ())


def versions() -> dict[str, str]:
    """Return the versions of all that encodes: parts made with others are refused."""
    found = {"python": "{}.{}".format(*sys.version_info)}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
