"""``packdata tables``: CSV, JSON lines, Parquet and Arrow files to a packed dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.commandline import number_from
from loaders.progress import Meter
from packdata.commands.common import TARGET, parse_names, unescaped
from packdata.commands.packing import AGAIN, packing_command, run_packing
from packdata.packing.shards import TABLE_SHARD_BYTES

if TYPE_CHECKING:
    import argparse

    from packdata.plan import SourcePlan

_COLUMNS = """
--target NAMES
  columns to predict: text becomes classes, numbers stay as they are
--features NAMES
  columns to learn from (default: all others)
--drop NAMES
  columns to leave out (default: none)
--categorical NAMES
  columns of categories that look like numbers or dates
--numeric NAMES
  columns of numbers: text in them is an error
--like DATASET
  take columns, categories, statistics and fill values from a packed table; of the other options
  for columns and values, only --drop and --missing-values go with it
"""
_VALUES = r"""
--dates {days,parts}
  store dates as days since 1970, or as year, month, day, weekday and hour; with a time zone, in
  UTC (default: a column of dates is an error)
--missing {nan,mean,error}
  store missing numbers as NaN or as the mean of their column, or stop at them (default)
--missing-mask
  also store which numbers were missing, as the field 'missing'
--dtype {float16,float32,float64}
  type of the features (default: float32)
--standardize
  store the features as (value - mean) / std; targets stay as they are. Statistics cover all rows:
  to keep test data out of them, pack the training file alone, then the test file with --like
--missing-values WORDS
  texts that mean a missing value, in any column, such as '?,None,\N' (the empty cell always does)
"""
_CSV = r"""
--delimiter C
  cell separator: one character, or \t (default: comma; tab in .tsv)
--no-header
  the first row holds values, not names
--names NAMES
  column names, for files without a header (to replace a header, add --skip-rows 1)
--skip-rows N
  lines to skip at the start of a file
"""


def run(args: argparse.Namespace) -> int:
    """Run ``packdata tables``."""
    from packdata.packing.firstpass import FirstPass
    from packdata.tables.plan import plan_tables

    lists = ("target", "features", "drop", "categorical", "numeric", "missing_values", "names")
    others = (
        *("like", "dates", "missing", "missing_mask", "dtype", "standardize"),
        *("delimiter", "skip_rows", "format", "workers", "on_error"),
    )
    options: dict[str, Any] = {name: tuple(getattr(args, name)) for name in lists}
    options |= {name: getattr(args, name) for name in others}
    options |= {"header": args.header, "keeps": not args.dry_run}

    def make_plan() -> SourcePlan:
        progress, first_pass = Meter("read", "rows"), FirstPass(args.plan)
        return plan_tables(args.src, progress=progress, first_pass=first_pass, **options)

    return run_packing(args, make_plan, unit="rows")


TABLES = packing_command(
    "tables",
    "pack rows of numbers and categories",
    src="files, folders, or URLs of such, or patterns",
    takes={
        "columns: NAMES: separated by commas; quote a name that holds a comma: '\"income, EUR\",age'": _COLUMNS,
        "values": _VALUES,
        ".csv, .tsv and .txt": _CSV,
    },
    item="row",
    shuffles="pieces of about 4 MB (of Parquet and Arrow: groups of rows), and the rows in each,",
    format="parquet",
    shard_bytes=TABLE_SHARD_BYTES,
    has_first_pass=True,
    run=run,
    details=f"""\
Tables are .csv, .tsv, .jsonl (each also compressed: .gz, .bz2, .zst, .lz4), .parquet, .arrow and
.feather files of any size, one or many, by name, pattern or folder. Numbers become the field
'features' (a row of numbers per sample), texts the field 'categories' (numbered by frequency, 0 for
unknown or missing), and each --target a field of its own. Every file is read twice: first to learn
types, statistics and categories of all rows, then to pack.
What Parquet, Arrow and JSON declare as text stays text. A CSV column is numeric if all its cells are
numbers and none begins with zeros (01234). NA, null, nan and the like are missing values in numeric
columns; in text columns only the empty cell is. Subfolders are skipped, except those named like
year=2024, which become columns.
{AGAIN}""",
    example="""\
packdata tables diamonds.csv packed --target price
packdata tables 'taxis-*.csv' packed --target fare --dates parts --missing mean --drop id
packdata tables train.parquet packed/train --target label --categorical label,zip --standardize
packdata tables test.parquet packed/test --like packed/train""",
    how={
        "like": TARGET,
        "missing": {"default": "error"},
        "dtype": {"default": "float32"},
        "missing-values": {"type": parse_names, "action": "extend", "default": []},
        "delimiter": {"type": unescaped},
        "no-header": {"dest": "header", "action": "store_false"},
        "skip-rows": {"type": number_from(0), "default": 0},
    },
)
