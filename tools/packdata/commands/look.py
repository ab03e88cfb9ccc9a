"""``packdata info``, ``preview``, ``stats``, ``diff`` and ``verify``: what packed datasets hold, and what is wrong."""

from __future__ import annotations

from functools import partial
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.commandline import show
from loaders.data.manifest import FORMAT_VERSION, read_manifest
from loaders.errors import PackError
from loaders.progress import Meter
from loaders.remote.options import add_remote
from loaders.remote.url import URL, Location
from loaders.schema import Label, MultiLabel
from loaders.system.publish import publish_bytes
from loaders.text import describe_size, printable
from packdata.commands.common import (
    DATASETS,
    JSON,
    WORKERS,
    argument,
    command,
    datasets_at,
    number,
    place,
    seed,
    setting,
    show_result,
    switch,
)
from packdata.describe import counted, describe_field

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from loaders.data.manifest import Manifest
    from packdata.inspect.stats import Stats
    from packdata.inspect.verify import Report

_MAX_SHOWN = 50  # of the classes of a field, or its columns; --json has all
_LARGE = 2.0**64  # from here on numbers are no counts, but such as -3.4e38 where there is no value


def _show_each(args: Namespace, found: list[dict[str, Any]], lines: Iterator[str]) -> None:
    """Print the result of one dataset, or of several."""
    show_result(args, found if len(found) > 1 else found[0], lines)


@command(DATASETS, JSON, add_remote, example="packdata info packed/train")
def info(args: Namespace) -> int:
    """Show fields, samples, shards and origin of a packed dataset.

    Fields marked 'served' are in a batch unless you ask for others.
    """
    known = {folder: read_manifest(folder) for folder in datasets_at(args.dataset)}
    found = [_described(folder, manifest) for folder, manifest in known.items()]
    _show_each(args, found, chain.from_iterable(map(_info_lines, found, known.values())))
    return 0


def _described(path: Location, manifest: Manifest) -> dict[str, Any]:
    """Return what a manifest says, as JSON types."""
    shards, fields = manifest.shards, manifest.schema.fields
    classes = {n: f.classes for n, f in fields.items() if isinstance(f, Label | MultiLabel)}
    listed = ("file", "num_samples", "size_bytes")
    return {
        "path": str(path),
        "format": "+".join(sorted({shard.file.rpartition(".")[2] for shard in shards})),
        "version": FORMAT_VERSION,
        "fingerprint": manifest.fingerprint,
        "num_samples": manifest.num_samples,
        "num_shards": len(shards),
        "size_bytes": manifest.size_bytes,
        "bytes_per_sample": round(manifest.size_bytes / manifest.num_samples, 1),
        "fields": {name: field.to_json() for name, field in fields.items()},
        "defaults": list(manifest.schema.defaults),
        "num_classes": {n: None if names is None else len(names) for n, names in classes.items()},
        "shards": [{name: getattr(shard, name) for name in listed} for shard in shards],
        "provenance": dict(manifest.provenance),
    }


def _info_lines(about: dict[str, Any], manifest: Manifest) -> Iterator[str]:
    from packdata.packing.provenance import describe_origin

    per_sample, size = map(describe_size, (about["bytes_per_sample"], about["size_bytes"]))
    yield about["path"]
    yield f"  samples      {about['num_samples']:,} ({per_sample} each)"
    yield f"  shards       {about['num_shards']:,} {about['format']}, {size}"
    yield f"  fingerprint  {about['fingerprint']}"
    width = max(map(len, about["fields"]))
    for n, (name, field) in enumerate(manifest.schema.fields.items()):
        served = " (served)" if name in about["defaults"] else ""
        yield f"  {'' if n else 'fields':<12} {name:<{width}}  {describe_field(field)}{served}"
    yield f"  made from    {describe_origin(manifest.provenance) or '(not recorded)'}"


@command(
    place("dataset"),
    argument(
        "--out",
        "file to write (default: the dataset's name, .png, in this folder)",
        type=Path,
        metavar="SHEET.png",
    ),
    number("--num", "samples to show (default: 24)", 24),
    seed("shows other samples"),
    switch("--text", "print the samples, draw nothing"),
    add_remote,
    example="packdata preview packed/train --out sheet.png --num 24",
)
def preview(args: Namespace) -> int:
    """Draw some samples, or print those without pictures."""
    from loaders.data.view import open_view
    from packdata.inspect import preview

    view = open_view(args.dataset)
    is_drawn = preview.has_pictures(view) and not args.text
    out: Path = args.out or Path(f"{args.dataset.absolute().name}.png")
    if args.out and not (is_drawn and out.suffix.lower() == ".png"):
        args.parser.error("--out names a .png, for pictures: leave it out to print samples")
    if is_drawn and out.exists():
        raise PackError("the file exists", out, "Name another one with --out, or remove this one")
    indices = preview.choose(len(view.first_at_url()), args.num, args.seed)
    if not is_drawn:
        for i in indices:
            show(preview.as_text(view, i))
        return 0
    tiles = [preview.tile_of(view, i) for i in indices]
    preview.sheet_of(tiles).save(sheet := BytesIO(), "PNG")
    publish_bytes(out, sheet.getvalue())
    show(f"{printable(str(out))}: {len(indices)} of {counted(len(view), 'sample')}")
    for tile in tiles:  # as on the sheet, whose font lacks letters and room
        show(f"  {printable(tile.caption)}")
    return 0


