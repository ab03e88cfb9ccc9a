"""``packdata stats``: pixels, sizes, classes and numbers of a packed dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.commandline import wrapped
from loaders.data.view import open_view
from loaders.text import printable
from packdata.commands.common import (
    add_json,
    add_workers,
    new_reading_parser,
    parse_count,
    show,
    show_json,
)
from packdata.describe import counted
from packdata.inspect.stats import Stats, stats
from packdata.packing.progress import progress_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from loaders.commandline import Commands

_MAX_CLASSES = 20
_DETAILS = (
    "With --json the result is what Normalize.from_stats reads: mean and std in pixel units."
)


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "compute mean and std of the pixels, sizes, and counts of the classes"
    example = "packdata stats packed/train --json > stats.json"
    parser = new_reading_parser(commands, "stats", summary, example, _DETAILS)
    parser.add_argument(
        "--limit",
        type=parse_count,
        metavar="N",
        help="decode only N samples, evenly spread (default: all); classes, tables, single numbers and "
        "sizes in bytes always cover all samples",
    )
    add_workers(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    num = len(open_view(args.dataset))
    with progress_of("reading", min(num, args.limit or num)) as tick:
        found = stats(args.dataset, limit=args.limit, workers=args.workers, tick=tick)
    if args.json:
        show_json(found.to_json())
    else:
        _show(found)
    return 0


def _show(found: Stats) -> None:
    some = "" if found.num_decoded == found.num_samples else f", {found.num_decoded:,} decoded"
    show(f"{counted(found.num_samples, 'sample')}{some}")
    show(wrapped(f"bytes per sample: {_row(found.bytes_per_sample)}", "    "))
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
                    show(wrapped(f"  {printable(column)}: {_row(numbers)}", "    "))
            else:
                show(wrapped(f"  {key.replace('_', ' ')}: {_row(value)}", "    "))


def _row(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{printable(name)} {_row(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_row, value))
    return f"{value:,.6g}" if isinstance(value, float) and value != round(value) else _whole(value)


def _whole(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else printable(str(value))


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
