"""``packdata verify``: datasets that are whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.data.manifest import read_manifest
from loaders.errors import ManifestError
from loaders.progress import Meter
from loaders.remote.options import add_remote
from loaders.text import describe_size
from packdata.commands.common import (
    DATASETS,
    JSON,
    command,
    datasets_at,
    given,
    number,
    show_result,
    switch,
)
from packdata.describe import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from packdata.inspect.verify import Report


def _verify(args: argparse.Namespace) -> int:
    if not args.dataset.is_dir():
        read_manifest(args.dataset)  # says what is there instead: a wrong path is no fault
    reports = [_report(folder, args) for folder in datasets_at(args.dataset)]
    data = [report.to_json() for report in reports]
    lines = (line for report in reports for line in _lines(report))
    show_result(args, data if len(data) > 1 else data[0], lines)
    return 0 if all(report.ok for report in reports) else 1


def _report(folder: Path, args: argparse.Namespace) -> Report:
    from packdata.inspect.verify import verify

    try:
        total = read_manifest(folder).size_bytes
    except ManifestError:  # verify will say so
        total = 0
    with Meter("verifying", "bytes", total) as meter:
        return verify(folder, **given(args, ("quick", "decode", "workers")), tick=meter.tick)


def _lines(report: Report) -> Iterator[str]:
    yield from map(str, report.faults)
    yield from (f"note: {note}" for note in report.notes)
    known = report.manifest
    if known is None or report.faults:
        yield f"{report.path}: {counted(len(report.faults), 'fault')}"
    else:
        samples, shards = counted(known.num_samples, "sample"), counted(len(known.shards), "shard")
        yield f"{report.path}: {samples} in {shards}, {describe_size(known.size_bytes)}: OK"


def _how(parser: Any) -> None:
    group = parser.add_mutually_exclusive_group()
    switch("--quick", "check only sizes and hashes of the files")(group)
    switch("--decode", "also decode every record")(group)


VERIFY = command(
    "verify",
    "check every byte of a packed dataset",
    _verify,
    DATASETS,
    _how,
    number("--workers", "shards at once (default: all usable cores)"),
    JSON,
    add_remote,
    details="Every fault is listed with file, field, rows and keys; the exit status is then 1.",
    example="packdata verify packed/train",
)