@command(
    place("dataset"),
    number(
        "--limit",
        "decode only N samples, evenly spread (default: all); at a URL, of the first two shards",
    ),
    WORKERS,
    JSON,
    add_remote,
    example="packdata stats packed/train --json > stats.json",
)
def stats(args: Namespace) -> int:
    """Compute mean and std of the pixels, sizes, and counts of the classes.

    With --json the result is what Normalize.from_stats reads: mean and std in pixel units.
    """
    from packdata.inspect.stats import stats

    meter = Meter("reading", "samples")
    found = stats(args.dataset, limit=args.limit, workers=args.workers, progress=meter)
    show_result(args, found.to_json(), _stats_lines(found))
    return 0


def _stats_lines(found: Stats) -> Iterator[str]:
    some = "" if found.num_decoded == found.num_samples else f", {found.num_decoded:,} decoded"
    yield f"{counted(found.num_samples, 'sample')}{some}"
    yield f"bytes per sample: {_row(found.bytes_per_sample)}"
    for name, about in found.fields.items():
        yield f"{name} ({about['kind']})"
        for key, value in about.items():
            if key in ("classes", "pixels_by_value", "columns"):
                yield f"  {key.replace('_', ' ')}: {len(value)}"
                parts = [*value.items()][:_MAX_SHOWN]
                yield from (f"    {part}: {_row(numbers)}" for part, numbers in parts)
            elif key != "kind":
                yield f"  {key.replace('_', ' ')}: {_row(value)}"


def _row(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_row(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_row, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        is_count = not value % 1 and abs(value) < _LARGE
        return f"{value:,.0f}" if is_count else f"{value:,.6g}"
    return str(value)


@command(
    place("a", "folder or URL of a dataset"),
    place("b", "folder or URL of the other"),
    JSON,
    add_remote,
    example="packdata diff packed/v1 packed/v2",
)
def diff(args: Namespace) -> int:
    """Compare the fields and shards of two datasets.

    The exit status is 1 if they differ. Only their manifests are read, which have the hash of each
    shard: equal samples in other shards, or in another format, are a difference.
    """
    from packdata.inspect.compare import diff

    found = diff(args.a, args.b)
    about = {"same": not found, "differences": found}
    show_result(args, about, found or ["the datasets are equal"])
    return 1 if found else 0


def _how(parser: Any) -> None:
    group = parser.add_mutually_exclusive_group()
    switch("--quick", "check only sizes and hashes of the files")(group)
    switch("--decode", "also decode every record")(group)


@command(
    DATASETS,
    _how,
    setting("workers", help="shards at once (default: all usable cores)"),
    JSON,
    add_remote,
    example="packdata verify packed/train",
)
def verify(args: Namespace) -> int:
    """Check every byte of a packed dataset.

    Every fault is listed with file, field, rows and keys; the exit status is then 1.
    """
    from packdata.inspect.verify import verify

    if isinstance(args.dataset, URL) or not args.dataset.is_dir():
        read_manifest(args.dataset)  # says what is there instead: a wrong path is no fault
    check = partial(verify, quick=args.quick, decode=args.decode, workers=args.workers)
    folders = datasets_at(args.dataset)
    reports = [check(folder, progress=Meter("verifying", "bytes")) for folder in folders]
    found = [report.to_json() for report in reports]
    _show_each(args, found, chain.from_iterable(map(_verify_lines, reports)))
    return 0 if all(report.ok for report in reports) else 1


def _verify_lines(report: Report) -> Iterator[str]:
    yield from map(str, report.faults)
    yield from (f"note: {note}" for note in report.notes)
    known, what = report.manifest, counted(len(report.faults), "fault")
    if known is not None and report.ok:
        samples, shards = counted(known.num_samples, "sample"), counted(len(known.shards), "shard")
        what = f"{samples} in {shards}, {describe_size(known.size_bytes)}: OK"
    yield f"{report.path}: {what}"
