"""The recipe ``packdata tables``: parts of files to blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from loaders.data.columns import FixedColumn
from loaders.errors import SourceError
from packdata.moments import standardized
from packdata.recipe import Block, Recipe, Tally, Target
from packdata.tables.chosen import CATEGORIES, FEATURES, MISSING, kind_of
from packdata.tables.scan import place
from packdata.tables.values import (
    DAY_US,
    Flags,
    Floats,
    Numbers,
    codes,
    combined,
    group_of,
    has_value,
    numbers,
    plain,
    shown,
    why_other,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from loaders.schema import Features
    from packdata.recipe import Draw
    from packdata.rows import Part, RowFile, Rows
    from packdata.tables.chosen import ColumnPlan, TargetColumn
    from packdata.tables.kept import TableReader
    from packdata.types import Kind

Matrix = npt.NDArray[Any]
Why = str | Callable[[], str]  # a reason in words, or what makes some
_MISSING, _UNKNOWN = "missing:", "unknown:"
COUNTED = {  # what is counted of each column, by what it is, in words
    _MISSING: "missing values",
    _UNKNOWN: "stored as 0, unknown to the vocabulary",
}


class TablesRecipe(Recipe):
    """Turns parts of tables into rows of features, categories and targets.

    Args:
        reader: Of the files.
        parts: Their parts.
        columns: What becomes of every column.
        num_samples: Rows of all parts, if known.
        identity: JSON that decides the output, beside these.
        provenance: JSON for the manifest.

    Attributes:
        tally: Values of each column that are missing, and that its vocabulary lacks.
    """

    is_of_blocks = True

    def __init__(
        self,
        reader: TableReader,
        parts: Sequence[Part],
        columns: ColumnPlan,
        num_samples: int | None,
        identity: Mapping[str, Any],
        provenance: Mapping[str, Any],
    ) -> None:
        self.reader, self.parts, self.columns, self.num_samples = (
            reader,
            parts,
            columns,
            num_samples,
        )
        self.identity, self.provenance = identity, provenance
        self.schema = columns.schema
        self.targets: Sequence[Target] = [Target("", self.schema)]
        self.tally = Tally()
        categories = columns.categories
        self._vocabularies = {
            name: pa.array(vocabulary, pa.string())
            for name, vocabulary in (
                zip(categories.columns, categories.vocabularies, strict=True) if categories else ()
            )
        }
        self._classes = {t.field: pa.array(t.classes, pa.string()) for t in columns.targets}

    def __len__(self) -> int:
        return len(self.parts)

    def items(self, start: int) -> Iterator[Part]:
        """Yield the parts."""
        yield from map(self.parts.__getitem__, range(start, len(self)))

    def name(self, item: Part) -> str:
        """Return where a part begins."""
        return place(self.reader.files[item.file], item.line)

    def encode(self, item: Part, draw: Draw | None = None) -> list[Block]:
        """Return the rows of a part."""
        file, kinds = self.reader.files[item.file], self.columns.kinds
        pieces: list[dict[str, Matrix]] = [
            {name: self._empty(name) for name in self.schema.fields}
        ]
        rejects: list[tuple[int, Why]] = []
        for rows in self.reader.read(item, list(kinds), kinds):
            arrays, counted, wrong = self._arrays(file, rows)
            if wrong:
                kept = _others(rows, wrong)
                arrays = {name: array[kept] for name, array in arrays.items()}
                counted = {what: flags[kept] for what, flags in counted.items()}
            pieces.append(arrays)
            for what, flags in counted.items():
                self.tally.add(what, int(flags.sum()))
            rejects += [*rows.bad, *_placed(rows, wrong)]
        columns = {name: _column([piece[name] for piece in pieces]) for name in self.schema.fields}
        block = Block(columns, tuple(self._rejects(file, rejects)))
        if draw is not None:
            order = draw(len(block))
            drawn = {name: FixedColumn(column.data[order]) for name, column in columns.items()}
            block = replace(block, columns=drawn)
        return [block]

    def _empty(self, name: str) -> Matrix:
        field = self.schema.fields[name]
        return np.empty((0, *(n or 0 for n in field.shape or ())), field.dtype)

    def _rejects(
        self, file: RowFile, found: list[tuple[int, Why]]
    ) -> Iterator[tuple[str, SourceError]]:
        for line, why in sorted(found, key=itemgetter(0)):
            where = place(file, line)
            yield where, SourceError(why if isinstance(why, str) else why(), where)

    def _arrays(
        self, file: RowFile, rows: Rows
    ) -> tuple[dict[str, Matrix], dict[str, Flags], Mapping[int, Why]]:
        """Return the values of every field, the rows that are counted as something, and those that cannot be packed.

        Rows that cannot be packed come with the reason.
        """
        table = _Table(rows.table)
        for name in self.columns.kinds:
            kind = table.array(name).type
            if group_of(kind) == "other":
                raise SourceError(f"column {name!r}: {why_other(kind)}", file.path)
        arrays: dict[str, Matrix] = {}
        counted: dict[str, Flags] = {}
        if self.columns.features is not None:
            arrays[FEATURES], missing = self._features(table, counted)
            if self.columns.missing_mask:
                arrays[MISSING] = missing
        if self.columns.categories is not None:
            arrays[CATEGORIES] = self._categories(table, counted)
        # Classes of rows that are left out are none: why those are is to be told first.
        for target in sorted(self.columns.targets, key=lambda target: target.how == "label"):
            arrays[target.field] = self._target(target, table)
        return arrays, counted, table.wrong

    def _features(self, table: _Table, counted: dict[str, Flags]) -> tuple[Matrix, Flags]:
        features = self.columns.features
        assert features is not None
        rows = np.empty((len(features.columns), len(table)), features.dtype)  # turned at once
        mask = np.zeros(rows.T.shape if self.columns.missing_mask else (0, 0), bool)
        for i, (column, how) in enumerate(features.sources):
            array = table.array(column)
            is_plain = how == "number" and pa.types.is_float64(array.type) and not array.null_count
            if is_plain and _fill(rows[i], _scaled(array.to_numpy(), features, i)):
                continue  # nothing is missing, as NaN would be
            values, missing = table.numbers(column, how), table.missing(column, how)
            if missing.any():
                counted[_MISSING + column] = missing
                if self.columns.missing_mask:
                    mask[:, i] = missing
                if features.missing == "error":
                    table.note(missing, f"column {column!r} has no value")
                elif features.missing == "mean":
                    values = np.where(missing, features.mean[i], values)
            values = _scaled(values, features, i)
            if not _fill(rows[i], values):
                is_too_large = np.isinf(rows[i]) & np.isfinite(values) & ~missing
                self._note_unfit(column, how, is_too_large, table)
        return np.ascontiguousarray(rows.T), mask

    def _note_unfit(self, column: str, how: str, is_too_large: Flags, table: _Table) -> None:
        """Note where a value of a column is bad or infinite, or larger than the features are."""
        assert self.columns.features is not None
        what = f"column {column!r}"
        table.note_bad(what, column, how)
        is_infinite = np.isinf(table.numbers(column, how))
        table.note_infinite(f"{what} is infinite", column, how, is_infinite)
        what = f"{what} is more than {self.columns.features.dtype} holds"
        table.note_infinite(what, column, how, is_too_large)

    def _categories(self, table: _Table, counted: dict[str, Flags]) -> Matrix:
        categories = self.columns.categories
        assert categories is not None
        out = np.empty((len(table), len(categories.columns)), categories.dtype)
        for i, column in enumerate(categories.columns):
            found = codes(table.array(column), self._vocabularies[column])
            out[:, i] = found
            if not found.all():
                known = has_value(table.array(column))
                counted[_MISSING + column] = ~known
                counted[_UNKNOWN + column] = known & (found == 0)
        return out

    def _target(self, target: TargetColumn, table: _Table) -> Matrix:
        column, what = target.column, f"target {target.column!r}"
        if target.how == "label":
            array = table.array(column)
            found = codes(array, self._classes[target.field]) - 1
            known = has_value(array)
            table.note(~known, f"{what} has no value")
            few = f"is none of its {len(target.classes)} classes"
            table.note(known & (found < 0), lambda row: f"{what}: {shown(array, row)!r} {few}")
            return found
        values = table.numbers(column, target.how)
        table.note(table.missing(column, target.how), f"{what} has no value")
        table.note_bad(what, column, target.how)
        dtype = self.schema.fields[target.field].dtype
        with np.errstate(over="ignore"):
            out = values.astype(dtype)
        what = f"{what} is infinite, or too large"
        table.note_infinite(what, column, target.how, np.isinf(out))
        return out


_WORDS = {"number": "number", "flag": "flag"}


class _Table:
    """The columns of some rows, each converted once; ``wrong`` says of rows that cannot be packed why."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.wrong: dict[int, Why] = {}
        self._arrays: dict[str, pa.Array] = {}
        self._numbers: dict[tuple[str, Kind], Numbers] = {}

    def __len__(self) -> int:
        return len(self._table)

    def array(self, column: str) -> pa.Array:
        if column not in self._arrays:
            self._arrays[column] = plain(combined(self._table[column]))
        return self._arrays[column]

    def _of(self, column: str, how: str) -> Numbers:
        group = kind_of(how)
        if (column, group) not in self._numbers:
            self._numbers[column, group] = numbers(self.array(column), group)
        return self._numbers[column, group]

    def numbers(self, column: str, how: str) -> Floats:
        values = self._of(column, how).values
        return values / DAY_US if how == "days" else values

    def missing(self, column: str, how: str) -> Flags:
        return self._of(column, how).missing

    def note(self, flags: Flags, why: str | Callable[[int], str]) -> None:
        """Note where rows cannot be packed; of each the first reason is kept."""
        for row in np.flatnonzero(flags).tolist() if flags.any() else ():
            if row not in self.wrong:
                self.wrong[row] = why if isinstance(why, str) else partial(why, row)

    def note_bad(self, what: str, column: str, how: str) -> None:
        """Note where a value is none of its kind."""
        array, kind = self.array(column), _WORDS.get(how, "date")
        self.note(
            self._of(column, how).bad, lambda row: f"{what}: {shown(array, row)!r} is no {kind}"
        )

    def note_infinite(self, what: str, column: str, how: str, flags: Flags) -> None:
        """Note where a number is too large."""
        values = self._of(column, how).values
        self.note(flags, lambda row: f"{what} ({float(values[row])!r})")


