"""The first pass in shares: what a machine learned of some of the files, as JSON, and what all have learned.

A share has the files from ``I * files // N`` to ``(I + 1) * files // N``: text cannot be cut without being read.
Joined, shares give what one pass gives, but for the last digit of means and deviations, whose order is another.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from packdata.moments import Moments
from packdata.tables.parts import FilePart
from packdata.tables.scan import ColumnScan, Scan, end_scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Seen(NamedTuple):
    """Where a value was seen first, and how it looks, as another machine told."""

    shown: str
    where: str


def scan_to_json(scan: Scan) -> dict[str, Any]:
    """Return what was found as JSON types."""
    return {
        "parts": [[part.file, part.start, part.stop, part.line] for part in scan.parts],
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
    moments = {
        name: [m.count, m.mean, m.squares, m.least, m.most] for name, m in column.moments.items()
    }
    return {
        "num_missing": column.num_missing,
        "num_unsure": column.num_unsure,
        "groups": dict(column.groups),
        "first": {what: [place.shown, place.where] for what, place in column.first.items()},
        "moments": moments,
        "words": column.words.to_dict(),
        "is_full": column.words.is_full,
        "is_whole": column.is_whole,
        "has_times": column.has_times,
        "other": column.other,
    }


def _scan_from_json(told: Mapping[str, Any]) -> Scan:
    columns = {name: _column_from_json(column) for name, column in told["columns"].items()}
    parts = [FilePart(*numbers) for numbers in told["parts"]]
    return Scan(parts, told["rows"], told["bad"], columns)


def _column_from_json(told: Mapping[str, Any]) -> ColumnScan:
    column = ColumnScan(
        num_missing=told["num_missing"],
        num_unsure=told["num_unsure"],
        groups=Counter(told["groups"]),
        first={what: Seen(*place) for what, place in told["first"].items()},
        moments={name: Moments(*numbers) for name, numbers in told["moments"].items()},
        is_whole=told["is_whole"],
        has_times=told["has_times"],
        other=told["other"],
    )
    words = told["words"]
    column.words.add(pa.array([*words], pa.string()), np.array([*words.values()], np.int64))
    column.words.is_full |= told["is_full"]
    return column
