"""How two packed datasets differ: in their fields, in their samples and their order, and record by record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.data.view import View, open_view
from packdata.describe import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from loaders.schema import Schema


_MAX_CHARS = 200  # of one side of a difference: vocabularies are long


@dataclass(slots=True)
class Difference:
    """What ``diff`` found between A and B."""

    # Differences of the schemas, one sentence each.
    schema: list[str] = field(default_factory=list)
    by_key: bool = True  # True if samples were matched by key, False if by position
    num_same: int = 0  # samples with the same records in both (of the fields that both have)
    only_a: int = 0  # number of samples that only A holds
    only_b: int = 0  # the same for B
    # Samples of both that stand at another place among these in B than in A: splits by position, ``sample_id`` and
    # resumed epochs find others there.
    moved: int = 0
    # Samples whose records differ, by field.
    changed: Counter[str] = field(default_factory=Counter)
    # Key or position of the first samples of each kind: ``only_a``, ``only_b``, ``moved``, fields.
    examples: dict[str, list[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.schema or self.only_a or self.only_b or self.moved or self.changed)

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON types."""
        names = ("num_same", "only_a", "only_b", "moved")
        return {
            "same": not self,
            "schema": self.schema,
            "matched_by": "key" if self.by_key else "position",
            **{name: getattr(self, name) for name in names},
            "changed": dict(self.changed),
            "examples": self.examples,
        }

    def note(self, kind: str, name: str, limit: int) -> None:
        """Keep the name of a sample as an example of a kind, if there are not enough yet."""
        known = self.examples.setdefault(kind, [])
        if len(known) < limit:
            known.append(name)


def diff(a: Path | str, b: Path | str, *, limit: int = 10) -> Difference:
    """Compare two packed datasets, sample by sample.

    Samples are matched by key where both have keys, else by position. Those that both have differ
    in their order, too. Datasets of one fingerprint are equal, unread; of others, records are
    compared as stored: pictures that were encoded anew differ.
    Of each kind of difference ``limit`` samples are named.

    Raises:
        ShardError: A record that is compared is damaged.
    """
    first, second = open_view(a), open_view(b)
    found = Difference(schema_differences(first.schema, second.schema))
    found.by_key = first.has_keys and second.has_keys
    if first.fingerprint == second.fingerprint:
        found.num_same = len(first)
        return found
    in_a, in_b = _matches(first, second, by_key=found.by_key)
    moved = in_a[in_b != np.sort(in_b)]
    only_a = np.setdiff1d(np.arange(len(first)), in_a)
    only_b = np.setdiff1d(np.arange(len(second)), in_b)
    found.only_a, found.only_b, found.moved = len(only_a), len(only_b), len(moved)
    of = {"only_a": (first, only_a), "only_b": (second, only_b), "moved": (first, moved)}
    for kind, (view, rows) in of.items():
        for i in rows[:limit].tolist():
            found.note(kind, _name(view, i), limit)
    common = [name for name in first.schema.fields if name in second.schema.fields]
    if not common:
        return found
    pairs = zip(
        in_a.tolist(),
        first.select(in_a).all_records(*common),
        second.select(in_b).all_records(*common),
        strict=True,
    )
    for i, records, others in pairs:
        unequal = [name for name in common if not np.array_equal(records[name], others[name])]
        found.num_same += not unequal
        for name in unequal:
            found.changed[name] += 1
            found.note(name, _name(first, i), limit)
    return found


def _matches(
    a: View, b: View, *, by_key: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the positions in A and in B of the samples that both hold, in A's order."""
    if not by_key:
        both = np.arange(min(len(a), len(b)))
        return both, both
    hashes = a.key_hashes(), b.key_hashes()
    _, in_a, in_b = np.intersect1d(*hashes, return_indices=True)
    order = np.argsort(in_a)
    return in_a[order], in_b[order]


def _name(view: View, i: int) -> str:
    key = view.key(i)
    return f"sample {i}" if key is None else key


def schema_differences(a: Schema, b: Schema, *, defaults: bool = True) -> list[str]:
    """Say in words where schema B differs from A, the choice of ``defaults`` included; an empty list if nowhere."""
    found = [f"only A has field {name!r}" for name in a.fields if name not in b.fields]
    found += [f"only B has field {name!r}" for name in b.fields if name not in a.fields]
    for name in a.fields:
        if name in b.fields:
            one, other = a.fields[name].to_json(), b.fields[name].to_json()
            found += [f"field {name!r}: {what}" for what in _option_differences(one, other)]
    if defaults and a.defaults != b.defaults:
        found.append(f"default fields: {', '.join(a.defaults)} in A, {', '.join(b.defaults)} in B")
    return found


def _option_differences(a: dict[str, Any], b: dict[str, Any]) -> Iterator[str]:
    if a["kind"] != b["kind"]:
        yield f"kind is {a['kind']} in A, {b['kind']} in B"
        return
    for option in dict.fromkeys([*a, *b]):  # what is not set may be left out
        value, other = a.get(option), b.get(option)
        if value == other:
            continue
        if option == "classes" and value is not None and other is not None:
            yield _class_difference(value, other)
        else:
            yield f"{option} is {_short(value)} in A, {_short(other)} in B"


def _class_difference(a: Sequence[str], b: Sequence[str]) -> str:
    only_a, only_b = sorted(set(a) - set(b)), sorted(set(b) - set(a))
    sizes = f"{counted(len(a), 'class')} in A, {len(b)} in B"
    parts = [
        f"{who} only: {_short(names)}" for who, names in (("A", only_a), ("B", only_b)) if names
    ]
    if not parts:
        i = next(i for i, (one, other) in enumerate(zip(a, b, strict=True)) if one != other)
        parts = [f"the order differs, class {i} is {a[i]!r} in A, {b[i]!r} in B"]
    return f"{sizes}; {'; '.join(parts)}"


def _short(value: Any) -> str:
    text = _some(value)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"


def _some(value: Any) -> str:
    if isinstance(value, list) and len(value) > 6:
        return f"{', '.join(map(repr, value[:6]))} and {len(value) - 6} more"
    return ", ".join(map(repr, value)) if isinstance(value, list) else repr(value)