def _scaled(values: Floats, features: Features, i: int) -> Floats:
    """Return the values of a feature as they are stored, before they are rounded."""
    if not features.standardized:
        return values
    return standardized(values, features.mean[i], features.std[i])


def _fill(row: Matrix, values: Floats) -> bool:
    """Fill a row with values; tell whether all of them are finite there."""
    with np.errstate(over="ignore"):
        row[:] = values
    return bool(np.isfinite(row).all())


def _others(rows: Rows, wrong: Mapping[int, Why]) -> npt.NDArray[np.int64]:
    return np.setdiff1d(np.arange(len(rows.table)), list(wrong))


def _placed(rows: Rows, wrong: Mapping[int, Why]) -> list[tuple[int, Why]]:
    return [(rows.line(row), why) for row, why in wrong.items()]


def _column(arrays: Sequence[Matrix]) -> FixedColumn:
    """Return the rows of arrays, one after the other, as bytes."""
    joined = arrays[-1] if len(arrays) == 2 else np.concatenate(arrays)
    nbytes = joined.itemsize * math.prod(joined.shape[1:])  # said in numbers: there may be no rows
    rows = np.ascontiguousarray(joined).reshape(-1).view(np.uint8)
    return FixedColumn(rows.reshape(len(joined), nbytes))
