"""What ``packdata tables`` is about to do, as something to look at, and then the doing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.errors import SchemaError, SourceError
from loaders.manifest import read_manifest
from packdata.describe import counted
from packdata.engine import check_on_error, check_workers
from packdata.plan import pack_plan
from packdata.progress import Progress, Quiet
from packdata.settings import PackSettings, take
from packdata.shards import TABLE_SHARD_BYTES, Format
from packdata.sources import joined_splits
from packdata.sources.base import files_identity
from packdata.tables.files import open_tables
from packdata.tables.like import TARGETS, plan_like
from packdata.tables.options import TableOptions
from packdata.tables.plan import TablePlan, check_names, plan_columns
from packdata.tables.recipe import TablesRecipe
from packdata.tables.scan import scan_tables
from packdata.tables.values import in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packdata.engine import Summary
    from packdata.settings import OnError
    from packdata.tables.parts import Kind, Part, TableFile


@dataclass(frozen=True, slots=True)
class TablesJob:
    """The recipe of some table files.

    Attributes:
        files: The files.
        plan: What becomes of their columns.
        recipe: What packs them.
        format: Of the shards.
        sources: Paths as they were given.
    """

    files: Sequence[TableFile]
    plan: TablePlan
    recipe: TablesRecipe
    format: Format = "parquet"
    sources: Sequence[Path | str] = ()

    @property
    def parts(self) -> list[tuple[str, TablesRecipe]]:
        """The recipe, which fills the destination itself."""
        return [("", self.recipe)]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON types."""
        return {
            "files": [str(file.path) for file in self.files],
            "parts": len(self.recipe),
            "rows": self.recipe.num_samples,
            "schema": self.plan.schema.to_json(),
            "notes": [*self.plan.notes, *self._joined_splits()],
        }

    def __str__(self) -> str:
        rows = self.recipe.num_samples
        count = "rows" if rows is None else counted(rows, "row")
        files = counted(len(self.files), "file")
        return "\n".join([f"{count} in {files}:", *self.plan.lines(), *self._joined_splits()])

    def notes(self, packed: Summary | None = None) -> list[str]:
        """Say what is worth knowing of the columns, and once they are packed of their values."""
        counts = sorted(self.recipe.unknown.items())
        unknown = [f"{name} ({count:,})" for name, count in counts if count]
        notes = [f"stored as 0, unknown to the vocabulary: {in_words(unknown)}"] if unknown else []
        return [*self.plan.notes, *self._joined_splits(), *notes]

    def _joined_splits(self) -> list[str]:
        return joined_splits([file.path for file in self.files])

    def amount(self, packed: Summary) -> str:
        """Leave it to the number of samples."""
        return ""

    def is_unchanged(self) -> bool:
        """Tell whether the files are still as they were read first."""
        try:
            return bool(_identity(self.files) == self.recipe.identity["source"])
        except SourceError:
            return False


def _identity(files: Sequence[TableFile]) -> dict[str, Any]:
    return files_identity("table", [file.path for file in files])


def plan_tables(
    sources: Sequence[Path | str],
    *,
    format: Format = "parquet",
    like: Path | str | None = None,
    delimiter: str | None = None,
    workers: int | None = None,
    on_error: OnError = "fail",
    progress: Progress | None = None,
    **options: Any,
) -> TablesJob:
    """Read tables once and say what would become of them; ``options`` are those of ``TableOptions``.

    Raises:
        SourceError: A file cannot be read, or a column does not fit what is asked of it.
        SchemaError: The options contradict each other.
    """
    check_on_error(on_error)
    chosen = TableOptions(**options)
    files = open_tables(sources, delimiter)
    before = _identity(files)
    if like is None:
        parts, plan, rows = _scanned(files, chosen, check_workers(workers), on_error, progress)
    else:
        _check_like(chosen)
        columns = _common_columns(files, None)
        named = next((file for file in files if file.columns is not None), files[0])
        plan = plan_like(like, columns, chosen.drop, named.path)
        _common_columns(files, list(plan.kinds))
        parts, rows = [part for i, file in enumerate(files) for part in file.parts(i)], None
    told = {"options": chosen.to_json(), "delimiter": delimiter}
    same = None if like is None else read_manifest(like).fingerprint
    identity = {"command": "tables", "source": before, **told, "like": same}
    provenance = {
        "command": "tables",
        "source": {"files": [file.path.name for file in files][:100], "num_files": len(files)},
        **told,
        "like": same,
        TARGETS: [{"field": t.field, "column": t.column, "how": t.how} for t in plan.targets],
    }
    recipe = TablesRecipe(files, parts, plan, rows, identity, provenance)
    return TablesJob(files, plan, recipe, format, tuple(sources))


