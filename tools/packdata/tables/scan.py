"""The first pass: what every column holds, its statistics and its categories, in little memory.

Each part gives a small summary; summaries are joined in the order of the parts, so that the result does not depend on
the number of workers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError
from packdata.moments import Moments
from packdata.packing.pool import OrderedPool
from packdata.tables.values import (
    DAY_US,
    Group,
    Numbers,
    at_places,
    combined,
    group_of,
    numbers,
    plain,
    quick,
    shown,
    trimmed,
    why_other,
    words_of,
)
from packdata.types import KINDS, NO_VALUES, Kind, are_names, as_text, is_text, kinds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from packdata.packing.progress import Progress
    from packdata.packing.settings import OnError
    from packdata.rows import Part, RowFile, Rows
    from packdata.tables.files import CommonColumns
    from packdata.tables.kept import TableReader
    from packdata.types import Codes

MAX_CATEGORIES = 1_000_000
_FEW_WORDS = 1 << 16


class Seen(NamedTuple):
    """Where a value was seen first."""

    value: pa.Array  # of one row
    tell: Callable[[], str]  # its file and line or row: found when somebody asks

    @property
    def shown(self) -> str:
        """How it looks."""
        return shown(self.value, 0)

    @property
    def where(self) -> str:
        """File and line or row."""
        return self.tell()


class Words:
    """How often each of some texts occurs, in the order in which they were first seen.

    Attributes:
        is_full: There were more than ``MAX_CATEGORIES``, and none is known any more.
    """

    def __init__(self) -> None:
        self.is_full = False
        self._parts: list[tuple[pa.Array, npt.NDArray[np.int64]]] = []
        self._size = self._joined_size = 0

    def add(self, words: pa.Array, counts: npt.NDArray[np.int64]) -> None:
        """Take texts in, each of which may be there already, and how often they occur."""
        if len(words) and not self.is_full:
            self._parts.append((words.cast(pa.string()), counts))
            self._size += len(words)
            if self._size > 2 * self._joined_size + _FEW_WORDS:
                self.join()

    def update(self, other: Words) -> None:
        """Take in what later rows hold."""
        self.is_full |= other.is_full
        for words, counts in other._parts:
            self.add(words, counts)

    def join(self) -> None:
        """Count each text once."""
        if len(self._parts) > 1:
            coded = pa.concat_arrays([words for words, _ in self._parts]).dictionary_encode()
            counts = np.concatenate([counts for _, counts in self._parts])
            total = np.bincount(coded.indices.to_numpy(), counts, len(coded.dictionary))
            self._parts = [(coded.dictionary, total.astype(np.int64))]
        self._size = self._joined_size = sum(len(words) for words, _ in self._parts)
        self.is_full |= self._size > MAX_CATEGORIES
        if self.is_full:
            self._parts.clear()

    def to_dict(self) -> dict[str, int]:
        """Return how often each text occurs."""
        self.join()
        for words, counts in self._parts:
            return dict(zip(words.to_pylist(), counts.tolist(), strict=True))
        return {}


@dataclass
class ColumnScan:
    """What one column holds.

    Attributes:
        num_missing: Rows without a value.
        num_unsure: Texts such as ``NA`` in parts that tell no kind but text: missing, unless others are text.
        groups: Values of each kind.
        first: Where each kind was seen first, also ``missing`` and ``infinite`` numbers, and ``bad`` values that are
            none of a kind that was asked for.
        other: Why it has no place in a row, if so.
        moments: Of the numbers, or of the dates in days.
        words: How often each text occurs.
        is_whole: True if no number has a fraction.
    """

    num_missing: int = 0
    num_unsure: int = 0
    groups: Counter[Group] = field(default_factory=Counter)
    first: dict[str, Seen] = field(default_factory=dict)
    moments: Moments = field(default_factory=Moments)
    words: Words = field(default_factory=Words)
    is_whole: bool = True
    other: str = ""

    def add(self, other: ColumnScan) -> None:
        """Take in what a later part holds."""
        self.num_missing += other.num_missing
        self.num_unsure += other.num_unsure
        self.groups.update(other.groups)
        self.first = other.first | self.first
        self.moments.add(other.moments)
        self.words.update(other.words)
        self.other = self.other or other.other
        self.is_whole &= other.is_whole

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How often each text occurs, once all parts are there."""
        return self.words.to_dict()

    @cached_property
    def known_texts(self) -> Mapping[str, int]:
        """The same, ``NO_VALUES`` only where others are text too, or there are no others."""
        if self.counts.keys().isdisjoint(NO_VALUES):
            return self.counts
        known = {text: count for text, count in self.counts.items() if text not in NO_VALUES}
        kinds = kinds_of(pa.array(list(known), pa.string()))
        return self.counts if not known or KINDS.index("text") in kinds else known


