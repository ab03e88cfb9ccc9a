"""``packdata verify``: datasets that are whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.commandline import Command, show
from loaders.data.manifest import read_manifest
from loaders.errors import ManifestError
from loaders.progress import Meter
from loaders.remote.options import add_remote
from loaders.text import describe_size, printable
from packdata.commands.common import (
    add_dataset,
    add_json,
    add_number,
    add_switch,
    datasets_at,
    show_json,
)
from packdata.describe import counted

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from loaders.commandline import Parser
    from packdata.inspect.verify import Report


def _verify(args: argparse.Namespace) -> int:
    if not args.dataset.is_dir():
        read_manifest(args.dataset)  # says what is there instead: a wrong path is no fault
    reports = [_report(folder, args) for folder in datasets_at(args.dataset)]
    if args.json:
        show_json([r.to_json() for r in reports] if len(reports) > 1 else reports[0].to_json())
    else:
        for report in reports:
            _show_report(report)
    return 0 if all(report.ok for report in reports) else 1


def _report(folder: Path, args: argparse.Namespace) -> Report:
    from packdata.inspect.verify import verify

    try:
        total = read_manifest(folder).size_bytes
    except ManifestError:  # verify will say so
        total = 0
    options = {name: getattr(args, name) for name in ("quick", "decode", "workers")}
    with Meter("verifying", "bytes", total) as meter:
        return verify(folder, **options, tick=meter.tick)


def _show_report(report: Report) -> None:
    for fault in report.faults:
        show(printable(str(fault)))
    for note in report.notes:
        show(printable(f"note: {note}"))
    if not report.ok:
        show(f"{printable(str(report.path))}: {counted(len(report.faults), 'fault')}")
    elif report.manifest is not None:
        known = report.manifest
        samples, shards = counted(known.num_samples, "sample"), counted(len(known.shards), "shard")
        size = describe_size(known.size_bytes)
        show(f"{printable(str(report.path))}: {samples} in {shards}, {size}: OK")


def _add_verify(parser: Parser) -> None:
    add_dataset(parser, "folder or URL of the dataset, or a folder of several")
    group = parser.add_mutually_exclusive_group()
    add_switch(group, "--quick", "check only sizes and hashes of the files")
    add_switch(group, "--decode", "also decode every record")
    add_number(parser, "--workers", "shards at once (default: all usable cores)")
    add_json(parser)
    add_remote(parser)


VERIFY = Command(
    name="verify",
    summary="check every byte of a packed dataset",
    add=_add_verify,
    run=_verify,
    details="Every fault is listed with file, field, rows and keys; the exit status is then 1.",
    example="packdata verify packed/train",
)
