"""From what the first pass found, or another packing (``like=``), to the schema, and what becomes of every column."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.data.manifest import read_manifest
from loaders.errors import SchemaError, SourceError
from loaders.schema import Array, Categories, Features, Field, Label, Schema
from packdata.moments import Moments
from packdata.tables.chosen import (
    CATEGORIES,
    FEATURES,
    MISSING,
    TARGETS,
    ColumnPlan,
    TargetColumn,
)
from packdata.tables.values import in_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from packdata.tables.options import TableOptions
    from packdata.tables.scan import ColumnScan, Scan

# Equal numbers, 2 to 2,000,000 of them, were seen to deviate by up to 4.6 of these epsilons.
_NOISE = 8 * float(np.finfo(float).eps)
_NAMES = {  # of the kinds of values, in messages
    "number": "numbers",
    "code": "numbers that begin with zeros",
    "flag": "true and false",
    "date": "dates",
    "zoned": "dates with a time zone",
    "text": "text",
}
OPTIONS = "options"  # in the provenance: what was asked for


def check_names(names: Sequence[str], columns: Sequence[str], where: Path | str) -> None:
    """Raise SourceError, which names them all, if columns that are named are not there."""
    known = {*columns}
    if absent := [name for name in names if name not in known]:
        what = f"missing column {in_words([*map(repr, absent)])}"
        raise SourceError(what, where, f"The table has {in_words([*map(repr, columns)], 20)}")


def plan_columns(scan: Scan, options: TableOptions, source: Path | str) -> ColumnPlan:
    """Decide what becomes of the columns of a scanned table, which messages call ``source``.

    Raises:
        SourceError: Columns are not of one kind (it names all of these), have no values, or do not fit the options.
        SchemaError: Nothing is left to pack.
    """
    if not scan.num_rows:
        raise SourceError("the table has no rows", source)
    named = [name for name in options.named if name not in options.drop]
    check_names(named, list(scan.columns), source)
    roles = _roles(scan, options, source)
    learned = [name for name in roles if name not in options.target]
    numbers = [name for name in learned if roles[name] != "label"]
    texts = [name for name in learned if roles[name] == "label"]
    fields: dict[str, Field] = {}
    if numbers:
        fields[FEATURES] = _features(numbers, roles, scan, options)
        if options.missing_mask:
            fields[MISSING] = Array(dtype="bool", dims=(len(numbers),))
    if texts:
        fields[CATEGORIES] = _categories(texts, scan)
    dtype = "float64" if numbers and options.dtype == "float64" else "float32"
    targets = []
    for column in options.target:
        name, how = field_name(column), roles[column]
        while name in fields or name in (FEATURES, CATEGORIES, MISSING):
            name += "_"
        targets.append(TargetColumn(name, column, how))
        classes = scan.classes.get(column) or _sorted_classes(scan.columns[column].known_texts())
        fields[name] = Label(classes=classes) if how == "label" else Array(dtype=dtype)
    if not fields:
        raise SchemaError("no column is left to pack")
    return ColumnPlan(Schema(fields), tuple(targets))


def _roles(scan: Scan, options: TableOptions, source: Path | str) -> dict[str, str]:
    """Return how each column that is packed is: ``number``, ``flag``, ``days`` or ``label``, of categories too."""
    if options.features:
        given = (*options.features, *options.categorical, *options.numeric, *options.target)
        names = list(dict.fromkeys(given))
    else:
        names = [name for name in scan.columns if name not in {*options.drop}]
    roles: dict[str, str] = {}
    problems: list[SourceError] = []
    for name in names:
        try:
            roles[name] = _role(name, scan.columns[name], options, source)
        except SourceError as error:
            problems.append(error)
    if len(problems) > 1:
        what = f"{len(problems)} columns cannot be packed as they are:"
        raise SourceError("\n".join([what, *(f"  {problem}" for problem in problems)]), source)
    if problems:
        raise problems[0]
    return roles


def _role(name: str, column: ColumnScan, options: TableOptions, source: Path | str) -> str:
    """Return how a column is; SourceError if its values are of no one kind."""
    drop = f"drop={[name]}" if name not in options.target else "pack without it"
    groups, first, what = {*column.groups}, column.first, f"column {name!r}"
    if column.other:
        raise SourceError(f"{what}: {column.other}", source, f"Leave it out: {drop}")
    if not groups and (bad := first.get("bad")) is not None:
        what += f" holds no {'number' if name in options.numeric else 'date'} ({bad.shown!r})"
        raise SourceError(what, bad.where, f"Leave it out: {drop}")
    if not groups:
        word = next(iter(column.words), None)
        hint = "" if word is None else f"; categorical={[name]} takes {word!r} as text"
        raise SourceError(f"{what} has no value in any row", source, f"Leave it out: {drop}{hint}")
    if name in options.categorical or name in options.numeric:
        return "label" if name in options.categorical else "number"
    # With zeros in front, all its numbers are names.
    if groups == {"flag", "text"} or "code" in groups <= {"code", "number", "flag", "text"}:
        return "label"
    if len(groups) > 1:
        raise _mixed(name, column)
    (group,) = groups
    if group in ("date", "zoned"):
        if options.dates is None:
            hint = f"dates='days' makes numbers of them, {drop} leaves them out"
            raise SourceError(
                f"{what} holds dates ({first[group].shown!r})", first[group].where, hint
            )
        return "days"
    return "label" if group == "text" else str(group)


def _mixed(name: str, column: ColumnScan) -> SourceError:
    counts = column.groups
    most, odd, *_ = sorted(counts, key=lambda g: (-counts[g], g == "text", g))
    first, usual = column.first[odd], column.first[most]
    what = f"column {name!r} has {_NAMES[odd]} ({first.shown!r}) among {_NAMES[most]}"
    hint = f"categorical={[name]} takes all as categories, drop={[name]} leaves it out"
    if "number" in counts:
        hint += f", numeric={[name]} with on_error='skip' leaves such rows out"
    return SourceError(f"{what} ({usual.shown!r}: {usual.where})", first.where, hint)


def _sorted_classes(names: Mapping[str, int]) -> tuple[str, ...]:
    """Sort names; whole numbers by their value."""
    if all(re.fullmatch(r"-?\d+", name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def field_name(column: str) -> str:
    """Return a column's name as a field may have it.

    Example:
        >>> field_name("price"), field_name("is fraud?"), field_name("class"), field_name("2nd")
        ('price', 'is_fraud', 'class_', 'column_2nd')
    """
    name = re.sub(r"_+", "_", re.sub(r"\W", "_", column)).strip("_") or "target"
    name = name if name.isidentifier() else f"column_{name}"
    taken = keyword.iskeyword(name) or name in ("count", "index", "valid", "sample_id", "key")
    return f"{name}_" if taken else name


def _features(
    names: Sequence[str], roles: Mapping[str, str], scan: Scan, options: TableOptions
) -> Features:
    """Return the field of numbers."""
    columns = [scan.columns[name] for name in names]
    kept = [_moments(column, roles[name]) for name, column in zip(names, columns, strict=True)]
    pairs = [*zip(columns, kept, strict=True)]
    return Features(
        dtype=options.dtype,
        columns=tuple(names),
        sources=tuple((name, roles[name]) for name in names),
        mean=tuple(m.least if m.least == m.most else m.mean for m in kept),
        std=tuple(_deviation(m, is_whole=column.is_whole) for column, m in pairs),
        least=tuple(m.least for m in kept),
        most=tuple(m.most for m in kept),
        missing=options.missing,
        standardized=options.standardize,
    )


def _moments(column: ColumnScan, how: str) -> Moments:
    if how != "flag":
        return column.moments if column.moments.count else Moments(least=0.0, most=0.0)
    moments = Moments()
    for text, count in column.known_texts().items():
        flag = float(text.strip().lower() == "true")
        moments.add(Moments(count, flag, 0.0, flag, flag))
    return moments


def _deviation(moments: Moments, *, is_whole: bool) -> float:
    """Return the deviation, 0 where it is no more than what adding numbers up makes of equal ones."""
    if moments.least == moments.most:
        return 0.0
    largest = max(abs(moments.least), abs(moments.most))
    is_exact = is_whole and largest <= 2.0**53
    return moments.std if is_exact or moments.std > _NOISE * largest else 0.0


def _categories(names: Sequence[str], scan: Scan) -> Categories:
    """Return the field of categories: of each column the texts by how often they occur, then by name."""
    counts = [scan.columns[name].known_texts() for name in names]
    vocabularies = tuple(tuple(sorted(each, key=lambda n: (-each[n], n))) for each in counts)
    largest = max(map(len, vocabularies))
    dtype = next(t for t in ("uint8", "uint16", "uint32") if largest <= np.iinfo(t).max)
    return Categories(dtype=dtype, columns=tuple(names), vocabularies=vocabularies)


# -- as another packing has them: test data get the dictionaries and statistics of the training data --


def plan_like(
    like: Path | str,
    columns: Sequence[str] | None,
    drop: Sequence[str],
    path: Path | str,
) -> ColumnPlan:
    """Return what a packed table made of columns, for files with these columns (None: rows name their own).

    Targets that are dropped may be absent; ``path`` is the first of the files, for messages.

    Raises:
        SourceError: It is no packed table, or a column is missing.
    """
    manifest = read_manifest(like)
    packed = ColumnPlan(manifest.schema, ())
    features, categories = packed.features, packed.categories
    if (features is None and categories is None) or (features and not features.sources):
        hint = "like= takes what 'packdata tables' made"
        raise SourceError("the dataset is not a packed table", like, hint)
    if features and not {how for _, how in features.sources} <= {"number", "flag", "days"}:
        hint = "Pack the training data again, with dates='days' or with columns of your own"
        raise SourceError("the dataset has years or other parts of dates", like, hint)
    found = (packing.get(TARGETS) or () for packing in _packings(manifest.provenance))
    known = {target["field"]: target for target in chain.from_iterable(found)}
    fields: dict[str, Field] = {}
    targets = []
    for name, field in manifest.schema.fields.items():
        if name not in (FEATURES, CATEGORIES, MISSING):
            column = next((each for each in columns or () if field_name(each) == name), name)
            told = known.get(name, {"column": column, "how": "number"})
            column, how = str(told["column"]), str(told["how"])
            if not isinstance(field, Label) and not (
                isinstance(field, Array) and field.dims == ()
            ):
                raise SourceError(f"its field {name!r} does not come from a table", like)
            if name in drop or column in drop:
                continue
            targets.append(
                TargetColumn(name, column, "label" if isinstance(field, Label) else how)
            )
        fields[name] = field
    plan = ColumnPlan(Schema(fields), tuple(targets))
    absent = [name for name in plan.kinds if columns is not None and name not in columns]
    lost = [target.column for target in targets if target.column in absent]
    if absent:
        what = f"the table has no column {absent[0]!r}, which {like} (like=) was packed with"
        raise SourceError(what, path, f"drop={lost} packs without it" if lost == absent else "")
    return plan


def _packings(provenance: Any) -> Iterator[Mapping[str, Any]]:
    """Find what is known of the packing, also below what was split, copied or merged since."""
    if isinstance(provenance, Mapping):
        if provenance.get("command") == "tables":
            yield provenance
        provenance = list(provenance.values())
    if isinstance(provenance, list):
        for each in provenance:
            yield from _packings(each)


def missing_values_of(like: Path | str) -> tuple[str, ...]:
    """Return the texts that stood for no value when a dataset was packed."""
    found = (packing.get(OPTIONS) or {} for packing in _packings(read_manifest(like).provenance))
    return tuple(str(word) for options in found for word in options.get("missing_values", ()))
