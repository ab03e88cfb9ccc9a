"""What the options of ``packdata tables`` say about the columns."""

from __future__ import annotations

from dataclasses import dataclass

from loaders.errors import SchemaError
from packdata.options import check_options, opt

_LISTS = ("target", "features", "drop", "categorical", "numeric")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Which columns become what."""

    target: tuple[str, ...] = opt(
        (),
        "columns to predict: text becomes classes, sorted; numbers are float32, or as --dtype float64",
    )
    features: tuple[str, ...] = opt((), "columns to learn from (default: all others)")
    drop: tuple[str, ...] = opt((), "columns to leave out (default: none)")
    categorical: tuple[str, ...] = opt((), "columns of categories that look like numbers or dates")
    numeric: tuple[str, ...] = opt((), "columns of numbers: text in them is an error")
    dates: str | None = opt(
        None,
        "store dates as days since 1970, in UTC (default: a column of dates is an error)",
        choices=("days",),
    )
    missing: str = opt(
        "error",
        "store missing numbers as NaN or as the mean of their column, or stop at them (default)",
        choices=("nan", "mean", "error"),
    )
    missing_mask: bool = opt(
        False, "also store which numbers were missing, as the field 'missing'"
    )
    dtype: str = opt(
        "float32",
        "type of the features (default: float32)",
        choices=("float16", "float32", "float64"),
    )
    standardize: bool = opt(
        False, "store the features as (value - mean) / std of all rows; for test data see --like"
    )
    missing_values: tuple[str, ...] = opt(
        (),
        r"texts in CSV files that mean a missing value, such as '?,None,\N' (the empty cell always does)",
    )

    def __post_init__(self) -> None:
        check_options(self)
        for one, other in (
            ("target", "features"),
            ("target", "drop"),
            ("features", "drop"),
            ("categorical", "drop"),
            ("categorical", "numeric"),
        ):
            if both := sorted(set(getattr(self, one)) & set(getattr(self, other))):
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
    def wanted(self) -> tuple[str, ...]:
        """The columns that are packed, none for all but ``drop``."""
        names = (*self.features, *self.categorical, *self.numeric, *self.target)
        return tuple(dict.fromkeys(names)) if self.features else ()
