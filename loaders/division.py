"""Samples divided into parts at random: always the same way, by strata alike, or each by its key alone."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.errors import SchemaError
from loaders.rng import hash64, key64

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

_PURPOSE = 0x5B117  # so that no other use of the same seed draws the same numbers
_FEW_NUMBERS, _MANY_NUMBERS = 10, 100  # different ones of a column to stratify by: always, never


def divide(
    num: int, shares: Sequence[float], seed: int, strata: npt.NDArray[Any] | None = None
) -> list[Int64s]:
    """Return the positions of each part's samples, sorted; sizes are right to one sample.

    Args:
        num: How many samples there are.
        shares: Of each part; together at most 1, the rest is left out.
        seed: Another seed, another division.
        strata: ``(num,)``: each part gets its share of every value, to two samples; all NaN are one value.

    Example:
        >>> [part.tolist() for part in divide(8, [0.5, 0.25], seed=0)]
        [[1, 2, 4, 5], [3, 6]]
    """
    order = np.argsort(hash64(key64(seed, _PURPOSE), np.arange(num)), kind="stable")
    if strata is None:
        bounds = [0, *(round(num * end) for end in np.cumsum(shares).tolist())]
        return [np.sort(order[a:b]) for a, b in itertools.pairwise(bounds)]
    return _deal(order[np.argsort(strata[order], kind="stable")], shares, seed)


def divide_by_key(
    key_hashes: npt.NDArray[np.uint64], shares: Sequence[float], seed: int
) -> list[Int64s]:
    """Return the positions of each part's samples, sorted; shares are met on average.

    Which part a sample goes to follows from its key's xxh3_64 alone, so it stays when others are added or removed.
    """
    places = hash64(key64(seed, _PURPOSE), key_hashes) * 2.0**-64
    part = np.searchsorted(np.cumsum(shares), places, side="right")
    return [np.flatnonzero(part == i) for i in range(len(shares))]


def check_strata(values: npt.NDArray[Any], name: str, words: Sequence[str] = ()) -> None:
    """Raise SchemaError if samples cannot be divided alike by a column.

    Args:
        values: ``(N,)``, the column.
        name: Of the column.
        words: Names of the values 0, 1, ...

    Raises:
        SchemaError: It holds measurements, of which few are the same, or a class of a single sample.
    """
    if values.ndim != 1:
        raise SchemaError(f"stratify needs a field with one value per sample, {name!r} has more")
    different, counts = np.unique(values, return_counts=True)
    if values.dtype.kind != "f":
        alone = different[counts == 1].tolist()
        if alone and len(values) > 1:
            listed = [words[i] if 0 <= i < len(words) else i for i in alone[:5]]
            more = ", ..." if len(alone) > 5 else ""
            what = f"one sample alone has {name} {', '.join(map(repr, listed))}{more}, too few for the parts"
            raise SchemaError(f"{what}. Leave the sample out, or add samples")
        return
    num = len(different)
    if num > max(_FEW_NUMBERS, min(_MANY_NUMBERS, len(values) // 2)):
        what = f"column {name!r} has {num:,} different numbers in {len(values):,} samples, too many to stratify by"
        raise SchemaError(f"{what}. Use a column of categories, or a label")


def _deal(order: Int64s, shares: Sequence[float], seed: int) -> list[Int64s]:
    """Deal an order out evenly, so that every stretch of it (a stratum) is divided by the shares.

    The part takes each time the running total of its share passes a whole number; the next part
    does the same with what is left. So the smallest strata are not all rounded the same way.
    """
    parts, left = [], 1.0
    for i, own in enumerate(shares):
        is_last = left - own < 1e-9  # nothing is left for others: all of it
        share = 1.0 if is_last else own / left
        start = float(hash64(key64(seed, _PURPOSE, 1), np.array([i]))[0]) * 2.0**-64
        total = np.arange(len(order) + 1) * share + (start if share < 1 - 1e-9 else 0.0)
        steps = np.floor(total + 1e-9)
        takes = steps[1:] > steps[:-1]
        parts.append(np.sort(order[takes]))
        order, left = order[~takes], left - own
    return parts
