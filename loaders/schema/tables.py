"""The row of a table: its numbers side by side, and its categories."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from loaders.errors import SchemaError
from loaders.schema.arrays import Array
from loaders.schema.field import Field, check_dtype, field_kind
from loaders.schema.labels import check_classes

if TYPE_CHECKING:
    from loaders.schema.schema import Schema


@field_kind
class Features(Array):
    """The numbers of a row of a table, side by side.

    The statistics are those of the table that was packed, or of the one that it was packed like;
    of its finite values, before ``standardized`` changed them.

    Attributes:
        dtype: float16, float32 or float64.
        dims: Follows from ``columns``.
        columns: Names of the columns, at least one; any text, each once.
        sources: For each column the one that it was made of in the source, and how (``number``, ``flag``, ``days``,
            ``year``, ...); or none.
        mean: Mean of each column, or none.
        std: Standard deviation of each column (of the population), or none.
        least: Smallest value of each column, or none.
        most: Largest value of each column, or none.
        missing: What is stored in place of a missing number: ``nan``, ``mean``, or ``error``: there is none.
        standardized: True if what is stored is ``(value - mean) / std``, 1 for a ``std`` of 0.
    """

    kind: ClassVar[str] = "features"
    columns: tuple[str, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    least: tuple[float, ...] = ()
    most: tuple[float, ...] = ()
    missing: str = "nan"
    standardized: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _check_columns(self.columns))
        if self.dims not in ((), [], (len(self.columns),), [len(self.columns)]):
            raise SchemaError(f"dims are ({len(self.columns)},) here, got {self.dims!r}")
        object.__setattr__(self, "dims", (len(self.columns),))
        Array.__post_init__(self)
        if np.dtype(self.dtype).kind != "f":
            raise SchemaError(f"features are float16, float32 or float64, got {self.dtype}")
        object.__setattr__(self, "sources", _check_sources(self.sources, len(self.columns)))
        if self.missing not in ("nan", "mean", "error"):
            raise SchemaError(f"missing must be nan, mean or error, got {self.missing!r}")
        for name in ("mean", "std", "least", "most"):
            numbers = _check_numbers(name, getattr(self, name), len(self.columns))
            object.__setattr__(self, name, numbers)
        standardized: Any = self.standardized
        if not isinstance(standardized, bool) or (standardized and not (self.mean and self.std)):
            raise SchemaError(f"standardized needs mean and std, got {standardized!r}")

    @property
    def meaning(self) -> tuple[str, ...]:
        """Statistics change what is stored only where it is standardized."""
        return ("columns", "dates", "standardized", *(("mean", "std") * self.standardized))

    @property
    def dates(self) -> tuple[str, ...] | None:
        """Columns that are days, made of dates; None if that is not known."""
        pairs = zip(self.columns, self.sources, strict=False)
        return tuple(n for n, (_, how) in pairs if how == "days") if self.sources else None


@field_kind
class Categories(Field):
    """The categories of a row of a table as numbers, side by side; stored narrow, served as int64.

    Number k of a column stands for ``vocabularies[column][k - 1]``, 0 for what is missing or unknown.

    Attributes:
        dtype: uint8, uint16 or uint32.
        columns: Names of the columns, at least one; any text, each once.
        vocabularies: For each column its categories, each once, the most frequent first.
    """

    kind: ClassVar[str] = "categories"
    meaning: ClassVar[tuple[str, ...]] = ("columns", "vocabularies")
    dtype: str = "uint8"
    columns: tuple[str, ...] = ()
    vocabularies: tuple[tuple[str, ...], ...] = ()
    codec: str = "raw"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", check_dtype(self.dtype, "u"))
        object.__setattr__(self, "columns", _check_columns(self.columns))
        given: Any = self.vocabularies
        if not isinstance(given, tuple | list) or len(given) != len(self.columns):
            what = f"there are {len(self.columns)} columns, vocabularies {str(given)[:60]}"
            raise SchemaError(what)
        empty: tuple[Any, ...] = ((), [])
        vocabularies = tuple(() if v in empty else check_classes(v) for v in given)
        object.__setattr__(self, "vocabularies", vocabularies)
        largest = max(map(len, vocabularies))
        if largest > np.iinfo(self.dtype).max:
            raise SchemaError(f"{largest} categories and 0 for unknown do not fit {self.dtype}")

    @property
    def served_dtype(self) -> str:
        """Always int64, which embeddings take."""
        return "int64"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """One number for each column."""
        return (len(self.columns),)

    @property
    def num_categories(self) -> tuple[int, ...]:
        """How many numbers each column may have, 0 included: the sizes of embeddings."""
        return tuple(len(vocabulary) + 1 for vocabulary in self.vocabularies)


def _check_columns(columns: Any) -> tuple[str, ...]:
    if not isinstance(columns, tuple | list) or not columns:
        raise SchemaError(f"columns must be a list of at least one name, got {columns!r}")
    return check_classes(columns)


def _check_sources(sources: Any, length: int) -> tuple[tuple[str, str], ...]:
    pairs = tuple(map(tuple, sources))
    if len(pairs) not in (0, length) or not all(
        [*map(type, pair)] == [str, str] for pair in pairs
    ):
        raise SchemaError(f"sources must be {length} pairs of texts, or none, got {sources!r:.60}")
    return pairs


def _check_numbers(name: str, numbers: Any, length: int) -> tuple[float, ...]:
    is_list = isinstance(numbers, tuple | list) and len(numbers) in (0, length)
    if not is_list or not all(type(n) in (int, float) and math.isfinite(n) for n in numbers):
        raise SchemaError(f"{name} must be {length} finite numbers, or none, got {numbers!r}")
    return tuple(map(float, numbers))


def find_column(schema: Schema, name: str) -> tuple[str, int] | None:
    """Return field and position of a column of a table; None if there is no such column, or a field has its name."""
    if name in schema.fields:
        return None
    for field_name, field in schema.fields.items():
        if isinstance(field, Features | Categories) and name in field.columns:
            return field_name, field.columns.index(name)
    return None


def column_names(schema: Schema) -> list[str]:
    """Return the names of all columns of tables."""
    tables = (f for f in schema.fields.values() if isinstance(f, Features | Categories))
    return [name for field in tables for name in field.columns]
