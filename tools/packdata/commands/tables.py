"""``packdata tables``: CSV, JSON lines, Parquet and Arrow files to a packed dataset."""

from __future__ import annotations

import argparse
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from loaders.errors import LoadersError, SchemaError
from packdata.commands.common import parse_count, parse_names, parse_size, show, show_json
from packdata.shards import FORMATS, TABLE_SHARD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packdata.engine import Summary
    from packdata.tables import TablesJob

_ABOUT = """\
Pack tables: .csv, .tsv, .jsonl, .parquet, .arrow and .feather files of any size, one or many, by
name, pattern or folder. Numbers become the field 'features' (one row of numbers a sample), texts
the field 'categories' (numbers by frequency, 0 for unknown and missing), each --target a field of
its own. Every file is read twice: first for types, statistics and categories, then to pack.

The same command run again continues after a kill, a full disk or Ctrl-C; the result does not
depend on --workers."""

_EXAMPLES = """\
examples:
  packdata tables diamonds.csv packed --target price
  packdata tables 'taxis-*.csv' packed --target fare --dates parts --missing mean --drop id
  packdata tables train.parquet packed/train --target label --categorical label,zip --standardize
  packdata tables test.parquet packed/test --like packed/train"""


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "tables",
        help="pack rows of numbers and categories",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("src", metavar="SRC", nargs="+", help="files, patterns, folders")
    parser.add_argument("dst", metavar="DST", help="folder to pack into: new or empty")
    _add_column_options(parser.add_argument_group("columns (NAMES: separated by commas)"))
    _add_value_options(parser.add_argument_group("values"))
    _add_packing_options(parser.add_argument_group("packing"))
    parser.set_defaults(run=run, parser=parser)


def _add_column_options(group: Any) -> None:
    for name, what in (
        ("--target", "to predict: texts as classes, numbers as they are"),
        ("--features", "to learn from (default: all others)"),
        ("--drop", "to leave out"),
        ("--categorical", "categories, though they look like numbers or dates"),
        ("--numeric", "numbers: text in them is bad input"),
    ):
        group.add_argument(
            name, type=parse_names, action="extend", default=[], metavar="NAMES", help=what
        )
    group.add_argument(
        "--like", metavar="DATASET", help="columns, categories and statistics of another packing"
    )


def _add_value_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--dates",
        choices=("days", "parts"),
        help="dates as days since 1970, or as year, month, day, weekday and hour",
    )
    add(
        "--missing",
        choices=("nan", "mean", "error"),
        default="error",
        help="what becomes of missing numbers (default: error)",
    )
    add("--missing-mask", action="store_true", help="store which numbers were missing")
    add(
        "--dtype",
        choices=("float16", "float32", "float64"),
        default="float32",
        help="of the features (default: float32)",
    )
    add("--standardize", action="store_true", help="store (value - mean) / std")
    add("--delimiter", metavar="C", help="between cells (default: comma; tab in .tsv)")


def _add_packing_options(group: Any) -> None:
    add = group.add_argument
    add("--format", choices=FORMATS, default="parquet", help="of the shards (default: parquet)")
    add(
        "--shard-size",
        type=parse_size,
        default=TABLE_SHARD_BYTES,
        metavar="SIZE",
        help="bytes of a shard, such as 128MB (default 32MB)",
    )
    add("--workers", type=parse_count, metavar="N", help="threads (default: all usable cores)")
    add(
        "--on-error",
        choices=("fail", "skip"),
        default="fail",
        help="at a row that cannot be packed: stop (default), or list it in rejected.jsonl",
    )
    add("--overwrite", action="store_true", help="replace a dataset or unfinished packing in DST")
    add("--dry-run", action="store_true", help="print what would be packed, and stop")
    add("--json", action="store_true", help="print the summary, or the plan, as JSON")


def run(args: argparse.Namespace) -> int:
    """Run ``packdata tables``."""
    from packdata.progress import progress_on
    from packdata.shards import check_shard_options
    from packdata.tables import pack_job, plan_tables

    with _usage_errors(args):
        check_shard_options(args.format, args.shard_size)
        job = plan_tables(
            args.src,
            workers=args.workers,
            on_error=args.on_error,
            progress=progress_on(unit="rows"),
            **_options(args),
        )
    if args.dry_run:
        _show(args, job)
        return 0
    summary = pack_job(
        job,
        args.dst,
        format=args.format,
        shard_bytes=args.shard_size,
        workers=args.workers,
        on_error=args.on_error,
        overwrite=args.overwrite,
        progress=progress_on(unit="rows"),
    )
    _show(args, summary)
    return 3 if summary.rejected else 0


def _options(args: argparse.Namespace) -> dict[str, Any]:
    lists = ("target", "features", "drop", "categorical", "numeric")
    rest = ("like", "delimiter", "dates", "missing", "missing_mask", "dtype", "standardize")
    return {name: tuple(getattr(args, name)) for name in lists} | {
        name: getattr(args, name) for name in rest
    }


def _show(args: argparse.Namespace, result: TablesJob | Summary) -> None:
    if args.json:
        show_json(result.to_json())
    else:
        show(str(result))


@contextmanager
def _usage_errors(args: argparse.Namespace) -> Iterator[None]:
    """Let options that contradict each other end as argparse ends: usage, message, status 2."""
    try:
        yield
    except (SchemaError, ValueError) as error:
        if isinstance(error, LoadersError) and not isinstance(error, SchemaError):
            raise
        args.parser.error(str(error))
