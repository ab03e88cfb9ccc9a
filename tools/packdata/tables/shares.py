"""The first pass in shares: what a machine learned of some of the files, as JSON, and what all have learned.

A share has the files from ``I * files // N`` to ``(I + 1) * files // N``: text cannot be cut without being read.
Joined, shares give what one pass gives, but for the last digit of means and deviations, whose order is another.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from packdata.moments import Moments
from packdata.tables.parts import FilePart
from packdata.tables.scan import ColumnScan, Scan, Seen, end_scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Of a column, what JSON has as it is.
_PLAIN = ("num_missing", "num_unsure", "is_whole", "has_times", "other")


def scan_to_json(scan: Scan) -> dict[str, Any]:
    """Return what was found as JSON types."""
    return {
        "parts": [*map(list, scan.parts)],
        "rows": scan.num_rows,
        "bad": scan.bad,
        "columns": {name: _column_to_json(column) for name, column in scan.columns.items()},
    }


def joined_scan(shares: Iterable[Mapping[str, Any]]) -> Scan:
    """Return what all shares, in their order, have found together."""
    first, *others = map(_scan_from_json, shares)
    for other in others:
        first.add(other)
    return end_scan(first)


def _column_to_json(column: ColumnScan) -> dict[str, Any]:
    return {
        **{name: getattr(column, name) for name in _PLAIN},
        "groups": dict(column.groups),
        "first": {what: list(seen.tell()) for what, seen in column.first.items()},
        "moments": {name: list(asdict(each).values()) for name, each in column.moments.items()},
        "words": column.words.to_dict(),
        "is_full": column.words.is_full,
    }


def _scan_from_json(told: Mapping[str, Any]) -> Scan:
    columns = {name: _column_from_json(column) for name, column in told["columns"].items()}
    parts = [FilePart(*numbers) for numbers in told["parts"]]
    return Scan(parts, told["rows"], told["bad"], columns)


def _column_from_json(told: Mapping[str, Any]) -> ColumnScan:
    column = ColumnScan(
        groups=Counter(told["groups"]),
        first={what: Seen(partial(tuple, seen)) for what, seen in told["first"].items()},
        moments={name: Moments(*numbers) for name, numbers in told["moments"].items()},
        **{name: told[name] for name in _PLAIN},
    )
    words = told["words"]
    column.words.add(pa.array([*words], pa.string()), np.array([*words.values()], np.int64))
    column.words.is_full |= told["is_full"]
    return column
