"""The plan of ``packdata tables``, what it would pack; and packing it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from loaders.data.manifest import read_manifest
from loaders.errors import SchemaError, SourceError
from loaders.remote.url import place_of
from packdata.delimited import CsvOptions, CsvRows
from packdata.describe import counted, passed_over
from packdata.options import changed
from packdata.packing.firstpass import FirstPass
from packdata.packing.progress import Progress, Quiet
from packdata.packing.settings import (
    PackSettings,
    check_on_error,
    check_options,
    check_workers,
    take,
)
from packdata.packing.shards import TABLE_SHARD_BYTES, Format
from packdata.plan import pack_plan
from packdata.reading import LocalFile
from packdata.rows import Part
from packdata.sources.base import files_identity
from packdata.sources.opening import joined_splits
from packdata.tables.chosen import TARGETS, ColumnPlan
from packdata.tables.columns import (
    OPTIONS,
    check_names,
    missing_values_of,
    plan_columns,
    plan_like,
)
from packdata.tables.files import TableFiles, is_csv, list_tables
from packdata.tables.options import TableOptions
from packdata.tables.recipe import COUNTED, TablesRecipe
from packdata.tables.scan import Scanner
from packdata.tables.typed import is_frame, open_frame
from packdata.tables.values import in_words
from packdata.types import KINDS, kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from packdata.packing.settings import OnError
    from packdata.packing.summary import Summary
    from packdata.tables.scan import Scan


@dataclass(frozen=True, slots=True)
class TablesPlan:
    """The plan of some table files: a recipe that packs them, and what was learned of them."""

    recipe: TablesRecipe
    format: Format  # of the shards
    sources: Sequence[Path | str]  # as they were given
    ignored: Mapping[str, int]  # what else folders hold: files by suffix, and folders
    first_pass: FirstPass

    @property
    def splits(self) -> list[tuple[str, TablesRecipe]]:
        """The recipe, which fills the destination itself."""
        return [("", self.recipe)]

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

    def __str__(self) -> str:
        rows = self.recipe.num_samples
        count = "rows" if rows is None else counted(rows, "row")
        files = counted(len(self.recipe.files), "file")
        return "\n".join(
            [f"{count} in {files}:", *self.recipe.columns.lines(), *self._source_notes()]
        )

    def notes(self, packed: Summary | None = None) -> list[str]:
        """Say what is worth knowing of the columns, and once they are packed of their values."""
        counts = {} if packed is None else packed.counts
        notes = []
        for prefix, words in COUNTED.items():
            found = [
                f"{key.removeprefix(prefix)} ({count:,})"
                for key, count in sorted(counts.items())
                if count and key.startswith(prefix)
            ]
            if found:
                notes.append(f"{words}: {in_words(found)}")
        return [*self.recipe.columns.notes, *self._source_notes(), *notes]

    def _source_notes(self) -> list[str]:
        return [*passed_over(self.ignored), *joined_splits(self.recipe.files.paths)]

    def amount(self, packed: Summary) -> str:
        """Leave it to the number of samples."""
        return ""

    def is_unchanged(self) -> bool:
        """Tell whether the files are still as they were read first."""
        try:
            if self.recipe.files.digest:
                return True
            now = files_identity("table", list_tables(self.sources)[0])
            return bool(now == self.recipe.identity["source"])
        except SourceError:
            return False


def _identity(files: TableFiles) -> dict[str, Any]:
    if digest := files.digest:
        return {"kind": "frame", "digest": digest}
    return files_identity("table", files.files)


def _listed(
    sources: Any, csv: CsvOptions, options: TableOptions
) -> tuple[TableFiles, tuple[Path | str, ...], Counter[str]]:
    """Return the files of sources, the sources without secrets, and the suffixes of files that are no tables."""
    asked = (*options.features, *options.categorical, *options.numeric, *options.target)
    wanted = tuple(dict.fromkeys(asked)) if options.features else ()
    how = (csv, options.missing_values, wanted, options.drop)
    if is_frame(sources):
        frame, digest = open_frame(sources)
        return (
            TableFiles([LocalFile(str(frame.path), str(frame.path))], *how, frame, digest),
            (),
            Counter(),
        )
    listed = [sources] if isinstance(sources, str | Path) else [*sources]
    found, ignored = list_tables(listed)
    return TableFiles(found, *how), tuple(map(place_of, listed)), ignored


def plan_tables(
    sources: Sequence[Path | str] | Path | str | Any,
    *,
    format: Format = "parquet",
    like: Path | str | None = None,
    workers: int | None = None,
    on_error: OnError = "fail",
    progress: Progress | None = None,
    first_pass: FirstPass | None = None,
    **options: Any,
) -> TablesPlan:
    """Read tables and say what would become of them.

    Args:
        sources: Files, patterns, folders, or one of these; or one table in memory: a DataFrame, or a table of Arrow.
        format: Of the shards.
        like: A packed table whose columns, categories and statistics to take.
        workers: Threads.
        on_error: ``"fail"`` or ``"skip"``.
        progress: Is told of every row.
        first_pass: Where what is learned of the rows comes from, where that is another plan.
        options: Those of ``TableOptions`` and ``CsvOptions``.

    Raises:
        SourceError: A file cannot be read, columns do not fit the options, or a row cannot be packed, and
            ``on_error`` is ``"fail"``.
        SchemaError: The options contradict each other.
    """
    check_on_error(on_error)
    check_options(options, TableOptions, CsvOptions, PackSettings, own=("format", "like"))
    csv = take(CsvOptions, options)
    chosen = TableOptions(**options)
    if like is not None:
        _check_like(chosen)
        missing_values = chosen.missing_values or missing_values_of(like)
        chosen = replace(chosen, missing_values=missing_values)
    files, given, ignored = _listed(sources, csv, chosen)
    if options.get("missing_values") and not any(map(is_csv, files.paths)):
        hint = "replace these texts before, such as by frame.replace('?', None)"
        raise SchemaError(f"missing_values is for CSV files, and there is none: {hint}")
    before = _identity(files)
    first_pass = FirstPass() if first_pass is None else first_pass
    if like is None:
        scanner = _scanner(files, chosen, workers, on_error, progress)
        found = first_pass.get(_ROWS, lambda: _learned(scanner))
        parts, rows = [Part(*numbers) for numbers in found["parts"]], found["rows"]
        plan = ColumnPlan.from_json(found)
    else:
        plan = plan_like(like, files.columns, chosen.drop, files.paths[files.first or 0])
        rows = None
        parts = [part for number in range(len(files)) for part in files[number].parts(number)]
    same = None if like is None else read_manifest(like).fingerprint
    asked = {OPTIONS: changed(chosen), **changed(csv), "like": same}
    identity = {"command": "tables", "source": before, **asked}
    first_pass.check(identity)
    source = {"files": [path.name for path in files.paths[:100]], "num_files": len(files)}
    targets = plan.targets_to_json()
    provenance = {"command": "tables", "source": source, **asked, TARGETS: targets}
    recipe = TablesRecipe(files, parts, plan, rows, identity, provenance)
    return TablesPlan(recipe, format, given, dict(ignored), first_pass)


_ROWS = "rows"  # in a plan


def _scanner(
    files: TableFiles,
    options: TableOptions,
    workers: int | None,
    on_error: OnError,
    progress: Progress | None,
) -> Scanner:
    """Return what reads all rows once; files that are here are opened and compared before."""
    numbers = range(len(files))
    if files.first is not None and not {*options.named} <= {*files.names(files.first)}:
        known = [name for number in numbers for name in files.names(number)]
        check_names(options.named, list(dict.fromkeys(known)), files.paths[0])
    if files.columns == []:
        raise SchemaError("no column is left to pack")
    for number in numbers:  # objects are opened and checked when they have come
        if isinstance(files.files[number], LocalFile):
            _ = files[number]
    progress = Quiet() if progress is None else progress
    return Scanner(files, options, check_workers(workers), on_error, progress)


def _learned(scanner: Scanner) -> dict[str, Any]:
    """Return what all rows say, as JSON types: for this packing, or the parts of one."""
    found = scanner.scan()
    plan = plan_columns(found, scanner.options, scanner.files.paths[0])
    plan = replace(plan, notes=(*_rounded(plan, found), *_header_notes(scanner, found)))
    parts = [*map(list, found.parts)]
    return {"rows": found.num_rows + found.bad, **plan.to_json(), "parts": parts}


def _rounded(plan: ColumnPlan, scan: Scan) -> Iterator[str]:
    """Say which whole numbers are rounded by the dtype in which they are stored."""
    features, fields = plan.features, plan.schema.fields
    sources = [(features.dtype, *source) for source in features.sources] if features else []
    targets = [(fields[t.field].dtype, t.column, t.how) for t in plan.targets]
    for dtype, name, how in (*sources, *targets):
        if how != "number" or not scan.columns[name].is_whole:
            continue
        moments, exact = scan.columns[name].moments, 2.0 ** (np.finfo(dtype).nmant + 1)
        if max(-moments.least, moments.most) > exact:
            yield f"{dtype} rounds values of {name}; see dtype="


def _header_notes(scanner: Scanner, scan: Scan) -> Iterator[str]:
    """Say that the first row of a CSV file looks like values: by its numbers, or by a text that is one of its column.

    Years are names in many tables, ``0.1`` is none.
    """
    files = scanner.files
    file = None if files.first is None else files[files.first]
    names = (files.columns or []) if isinstance(file, CsvRows) and file.header else []
    kinds = [KINDS[code] for code in kinds_of(pa.array(names, pa.string()))]
    texts = {name: {*map(str.strip, column.words)} for name, column in scan.columns.items()}
    values = [name for name in names if name.strip() in texts.get(name, ())]
    looks = [kind != "text" or name in values for name, kind in zip(names, kinds, strict=True)]
    is_odd = any(
        kind == "code" or (kind == "number" and not name.strip().isdigit())
        for name, kind in zip(names, kinds, strict=True)
    )
    if names and (all(looks) or is_odd or (values and 2 * sum(looks) >= len(looks))):
        few = in_words(names, 4)
        yield f"the header looks like values ({few}): header=False if it is the first row, names= gives names"


def _check_like(options: TableOptions) -> None:
    given = [name for name in changed(options) if name not in ("drop", "missing_values")]
    if given:
        raise SchemaError(f"{', '.join(given)}: the dataset of like= sets these options")


def pack_tables(
    sources: Sequence[Path | str] | Path | str | Any,
    dst: Path | str,
    *,
    format: Format = "parquet",
    **options: Any,
) -> Summary:
    """Pack tables as ``packdata tables`` does.

    Args:
        sources: Files (.csv, .tsv, .jsonl, .parquet, .arrow, .feather), patterns, folders; or a DataFrame or table of
            Arrow, of which the columns are taken, and no index.
        dst: A folder that is new or empty.
        format: ``"parquet"`` or ``"lmdb"``.
        options: ``like``; ``plan`` (what ``--dry-run --json`` printed), so that parts need not read all rows first;
            those of ``TableOptions`` and ``CsvOptions``; ``shard_bytes``, ``workers``, ``on_error``, ``overwrite``,
            ``part`` and ``progress`` (``packdata.packing.settings.PackSettings``).

    Raises:
        SourceError: A file, row or column cannot be packed.
        SchemaError: The options contradict each other.
        PackError: The target cannot be written, is in use, or holds something else.
    """
    settings = take(PackSettings, options)
    settings.setdefault("shard_bytes", TABLE_SHARD_BYTES)
    workers, on_error = settings.get("workers"), settings.get("on_error", "fail")
    first_pass = FirstPass(options.pop("plan", None))
    plan = plan_tables(
        sources,
        format=format,
        workers=workers,
        on_error=on_error,
        first_pass=first_pass,
        **options,
    )
    return pack_plan(plan, dst, **settings)


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
    recipe = plan_tables(frame, target=target, **options).recipe
    blocks = [block for part in recipe.items(0) for block in recipe.encode(part)]
    for block in blocks:
        if block.rejects and options.get("on_error", "fail") == "fail":
            raise block.rejects[0][1]
    arrays: dict[str, Any] = {"schema": dict(recipe.schema.fields)}
    for name, kind in recipe.schema.fields.items():
        rows = np.concatenate([block.columns[name].data for block in blocks])  # type: ignore[union-attr]
        arrays[name] = rows.view(kind.dtype).reshape(len(rows), *kind.shape or ())
    return arrays
