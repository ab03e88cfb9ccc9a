"""The first pass: what every column holds, its statistics and its categories, in little memory.

Each part gives a small summary; summaries are joined in the order of the parts, so that the result does not depend on
the number of workers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError
from packdata.moments import Moments
from packdata.pool import OrderedPool
from packdata.tables.values import (
    NO_VALUES,
    Group,
    combined,
    group_of,
    groups_of_texts,
    has_value,
    have_zones,
    lacks_value,
    numbers,
    part_of_date,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from packdata.progress import Progress
    from packdata.settings import OnError
    from packdata.tables.parts import Kind, Part, Rows, TableFile

MAX_CATEGORIES = 1_000_000


class Place(NamedTuple):
    """Where a value was seen first; its line, and how it looks, is found when somebody asks."""

    file: TableFile
    row: int
    line: Callable[[int], int]
    value: pa.Array

    @property
    def shown(self) -> str:
        """The value, for a message."""
        return shown(self.value, 0)

    @property
    def where(self) -> str:
        """File and line or row."""
        return place(self.file, self.line(self.row))


@dataclass(slots=True)
class ColumnScan:
    """What one column holds.

    Attributes:
        num_missing: Rows without a value.
        num_unsure: Texts such as ``NA`` in parts that tell no kind but text: missing, unless others are text.
        groups: Values of each kind.
        first: Where each kind was seen first, also ``missing`` and ``infinite`` numbers, ``bad`` values that are none
            of a kind that was asked for, and ``zoned`` or ``local`` dates.
        moments: Of the numbers, or of each part of the dates.
        counts: How often each text occurs.
        is_whole: True if no number has a fraction.
        has_times: True if a date has a time of day, or the column holds nothing else.
    """

    num_missing: int = 0
    num_unsure: int = 0
    groups: Counter[Group] = field(default_factory=Counter)
    first: dict[str, Place] = field(default_factory=dict)
    moments: dict[str, Moments] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    is_whole: bool = True
    has_times: bool = False

    def add(self, other: ColumnScan) -> None:
        """Take in what a later part holds."""
        self.num_missing += other.num_missing
        self.num_unsure += other.num_unsure
        self.groups.update(other.groups)
        self.first = other.first | self.first
        for name, moments in other.moments.items():
            self.moments.setdefault(name, Moments()).add(moments)
        self.counts.update(other.counts)
        self.is_whole &= other.is_whole
        self.has_times |= other.has_times


@dataclass(slots=True)
class Scan:
    """What the first pass found.

    Attributes:
        parts: The parts of all files, in order.
        num_rows: Rows that can be read, or packed where that was to be told.
        bad: The others.
        columns: By name, in the order in which they were first seen.
    """

    parts: list[Part] = field(default_factory=list)
    num_rows: int = 0
    bad: int = 0
    columns: dict[str, ColumnScan] = field(default_factory=dict)


class _PartScan(NamedTuple):
    part: Part
    num_rows: int
    bad: Sequence[tuple[int, str]]
    columns: dict[str, ColumnScan]


def scan_tables(
    files: Sequence[TableFile],
    columns: Sequence[str] | None,
    kinds: Mapping[str, Kind],
    parts_of_dates: Sequence[str],
    *,
    drop: Sequence[str] = (),
    judge: Callable[[TableFile, Rows], Rows] | None = None,
    workers: int,
    on_error: OnError,
    progress: Progress,
) -> Scan:
    """Read all parts once.

    Args:
        files: The files.
        columns: The columns that matter; None for all.
        kinds: What some columns are, whatever they seem to be.
        parts_of_dates: What dates become, for their statistics.
        drop: Columns not to look at, where all would be.
        judge: Takes the rows that cannot be packed out; None where nobody knows them yet.
        workers: Threads.
        on_error: ``"fail"`` ends at the first row that cannot be read, or packed.
        progress: Is told of every row.

    Raises:
        SourceError: A file or row cannot be read, or a column has too many categories.
    """
    found = Scan(columns={} if columns is None else {name: ColumnScan() for name in columns})

    def scan_part(part: Part) -> _PartScan:
        file, num_rows = files[part.file], 0
        bad: list[tuple[int, str]] = []
        scans: dict[str, ColumnScan] = {}
        for rows in file.read(part, columns, kinds):
            rows = rows if judge is None else judge(file, rows)
            num_rows += len(rows.table)
            bad += rows.bad
            for name in (n for n in rows.table.column_names if n not in drop):
                one = _scan_column(name, rows, file, kinds.get(name), parts_of_dates)
                scans.setdefault(name, ColumnScan(num_missing=num_rows - len(rows.table))).add(one)
        return _PartScan(part, num_rows, bad, scans)

    try:
        progress.start(None, 0)
        with OrderedPool(scan_part, workers) as pool:
            for number, file in enumerate(files):
                for part in file.parts(number):
                    for each in pool.put(part):
                        _join(found, each, files, on_error, progress)
            for each in pool.drain():
                _join(found, each, files, on_error, progress)
    finally:
        progress.close()
    return found


def _join(
    found: Scan, part: _PartScan, files: Sequence[TableFile], on_error: OnError, progress: Progress
) -> None:
    file = files[part.part.file]
    if part.bad and on_error == "fail":
        line, why = part.bad[0]
        raise SourceError(why, place(file, line))
    for name in part.columns:  # a key that no earlier line of JSON had
        found.columns.setdefault(name, ColumnScan(num_missing=found.num_rows))
    for name, column in found.columns.items():
        column.add(part.columns.get(name) or ColumnScan(num_missing=part.num_rows))
        if len(column.counts) > MAX_CATEGORIES:
            what = f"column {name!r} has more than {MAX_CATEGORIES:,} different texts"
            raise SourceError(what, file.path, f"Leave it out: --drop {name}")
    found.parts.append(part.part)
    found.num_rows += part.num_rows
    found.bad += len(part.bad)
    progress.advance(found.bad, part.num_rows + len(part.bad))


def known_texts(column: ColumnScan) -> Mapping[str, int]:
    """Return how often each text occurs; ``NO_VALUES`` only where others are text too, or there are no others."""
    if column.counts.keys().isdisjoint(NO_VALUES):
        return column.counts
    known = {text: count for text, count in column.counts.items() if text not in NO_VALUES}
    is_text = not known or "text" in groups_of_texts(pa.array(list(known), pa.string()))
    return column.counts if is_text else known


def place(file: TableFile, line: int) -> str:
    """Return a file and a line or row of it, for messages."""
    return f"{file.path}, {file.unit} {line}"


def _scan_column(
    name: str, rows: Rows, file: TableFile, kind: Kind | None, parts_of_dates: Sequence[str]
) -> ColumnScan:
    array = combined(rows.table[name])
    scan = ColumnScan()

    def note(what: str, row: int) -> None:
        scan.first[what] = Place(file, row, rows.line, array.take(pa.array([row])))

    group = checked_group(name, array.type, file, f"Leave it out: --drop {name}")
    if kind == "text" and group is not None:
        _count_texts(scan, array.cast(pa.string()))
        if scan.counts:
            scan.groups["text"] += sum(scan.counts.values())
    elif kind == "number":
        _measure(scan, array, "number", note)
    elif group == "flag":
        _look_at_texts(scan, array.cast(pa.string()), note)
    elif group == "text":
        _look_at_texts(scan, array, note)
        if len(scan.groups) == 1 and (only := next(iter(scan.groups))) not in ("text", "flag"):
            scan.counts.clear()
            scan.groups.clear()
            scan.num_unsure = 0
            _measure(scan, array, only, note, parts_of_dates)
    elif group is not None:
        _measure(scan, array, group, note, parts_of_dates)
    else:
        scan.num_missing = len(array)
        if len(array):
            note("missing", 0)
    return scan


def checked_group(name: str, kind: pa.DataType, file: TableFile, hint: str = "") -> Group | None:
    """Return what a column holds; SourceError, with its name, if that has no place in a row."""
    try:
        return group_of(kind)
    except SourceError as error:
        raise SourceError(f"column {name!r}: {error.what}", file.path, hint) from error


def _count_texts(scan: ColumnScan, texts: pa.Array) -> None:
    known = texts.filter(pa.array(has_value(texts)))
    scan.num_missing = len(texts) - len(known)
    counted = pc.value_counts(known)
    values, counts = counted.field("values").to_pylist(), counted.field("counts").to_pylist()
    scan.counts.update(dict(zip(values, counts, strict=True)))


def _look_at_texts(scan: ColumnScan, array: pa.Array, note: Callable[[str, int], None]) -> None:
    """Count texts, and how many of them look like numbers or dates."""
    _count_texts(scan, array)
    distinct = pa.array(list(scan.counts), pa.string())
    groups = groups_of_texts(distinct)
    for value, group in zip(scan.counts, groups.tolist(), strict=True):
        if group is None:
            scan.num_unsure += scan.counts[value]
        else:
            scan.groups[group] += scan.counts[value]
    for group in scan.groups:
        example = distinct[int(np.argmax(groups == group))]
        row = pc.index(array, pa.scalar(example.as_py(), array.type)).as_py()
        note(group, row)
    if scan.num_missing + scan.num_unsure and "text" not in scan.groups:
        note("missing", int(lacks_value(array.cast(pa.string())).argmax()))


def _measure(
    scan: ColumnScan,
    array: pa.Array,
    group: Group,
    note: Callable[[str, int], None],
    parts_of_dates: Sequence[str] = (),
) -> None:
    """Take statistics of numbers, dates or times."""
    values, missing, bad = numbers(array, group)
    scan.num_missing = int(missing.sum())
    known = ~missing & ~bad
    if known.any():
        scan.groups[group] += int(known.sum())
        note(group, int(known.argmax()))
    for what, flags in (("missing", missing), ("bad", bad), ("infinite", np.isinf(values))):
        if flags.any():
            note(what, int(flags.argmax()))
    if group == "number":
        scan.moments["number"] = Moments.of(values[np.isfinite(values)])
        scan.is_whole = bool((np.floor(values[known]) == values[known]).all())
        return
    for part in ("hour",) if group == "time" else parts_of_dates:  # whatever becomes of dates
        scan.moments[part] = Moments.of(part_of_date(values[known], part))
    scan.has_times = bool(part_of_date(values[known], "hour").any())
    if group == "date":
        zoned = have_zones(array) & known
        for what, flags in (("zoned", zoned), ("local", known & ~zoned)):
            if flags.any():
                note(what, int(flags.argmax()))
