"""The columns of another packing: ``--like`` gives test data the dictionaries and statistics of the training data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loaders.data.manifest import read_manifest
from loaders.errors import SourceError
from loaders.schema import Array, Categories, Features, Label
from packdata.tables.chosen import CATEGORIES, FEATURES, MISSING, ColumnPlan, TargetColumn
from packdata.tables.columns import field_name

if TYPE_CHECKING:
    from pathlib import Path

TARGETS, OPTIONS = (
    "targets",
    "options",
)  # in the provenance: field, column and how; what was asked for


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
        hint = "--like takes what 'packdata tables' made"
        raise SourceError("it is not a packed table", like, hint)
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
        hint = f"--drop {','.join(targets)} packs without it" if targets == absent else ""
        what = f"it has no column {absent[0]!r}, which {like} (--like) was packed with"
        raise SourceError(what, path or "the table", hint)