def _scanned(
    files: Sequence[TableFile],
    options: TableOptions,
    workers: int,
    on_error: OnError,
    progress: Progress | None,
) -> tuple[list[Part], TablePlan, int]:
    asked = [*options.features, *options.categorical, *options.numeric, *options.target]
    wanted = list(dict.fromkeys(asked)) if options.features else None
    known = [name for file in files for name in file.columns or ()]
    if known:
        check_names(options.named, list(dict.fromkeys(known)), files[0].path)
    columns = _common_columns(files, wanted, options.drop)
    kinds: dict[str, Kind] = dict.fromkeys(options.categorical, "text")
    kinds |= dict.fromkeys(options.numeric, "number")
    progress = Quiet() if progress is None else progress
    try:
        progress.start(None, 0)
        scan = scan_tables(
            files,
            columns,
            kinds,
            options.parts_of_dates,
            drop=options.drop,
            workers=workers,
            on_error=on_error,
            progress=progress,
        )
    finally:
        progress.close()
    plan = plan_columns(scan, options, files[0].path, skips=on_error == "skip")
    return scan.parts, plan, scan.num_rows + scan.bad


def _common_columns(
    files: Sequence[TableFile], wanted: Sequence[str] | None, drop: Sequence[str] = ()
) -> list[str] | None:
    """Return the columns to read, which every file must have; None where rows name their own.

    Args:
        files: The files.
        wanted: The columns that matter; None for all but ``drop``.
        drop: Columns that may differ.
    """
    named = [file for file in files if file.columns is not None]
    if not named:
        return None if wanted is None else list(wanted)
    first = [name for name in named[0].columns or () if name not in drop]
    for file in named:
        mine = [name for name in file.columns or () if name not in drop]
        lacking = [name for name in wanted or first if name not in mine]
        more = [] if wanted is not None else [name for name in mine if name not in first]
        if lacking or more:
            found = [f"it lacks {in_words(lacking)}"] if lacking else []
            found += [f"it has {in_words(more)}, which {named[0].path.name} lacks"] if more else []
            hint = "--features names the columns to take, --drop what to leave out"
            raise SourceError(" and ".join(found), file.path, hint)
    return list(wanted) if wanted is not None else first


def _check_like(options: TableOptions) -> None:
    plain = TableOptions(drop=options.drop)
    given = [name for name, value in options.to_json().items() if value != plain.to_json()[name]]
    if given:
        verb = "follows" if len(given) == 1 else "follow"
        raise SchemaError(f"{', '.join(given)} {verb} from the dataset of --like")


def pack_tables(
    sources: Sequence[Path | str] | Path | str,
    dst: Path | str,
    *,
    format: Format = "parquet",
    **options: Any,
) -> Summary:
    """Pack tables as ``packdata tables`` does.

    Args:
        sources: Files (.csv, .tsv, .jsonl, .parquet, .arrow, .feather), patterns, folders.
        dst: A folder that is new or empty.
        format: ``"parquet"`` or ``"lmdb"``.
        options: ``like`` and ``delimiter``; those of ``TableOptions``; ``shard_bytes``,
            ``workers``, ``on_error``, ``overwrite`` and ``progress``
            (``packdata.settings.PackSettings``).

    Raises:
        SourceError: A file, row or column cannot be packed.
        SchemaError: The options contradict each other.
        PackError: The target cannot be written, is in use, or holds something else.
    """
    listed = [sources] if isinstance(sources, str | Path) else list(sources)
    settings = take(PackSettings, options)
    settings.setdefault("shard_bytes", TABLE_SHARD_BYTES)
    workers, on_error = settings.get("workers"), settings.get("on_error", "fail")
    job = plan_tables(listed, format=format, workers=workers, on_error=on_error, **options)
    return pack_plan(job, dst, **settings)
