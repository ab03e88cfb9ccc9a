"""What the options of ``packdata tables`` say about the columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loaders.checks import as_list
from loaders.errors import SchemaError
from packdata.tables.values import DATE_FORMS

MISSING = ("nan", "mean", "error")
_LISTS = ("target", "features", "drop", "categorical", "numeric")
DTYPES = ("float16", "float32", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Which columns become what.

    Attributes:
        target: Columns to predict, each a field of its own: texts, and numbers that are ``categorical``, as classes,
            sorted; other numbers as they are.
        features: The columns to learn from; none for all but ``target`` and ``drop``.
        drop: Columns to leave out.
        categorical: Columns whose values are categories, also where they are numbers.
        numeric: Columns whose values are numbers; text in them is bad input.
        dates: ``days``: dates become days since 1970; ``parts``: year, month, day, weekday and hour; None refuses them.
            Dates with a time zone are taken in UTC.
        missing: Missing numbers become ``nan``, the ``mean`` of their column, or are an ``error``.
        missing_mask: Store where numbers were missing, as the field ``missing``.
        dtype: Of the features: float16, float32 or float64.
        standardize: Store ``(value - mean) / std``.
        missing_values: Texts that stand for no value, in any column, as an empty cell does.
    """

    target: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    dates: str | None = None
    missing: str = "error"
    missing_mask: bool = False
    dtype: str = "float32"
    standardize: bool = False
    missing_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in _LISTS:
            if isinstance(one_name := getattr(self, name), str):
                object.__setattr__(self, name, (one_name,))
            as_list(name, getattr(self, name), "names, such as ['age', 'income']")
        as_list("missing_values", self.missing_values, "texts, such as ['?', 'None']")
        for name, value, choices in (
            ("dates", self.dates, (None, *DATE_FORMS)),
            ("missing", self.missing, MISSING),
            ("dtype", self.dtype, DTYPES),
        ):
            if value not in choices:
                known = ", ".join(filter(None, choices))
                raise SchemaError(f"{name} must be one of {known}, got {value!r}")
        for one, other in (
            ("target", "features"),
            ("target", "drop"),
            ("features", "drop"),
            ("categorical", "drop"),
            ("categorical", "numeric"),
        ):
            both = sorted(set(getattr(self, one)) & set(getattr(self, other)))
            if both:
                raise SchemaError(f"{', '.join(both)} cannot be both in {one} and in {other}")
        for name in ("target", "features"):
            given = getattr(self, name)
            if len(set(given)) < len(given):
                raise SchemaError(f"{name} names a column twice: {', '.join(given)}")

    @property
    def named(self) -> tuple[str, ...]:
        """Every column that is named somewhere, once."""
        return tuple(dict.fromkeys(name for names in _LISTS for name in getattr(self, names)))

    @property
    def parts_of_dates(self) -> tuple[str, ...]:
        """What a date may become."""
        from packdata.tables.values import PARTS_OF_DATES

        return PARTS_OF_DATES if self.dates == "parts" else ("days",) if self.dates else ()

    @property
    def parts_of_dates_and_targets(self) -> tuple[str, ...]:
        """The same, and what a date to predict becomes."""
        days = ("days",) if self.dates and self.target else ()
        return tuple(dict.fromkeys((*self.parts_of_dates, *days)))

    def to_json(self) -> dict[str, Any]:
        """Return the options as JSON types."""
        rest = ("dates", "missing", "missing_mask", "dtype", "standardize")
        plain = {name: getattr(self, name) for name in rest}
        words = {"missing_values": list(self.missing_values)} if self.missing_values else {}
        return {name: list(getattr(self, name)) for name in _LISTS} | plain | words
