"""The first pass: what every column holds, its statistics and its categories, in little memory.

Each part gives a small summary; summaries are joined in the order of the parts, so that the result does not depend on
the number of workers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError
from packdata.moments import Moments
from packdata.pool import OrderedPool
from packdata.tables.values import (
    NO_VALUES,
    Group,
    Numbers,
    as_text,
    combined,
    group_of,
    groups_of_texts,
    has_value,
    lacks_value,
    narrow,
    numbers,
    part_of_date,
    plain,
    plain_numbers,
    shown,
    why_other,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from packdata.progress import Progress
    from packdata.settings import OnError
    from packdata.tables.kept import TableReader
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
        other: Why it has no place in a row, if so.
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
    other: str = ""

    def add(self, other: ColumnScan) -> None:
        """Take in what a later part holds."""
        self.num_missing += other.num_missing
        self.num_unsure += other.num_unsure
        self.groups.update(other.groups)
        self.first = other.first | self.first
        for name, moments in other.moments.items():
            self.moments.setdefault(name, Moments()).add(moments)
        self._count(other.counts)
        self.other = self.other or other.other
        self.is_whole &= other.is_whole
        self.has_times |= other.has_times

    def _count(self, counts: Mapping[str, int]) -> None:
        if self.other:
            return
        self.counts.update(counts)
        if len(self.counts) > MAX_CATEGORIES:
            self.other = f"it has more than {MAX_CATEGORIES:,} different texts"
            self.counts.clear()


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
    reader: TableReader,
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
        reader: Of the files; what it reads of text files is kept.
        columns: The columns that matter; None for all.
        kinds: What some columns are, whatever they seem to be.
        parts_of_dates: What dates become, for their statistics.
        drop: Columns not to look at, where all would be.
        judge: Takes the rows that cannot be packed out; None where they are not known yet.
        workers: Threads.
        on_error: ``"fail"`` ends at the first row that cannot be read, or packed.
        progress: Is told of every row.

    Raises:
        SourceError: A file or row cannot be read.
    """
    files, kept = reader.files, reader.kept if judge is None else None
    found = Scan(columns={} if columns is None else {name: ColumnScan() for name in columns})

    def scan_part(part: Part) -> _PartScan:
        file, num_rows = files[part.file], 0
        bad: list[tuple[int, str]] = []
        scans: dict[str, ColumnScan] = {}
        for rows in reader.read(part, columns, kinds):
            rows = rows if judge is None else judge(file, rows)
            num_rows += len(rows.table)
            bad += rows.bad
            typed: dict[str, pa.Array] = {}
            for name in (n for n in rows.table.column_names if n not in drop):
                look = _Look(name, rows, file, parts_of_dates)
                typed[name] = look.at(kinds.get(name))
                scans.setdefault(name, ColumnScan(num_missing=num_rows - len(rows.table))).add(
                    look.scan
                )
            if kept is not None and file.is_text and not rows.mixed:
                kept.put(part, rows, typed)
        return _PartScan(part, num_rows, bad, scans)

    try:
        progress.start(None, 0)
        with OrderedPool(scan_part, workers) as pool:
            parts = (part for number, file in enumerate(files) for part in file.parts(number))
            for each in pool.map(parts):
                _join(found, each, files, on_error, progress)
    finally:
        progress.close()
    return found


def _join(
    found: Scan, part: _PartScan, files: Sequence[TableFile], on_error: OnError, progress: Progress
) -> None:
    if part.bad and on_error == "fail":
        line, why = part.bad[0]
        raise SourceError(why, place(files[part.part.file], line))
    for name in part.columns:  # a key that no earlier line of JSON had
        found.columns.setdefault(name, ColumnScan(num_missing=found.num_rows))
    for name, column in found.columns.items():
        column.add(part.columns.get(name) or ColumnScan(num_missing=part.num_rows))
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


