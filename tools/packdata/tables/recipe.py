"""The recipe ``packdata tables``: parts of files to blocks of rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from loaders.data.columns import FixedColumn
from loaders.errors import SourceError
from loaders.schema import Categories, Features, Label
from packdata.recipe import Block, Recipe, Tally, Target
from packdata.tables.columns import CATEGORIES, MISSING, READ_AS
from packdata.types import DAY_US, Flags, codes, kind_of, numbers, plain, shown, why_other

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from loaders.remote.url import Location
    from packdata.recipe import Draw
    from packdata.rows import Part
    from packdata.tables.columns import Columns, TargetColumn
    from packdata.tables.files import TableFiles

Matrix = npt.NDArray[Any]
_MISSING, _UNKNOWN = "missing:", "unknown:"
COUNTED = {  # what is counted of each column, by what it is, in words
    _MISSING: "missing values",
    _UNKNOWN: "stored as 0, unknown to the vocabulary",
}


class TablesRecipe(Recipe):
    """Turns parts of tables into rows of features, categories and targets.

    It counts the values of each column that are missing, and those that are not in its vocabulary (``COUNTED``).
    """

    is_of_blocks = can_shuffle = True

    def __init__(
        self,
        files: TableFiles,
        parts: Sequence[Part],
        columns: Columns,
        num_samples: int | None,
        identity: Mapping[str, Any],
        provenance: Mapping[str, Any],
    ) -> None:
        self.files, self.parts, self.schema = files, parts, columns.schema
        self.num_samples, self.identity, self.provenance = num_samples, identity, provenance
        self.targets: Sequence[Target] = [Target("", self.schema)]
        self.tally = Tally()
        self._kinds = columns.kinds()
        self._predicted = {target.field: target for target in columns.targets}
        self._words: dict[str, list[pa.Array]] = {}  # of the columns of a field, by their codes
        for name, field in self.schema.fields.items():
            several = field.vocabularies if isinstance(field, Categories) else ()
            several = (field.classes or (),) if isinstance(field, Label) else several
            self._words[name] = [pa.array(words, pa.string()) for words in several]

    def __len__(self) -> int:
        return len(self.parts)

    def items(self, start: int) -> Iterator[Part]:
        """Yield the parts."""
        yield from map(self.parts.__getitem__, range(start, len(self)))

    def name(self, item: Part) -> str:
        """Return where a part begins."""
        return self.files[item.file].place(item.line)

    def encode(self, item: Part, draw: Draw | None = None) -> list[Block]:
        """Return the rows of a part."""
        file, kinds, fields = self.files[item.file], self._kinds, self.schema.fields
        pieces = [{name: self._empty(name, 0) for name in fields}]
        wrong: list[tuple[int, str]] = []
        for rows in self.files.read(item, list(kinds), kinds):
            table = _Table(rows.table, file.path)
            arrays = self._arrays(table)
            all_rows, left_out = np.arange(len(rows.table)), list(table.wrong)
            kept = np.setdiff1d(all_rows, left_out) if left_out else slice(None)
            pieces.append({name: array[kept] for name, array in arrays.items()})
            for what, flags in table.counted:
                self.tally.add(what, int(np.count_nonzero(flags[kept])))
            wrong += [*rows.bad, *((rows.line(row), why) for row, why in table.wrong.items())]
        columns = {name: _column([piece[name] for piece in pieces]) for name in fields}
        if draw is not None:
            order = draw(len(columns[next(iter(columns))]))
            columns = {name: FixedColumn(column.data[order]) for name, column in columns.items()}
        rejects = [SourceError(why, file.place(line)) for line, why in sorted(wrong)]
        return [Block(columns, rejects)]

    def _empty(self, name: str, num_rows: int) -> Matrix:
        field = self.schema.fields[name]
        return np.empty((num_rows, *(n or 0 for n in field.shape or ())), field.dtype)

    def _arrays(self, table: _Table) -> dict[str, Matrix]:
        """Return the values of every field; the table has the rows that cannot be packed, and why."""
        arrays: dict[str, Matrix] = {}
        for name, field in self.schema.fields.items():
            if isinstance(field, Features):
                arrays[name], arrays[MISSING] = self._features(table, field)
            elif isinstance(field, Categories):
                arrays[name] = self._categories(table, field)
            elif name in self._predicted:
                arrays[name] = self._target(table, self._predicted[name])
        return arrays

    def _features(self, table: _Table, features: Features) -> tuple[Matrix, Flags]:
        rows = np.empty((len(features.columns), len(table)), features.dtype)  # turned at once
        mask = np.zeros(rows.T.shape, bool)
        for i, (column, how) in enumerate(features.sources):
            what, mean, std = f"column {column!r}", features.mean[i], features.std[i]
            scale = (mean, std) if features.standardized else None
            fill = mean if features.missing == "mean" else None
            missing = table.store(rows[i], column, how, what, fill, scale)
            if missing.any():
                table.counted.append((_MISSING + column, missing))
                mask[:, i] = missing
                if features.missing == "error":
                    table.note(missing, f"{what} has no value; pass missing='nan' or 'mean'")
        return np.ascontiguousarray(rows.T), mask

    def _categories(self, table: _Table, categories: Categories) -> Matrix:
        out = np.empty((len(table), len(categories.columns)), categories.dtype)
        for i, column in enumerate(categories.columns):
            found = codes(table.array(column), self._words[CATEGORIES][i])
            if not (found > 0).all():
                table.counted.append((_MISSING + column, found < 0))
                table.counted.append((_UNKNOWN + column, found == 0))
                found = np.maximum(found, 0)
            out[:, i] = found
        return out

    def _target(self, table: _Table, target: TargetColumn) -> Matrix:
        what = f"target {target.column!r}"
        if target.how != "label":
            out = self._empty(target.field, len(table))
            missing = table.store(out, target.column, target.how, what)
            table.note(missing, f"{what} has no value")
            return out
        (classes,), array = self._words[target.field], table.array(target.column)
        labels = codes(array, classes)
        few = f"is none of its {len(classes)} classes"
        table.note(labels < 0, f"{what} has no value")
        table.note(labels == 0, lambda row: f"{what}: {shown(array, row)!r} {few}")
        return labels - 1


class _Table:
    """The columns of some rows, with what is found of them while they are converted."""

    def __init__(self, table: pa.Table, path: Location) -> None:
        self._table, self._path = table, path
        self.wrong: dict[int, str] = {}  # rows that cannot be packed, and why
        self.counted: list[tuple[str, Flags]] = []  # rows that are counted, and as what

    def __len__(self) -> int:
        return len(self._table)

    def array(self, column: str) -> pa.Array:
        """Return a column; SourceError if its values have no place in a row."""
        array = plain(self._table[column])
        if kind_of(array.type) == "other":
            raise SourceError(f"column {column!r}: {why_other(array.type)}", self._path)
        return array

    def note(self, flags: Flags, why: str | Callable[[int], str]) -> None:
        """Note where rows cannot be packed; of each the first reason is kept."""
        for row in np.flatnonzero(flags).tolist() if flags.any() else ():
            self.wrong.setdefault(row, why if isinstance(why, str) else why(row))

    def store(
        self,
        out: Matrix,
        column: str,
        how: str,
        what: str,
        fill: float | None = None,
        scale: tuple[float, float] | None = None,
    ) -> Flags:
        """Store a column of numbers, of dates the days; return where there is no value.

        A row is noted whose value is none of the kind, infinite, or larger than the dtype holds.

        Args:
            out: Where to; NaN stands for no value, unless ``fill`` does.
            column: Its name.
            how: What becomes of it.
            what: What to call it in messages.
            fill: What is stored where there is no value.
            scale: Mean and deviation to standardize it by.
        """
        array = self.array(column)
        values, bad = numbers(array, READ_AS[how])
        values = values / DAY_US if how == "days" else values
        missing = np.isnan(values)
        if missing.any():
            missing &= ~bad
            values = values if fill is None else np.where(missing, fill, values)
        stored = values
        with np.errstate(over="ignore"):
            if scale is not None:
                mean, std = scale
                stored = (stored - mean) / (std or 1.0)
            out[:] = stored
        if not np.isfinite(out).all():
            limit = f"is infinite, or more than dtype={out.dtype} holds"
            self.note(bad, lambda row: f"{what}: {shown(array, row)!r} is no {READ_AS[how]}")
            self.note(np.isinf(out), lambda row: f"{what} {limit} ({float(values[row])!r})")
        return missing


def _column(arrays: Sequence[Matrix]) -> FixedColumn:
    """Return the rows of arrays, one after the other, as bytes."""
    joined = arrays[-1] if len(arrays) == 2 else np.concatenate(arrays)
    nbytes = joined.itemsize * math.prod(joined.shape[1:])  # said in numbers: there may be no rows
    rows = np.ascontiguousarray(joined).reshape(-1).view(np.uint8)
    return FixedColumn(rows.reshape(len(joined), nbytes))
