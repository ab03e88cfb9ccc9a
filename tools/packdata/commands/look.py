"""``packdata info``, ``preview``, ``stats`` and ``diff``: what packed datasets hold, and how two of them differ."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.commandline import folded, show, wrapped
from loaders.errors import SchemaError
from loaders.progress import Meter
from loaders.schema import field_from_json
from loaders.text import describe_size, printable
from packdata.commands.common import (
    JSON,
    SOURCE,
    Command,
    datasets_at,
    show_json,
)
from packdata.describe import counted, describe_field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packdata.inspect.compare import Difference
    from packdata.inspect.stats import Stats

_DATASET = "DATASET\n  folder or URL of the dataset\n"
_MAX_CLASSES = 20


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
        show(folded(f"  {head:<12} {name:<{width}}  {field}{default}"))
    origin = describe_origin(about["provenance"]) or "(not recorded)"
    show(folded(f"  made from    {origin}"))


INFO = Command(
    name="info",
    summary="show fields, samples, shards and origin of a packed dataset",
    takes={"": f"DATASET\n  folder or URL of the dataset, or a folder of several\n{JSON}"},
    run=_info,
    details="""\
Fields marked 'served' are in a batch unless you ask for others. Of the origin, only options
other than the defaults are shown; --json has all of it.""",
    example="packdata info packed/train",
    how={"dataset": SOURCE},
    has_remote=True,
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
    preview.save_sheet(preview.sheet_of(tiles), out)
    show(f"{printable(str(out))}: {len(indices)} of {counted(len(view), 'sample')}")
    for tile in tiles:  # as on the sheet, whose font lacks letters and room
        show(f"  {printable(tile.caption)}")
    return 0


PREVIEW = Command(
    name="preview",
    summary="draw some samples with their captions, or print them if they have no pictures",
    takes={
        "": f"""
{_DATASET}--out SHEET.png
  file to write (default: the dataset's name, .png, in this folder)
--num N
  samples to show (default: 24)
--seed N
  another seed shows other samples (default: 0)
--text
  print the samples, draw nothing
"""
    },
    run=_preview,
    example="packdata preview packed/train --out sheet.png --num 24",
    how={
        "dataset": SOURCE,
        "out": {"type": _png},
        "num": {"default": 24},
        "seed": {"type": int, "default": 0},
    },
    has_remote=True,
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
    show(wrapped(f"bytes per sample: {_row(found.bytes_per_sample)}"))
    for name, about in found.fields.items():
        rest = {k: value for k, value in about.items() if k not in ("kind", "standardized")}
        if rest:
            extra = ", standardized" if about.get("standardized") else ""
            show(f"{name} ({about['kind']}{extra})")
        for key, value in rest.items():
            if key in ("classes", "pixels_by_value"):
                _show_counts(key.replace("_", " "), value)
            elif key == "columns":
                for column, numbers in value.items():
                    show(wrapped(f"  {printable(column)}: {_row(numbers)}"))
            else:
                show(wrapped(f"  {key.replace('_', ' ')}: {_row(value)}"))


def _row(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{printable(name)} {_row(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_row, value))
    if isinstance(value, int | float):
        return f"{value:,.6g}" if value % 1 else f"{value:,.0f}"
    return printable(str(value))


def _show_counts(what: str, counts: Mapping[str, int]) -> None:
    most = max(counts.values(), default=0)
    first = [(printable(name), num) for name, num in list(counts.items())[:_MAX_CLASSES]]
    width = max((len(name) for name, _ in first), default=0)
    show(f"  {what}: {len(counts)}")
    for name, num in first:
        bar = "█" * round(30 * num / most) if most else ""
        show(f"    {name:<{width}} {num:>10,} {bar}".rstrip())
    if len(counts) > _MAX_CLASSES:
        low, high = min(counts.values()), max(counts.values())
        show(f"    and {len(counts) - _MAX_CLASSES} more, from {low:,} to {high:,} each")


STATS = Command(
    name="stats",
    summary="compute mean and std of the pixels, sizes, and counts of the classes",
    takes={
        "": f"""
{_DATASET}--limit N
  decode only N samples, evenly spread (default: all); classes, tables, single numbers and
  sizes in bytes always cover all samples. At a URL, all is of the first two shards
--workers N
  threads (default: all usable cores)
{JSON}"""
    },
    run=_stats,
    details="With --json the result is what Normalize.from_stats reads: mean and std in pixel units.",
    example="packdata stats packed/train --json > stats.json",
    how={"dataset": SOURCE},
    has_remote=True,
)


# -- diff ------------------------------------------------------------------------------------------


def _diff(args: argparse.Namespace) -> int:
    from packdata.inspect.compare import diff

    found = diff(args.a, args.b, limit=args.limit)
    if args.json:
        show_json(found.to_json())
    else:
        _show_difference(found)
    return 1 if found else 0


def _show_difference(found: Difference) -> None:
    def samples(kind: str, num: int) -> tuple[str, str]:
        names = found.examples.get(kind, [])
        few = ", ".join(map(printable, names)) + (", ..." if num > len(names) else "")
        return counted(num, "sample"), few

    for what in found.schema:
        show(printable(what))
    for kind, num in (("only_a", found.only_a), ("only_b", found.only_b)):
        if num:
            show("only {} has {}: {}".format(kind[-1].upper(), *samples(kind, num)))
    if found.moved:
        show("the order differs, {} stand elsewhere: {}".format(*samples("moved", found.moved)))
    for name, num in found.changed.items():
        show("{} differs in {}: {}".format(name, *samples(name, num)))
    matched = "key" if found.by_key else "position"
    where = " in the fields that both have" if found.schema else ""
    verb = "is" if found.num_same == 1 else "are"
    show(f"{counted(found.num_same, 'sample')} {verb} the same{where} (matched by {matched})")


DIFF = Command(
    name="diff",
    summary="list the differences of two datasets: fields, samples by key, order, records",
    takes={
        "": f"""
A
  folder or URL of a dataset
B
  folder or URL of the other
--limit N
  samples to name for each kind of difference (default: 10)
{JSON}"""
    },
    run=_diff,
    details="""\
The exit status is 1 if they differ. Datasets of one fingerprint are equal: 'packdata verify' reads their bytes.
Else records are compared as stored, and checked against their checksums.""",
    example="packdata diff packed/v1 packed/v2",
    how={"a": SOURCE, "b": SOURCE, "limit": {"default": 10}},
    has_remote=True,
)
