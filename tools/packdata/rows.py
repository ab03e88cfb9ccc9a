"""Rows of tables in words and in statistics: column by column, never row by row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from loaders.schema import Array, Categories, Features
from packdata.moments import Moments
from packdata.wording import few, names_in_option

if TYPE_CHECKING:
    from loaders.data.view import View
    from loaders.schema import Field, Schema
    from packdata.moments import Summary

_MAX_NUMBERS = 4096


def is_row(kind: Field) -> bool:
    """Tell whether values are short rows of numbers, of which a whole column is read at once."""
    if isinstance(kind, Categories):
        return True
    is_short = isinstance(kind, Array) and kind.is_fixed and len(kind.dims) == 1
    return is_short and (kind.shape or (0,))[0] in range(1, _MAX_NUMBERS + 1)


def column_fields(schema: Schema) -> dict[str, Field]:
    """Return each column of tables as a field of its own, with one column."""
    found: dict[str, Field] = {}
    for kind in schema.fields.values():
        if not isinstance(kind, Features | Categories):
            continue
        for i, name in enumerate(kind.columns):
            if name not in schema.fields:
                found.setdefault(name, _column_field(kind, i))
    return found


def _column_field(kind: Features | Categories, i: int) -> Field:
    if isinstance(kind, Features):
        return Features(
            dtype=kind.dtype,
            columns=kind.columns[i : i + 1],
            mean=kind.mean[i : i + 1],
            std=kind.std[i : i + 1],
            standardized=kind.standardized,
        )
    words = kind.vocabularies[i : i + 1]
    return Categories(dtype=kind.dtype, columns=kind.columns[i : i + 1], vocabularies=words)


_N = TypeVar("_N", float, npt.NDArray[np.float64])


def standardized(values: _N, mean: float, std: float) -> _N:
    """Return numbers as a standardized column has them, before they are rounded to its dtype."""
    return (values - mean) / (std or 1.0)


def features_stats(view: View, name: str, kind: Features) -> dict[str, Any]:
    """Return mean, deviation, range and number of NaN of each column, as stored."""
    found = [Moments() for _ in kind.columns]
    for rows in view.blocks(name):
        for moments, values in zip(found, np.ascontiguousarray(rows.T), strict=True):
            moments.add(Moments.of(values[~np.isnan(values)]))
    columns = zip(kind.columns, found, strict=True)
    return ({"standardized": True} if kind.standardized else {}) | {
        "columns": {name: numbers_of(each, len(view) - each.count) for name, each in columns}
    }


def numbers_of(moments: Summary, num_nan: int) -> dict[str, Any]:
    """Return range, mean and deviation as JSON types; None where there is no number."""
    names = {"min": "least", "mean": "mean", "std": "std", "max": "most"}
    plain = {
        name: finite(getattr(moments, key)) if moments.count else None
        for name, key in names.items()
    }
    return plain | {"num_nan": num_nan}


def finite(value: float) -> float | str:
    """Return a number, in words where JSON has none."""
    return value if math.isfinite(value) else str(value)


def categories_stats(view: View, name: str, kind: Categories) -> dict[str, Any]:
    """Return how often each category of each column occurs; ``None`` counts 0."""
    counts = [np.zeros(num, np.int64) for num in kind.num_categories]
    for rows in view.blocks(name):
        for i, total in enumerate(counts):
            found = np.bincount(rows[:, i].astype(np.int64), minlength=len(total))
            total += found[: len(total)]
    columns = {}
    for column, words, total in zip(kind.columns, kind.vocabularies, counts, strict=True):
        order = np.argsort(-total[1:], kind="stable")[:8].tolist()
        columns[column] = {
            "num_categories": len(words),
            "num_unknown": int(total[0]),
            "most_frequent": {words[k]: int(total[k + 1]) for k in order},
        }
    return {"columns": columns}


def row_text(kind: Features | Categories, value: npt.NDArray[Any]) -> str:
    """Return a row with the names of its columns.

    Example:
        >>> kind = Categories(columns=("cut", "color"), vocabularies=(("Ideal",), ("G", "E")))
        >>> row_text(kind, np.array([1, 0]))
        'cut=Ideal color=?'
    """
    if isinstance(kind, Features):
        texts = [f"{number:.6g}" for number in value.tolist()]
    else:
        vocabularies = zip(kind.vocabularies, value.tolist(), strict=True)
        texts = [names[k - 1] if 0 < k <= len(names) else "?" for names, k in vocabularies]
    return " ".join(f"{name}={text}" for name, text in zip(kind.columns, texts, strict=True))


def describe_rows(kind: Features | Categories) -> str:
    """Return what the columns are, in a few words.

    Example:
        >>> describe_rows(Features(columns=("depth", "x")))
        '2 columns of float32 (depth, x)'
    """
    names = [names_in_option([name]) for name in kind.columns]
    if isinstance(kind, Categories):
        sizes = zip(names, kind.vocabularies, strict=True)
        names = [f"{name}: {len(words)}" for name, words in sizes]
    extra = ", standardized" if isinstance(kind, Features) and kind.standardized else ""
    columns = "column" if len(names) == 1 else "columns"
    return f"{len(names)} {columns} of {kind.dtype}{extra} ({few(names, 6)})"
