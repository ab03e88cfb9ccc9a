"""The first pass: what every column holds, its statistics and its categories, in little memory.

Each part gives a small summary; summaries are joined in the order of the parts, so that the result does not depend on
the number of workers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError
from packdata.moments import Moments
from packdata.packing.pool import OrderedPool
from packdata.rows import TextRows
from packdata.tables.values import (
    DAY_US,
    Group,
    at_places,
    group_of,
    numbers,
    plain,
    quick,
    shown,
    trimmed,
    why_other,
    words_of,
)
from packdata.types import KINDS, NO_VALUES, Kind, are_names, flags_of, is_text, kinds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from packdata.packing.progress import Progress
    from packdata.packing.settings import OnError
    from packdata.rows import Part, RowFile
    from packdata.tables.files import TableFiles
    from packdata.tables.options import TableOptions
    from packdata.tables.values import Flags
    from packdata.types import Codes

MAX_CATEGORIES = 1_000_000


class Seen(NamedTuple):
    """Where a value was seen first; its text and its line are made when they are needed."""

    value: pa.Array  # of one row: no others are kept
    file: RowFile
    line: Callable[[int], int]
    row: int

    @property
    def shown(self) -> str:
        """How it looks."""
        return shown(self.value, 0)

    @property
    def where(self) -> str:
        """File and line or row."""
        return self.file.place(self.line(self.row))


@dataclass
class ColumnScan:
    """What one column holds.

    Attributes:
        groups: Values of each kind; those of no kind are missing.
        first: Where each kind was seen first, also ``bad`` values that are none of a kind that was asked for.
        other: Why it has no place in a row, if so.
        moments: Of the numbers, or of the dates in days.
        words: How often each text occurs.
        is_whole: True if no number has a fraction.
    """

    groups: Counter[Group] = field(default_factory=Counter)
    first: dict[str, Seen] = field(default_factory=dict)
    moments: Moments = field(default_factory=Moments)
    words: Counter[str] = field(default_factory=Counter)
    is_whole: bool = True
    other: str = ""

    def add(self, other: ColumnScan) -> None:
        """Take in what a later part holds."""
        self.groups.update(other.groups)
        self.first = other.first | self.first
        self.moments.add(other.moments)
        self.other = self.other or other.other
        self.is_whole &= other.is_whole
        if not self.other:
            self.words.update(other.words)
            if len(self.words) > MAX_CATEGORIES:
                self.other = f"more than {MAX_CATEGORIES:,} different texts"
                self.words.clear()

    def known_texts(self) -> Mapping[str, int]:
        """Return how often each text occurs, ``NO_VALUES`` only where others are text too, or there are no others."""
        if self.words.keys().isdisjoint(NO_VALUES):
            return self.words
        known = {text: count for text, count in self.words.items() if text not in NO_VALUES}
        kinds = kinds_of(pa.array(list(known), pa.string()))
        return self.words if not known or KINDS.index("text") in kinds else known


@dataclass(slots=True)
class Scan:
    """What the first pass found in some parts, in their order."""

    parts: list[Part] = field(default_factory=list)
    num_rows: int = 0  # that can be read
    bad: int = 0  # the others
    columns: dict[str, ColumnScan] = field(default_factory=dict)  # in the order of their first row
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # that columns declare

    def add(self, other: Scan) -> None:
        """Take in what a later part holds."""
        for name, column in other.columns.items():
            self.columns.setdefault(name, ColumnScan()).add(column)
        self.parts += other.parts
        self.num_rows += other.num_rows
        self.bad += other.bad


@dataclass(frozen=True, slots=True)
class Scanner:
    """Reads rows once, all parts in their order; what is read of files of text is kept by them."""

    files: TableFiles
    options: TableOptions
    workers: int
    on_error: OnError
    progress: Progress

    def scan(self) -> Scan:
        """Read all files, and again where a later part tells that the numbers of a column are names.

        Raises:
            SourceError: A file or row cannot be read.
        """
        kinds: dict[str, Kind] = dict.fromkeys(self.options.categorical, "text")
        kinds |= dict.fromkeys(self.options.numeric, "number")
        found = self._scan(kinds)
        late = [
            name
            for name, column in found.columns.items()
            if {"code"} <= column.groups.keys() <= {"code", "number", "text", "flag"}
            and column.moments.count
            and name not in kinds
        ]
        if late:
            again = self._scan({**kinds, **dict.fromkeys(late, "text")})
            found.columns |= {name: again.columns[name] for name in late}
        return found

    def _scan(self, kinds: Mapping[str, Kind]) -> Scan:
        found = Scan(columns={name: ColumnScan() for name in self.files.columns or ()})
        parts = (part for n in range(len(self.files)) for part in self.files[n].parts(n))
        try:
            self.progress.start(None, 0)
            with OrderedPool(partial(self._part, kinds), self.workers) as pool:
                for each in pool.map(parts):
                    found.add(each)
                    self.progress.advance(found.bad, each.num_rows + each.bad)
        finally:
            self.progress.close()
        found.classes = self.files[0].classes
        return found

    def _part(self, kinds: Mapping[str, Kind], part: Part) -> Scan:
        """Runs on the threads."""
        file, found, dropped = self.files[part.file], Scan([part]), {*self.options.drop}
        # Texts of JSON may be dates where dates= asks for these.
        is_asked = self.options.dates is not None or "number" in file.guesses
        guesses = file.guesses if is_asked else frozenset[Kind]()
        for rows in self.files.read(part, self.files.columns, kinds):
            if rows.bad and self.on_error == "fail":
                line, why = rows.bad[0]
                raise SourceError(why, file.place(line))
            names = [name for name in rows.table.column_names if name not in dropped]
            looks = {n: _Look(plain(rows.table[n]), kinds.get(n), guesses) for n in names}
            for look in looks.values():
                look.scan.first = {
                    what: Seen(look.array.take(pa.array([row])), file, rows.line, row)
                    for what, row in look.first.items()
                }
            scans = {name: look.scan for name, look in looks.items()}
            found.add(Scan([], len(rows.table), len(rows.bad), scans))
            if isinstance(file, TextRows):
                self.files.keep(part, rows, {name: look.values for name, look in looks.items()})
        return found


class _Look:
    """One column of some rows, taken as a kind, or as what it seems to be."""

    def __init__(self, array: pa.Array, kind: Kind | None, guesses: frozenset[Kind]) -> None:
        self.array = self.values = array  # values: numbers, dates, or texts by their dictionary
        self.scan, self.first = ColumnScan(), dict[str, int]()  # first row of each kind
        group = group_of(array.type)
        if group == "other":
            self.scan.other = why_other(array.type)
        elif group is None or array.null_count == len(array):
            return
        elif kind == "text":
            self._count_words(frozenset())
        elif kind is not None or group not in ("flag", "text"):
            self._measure(array, kind or group)
        elif group == "flag":
            self._count_words(frozenset(("flag",)))
        else:
            self._guess(guesses)

    def _guess(self, guesses: frozenset[Kind]) -> None:
        """Take texts for numbers or dates where all of them are, quickly; else look at each different one."""
        if is_text(self.array.type):
            texts = trimmed(self.array)
            if (found := quick(texts, guesses)) is not None:
                group = group_of(found.type)
                if group is not None and (group != "number" or not are_names(texts, found)):
                    self._measure(found, group)
                    return
        self._count_words(guesses)
        for only in ("number", "date", "zoned"):
            if self.scan.groups.keys() == {only}:
                self.scan, self.first = ColumnScan(), {}
                self._measure(self.values, only)

    def _count_words(self, guesses: frozenset[Kind]) -> None:
        """Count texts, and how many of them look like numbers or dates, where they may be some."""
        coded = self.values = words_of(self.array)
        words, kinds = coded.dictionary, _kinds_among(coded.dictionary, guesses)
        counts = np.bincount(coded.indices.drop_null().to_numpy(), minlength=len(words))
        of_words = zip(words.to_pylist(), counts.tolist(), strict=True)
        self.scan.words.update({word: count for word, count in of_words if word and count})
        of_rows = at_places(kinds, coded, 0)
        for code in np.unique(kinds).tolist():
            if (kind := KINDS[code]) is not None:
                self._note(kind, of_rows == code)

    def _measure(self, array: pa.Array, group: Group) -> None:
        """Take statistics of numbers or dates."""
        is_number = group in ("number", "flag")
        assert group != "other"
        values, missing, bad = numbers(array, group if is_number else "date")
        known = ~(missing | bad)
        kept = values if known.all() else values[known]
        self.values = array
        self._note(group, known)
        if bad.any():
            self.first["bad"] = int(bad.argmax())
        scan = self.scan
        scan.moments = Moments.of(kept if is_number else kept / DAY_US)
        if not np.isfinite([scan.moments.least, scan.moments.most]).all():
            scan.moments = Moments.of(kept[np.isfinite(kept)])
        scan.is_whole = is_number and bool((np.floor(kept) == kept).all())

    def _note(self, group: Group, flags: Flags) -> None:
        """Count values of a kind, and remember the first."""
        if num := int(np.count_nonzero(flags)):
            self.scan.groups[group] += num
            self.first[group] = int(flags.argmax())


def _kinds_among(words: pa.Array, guesses: frozenset[Kind]) -> Codes:
    """Return what each word looks like, a text where that is not guessed; without guesses ``NA`` is a text, too."""
    if not guesses:
        return flags_of(pc.not_equal(words, "")).astype(np.int8)
    kinds = kinds_of(words)
    if "number" not in guesses:
        known = [code for code, kind in enumerate(KINDS) if kind is None or kind in guesses]
        kinds[~np.isin(kinds, known)] = KINDS.index("text")
    return kinds