@dataclass(slots=True)
class Scan:
    """What the first pass found.

    Attributes:
        parts: The parts of all files, in order.
        num_rows: Rows that can be read.
        bad: The others.
        columns: By name, in the order in which they were first seen.
        classes: Of columns that declare some.
    """

    parts: list[Part] = field(default_factory=list)
    num_rows: int = 0
    bad: int = 0
    columns: dict[str, ColumnScan] = field(default_factory=dict)
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, other: Scan) -> None:
        """Take in what a later part holds."""
        for name in other.columns:  # a key that no earlier line of JSON had
            self.columns.setdefault(name, ColumnScan(num_missing=self.num_rows))
        for name, column in self.columns.items():
            column.add(other.columns.get(name) or ColumnScan(num_missing=other.num_rows))
        self.parts += other.parts
        self.num_rows += other.num_rows
        self.bad += other.bad


@dataclass(frozen=True, slots=True)
class Scanner:
    """Reads rows once, all parts in their order.

    Attributes:
        reader: Of the files; what it reads of text files is kept.
        common: The columns that matter.
        kinds: What some columns are, whatever they seem to be.
        drop: Columns not to look at.
        dates: Whether texts in files that have types of their own may be dates.
        workers: Threads.
        on_error: ``"fail"`` ends at the first row that cannot be read.
        progress: Is told of every row.
    """

    reader: TableReader
    common: CommonColumns
    kinds: Mapping[str, Kind]
    drop: Sequence[str]
    dates: bool
    workers: int
    on_error: OnError
    progress: Progress

    def scan(self) -> Scan:
        """Read all files.

        Raises:
            SourceError: A file or row cannot be read.
        """
        found = Scan(columns={name: ColumnScan() for name in self.common.columns or ()})
        try:
            self.progress.start(None, 0)
            with OrderedPool(self._part, self.workers) as pool:
                for each in pool.map(self._parts()):
                    found.add(each)
                    self.progress.advance(found.bad, each.num_rows + each.bad)
        finally:
            self.progress.close()
        for column in found.columns.values():
            column.words.join()
            if column.words.is_full and not column.other:
                column.other = f"it has more than {MAX_CATEGORIES:,} different texts"
        return found

    def _parts(self) -> Iterator[Part]:
        for number, file in enumerate(self.reader.files):
            self.common.check(file)
            yield from file.parts(number)

    def _part(self, part: Part) -> Scan:
        """Runs on the threads."""
        file, found = self.reader.files[part.file], Scan([part])
        bad: list[tuple[int, str]] = []
        dropped = {*self.drop}
        for rows in self.reader.read(part, self.common.columns, self.kinds):
            looks = [
                _Look(name, rows, file, self.dates)
                for name in rows.table.column_names
                if name not in dropped
            ]
            typed = {look.name: look.at(self.kinds.get(look.name)) for look in looks}
            found.add(Scan([], len(rows.table), 0, {look.name: look.scan for look in looks}))
            bad += rows.bad
            if file.is_text:
                self.reader.keep(part, rows, typed)
        if bad and self.on_error == "fail":
            line, why = bad[0]
            raise SourceError(why, place(file, line))
        found.bad = len(bad)
        return found


def place(file: RowFile, line: int) -> str:
    """Return a file and a line or row of it, for messages."""
    return f"{file.path}, {file.unit} {line}"