class _Look:
    """One column of some rows, looked at.

    Args:
        name: Its name.
        rows: The rows.
        file: Theirs.
        parts_of_dates: What dates become.

    Attributes:
        scan: What it holds.
    """

    def __init__(
        self, name: str, rows: Rows, file: TableFile, parts_of_dates: Sequence[str]
    ) -> None:
        self.scan = ColumnScan()
        self._rows, self._file, self._parts_of_dates = rows, file, parts_of_dates
        self._array = combined(rows.table[name])
        self._mixed = rows.mixed.get(name)
        guesses = file.guesses(name)
        self._guesses = guesses if parts_of_dates or "number" in guesses else frozenset[str]()

    def at(self, kind: Kind | None) -> pa.Array:
        """Take statistics of it as a kind, or as what it seems to be; return its values as that."""
        group = group_of(self._array.type)
        if group == "other":
            self.scan.other = why_other(self._array.type)
        elif group is None:
            self.scan.num_missing = len(self._array)
            self._note("missing", self._array.is_null().to_numpy(zero_copy_only=False))
        elif kind == "text":
            coded = self._count(as_text(plain(self._array)))
            if self.scan.counts:
                self.scan.groups["text"] += sum(self.scan.counts.values())
            return coded
        elif kind is not None and kind != "flag":
            return self._measured(numbers(self._array, kind), kind)
        elif "flag" in (group, kind):
            return self._look_at_texts(as_text(plain(self._array)), frozenset(("flag",)))
        elif group == "text":
            return self._guessed()
        else:
            return self._measured(numbers(self._array, group), group)
        return self._array

    def _guessed(self) -> pa.Array:
        texts = plain(self._array)
        fast = plain_numbers(texts) if "number" in self._guesses else None
        if fast is not None:
            return self._measured(fast, "number")
        coded = self._look_at_texts(texts, self._guesses)
        if len(self.scan.groups) == 1:
            (only,) = self.scan.groups
            if only in ("number", "date", "time"):
                self.scan = ColumnScan()
                return self._measured(numbers(texts, only), only)
        return coded

    def _note(self, what: str, flags: npt.NDArray[np.bool_]) -> None:
        """Remember the first row that is so, if any."""
        if flags.any():
            row = int(flags.argmax())
            value = self._array.take(pa.array([row]))
            self.scan.first[what] = Place(self._file, row, self._rows.line, value)

    def _count(self, texts: pa.Array) -> pa.Array:
        """Count each text; return them by their dictionary."""
        coded = texts.dictionary_encode()
        places = pc.drop_null(coded.indices).to_numpy()
        counts = np.bincount(places, minlength=len(coded.dictionary)).tolist()
        found = dict(zip(coded.dictionary.to_pylist(), counts, strict=True))
        self.scan.num_missing = coded.null_count + found.pop("", 0)
        self.scan.counts.update(found)
        return coded

    def _look_at_texts(self, texts: pa.Array, guesses: frozenset[str]) -> pa.Array:
        """Count texts, and how many of them look like numbers or dates, where they may be some."""
        scan = self.scan
        coded = self._count(texts)
        groups = self._groups(coded.dictionary, guesses) if self._mixed is None else self._mixed
        places = pc.fill_null(coded.indices, -1).to_numpy()
        for group in dict.fromkeys(groups.tolist()):
            if group is not None:
                flags = groups == group
                flags = np.append(flags, False)[places] if self._mixed is None else flags
                scan.groups[group] += int(flags.sum())
                self._note(group, flags)
        scan.num_unsure = len(texts) - scan.num_missing - sum(scan.groups.values())
        if scan.num_missing + scan.num_unsure and "text" not in scan.groups:
            self._note("missing", lacks_value(texts))
        return coded

    def _groups(self, words: pa.Array, guesses: frozenset[str]) -> npt.NDArray[np.object_]:
        """Return what each of some texts is, None where that depends on the others, or there is none."""
        if not guesses:
            return np.where(has_value(words), np.array(["text"], object), np.array([None]))
        found, usual = groups_of_texts(words), {"code": "number"}
        found[[g is not None and usual.get(g, g) not in guesses for g in found]] = "text"
        found[~has_value(words)] = None
        return found

    def _measured(self, found: Numbers, group: Group) -> pa.Array:
        """Take statistics of numbers, dates or times; return them, as they are where some are bad."""
        scan, (values, missing, bad, zoned) = self.scan, found
        scan.num_missing = int(missing.sum())
        known = ~missing & ~bad
        if known.any():
            scan.groups[group] += int(known.sum())
        for what, flags in ((group, known), ("missing", missing), ("bad", bad)):
            self._note(what, flags)
        if group == "number":
            kept = values if known.all() else values[known]
            scan.moments["number"] = Moments.of(kept)
            if not np.isfinite([scan.moments["number"].least, scan.moments["number"].most]).all():
                self._note("infinite", np.isinf(values))
                scan.moments["number"] = Moments.of(kept[np.isfinite(kept)])
            scan.is_whole = bool(
                (np.floor(kept[:1]) == kept[:1]).all() and (np.floor(kept) == kept).all()
            )
        else:
            for part in (
                ("hour",) if group == "time" else self._parts_of_dates
            ):  # whatever becomes of dates
                scan.moments[part] = Moments.of(part_of_date(values[known], part))
            scan.has_times = bool(part_of_date(values[known], "hour").any())
        if group == "date":
            self._note("zoned", zoned & known)
            self._note("local", known & ~zoned)
        if bad.any():
            return self._array
        if group == "number":
            return narrow(values, missing) if scan.is_whole else pa.array(values, mask=missing)
        kind = pa.timestamp("us") if group == "date" else pa.time64("us")
        return pa.array(np.where(missing, 0, values).astype(np.int64), mask=missing).cast(kind)
