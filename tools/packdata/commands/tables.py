"""``packdata tables``: CSV, JSON lines, Parquet and Arrow files to a packed dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loaders.progress import Meter
from packdata.commands.packing import packing_command
from packdata.options import opt, parse_target
from packdata.packing.shards import TABLE_SHARD_BYTES

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from packdata.plan import SourcePlan


@dataclass
class LikeOptions:
    """Of which table a packing takes its columns."""

    like: Path | str | None = opt(
        None,
        "take columns, categories, statistics and fill values from a packed table; no other options of columns, but "
        "--drop and --missing-values",
        "DATASET",
        type=parse_target,
    )


def _plan(args: argparse.Namespace, options: dict[str, Any]) -> SourcePlan:
    from packdata.packing.firstpass import FirstPass
    from packdata.tables.plan import plan_tables

    return plan_tables(
        args.src,
        format=args.format,
        workers=args.workers,
        on_error=args.on_error,
        progress=Meter("read", "rows"),
        first_pass=FirstPass(args.plan),
        **options,
    )


TABLES = packing_command(
    "tables",
    "pack rows of numbers and categories",
    _plan,
    src="files, folders, or URLs of such, or patterns",
    options={
        "columns and values": "packdata.tables.options:TableOptions",
        "test sets": "packdata.commands.tables:LikeOptions",
        ".csv, .tsv and .txt": "packdata.delimited:CsvOptions",
    },
    item="row",
    unit="rows",
    usual="parquet",
    shuffles="pieces of about 4 MB (of Parquet and Arrow: groups of rows), and the rows in each,",
    shard_bytes=TABLE_SHARD_BYTES,
    has_plan=True,
    details="""\
Tables are .csv, .tsv, .jsonl (also compressed), .parquet, .arrow and .feather files. Numbers become
the field 'features', texts 'categories', and each --target a field of its own. NAMES are separated
by commas; quote a name that holds a comma: '"income, EUR",age'.""",
    example="""\
packdata tables train.csv packed/train --target price --missing mean
packdata tables test.csv packed/test --like packed/train""",
)
