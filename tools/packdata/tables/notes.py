"""What is worth knowing of how columns are stored: what is rounded, and what may be meant otherwise."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from packdata.tables.values import in_words
from packdata.types import KINDS, kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packdata.tables.chosen import ColumnPlan
    from packdata.tables.options import TableOptions
    from packdata.tables.scan import Scan

_DAY_S = 86_400


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
    yield from _names_of_zeros([name for name in words if name not in options.categorical], scan)


def _rounded_numbers(plan: ColumnPlan, scan: Scan) -> Iterator[str]:
    """Say which whole numbers are rounded by the dtype in which they are stored, and which days, by over a second."""
    stored: dict[str, list[str]] = defaultdict(list)
    features = plan.features
    sources = [(features.dtype, *source) for source in features.sources] if features else []
    targets = [(plan.target_dtype, target.column, target.how) for target in plan.targets]
    for dtype, name, how in (*sources, *targets):
        column, exact = scan.columns[name], 2.0 ** (np.finfo(dtype).nmant + 1)
        is_exact = column.is_whole if how == "number" else how == "days" and column.has_times
        moments = column.moments.get(how) if is_exact else None
        most = 0.0 if moments is None else max(abs(moments.least), abs(moments.most))
        if most > (exact if how == "number" else exact / _DAY_S):
            stored[dtype].append(name)
    for dtype, names in stored.items():
        yield f"{dtype} rounds values of {in_words(names)}; see dtype=, and of dates dates='parts'"


def _names_of_zeros(names: Sequence[str], scan: Scan) -> Iterator[str]:
    """Say which texts would be numbers, but for the zeros that they begin with."""
    found = [
        f"{name} ({scan.columns[name].first['code'].shown!r})"
        for name in names
        if "code" in scan.columns[name].first
    ]
    if found:
        yield f"texts, as numbers begin with zeros or have 19 digits: {in_words(found)}; numeric= takes them as numbers"


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
        yield f"the header looks like values ({few}): header=False if it is the first row, names= gives names"


def _is_no_name(name: str, kind: str | None) -> bool:
    """Tell whether a name is a number that begins with zeros, or has a decimal point or a sign."""
    return kind == "code" or (kind == "number" and not name.strip().isdigit())
