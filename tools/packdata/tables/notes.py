"""What is worth knowing of how columns are stored: what is rounded, and what may be meant otherwise."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from packdata.describe import counted
from packdata.moments import standardized
from packdata.tables.values import in_words
from packdata.types import KINDS, kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packdata.tables.chosen import ColumnPlan
    from packdata.tables.options import TableOptions
    from packdata.tables.scan import ColumnScan, Scan

_DAY_S = 86_400
_UNITS_S = {"days": _DAY_S, "hour": 3600}
_SPANS_S = {"day": _DAY_S, "hour": 3600, "minute": 60, "second": 1}


def notes_on(
    plan: ColumnPlan, words: Sequence[str], scan: Scan, options: TableOptions
) -> Iterator[str]:
    """Say what is worth knowing of a plan.

    Args:
        plan: What becomes of every column.
        words: The columns of texts, in the order of the table.
        scan: What the columns hold.
        options: What was asked for.
    """
    yield from _rounded_numbers(plan, scan)
    yield from _rounded_times(plan, scan)
    yield from _names_of_zeros([name for name in words if name not in options.categorical], scan)


def _rounded_numbers(plan: ColumnPlan, scan: Scan) -> Iterator[str]:
    """Say which columns of whole numbers are rounded by the dtype in which they are stored."""
    stored: dict[str, list[str]] = defaultdict(list)
    if plan.features is not None:
        names = dict.fromkeys(name for name, _ in plan.features.sources)
        stored[plan.features.dtype] += names
    for target in plan.targets:
        if target.how == "number":
            stored[plan.target_dtype].append(target.column)
    for dtype, columns in stored.items():
        exact = 2.0 ** (np.finfo(dtype).nmant + 1)
        rounded = [name for name in columns if _largest_whole(scan.columns[name]) > exact]
        if rounded:
            yield f"{dtype} rounds whole numbers in {in_words(rounded)}"


def _largest_whole(column: ColumnScan) -> float:
    """Return the largest magnitude in a column of whole numbers, 0 for any other."""
    moments = column.moments.get("number")
    if moments is None or not column.is_whole:
        return 0.0
    return max(abs(moments.least), abs(moments.most))


def _rounded_times(plan: ColumnPlan, scan: Scan) -> Iterator[str]:
    """Say which dates and times are rounded by the dtype in which they are stored."""
    found: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for column, how, dtype, unit_s, ends, remedy in _stored_times(plan, scan):
        has_times = scan.columns[column].has_times
        step_s = _spacing(dtype, ends) * unit_s * _UNITS_S[how]
        if step_s > (1 if has_times else _DAY_S):
            found[dtype, "times" if has_times else "dates", remedy][column] = step_s
    for (dtype, what, remedy), steps in found.items():
        step = _in_words(max(steps.values()))
        note = f"{dtype} rounds {what} in {in_words([*steps])} to steps of about {step}"
        yield f"{note}: {remedy}" if remedy else note


def _stored_times(
    plan: ColumnPlan, scan: Scan
) -> Iterator[tuple[str, str, str, float, list[float], str]]:
    """Yield what is stored as days or hours: column, how, dtype, what 1 stands for, least and most, a remedy."""
    features = plan.features
    for i, (column, how) in enumerate(features.sources if features else ()):
        if features is not None and how in _UNITS_S:
            ends, scale = [features.least[i], features.most[i]], 1.0
            if features.standardized:
                mean, scale = features.mean[i], features.std[i]
                ends = [standardized(end, mean, scale) for end in ends]
            remedy = "--dates parts, or --dtype float64" if how == "days" else "--dtype float32"
            yield column, how, features.dtype, scale, ends, remedy
    for target in plan.targets:
        if target.how in _UNITS_S:
            moments = scan.columns[target.column].moments[target.how]
            remedy = "" if features is None else "--dtype float64"  # which is of features
            ends = [moments.least, moments.most]
            yield target.column, target.how, plan.target_dtype, 1.0, ends, remedy


def _spacing(dtype: str, ends: Sequence[float]) -> float:
    """Return how far numbers of a dtype lie apart where they are largest between two ends."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.spacing(np.dtype(dtype).type(max(map(abs, ends)))))


def _in_words(seconds: float) -> str:
    unit = next((unit for unit, size in _SPANS_S.items() if seconds > 0.9 * size), "second")
    return counted(round(seconds / _SPANS_S[unit]), unit)


def _names_of_zeros(names: Sequence[str], scan: Scan) -> Iterator[str]:
    """Say which texts would be numbers, but for the zeros that they begin with."""
    found = [
        f"{name} ({scan.columns[name].first['code'].shown!r})"
        for name in names
        if "code" in scan.columns[name].first
    ]
    if found:
        yield f"texts, as numbers begin with zeros or have 19 digits: {in_words(found)}; --numeric takes numbers"


def header_notes(columns: Sequence[str], scan: Scan) -> Iterator[str]:
    """Say that names look like values, as they do in a file without a header.

    All of them, or one in a form that names do not have: years are names in many tables, ``0.1`` and ``02139`` not.
    """
    if not columns:
        return
    kinds = [KINDS[code] for code in kinds_of(pa.array(columns, pa.string()))]
    texts = {name: scan.columns[name].known_texts for name in columns if name in scan.columns}
    values = {name: {text.strip() for text in each} for name, each in texts.items()}
    looks = [
        kind != "text" or name in values.get(name, ())
        for name, kind in zip(columns, kinds, strict=True)
    ]
    are_values = any(name in values.get(name, ()) for name in columns)
    # Years are names, and no values of theirs.
    is_mixed = are_values and 2 * sum(looks) >= len(looks)
    if all(looks) or is_mixed or any(map(_is_no_name, columns, kinds)):
        few = in_words(columns, 4)
        yield f"the header looks like values ({few}): --no-header if it is the first row, --names gives names"


def _is_no_name(name: str, kind: str | None) -> bool:
    """Tell whether a name is a number that begins with zeros, or has a decimal point or a sign."""
    return kind == "code" or (kind == "number" and not name.strip().isdigit())
