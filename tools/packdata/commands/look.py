"""``packdata info``, ``preview``, ``stats`` and ``diff``: what packed datasets hold, and how two of them differ."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.commandline import Command, show
from loaders.errors import SchemaError
from loaders.progress import Meter
from loaders.remote.options import add_remote
from loaders.schema import field_from_json
from loaders.text import describe_size, printable
from packdata.commands.common import (
    add_dataset,
    add_json,
    add_number,
    add_switch,
    datasets_at,
    show_json,
)
from packdata.describe import counted, describe_field

if TYPE_CHECKING:
    from loaders.commandline import Parser
    from packdata.inspect.stats import Stats

_MAX_SHOWN = 50  # of the classes of a field, or its columns; --json has all


# -- info ------------------------------------------------------------------------------------------


def _info(args: argparse.Namespace) -> int:
    from packdata.inspect.info import describe

    described = [describe(folder) for folder in datasets_at(args.dataset)]
    if args.json:
        show_json(described if len(described) > 1 else described[0])
    else:
        for about in described:
            _show_info(about)
    return 0


def _show_info(about: dict[str, Any]) -> None:
    from packdata.packing.provenance import describe_origin

    per_sample = describe_size(about["bytes_per_sample"])
    show(printable(about["path"]))
    show(f"  samples      {about['num_samples']:,} ({per_sample} each)")
    size = describe_size(about["size_bytes"])
    show(f"  shards       {about['num_shards']:,} {about['format']}, {size}")
    show(f"  fingerprint  {about['fingerprint']}")
    width = max(map(len, about["fields"]))
    for n, (name, described) in enumerate(about["fields"].items()):
        default = " (served)" if name in about["defaults"] else ""
        head = "fields" if n == 0 else ""
        field = printable(describe_field(field_from_json(described)))
        show(f"  {head:<12} {name:<{width}}  {field}{default}")
    origin = printable(describe_origin(about["provenance"])) or "(not recorded)"
    show(f"  made from    {origin}")


def _add_info(parser: Parser) -> None:
    add_dataset(parser, "folder or URL of the dataset, or a folder of several")
    add_json(parser)
    add_remote(parser)


INFO = Command(
    name="info",
    summary="show fields, samples, shards and origin of a packed dataset",
    add=_add_info,
    run=_info,
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
    if args.out and not preview.has_pictures(view):
        what = f"--out is for a sheet of pictures, and {args.dataset} has none"
        raise SchemaError(f"{what}: without it, samples are printed")
    if args.text or not preview.has_pictures(view):
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


def _add_preview(parser: Parser) -> None:
    add_dataset(parser)
    what = "file to write (default: the dataset's name, .png, in this folder)"
    parser.add_argument("--out", type=_png, metavar="SHEET.png", help=what)
    add_number(parser, "--num", "samples to show (default: 24)", 24)
    what = "another seed shows other samples (default: 0)"
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=what)
    add_switch(parser, "--text", "print the samples, draw nothing")
    add_remote(parser)


PREVIEW = Command(
    name="preview",
    summary="draw some samples, or print those without pictures",
    add=_add_preview,
    run=_preview,
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
    if args.json:
        show_json(found.to_json())
    else:
        _show_stats(found)
    return 0


def _show_stats(found: Stats) -> None:
    some = "" if found.num_decoded == found.num_samples else f", {found.num_decoded:,} decoded"
    show(f"{counted(found.num_samples, 'sample')}{some}")
    show(f"bytes per sample: {_row(found.bytes_per_sample)}")
    for name, about in found.fields.items():
        show(f"{printable(name)} ({about['kind']})")
        for key, value in about.items():
            if key in ("classes", "pixels_by_value", "columns"):
                show(f"  {key.replace('_', ' ')}: {len(value)}")
                for part, numbers in [*value.items()][:_MAX_SHOWN]:
                    show(f"    {printable(part)}: {_row(numbers)}")
            elif key != "kind":
                show(f"  {key.replace('_', ' ')}: {_row(value)}")


def _row(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{printable(name)} {_row(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_row, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,.6g}" if value % 1 else f"{value:,.0f}"
    return printable(str(value))


def _add_stats(parser: Parser) -> None:
    add_dataset(parser)
    what = "decode only N samples, evenly spread (default: all); at a URL, of the first two shards"
    add_number(parser, "--limit", what)
    add_number(parser, "--workers", "threads (default: all usable cores)")
    add_json(parser)
    add_remote(parser)


STATS = Command(
    name="stats",
    summary="compute mean and std of the pixels, sizes, and counts of the classes",
    add=_add_stats,
    run=_stats,
    details="With --json the result is what Normalize.from_stats reads: mean and std in pixel units.",
    example="packdata stats packed/train --json > stats.json",
)


# -- diff ------------------------------------------------------------------------------------------


def _diff(args: argparse.Namespace) -> int:
    from packdata.inspect.compare import diff

    found = diff(args.a, args.b, limit=args.limit)
    if args.json:
        show_json(found.to_json())
        return 1 if found else 0
    for what in found.schema:
        show(printable(what))
    for kind, num in found.samples.items():
        names = ", ".join(map(printable, found.examples[kind]))
        more = ", ..." if num > len(found.examples[kind]) else ""
        show(f"{printable(kind)}: {counted(num, 'sample')} ({names}{more})")
    if not found:
        show("the datasets are equal")
    return 1 if found else 0


def _add_diff(parser: Parser) -> None:
    add_dataset(parser, "folder or URL of a dataset", "a")
    add_dataset(parser, "folder or URL of the other", "b")
    add_number(parser, "--limit", "samples to name for each kind of difference (default: 10)", 10)
    add_json(parser)
    add_remote(parser)


DIFF = Command(
    name="diff",
    summary="list the differences of two datasets",
    add=_add_diff,
    run=_diff,
    details="""\
The exit status is 1 if they differ. Records are compared as stored, and checked against their
checksums.""",
    example="packdata diff packed/v1 packed/v2",
)
