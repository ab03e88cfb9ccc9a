"""What becomes of every column of a table, once it is decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from loaders.errors import SchemaError
from loaders.schema import Array, Categories, Features, Field, Label, Schema
from packdata.describe import describe_field

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packdata.types import Kind

FEATURES, CATEGORIES, MISSING = "features", "categories", "missing"
_KINDS: dict[str, Kind] = {"number": "number", "flag": "flag", "label": "text"}


def kind_of(how: str) -> Kind:
    """Return what a column is read as, of which a number, label or part of a date is made."""
    return _KINDS.get(how, "date")


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column to predict.

    Attributes:
        field: Name of its field.
        column: Name in the files.
        how: ``label``, ``number``, ``flag`` or ``days``.
        classes: Of a label.
    """

    field: str
    column: str
    how: str
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """What becomes of every column.

    Attributes:
        features: The field of numbers, or None without any.
        categories: The field of categories, or None without any.
        targets: The columns to predict.
        missing_mask: Whether there is a field ``missing``.
        notes: What is worth knowing.
    """

    features: Features | None
    categories: Categories | None
    targets: tuple[TargetColumn, ...]
    missing_mask: bool
    notes: tuple[str, ...] = ()

    @property
    def schema(self) -> Schema:
        """The fields: features, missing, categories, targets."""
        fields: dict[str, Field] = {}
        if self.features is not None:
            fields[FEATURES] = self.features
            if self.missing_mask:
                fields[MISSING] = Array(dtype="bool", dims=self.features.dims)
        if self.categories is not None:
            fields[CATEGORIES] = self.categories
        for target in self.targets:
            is_label = target.how == "label"
            number = Array(dtype=self.target_dtype)
            fields[target.field] = Label(classes=target.classes) if is_label else number
        if not fields:
            raise SchemaError("no column is left to pack")
        return Schema(fields)

    @property
    def target_dtype(self) -> str:
        """Of targets that are no labels."""
        wide = self.features is not None and self.features.dtype == "float64"
        return "float64" if wide else "float32"

    @property
    def kinds(self) -> dict[str, Kind]:
        """What each column in the files is read as."""
        kinds: dict[str, Kind] = {}
        for column, how in self.features.sources if self.features else ():
            kinds[column] = kind_of(how)
        for column in self.categories.columns if self.categories else ():
            kinds[column] = "text"
        for target in self.targets:
            kinds[target.column] = kind_of(target.how)
        return kinds

    def lines(self) -> Iterator[str]:
        """Describe the fields in words."""
        for name, each in self.schema.fields.items():
            yield f"  {name}: {describe_field(each)}"
        yield from self.notes
