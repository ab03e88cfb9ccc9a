"""How two packed datasets differ: in their fields, their samples and their order, and record by record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.data.view import View, open_view
from loaders.schema import Boxes, Keypoints
from loaders.schema.pictures import first_picture
from packdata.describe import cut

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from loaders.schema import Schema

_MAX_CHARS = 200  # of one side of a difference


@dataclass(slots=True)
class Difference:
    """How datasets A and B differ.

    Attributes:
        schema: Differences of the fields, one sentence each.
        samples: Samples that only one has (``only A``, ``only B``), that stand elsewhere among those of both
            (``moved``), or whose records differ (by field): how many.
        examples: Key or position of the first of each.
        limit: How many of these.
    """

    schema: list[str]
    samples: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    limit: int = 10

    def __bool__(self) -> bool:
        return bool(self.schema or self.samples)

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON types."""
        about = {"schema": self.schema, "samples": dict(self.samples), "examples": self.examples}
        return {"same": not self, **about}

    def add(self, kind: str, view: View, rows: Iterable[int]) -> None:
        """Count samples of a view."""
        for i in rows:
            self.samples[kind] += 1
            if self.samples[kind] <= self.limit:
                self.examples.setdefault(kind, []).append(view.key(i) or f"sample {i}")


def diff(a: Path | str, b: Path | str, *, limit: int = 10) -> Difference:
    """Compare two packed datasets: samples by key where both have keys, else by position.

    Datasets of one fingerprint are equal, unread. Of others records are compared as stored: re-encoded
    pictures differ.

    Raises:
        ShardError: A record that is compared is damaged.
    """
    first, second = open_view(a), open_view(b)
    found = Difference(schema_differences(first.schema, second.schema), limit=limit)
    served = (", ".join(view.schema.defaults) for view in (first, second))
    found.schema += _different("default fields", *served)
    if first.fingerprint == second.fingerprint:
        return found
    in_a, in_b = _matches(first, second)
    found.add("only A", first, np.setdiff1d(np.arange(len(first)), in_a).tolist())
    found.add("only B", second, np.setdiff1d(np.arange(len(second)), in_b).tolist())
    found.add("moved", first, in_a[in_b != np.sort(in_b)].tolist())
    common = [name for name in first.schema.fields if name in second.schema.fields]
    if not common:
        return found
    records = first.select(in_a).all_records(*common), second.select(in_b).all_records(*common)
    for i, one, other in zip(in_a.tolist(), *records, strict=True):
        for name in common:
            if not np.array_equal(one[name], other[name]):
                found.add(name, first, [i])
    return found


def _matches(a: View, b: View) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the positions in A and in B of the samples that both have, in A's order."""
    if not (a.has_keys and b.has_keys):
        both = np.arange(min(len(a), len(b)))
        return both, both
    hashes = a.key_hashes(), b.key_hashes()
    _, in_a, in_b = np.intersect1d(*hashes, return_indices=True)
    order = np.argsort(in_a)
    return in_a[order], in_b[order]


def schema_differences(a: Schema, b: Schema) -> list[str]:
    """Return where the fields of schema B differ from those of A, one sentence each."""
    found = [f"only A has field {name!r}" for name in a.fields if name not in b.fields]
    found += [f"only B has field {name!r}" for name in b.fields if name not in a.fields]
    for name in (name for name in a.fields if name in b.fields):
        one, other = a.fields[name].to_json(), b.fields[name].to_json()
        for option in one | other if one["kind"] == other["kind"] else ["kind"]:
            what = f"field {name!r}: {option}"
            found += _different(what, one.get(option), other.get(option))
    if any(isinstance(field, Boxes | Keypoints) for field in a.fields.values()):
        pictures = first_picture(a.fields), first_picture(b.fields)
        found += _different("first image, in whose pixels boxes are,", *pictures)
    return found


def _different(what: str, a: Any, b: Any) -> list[str]:
    """Return how a value differs, if it does; of lists, at the first place where they do."""
    if a == b:
        return []
    if isinstance(a, list) and isinstance(b, list):
        i, (a, b) = next(pair for pair in enumerate(zip_longest(a, b)) if pair[1][0] != pair[1][1])
        what = f"{what} {i}"
    return [f"{what} is {cut(repr(a), _MAX_CHARS)} in A, {cut(repr(b), _MAX_CHARS)} in B"]
