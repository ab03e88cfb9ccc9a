"""``packdata verify``: check everything that a packed dataset says about itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from loaders.data.manifest import read_manifest
from loaders.errors import ManifestError
from loaders.text import describe_size, printable
from packdata.commands.common import (
    add_json,
    add_workers,
    datasets_at,
    new_reading_parser,
    show,
    show_json,
)
from packdata.describe import counted
from packdata.inspect.verify import Report, verify
from packdata.packed.remote import as_folder
from packdata.packing.progress import progress_of

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from loaders.commandline import Commands

_DETAILS = (
    "Every fault is listed with file, field, rows and keys; the exit status is then 1. Each shard\n"
    "is read once from disk, for the hash of the file and the checksums of its rows, and again\n"
    "(mostly from memory) through liblmdb or pyarrow, in a process of its own, which damage may crash."
)


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "check every byte of a packed dataset"
    example = "packdata verify packed/train"
    parser = new_reading_parser(commands, "verify", summary, example, _DETAILS, several=True)
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument(
        "--quick", action="store_true", help="check only sizes and hashes of the files"
    )
    depth.add_argument("--decode", action="store_true", help="also decode every record")
    add_workers(parser, "shards at once")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if not args.dataset.is_dir():
        read_manifest(args.dataset)  # says what is there instead: a wrong path is no fault
    folders = datasets_at(args.dataset)
    reports = [_verify(folder, args) for folder in folders]
    if args.json:
        show_json([r.to_json() for r in reports] if len(folders) > 1 else reports[0].to_json())
    else:
        for report in reports:
            _show(report)
    return 0 if all(report.ok for report in reports) else 1


def _verify(folder: Path, args: argparse.Namespace) -> Report:
    try:
        total = read_manifest(folder).size_bytes
    except ManifestError:  # verify will say so
        total = 0
    with as_folder(folder) as here, progress_of("verifying", total, unit="bytes") as tick:
        found = verify(here, quick=args.quick, decode=args.decode, workers=args.workers, tick=tick)
        return replace(found, path=folder)


def _show(report: Report) -> None:
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
        show(f"{printable(str(report.path))}: {samples} in {shards}, {size}: all is well")
