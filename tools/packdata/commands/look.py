"""``packdata info``, ``preview``, ``stats`` and ``diff``: what packed datasets hold, and how two of them differ."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.commandline import show
from loaders.errors import SchemaError
from loaders.progress import Meter
from loaders.remote.options import add_remote
from loaders.schema import field_from_json
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
    show_result,
    switch,
)
from packdata.describe import counted, describe_field

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packdata.inspect.compare import Difference
    from packdata.inspect.stats import Stats

_MAX_SHOWN = 50  # of the classes of a field, or its columns; --json has all


# -- info ------------------------------------------------------------------------------------------


def _info(args: argparse.Namespace) -> int:
    from packdata.inspect.info import describe

    found = [describe(folder) for folder in datasets_at(args.dataset)]
    lines = (line for about in found for line in _info_lines(about))
    show_result(args, found if len(found) > 1 else found[0], lines)
    return 0


def _info_lines(about: dict[str, Any]) -> Iterator[str]:
    from packdata.packing.provenance import describe_origin

    per_sample = describe_size(about["bytes_per_sample"])
    yield about["path"]
    yield f"  samples      {about['num_samples']:,} ({per_sample} each)"
    size = describe_size(about["size_bytes"])
    yield f"  shards       {about['num_shards']:,} {about['format']}, {size}"
    yield f"  fingerprint  {about['fingerprint']}"
    width = max(map(len, about["fields"]))
    for n, (name, described) in enumerate(about["fields"].items()):
        served = " (served)" if name in about["defaults"] else ""
        field = describe_field(field_from_json(described))
        yield f"  {'' if n else 'fields':<12} {name:<{width}}  {field}{served}"
    yield f"  made from    {describe_origin(about['provenance']) or '(not recorded)'}"


INFO = command(
    "info",
    "show fields, samples, shards and origin of a packed dataset",
    _info,
    DATASETS,
    JSON,
    add_remote,
    details="Fields marked 'served' are in a batch unless you ask for others.",
    example="packdata info packed/train",
)


# -- preview ---------------------------------------------------------------------------------------


def _png(text: str) -> Path:
    if not text.lower().endswith(".png"):
        what = f"the sheet is a PNG: its name ends with .png, got {text!r}"
        raise argparse.ArgumentTypeError(what)
    return Path(text)


def _preview(args: argparse.Namespace) -> int:
    from loaders.data.view import open_view
    from packdata.inspect import preview

    if args.out and args.text:
        args.parser.error("--out is of a sheet, and --text draws none")
    view = open_view(args.dataset)
    indices = preview.choose(len(view.first_at_url()), args.num, args.seed)
    has_pictures = preview.has_pictures(view)
    if args.out and not has_pictures:
        what = f"--out is for a sheet of pictures, and {args.dataset} has none"
        raise SchemaError(f"{what}: without it, samples are printed")
    if args.text or not has_pictures:
        for i in indices:
            show(preview.as_text(view, i))
        return 0
    out: Path = args.out or Path(f"{args.dataset.absolute().name}.png")
    tiles = [preview.tile_of(view, i) for i in indices]
    with out.open("xb") as file:
        preview.sheet_of(tiles).save(file, "PNG")
    show(f"{printable(str(out))}: {len(indices)} of {counted(len(view), 'sample')}")
    for tile in tiles:  # as on the sheet, whose font lacks letters and room
        show(f"  {printable(tile.caption)}")
    return 0


PREVIEW = command(
    "preview",
    "draw some samples, or print those without pictures",
    _preview,
    place("dataset"),
    argument(
        "--out",
        "file to write (default: the dataset's name, .png, in this folder)",
        type=_png,
        metavar="SHEET.png",
    ),
    number("--num", "samples to show (default: 24)", 24),
    argument(
        "--seed", "another seed shows other samples (default: 0)", type=int, default=0, metavar="N"
    ),
    switch("--text", "print the samples, draw nothing"),
    add_remote,
    example="packdata preview packed/train --out sheet.png --num 24",
)


# -- stats -----------------------------------------------------------------------------------------


def _stats(args: argparse.Namespace) -> int:
    from loaders.data.view import open_view
    from packdata.inspect.stats import stats

    view = open_view(args.dataset)
    num = len(view) if args.limit is None else min(args.limit, len(view.first_at_url()))
    with Meter("reading", "samples", num) as meter:
        found = stats(args.dataset, limit=args.limit, workers=args.workers, tick=meter.tick)
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
        return f"{value:,.6g}" if value % 1 else f"{value:,.0f}"
    return str(value)


STATS = command(
    "stats",
    "compute mean and std of the pixels, sizes, and counts of the classes",
    _stats,
    place("dataset"),
    number(
        "--limit",
        "decode only N samples, evenly spread (default: all); at a URL, of the first two shards",
    ),
    WORKERS,
    JSON,
    add_remote,
    details="With --json the result is what Normalize.from_stats reads: mean and std in pixel units.",
    example="packdata stats packed/train --json > stats.json",
)


# -- diff ------------------------------------------------------------------------------------------


def _diff(args: argparse.Namespace) -> int:
    from packdata.inspect.compare import diff

    found = diff(args.a, args.b, limit=args.limit)
    show_result(args, found.to_json(), _diff_lines(found))
    return 1 if found else 0


def _diff_lines(found: Difference) -> Iterator[str]:
    yield from found.schema
    for kind, num in found.samples.items():
        examples = found.examples[kind]
        more = ", ..." if num > len(examples) else ""
        yield f"{kind}: {counted(num, 'sample')} ({', '.join(examples)}{more})"
    if not found:
        yield "the datasets are equal"


DIFF = command(
    "diff",
    "list the differences of two datasets",
    _diff,
    place("a", "folder or URL of a dataset"),
    place("b", "folder or URL of the other"),
    number("--limit", "samples to name for each kind of difference (default: 10)", 10),
    JSON,
    add_remote,
    details="""\
The exit status is 1 if they differ. Records are compared as stored, and checked against their
checksums.""",
    example="packdata diff packed/v1 packed/v2",
)
