"""The plan of ``packdata tables``, what it would pack; and packing it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from loaders.data.manifest import read_manifest
from loaders.errors import SchemaError
from packdata.delimited import CsvOptions, CsvRows
from packdata.describe import counted, few, passed_over
from packdata.options import changed, take, takes
from packdata.packing.firstpass import FirstPass
from packdata.packing.progress import Progress, Quiet
from packdata.packing.settings import PackSettings
from packdata.packing.shards import TABLE_SHARD_BYTES
from packdata.plan import SourcePlan, pack_plan
from packdata.reading import LocalFile
from packdata.rows import Part
from packdata.sources.listed import files_identity, listed_sources
from packdata.tables.columns import (
    OPTIONS,
    TARGETS,
    Columns,
    packings,
    plan_columns,
    plan_like,
)
from packdata.tables.files import TableFiles, as_table, is_csv, is_frame, list_tables
from packdata.tables.options import TableOptions
from packdata.tables.recipe import COUNTED, TablesRecipe
from packdata.tables.scan import scan_files
from packdata.types import KINDS, kinds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loaders.remote.url import Location
    from packdata.packing.summary import Summary
    from packdata.rows import RowFile
    from packdata.tables.scan import Scan


@dataclass(frozen=True, repr=False)
class TablesPlan(SourcePlan):
    """The plan of some table files."""

    recipe: TablesRecipe
    about: Sequence[str]  # what is worth knowing of the files
    first_pass: FirstPass

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON types."""
        return {
            "files": [str(path) for path in self.recipe.files.paths],
            "parts": len(self.recipe),
            "rows": self.recipe.num_samples,
            "schema": self.recipe.schema.to_json(),
            "notes": self.notes(),
            **self.first_pass.to_json(self.recipe.identity),
        }

    def heading(self, split: str, recipe: TablesRecipe) -> str:
        """Count the rows, where these were read, and the files."""
        rows = "rows" if recipe.num_samples is None else counted(recipe.num_samples, "row")
        return f"{rows} in {counted(len(recipe.files), 'file')}"

    def notes(self, packed: Summary | None = None) -> list[str]:
        """Say what is worth knowing of the columns, and once they are packed of their values."""
        notes, counts = [*self.about], {} if packed is None else packed.counts
        for prefix, words in COUNTED.items():
            names = [key for key in sorted(counts) if counts[key] and key.startswith(prefix)]
            found = [f"{name.removeprefix(prefix)} ({counts[name]:,})" for name in names]
            notes += [f"{words}: {few(found, 8)}"] if found else []
        return notes


def plan_tables(
    sources: Sequence[Location | str] | Location | str | Any,
    *,
    like: Location | str | None = None,
    reading: Progress | None = None,
    plan: Location | str | None = None,
    **options: Any,
) -> TablesPlan:
    """Read tables and say what would become of them.

    Args:
        sources: Files, patterns, folders, or one of these; or one table in memory: a DataFrame, or a table of Arrow.
        like: A packed table whose columns, categories and statistics to take.
        reading: Counts the rows that are read for the plan.
        plan: What ``--dry-run --json`` printed, to take from there what is learned of the rows.
        options: Those of ``TableOptions``, ``CsvOptions`` and ``PackSettings``.

    Raises:
        SourceError: A file cannot be read, columns do not fit the options, or a row cannot be packed, and
            ``on_error`` is ``"fail"``.
        SchemaError: The options contradict each other.
    """
    first_pass = FirstPass(plan)
    settings = take(PackSettings, options).or_usual("parquet", TABLE_SHARD_BYTES)
    csv = take(CsvOptions, options)
    chosen = TableOptions(**options)
    of_csv = [*changed(csv), *(["missing_values"] if chosen.missing_values else [])]
    known, same = None, None
    if like is not None:
        known = read_manifest(like)
        chosen, same = _like_options(chosen, known.provenance), known.fingerprint
    files, given, about = _opened(sources, csv, chosen)
    if of_csv and not any(map(is_csv, files.paths)):
        raise SchemaError(f"{', '.join(of_csv)}: there is no CSV file among the sources")
    asked = {OPTIONS: changed(chosen), **changed(csv), "like": same}
    identity = {"command": "tables", "source": files.identity(), **asked}
    if known is None or like is None:
        threads, on_error = settings.num_workers, settings.on_error
        scan = partial(scan_files, files, chosen, threads, on_error, reading or Quiet())
        learned = first_pass.get("rows", lambda: _learned(files, chosen, scan))
        parts, rows = [Part(*numbers) for numbers in learned["parts"]], learned["rows"]
        columns, about = Columns.from_json(learned), learned["notes"] + about
    else:
        columns, rows = plan_like(known, like, files, chosen.drop), None
        parts = [*files.parts()]
    first_pass.check(identity)
    source = {"files": [path.name for path in files.paths[:100]], "num_files": len(files)}
    provenance = {"command": "tables", "source": source, **asked}
    provenance[TARGETS] = columns.to_json()[TARGETS]
    recipe = TablesRecipe(files, parts, columns, rows, identity, provenance)
    listed = identity["source"]
    again = partial(_identity_of, given) if given else partial(dict, listed)
    return TablesPlan(given, [("", recipe)], settings, listed, again, recipe, about, first_pass)


