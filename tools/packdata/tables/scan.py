"""The first pass: what every column holds, its statistics and its categories, in little memory.

Each part gives a small summary; summaries are joined in the order of the parts, so that the result does not depend on
the number of workers.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError
from packdata.moments import Moments
from packdata.packing.pool import OrderedPool
from packdata.rows import TextRows
from packdata.types import (
    DAY_US,
    KINDS,
    NO_VALUES,
    Kind,
    all_as_one,
    are_exact,
    at_places,
    flags_of,
    is_text,
    kind_of,
    kinds_of,
    numbers,
    plain,
    why_other,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from packdata.packing.progress import Progress
    from packdata.packing.settings import OnError
    from packdata.rows import Part
    from packdata.tables.files import TableFiles
    from packdata.tables.options import TableOptions
    from packdata.types import Codes, Flags

MAX_CATEGORIES = 1_000_000
pa.array([])  # imports pandas, where that is installed: not on a thread that packs


@dataclass
class ColumnScan:
    """What one column holds.

    Attributes:
        kinds: Values of each kind; those of no kind are missing.
        first: Part and row in it where each kind was seen first.
        declared: Part and row from which on a file, or a part of JSON lines, declares each type; CSV declares none.
        other: Why it has no place in a row, if so.
        moments: Of the numbers, or of the dates in days.
        words: How often each text occurs.
    """

    kinds: Counter[Kind] = field(default_factory=Counter)
    first: dict[Kind, tuple[Part, int]] = field(default_factory=dict)
    declared: dict[Kind | Literal["other"], tuple[Part, int]] = field(default_factory=dict)
    moments: Moments = field(default_factory=Moments)
    words: Counter[str] = field(default_factory=Counter)
    other: str = ""

    def add(self, other: ColumnScan) -> None:
        """Take in what later rows hold."""
        self.kinds.update(other.kinds)
        self.first = other.first | self.first
        self.declared = other.declared | self.declared
        self.moments.add(other.moments)
        self.other = self.other or other.other
        if not self.other:
            self.words.update(other.words)
            if len(self.words) > MAX_CATEGORIES:
                self.other = f"more than {MAX_CATEGORIES:,} different texts"
                self.words.clear()

    def note(self, seen: Kind, flags: Flags, part: Part, row: int) -> None:
        """Count values of rows that begin at ``row`` of a part, and remember the first."""
        if num := int(np.count_nonzero(flags)):
            self.first[seen] = part, row + int(flags.argmax())
            self.kinds[seen] += num

    def measure(self, array: pa.Array, kind: Kind, part: Part, row: int) -> None:
        """Take statistics of numbers or dates."""
        is_number = kind == "number"
        values, bad = numbers(array, "number" if is_number else "date")
        known = ~np.isnan(values)
        kept = values if known.all() else values[known]
        # Days that do not exist are dates; their rows are named when they are packed.
        self.note(kind, known if is_number else known | bad, part, row)
        if is_number:
            self.note("text", bad, part, row)
        self.moments = Moments.of(kept if is_number else kept / DAY_US)
        if not np.isfinite([self.moments.least, self.moments.most]).all():
            self.moments = Moments.of(kept[np.isfinite(kept)])

    def known_texts(self) -> Mapping[str, int]:
        """Return how often each text occurs; ``NO_VALUES`` as the file declares, or as others are text, or alone."""
        if "text" in self.declared or self.words.keys().isdisjoint(NO_VALUES):
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

    def add(self, other: Scan) -> None:
        """Take in what later rows hold."""
        for name, column in other.columns.items():
            self.columns.setdefault(name, ColumnScan()).add(column)
        self.parts += other.parts
        self.num_rows += other.num_rows
        self.bad += other.bad


def scan_files(
    files: TableFiles, options: TableOptions, workers: int, on_error: OnError, progress: Progress
) -> Scan:
    """Read all files, and columns again of which a later part tells that their numbers are names.

    What is read of files of text is kept by ``files``.

    Raises:
        SourceError: A file or row cannot be read.
    """

    def scan(columns: Sequence[str] | None, kinds: Mapping[str, Kind]) -> Scan:
        found = Scan(columns={name: ColumnScan() for name in columns or ()})
        look = partial(_scan_part, files, options, on_error, columns, kinds)
        with closing(progress), OrderedPool(look, workers) as pool:
            progress.start(None, 0)
            for each in pool.map(files.parts()):
                found.add(each)
                progress.advance(found.bad, each.num_rows + each.bad)
        return found

    kinds: dict[str, Kind] = dict.fromkeys(options.categorical, "text")
    kinds |= dict.fromkeys(options.numeric, "number")
    found = scan(files.columns, kinds)
    late = [
        name
        for name, column in found.columns.items()
        if {"code"} <= column.kinds.keys() <= {"code", "number", "text", "flag"}
        and column.kinds.total() > sum(n for w, n in column.words.items() if w not in NO_VALUES)
    ]
    if late:
        # Which rows can be read may depend on the other columns.
        names = files.columns if found.bad else late
        found.columns |= scan(names, kinds | dict.fromkeys(late, "text")).columns
    return found


def _scan_part(
    files: TableFiles,
    options: TableOptions,
    on_error: OnError,
    names: Sequence[str] | None,
    kinds: Mapping[str, Kind],
    part: Part,
) -> Scan:
    """Return what a part holds; runs on the threads."""
    file, found, dropped = files[part.file], Scan([part]), {*options.drop}
    # Texts of JSON may be dates where dates= asks for these.
    is_asked = options.dates is not None or "number" in file.guesses
    guesses = file.guesses if is_asked else frozenset[Kind]()
    for rows in files.read(part, names, kinds):
        if rows.bad and on_error == "fail":
            line, why = rows.bad[0]
            raise SourceError(why, file.place(line))
        columns, values = dict[str, ColumnScan](), dict[str, pa.Array]()
        for name in rows.table.column_names:
            if name not in dropped:
                array, kind = plain(rows.table[name]), kinds.get(name)
                columns[name], values[name] = _look(array, kind, guesses, part, found.num_rows)
        found.add(Scan([], len(rows.table), len(rows.bad), columns))
        if isinstance(file, TextRows):
            files.keep(part, rows, values)
    return found


def _look(
    array: pa.Array, kind: Kind | None, guesses: Collection[Kind], part: Part, row: int
) -> tuple[ColumnScan, pa.Array]:
    """Take a column of rows, which begin at ``row`` of a part, as a kind, or as what it seems to be.

    Returns:
        What it holds; and its values: numbers, dates, or texts by their dictionary.
    """
    column, declared = ColumnScan(), kind_of(array.type)
    if declared is None or (declared != "other" and array.null_count == len(array)):
        return column, array
    if "number" not in guesses:
        column.declared[declared] = part, row
    if declared == "other":
        column.other = why_other(array.type)
        return column, array
    if kind == "text" and not are_exact(array):
        column.other = (
            "floats from 2**53 on, each of which stands for several whole numbers: write texts"
        )
        return column, array
    if declared == "flag":
        guesses = (declared,)
    if kind == "text":
        guesses = ()
    found = all_as_one(array, guesses) if kind is None and is_text(array.type) else None
    kind, array = found or (kind or declared, array)
    if kind not in ("flag", "text"):
        column.measure(array, kind, part, row)
        return column, array
    coded = words_of(array)
    words = coded.dictionary
    by_word = _kinds_among(words, guesses)
    kinds = [seen for code in np.unique(by_word).tolist() if (seen := KINDS[code]) is not None]
    if kinds in (["number"], ["date"], ["zoned"]):
        column.measure(coded, kinds[0], part, row)
        return column, coded
    by_row = at_places(by_word, coded, 0)
    for seen in kinds:
        column.note(seen, by_row == KINDS.index(seen), part, row)
    counts = np.bincount(coded.indices.drop_null().to_numpy(), minlength=len(words)).tolist()
    counted = zip(words.to_pylist(), counts, strict=True)
    column.words.update({word: count for word, count in counted if word and count})
    return column, coded


def _kinds_among(words: pa.Array, guesses: Collection[Kind]) -> Codes:
    """Return what each word looks like, a text where that is not guessed; without guesses ``NA`` is a text, too."""
    if not guesses:
        return flags_of(pc.not_equal(words, "")).astype(np.int8)
    kinds = kinds_of(words)
    known = [kind is None or kind in guesses for kind in KINDS]
    return np.where(np.array(known)[kinds], kinds, np.int8(KINDS.index("text")))
