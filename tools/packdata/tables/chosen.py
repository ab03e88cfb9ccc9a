"""What becomes of every column of a table, once it is decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loaders.schema import Categories, Features, Label, Schema
from packdata.describe import describe_field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from packdata.types import Kind

FEATURES, CATEGORIES, MISSING = "features", "categories", "missing"
TARGETS = "targets"  # in the provenance: field, column and how of each
_KINDS: dict[str, Kind] = {"number": "number", "flag": "flag", "label": "text", "days": "date"}


def kind_read(how: str) -> Kind:
    """Return what a column is read as, of which a number, flag, label or days are made."""
    return _KINDS[how]


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column to predict: the name of its field, its own name in the files, and what becomes of it."""

    field: str
    column: str
    how: str  # ``label``, ``number``, ``flag`` or ``days``


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """What becomes of every column."""

    schema: Schema  # ``features``, ``missing`` and ``categories``, as far as there are any, and the targets
    targets: tuple[TargetColumn, ...]
    notes: tuple[str, ...] = ()  # what is worth knowing

    @property
    def features(self) -> Features | None:
        """The field of numbers, or None without any."""
        field = self.schema.fields.get(FEATURES)
        return field if isinstance(field, Features) else None

    @property
    def categories(self) -> Categories | None:
        """The field of categories, or None without any."""
        field = self.schema.fields.get(CATEGORIES)
        return field if isinstance(field, Categories) else None

    def classes(self, target: TargetColumn) -> tuple[str, ...]:
        """Return the classes of a target; none if it is no label."""
        field = self.schema.fields[target.field]
        return (field.classes or ()) if isinstance(field, Label) else ()

    @property
    def kinds(self) -> dict[str, Kind]:
        """What each column in the files is read as."""
        kinds = {n: kind_read(how) for n, how in (self.features.sources if self.features else ())}
        kinds |= dict.fromkeys(self.categories.columns if self.categories else (), "text")
        return kinds | {target.column: kind_read(target.how) for target in self.targets}

    def targets_to_json(self) -> list[dict[str, str]]:
        """Return the targets as JSON types."""
        return [{"field": t.field, "column": t.column, "how": t.how} for t in self.targets]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        schema, notes = self.schema.to_json(), [*self.notes]
        return {"schema": schema, TARGETS: self.targets_to_json(), "notes": notes}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> ColumnPlan:
        """Return what ``to_json`` wrote."""
        targets = tuple(TargetColumn(**each) for each in given[TARGETS])
        return cls(Schema.from_json(given["schema"]), targets, tuple(given["notes"]))

    def lines(self) -> Iterator[str]:
        """Describe the fields in words."""
        for name, each in self.schema.fields.items():
            yield f"  {name}: {describe_field(each)}"
        yield from self.notes