def _identity_of(sources: Sequence[Location]) -> dict[str, Any]:
    return files_identity("table", list_tables(sources)[0])


def _opened(
    sources: Any, csv: CsvOptions, options: TableOptions
) -> tuple[TableFiles, list[Location], list[str]]:
    """Return the files of sources, the sources as they were given, and what is worth knowing of the files."""
    if is_frame(sources):
        name = type(sources).__name__
        return TableFiles([LocalFile(name, name)], csv, options, as_table(sources)), [], []
    given = listed_sources(sources)
    found, ignored = list_tables(given)
    return TableFiles(found, csv, options), given, passed_over(ignored)


def _like_options(options: TableOptions, provenance: Any) -> TableOptions:
    """Return the options for a packing like another: missing values are as they were there."""
    if given := [name for name in changed(options) if name not in ("drop", "missing_values")]:
        raise SchemaError(f"{', '.join(given)}: the dataset of like= sets these options")
    known = (packing.get(OPTIONS) or {} for packing in packings(provenance))
    words = tuple(str(word) for each in known for word in each.get("missing_values", ()))
    return replace(options, missing_values=options.missing_values or words)


def _learned(
    files: TableFiles, options: TableOptions, scan_all: Callable[[], Scan]
) -> dict[str, Any]:
    """Return what all rows say, as JSON types: for this packing, or the parts of one."""
    files.check_named()
    if files.columns == []:
        raise SchemaError("no column is left to pack")
    for number, file in enumerate(files.files):
        # Objects are opened and checked when they have come.
        if isinstance(file, LocalFile):
            _ = files[number]
    scan = scan_all()
    return {
        "rows": scan.num_rows + scan.bad,
        **plan_columns(scan, files, options).to_json(),
        "notes": _header_notes(files[0], scan),
        "parts": [*map(list, scan.parts)],
    }


def _header_notes(file: RowFile, scan: Scan) -> list[str]:
    """Say that the first row of a CSV file looks like values.

    All its names do, or one is a number that is no year, or a text of its own column.
    """
    if not isinstance(file, CsvRows) or not file.header:
        return []
    names = file.columns
    kinds = [KINDS[code] for code in kinds_of(pa.array(names, pa.string()))]
    texts = {name: {*map(str.strip, column.words)} for name, column in scan.columns.items()}
    is_odd = "text" not in kinds or any(
        kind == "code"
        or (kind == "number" and not name.strip().isdigit())
        or name.strip() in texts.get(name, ())
        for name, kind in zip(names, kinds, strict=True)
    )
    hint = "header=False if it is the first row, names= gives names"
    return [f"the header looks like values ({few(names, 4)}): {hint}"] if is_odd else []


@takes(TableOptions, CsvOptions, PackSettings)
def pack_tables(
    sources: Sequence[Location | str] | Location | str | Any,
    dst: Location | str,
    *,
    like: Location | str | None = None,
    plan: Location | str | None = None,
    **options: Any,
) -> Summary:
    """Pack tables as ``packdata tables`` does.

    Args:
        sources: Files (.csv, .tsv, .jsonl, .parquet, .arrow, .feather), patterns, folders; or a DataFrame or table of
            Arrow, of which the columns are taken, and no index.
        dst: A folder that is new or empty.
        like: A packed table whose columns, categories and statistics to take.
        plan: What ``--dry-run --json`` printed, so that parts need not read all rows first.
        options: Those of ``TableOptions``, ``CsvOptions`` and ``PackSettings`` (``packdata.packing.settings``). By
            default the format is Parquet, and a shard has 32 MiB.

    Raises:
        SourceError: A file, row or column cannot be packed.
        SchemaError: The options contradict each other.
        PackError: The target cannot be written, is in use, or holds something else.
    """
    return pack_plan(plan_tables(sources, like=like, plan=plan, **options), dst)


def arrays_of(frame: Any, target: str | Sequence[str] = (), **options: Any) -> dict[str, Any]:
    """Return what ``packdata tables`` would pack of a table in memory, as ``RAMDataset.from_arrays`` takes it.

    Args:
        frame: A DataFrame of pandas or polars, or a table of Arrow; an index is no column.
        target: The column to predict, or several: texts as classes, numbers as they are.
        **options: What becomes of the columns, as ``pack_tables`` takes them: features, drop, categorical, numeric,
            dates, missing, missing_mask, dtype, standardize, like; on_error.

    Returns:
        ``schema``, the fields by name, and for each field an array with a row per sample.

    Raises:
        SourceError: Columns or rows cannot be packed; the message has options that would pass.

    Example:
        >>> import pyarrow as pa
        >>> arrays_of(pa.table({"x": [1.5, 2.0]}))["features"].tolist()
        [[1.5], [2.0]]
    """
    plan = plan_tables(frame, target=target, **options)
    recipe = plan.recipe
    blocks = [block for part in recipe.items(0) for block in recipe.encode(part)]
    errors = [error for block in blocks for error in block.rejects]
    if errors and plan.settings.on_error == "fail":
        raise errors[0]
    arrays: dict[str, Any] = {"schema": dict(recipe.schema.fields)}
    for name, kind in recipe.schema.fields.items():
        rows = np.concatenate([block.columns[name].data for block in blocks])  # type: ignore[union-attr]
        arrays[name] = rows.view(kind.dtype).reshape(len(rows), *kind.shape or ())
    return arrays
