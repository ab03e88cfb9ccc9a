"""``packdata tables``: CSV, JSON lines, Parquet and Arrow files to a packed dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.progress import Meter
from packdata.commands.common import parse_count, parse_names, parse_place, unescaped
from packdata.commands.packing import add_packing_options, new_packing_parser, run_packing
from packdata.packing.shards import TABLE_SHARD_BYTES

if TYPE_CHECKING:
    import argparse

    from loaders.commandline import Commands
    from packdata.plan import Plan

_ABOUT = """\
Pack tables: .csv, .tsv, .jsonl, .parquet, .arrow and .feather files of any size, one or many, by
name, pattern or folder. Numbers become the field 'features' (a row of numbers per sample), texts the
field 'categories' (numbered by frequency, 0 for unknown or missing), and each --target a field of
its own. Every file is read twice: first to learn types, statistics and categories, then to pack; a
third time where --on-error skip leaves rows out, so that nothing is learned from those.
What Parquet, Arrow and JSON declare as text stays text. A CSV column is numeric if all its cells are
numbers and none begins with zeros (01234). NA, null, nan and the like are missing values in numeric
columns; in text columns only the empty cell is. Subfolders are skipped, except those named like
year=2024, which become columns.

After a kill, a full disk or Ctrl-C, run the same command again to continue. The result does not
depend on --workers."""

_EXAMPLES = """\
examples:
  packdata tables diamonds.csv packed --target price
  packdata tables 'taxis-*.csv' packed --target fare --dates parts --missing mean --drop id
  packdata tables train.parquet packed/train --target label --categorical label,zip --standardize
  packdata tables test.parquet packed/test --like packed/train"""


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary, src = (
        "pack rows of numbers and categories",
        "files, folders, or URLs of such, or patterns",
    )
    parser = new_packing_parser(commands, "tables", summary, _ABOUT, _EXAMPLES, src=src)
    names = "separated by commas; quote a name that holds a comma: '\"income, EUR\",age'"
    _add_column_options(parser.add_argument_group("columns", f"NAMES: {names}"))
    _add_value_options(parser.add_argument_group("values"))
    _add_csv_options(parser.add_argument_group(".csv, .tsv and .txt"))
    add_packing_options(
        parser, item="row", format="parquet", shard_bytes=TABLE_SHARD_BYTES, has_first_pass=True
    )
    parser.set_defaults(run=run)


def _add_column_options(group: Any) -> None:
    for name, what in (
        ("--target", "columns to predict: text becomes classes, numbers stay as they are"),
        ("--features", "columns to learn from (default: all others)"),
        ("--drop", "columns to leave out (default: none)"),
        ("--categorical", "columns of categories that look like numbers or dates"),
        ("--numeric", "columns of numbers: text in them is an error"),
    ):
        group.add_argument(
            name, type=parse_names, action="extend", default=[], metavar="NAMES", help=what
        )
    group.add_argument(
        "--like",
        type=parse_place,
        metavar="DATASET",
        help="take columns, categories, statistics and fill values from a packed table; of the other options "
        "for columns and values, only --drop and --missing-values go with it",
    )


def _add_value_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--dates",
        choices=("days", "parts"),
        help="store dates as days since 1970, or as year, month, day, weekday and hour; with a time zone, in "
        "UTC (default: a column of dates is an error)",
    )
    add(
        "--missing",
        choices=("nan", "mean", "error"),
        default="error",
        help="store missing numbers as NaN or as the mean of their column, or stop at them (default)",
    )
    add(
        "--missing-mask",
        action="store_true",
        help="also store which numbers were missing, as the field 'missing'",
    )
    add(
        "--dtype",
        choices=("float16", "float32", "float64"),
        default="float32",
        help="type of the features (default: float32)",
    )
    add(
        "--standardize",
        action="store_true",
        help="store the features as (value - mean) / std; targets stay as they are. Statistics cover all packed rows: "
        "to keep test data out of them, pack the training file alone, then the test file with --like",
    )
    add(
        "--missing-values",
        type=parse_names,
        action="extend",
        default=[],
        metavar="WORDS",
        help=r"texts that mean a missing value, in any column, such as '?,None,\N' (the empty cell always does)",
    )


def _add_csv_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--delimiter",
        type=unescaped,
        metavar="C",
        help=r"cell separator: one character, or \t (default: comma; tab in .tsv)",
    )
    add("--no-header", action="store_true", help="the first row holds values, not names")
    add(
        "--names",
        type=parse_names,
        action="extend",
        default=[],
        metavar="NAMES",
        help="column names, for files without a header (to replace a header, add --skip-rows 1)",
    )
    add(
        "--skip-rows",
        type=parse_skip,
        default=0,
        metavar="N",
        help="lines to skip at the start of a file",
    )


def parse_skip(text: str) -> int:
    """Read a number of lines."""
    return 0 if text == "0" else parse_count(text)


def run(args: argparse.Namespace) -> int:
    """Run ``packdata tables``."""
    from packdata.packing.firstpass import FirstPass
    from packdata.tables import plan_tables

    lists = (*("target", "features", "drop", "categorical", "numeric"), "missing_values", "names")
    rest = (
        *("like", "dates", "missing", "missing_mask", "dtype", "standardize"),
        *("delimiter", "skip_rows"),
    )
    shared = ("format", "workers", "on_error")
    options: dict[str, Any] = {name: tuple(getattr(args, name)) for name in lists}
    options |= {name: getattr(args, name) for name in (*rest, *shared)}
    options |= {"header": not args.no_header, "beside": None if args.dry_run else args.dst}

    def make_plan() -> Plan:
        first_pass = FirstPass(args.plan, is_part=args.part is not None)
        progress = Meter("read", "rows")
        return plan_tables(args.src, progress=progress, first_pass=first_pass, **options)

    return run_packing(args, make_plan, unit="rows")
