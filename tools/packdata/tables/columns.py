"""From what the first pass found, or another packing (``--like``), to the schema, and what becomes of every column."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.data.manifest import read_manifest
from loaders.errors import SourceError
from loaders.schema import Array, Categories, Features, Label
from packdata.moments import Moments
from packdata.tables.chosen import CATEGORIES, FEATURES, MISSING, ColumnPlan, TargetColumn
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
# In the provenance: field, column and how of each; what was asked for.
TARGETS, OPTIONS = "targets", "options"


def check_names(names: Sequence[str], columns: Sequence[str], where: Path | str) -> None:
    """Raise SourceError, which names them all, if columns that are named are not there."""
    known = {*columns}
    absent = [name for name in names if name not in known]
    if not absent:
        return
    what = f"missing column {in_words([repr(name) for name in absent])}"
    raise SourceError(what, where, f"The table has {in_words([*map(repr, columns)], 20)}")


def plan_columns(scan: Scan, options: TableOptions, source: Path | str) -> ColumnPlan:
    """Decide what becomes of the columns of a scanned table.

    Args:
        scan: What they hold.
        options: What was asked for.
        source: What to call the table.

    Raises:
        SourceError: Columns are not of one kind (it names all of these), have no values, or do not fit the options.
        SchemaError: Nothing is left to pack.
    """
    if not scan.num_rows:
        raise SourceError("the table has no rows", source)
    named = [name for name in options.named if name not in options.drop]
    check_names(named, list(scan.columns), source)
    roles: dict[str, str] = {}
    problems: list[SourceError] = []
    for name in _used(scan, options):
        try:
            roles[name] = _role(name, scan.columns[name], options, source)
        except SourceError as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        what = f"{len(problems)} columns cannot be packed as they are:"
        raise SourceError("\n".join([what, *(f"  {problem}" for problem in problems)]), source)
    learned = [name for name in roles if name not in options.target]
    numbers = [name for name in learned if roles[name] != "text"]
    features = _features(numbers, roles, scan, options) if numbers else None
    targets = tuple(_target(name, roles[name], scan) for name in options.target)
    taken = {FEATURES, CATEGORIES, MISSING}
    targets = tuple(replace(t, field=_free_name(t.field, taken)) for t in targets)
    texts = [name for name in learned if roles[name] == "text"]
    categories = _categories(texts, scan) if texts else None
    mask = options.missing_mask and features is not None
    return ColumnPlan(features, categories, targets, mask)


def _used(scan: Scan, options: TableOptions) -> list[str]:
    if options.features:
        more = [
            name for name in (*options.categorical, *options.numeric) if name not in options.target
        ]
        return list(dict.fromkeys([*options.features, *more, *options.target]))
    dropped = {*options.drop}
    return [name for name in scan.columns if name not in dropped]


def _role(name: str, column: ColumnScan, options: TableOptions, source: Path | str) -> str:
    """Return ``number``, ``flag``, ``date`` or ``text``; SourceError if the values are of no one kind."""
    drop = f"drop={[name]}" if name not in options.target else "pack without it"
    if column.other:
        raise SourceError(f"column {name!r}: {column.other}", source, f"Leave it out: {drop}")
    if not column.groups and (bad := column.first.get("bad")) is not None:
        what = f"column {name!r} holds no {'number' if name in options.numeric else 'date'}"
        hint = f"Leave it out: {drop}"
        raise SourceError(f"{what} ({bad.shown!r})", bad.where, hint)
    if not column.groups:
        hint = f"Leave it out: {drop}"
        if column.words:
            hint += f"; categorical={[name]} takes {next(iter(column.words))!r} as text"
        raise SourceError(f"column {name!r} has no value in any row", source, hint)
    if name in options.categorical or name in options.numeric:
        return "text" if name in options.categorical else "number"
    return _group(name, column, options)


def _group(name: str, column: ColumnScan, options: TableOptions) -> str:
    """Return of which one kind the values of a column are."""
    groups = set(column.groups)
    if "code" in groups and groups <= {"code", "number", "flag", "text"}:
        return "text"  # with zeros in front, all its numbers are names
    if groups == {"flag", "text"}:
        return "text"
    if len(groups) > 1:
        raise _mixed(name, column)
    (group,) = groups
    if group not in ("date", "zoned"):
        return str(group)
    if options.dates is None:
        first = column.first[group]
        hint = f"dates='days' makes numbers of them, drop={[name]} leaves them out"
        raise SourceError(f"column {name!r} holds dates ({first.shown!r})", first.where, hint)
    return "date"


def _mixed(name: str, column: ColumnScan) -> SourceError:
    counts = column.groups
    most, odd, *_ = sorted(counts, key=lambda g: (-counts[g], g == "text", g))
    first, usual = column.first[odd], column.first[most]
    what = f"column {name!r} has {_NAMES[odd]} ({first.shown!r}) among {_NAMES[most]}"
    hint = f"categorical={[name]} takes all as categories, drop={[name]} leaves it out"
    if "number" in counts:
        hint += f", numeric={[name]} with on_error='skip' leaves such rows out"
    return SourceError(f"{what} ({usual.shown!r}: {usual.where})", first.where, hint)


def _target(name: str, role: str, scan: Scan) -> TargetColumn:
    if role != "text":
        return TargetColumn(field_name(name), name, "days" if role == "date" else role)
    classes = scan.classes.get(name) or _sorted_classes(scan.columns[name].known_texts())
    return TargetColumn(field_name(name), name, "label", classes)


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


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _features(
    names: Sequence[str], roles: Mapping[str, str], scan: Scan, options: TableOptions
) -> Features:
    """Return the field of numbers."""
    hows = ["days" if roles[name] == "date" else roles[name] for name in names]
    kept = [_moments(scan.columns[name], how) for name, how in zip(names, hows, strict=True)]
    return Features(
        dtype=options.dtype,
        columns=tuple(names),
        sources=tuple(zip(names, hows, strict=True)),
        mean=tuple(m.least if m.least == m.most else m.mean for m in kept),
        std=tuple(
            _deviation(m, is_whole=how != "days" and scan.columns[name].is_whole)
            for m, name, how in zip(kept, names, hows, strict=True)
        ),
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
    vocabularies = tuple(_by_count(scan.columns[name].known_texts()) for name in names)
    largest = max(map(len, vocabularies))
    dtype = next(t for t in ("uint8", "uint16", "uint32") if largest <= np.iinfo(t).max)
    return Categories(dtype=dtype, columns=tuple(names), vocabularies=vocabularies)


def _by_count(counts: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))


# -- as another packing has them: test data get the dictionaries and statistics of the training data --


def plan_like(
    like: Path | str,
    columns: Sequence[str] | None,
    drop: Sequence[str],
    path: Path | str = "",
) -> ColumnPlan:
    """Return what another packing made of columns, for files with these columns.

    Args:
        like: Folder of a packed table.
        columns: Columns of the files; None where rows name their own.
        drop: Targets that the files do not have.
        path: The first of the files, for messages.

    Raises:
        SourceError: It is no packed table, or a column is missing.
    """
    manifest = read_manifest(like)
    fields = dict(manifest.schema.fields)
    features, categories = fields.pop(FEATURES, None), fields.pop(CATEGORIES, None)
    mask = fields.pop(MISSING, None) is not None
    is_table = features is not None or categories is not None
    if (
        not is_table
        or not isinstance(features, Features | None)
        or not isinstance(categories, Categories | None)
        or (features is not None and not features.sources)
    ):
        hint = "like= takes what 'packdata tables' made"
        raise SourceError("the dataset is not a packed table", like, hint)
    known = {target.field: target for target in _targets(manifest.provenance)}
    targets = []
    for name, field in fields.items():
        target = known.get(name) or TargetColumn(name, _column_of(name, columns), "number")
        if isinstance(field, Label):
            target = TargetColumn(name, target.column, "label", field.classes or ())
        elif not (isinstance(field, Array) and field.dims == ()):
            raise SourceError(f"its field {name!r} does not come from a table", like)
        if name not in drop and target.column not in drop:
            targets.append(target)
    plan = ColumnPlan(features, categories, tuple(targets), mask)
    if features and not {how for _, how in features.sources} <= {"number", "flag", "days"}:
        hint = "Pack the training data again, with dates='days' or with columns of your own"
        raise SourceError("the dataset has years or other parts of dates", like, hint)
    _check_columns(plan, columns, like, path)
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


def _targets(provenance: Any) -> Iterator[TargetColumn]:
    for packing in _packings(provenance):
        for each in packing.get(TARGETS) or ():
            yield TargetColumn(str(each["field"]), str(each["column"]), str(each["how"]))


def missing_values_of(like: Path | str) -> tuple[str, ...]:
    """Return the texts that stood for no value when a dataset was packed."""
    found = (packing.get(OPTIONS) or {} for packing in _packings(read_manifest(like).provenance))
    return tuple(str(word) for options in found for word in options.get("missing_values", ()))


def _column_of(field: str, columns: Sequence[str] | None) -> str:
    return next((name for name in columns or () if field_name(name) == field), field)


def _check_columns(
    plan: ColumnPlan, columns: Sequence[str] | None, like: Path | str, path: Path | str
) -> None:
    absent = [name for name in plan.kinds if columns is not None and name not in columns]
    targets = [target.column for target in plan.targets if target.column in absent]
    if absent:
        hint = f"drop={targets} packs without it" if targets == absent else ""
        what = f"the table has no column {absent[0]!r}, which {like} (like=) was packed with"
        raise SourceError(what, path or "the table", hint)