class _Look:
    """One column of some rows, looked at; ``scan`` is what it holds."""

    def __init__(self, name: str, rows: Rows, file: RowFile, dates: bool) -> None:
        self.scan = ColumnScan()
        self.name, self._rows, self._file = name, rows, file
        self._array = plain(combined(rows.table[name]))
        guesses = file.guesses
        self._guesses = guesses if dates or "number" in guesses else frozenset[Kind]()

    def at(self, kind: Kind | None) -> pa.Array:
        """Take statistics of it as a kind, or as what it seems to be; return its values as that."""
        array = self._array
        own = getattr(array.type, "value_type", array.type)
        group = group_of(array.type)
        if group == "other":
            self.scan.other = why_other(array.type)
        elif group is None or array.null_count == len(array):
            self.scan.num_missing = len(array)
            self._note("missing", np.ones(len(array), bool))
        elif kind == "text":
            coded = words_of(array if is_text(own) else as_text(array))
            if num := int(self._count(coded).sum()):
                self.scan.groups["text"] += num
            return coded
        elif kind is not None and kind != "flag":
            return self._measured(numbers(array, kind), kind)
        elif "flag" in (group, kind):
            coded = words_of(array if is_text(own) else as_text(array))
            return self._look_at_texts(coded, frozenset(("flag",)))
        elif group == "text":
            return self._guessed()
        else:
            return self._measured(numbers(array, _read_as(group)), group)
        return array

    def _guessed(self) -> pa.Array:
        """Take texts for numbers or dates where all of them are, quickly; else look at each different one."""
        array, is_plain = self._array, is_text(self._array.type)
        texts = trimmed(array) if is_plain else array
        found = quick(texts, self._guesses) if is_plain else None
        if found is not None:
            kind = group_of(found.type)
            assert kind is not None
            if kind != "number" or not are_names(texts, found):
                return self._measured(numbers(found, _read_as(kind)), kind)
        coded = words_of(array)
        self._look_at_texts(coded, self._guesses)
        if len(self.scan.groups) == 1:
            (only,) = self.scan.groups
            if only in ("number", "date", "zoned"):
                self.scan = ColumnScan()
                return self._measured(numbers(coded, _read_as(only)), only)
        return coded

    def _note(self, what: str, flags: npt.NDArray[np.bool_]) -> None:
        """Remember the first row that is so, if any."""
        if flags.any():
            row = int(flags.argmax())
            value = self._array.take(pa.array([row]))  # a copy, so that no other rows are kept
            self.scan.first[what] = Seen(value, partial(_where, self._file, self._rows.line, row))

    def _count(self, coded: pa.DictionaryArray) -> npt.NDArray[np.int64]:
        """Count each text; return how often each word of the dictionary occurs, the empty one never."""
        indices = coded.indices.drop_null() if coded.null_count else coded.indices
        counts = np.bincount(indices.to_numpy(), minlength=len(coded.dictionary))
        empty = pc.index(coded.dictionary, pa.scalar("", coded.dictionary.type)).as_py()
        if empty >= 0:
            counts[empty] = 0
        self.scan.num_missing = len(coded) - int(counts.sum())
        used, words, known = np.flatnonzero(counts), coded.dictionary, counts
        if len(used) < len(words):
            words, known = words.take(pa.array(used)), counts[used]
        self.scan.words.add(words, known)
        return counts

    def _look_at_texts(self, coded: pa.DictionaryArray, guesses: frozenset[Kind]) -> pa.Array:
        """Count texts, and how many of them look like numbers or dates, where they may be some."""
        scan, counts = self.scan, self._count(coded)
        kinds = _guessed_only(coded.dictionary, guesses)
        of_rows = at_places(kinds, coded, 0)
        sizes = np.bincount(kinds, counts, len(KINDS))
        for code, kind in enumerate(KINDS):
            if kind is not None and sizes[code]:
                scan.groups[kind] += int(sizes[code])
                self._note(kind, of_rows == code)
        scan.num_unsure = len(coded) - scan.num_missing - sum(scan.groups.values())
        if scan.num_missing + scan.num_unsure and "text" not in scan.groups:
            self._note("missing", of_rows == 0)
        return coded

    def _measured(self, found: Numbers, group: Group) -> pa.Array:
        """Take statistics of numbers or dates; return them, as they are where some are bad."""
        scan, (values, missing, bad) = self.scan, found
        scan.num_missing = int(np.count_nonzero(missing))
        known = ~(missing | bad)
        num_known = int(np.count_nonzero(known))
        if num_known:
            scan.groups[group] += num_known
        self._note(group, known)
        if num_known < len(values):
            self._note("missing", missing)
            self._note("bad", bad)
        kept = values if num_known == len(values) else values[known]
        if group == "number":
            scan.moments = Moments.of(kept)
            if not np.isfinite([scan.moments.least, scan.moments.most]).all():
                self._note("infinite", np.isinf(values))
                scan.moments = Moments.of(kept[np.isfinite(kept)])
            scan.is_whole = _is_whole(kept[:1]) and _is_whole(kept)
        else:
            scan.moments = Moments.of(kept / DAY_US)
        if "bad" in scan.first:
            return self._array
        mask = missing if num_known < len(values) else None
        if group == "number":
            return pa.array(values, mask=mask)
        return pa.array(np.where(missing, 0, values).astype(np.int64), mask=mask).cast(
            "timestamp[us]"
        )


def _read_as(group: Group) -> Kind:
    """Return as what values of a group are read: dates are dates, whether they have a zone or not."""
    assert group != "other"
    return "date" if group == "zoned" else group


def _guessed_only(words: pa.Array, guesses: frozenset[Kind]) -> Codes:
    """Return what each word looks like, a text where that is not guessed; without guesses ``NA`` is a text, too."""
    if not guesses:
        return np.where(pc.not_equal(words, "").to_numpy(zero_copy_only=False), 1, 0).astype(
            np.int8
        )
    kinds = kinds_of(words)
    if "number" not in guesses:
        known = [code for code, kind in enumerate(KINDS) if kind is None or kind in guesses]
        kinds[~np.isin(kinds, known)] = KINDS.index("text")
    return kinds


def _where(file: RowFile, line: Callable[[int], int], row: int) -> str:
    return place(file, line(row))


def _is_whole(values: npt.NDArray[np.float64]) -> bool:
    return bool((np.floor(values) == values).all())
