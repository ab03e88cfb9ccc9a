"""``packdata info``: what a packed dataset is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.schema import field_from_json
from loaders.text import describe_size, printable
from packdata.commands.common import (
    add_json,
    datasets_at,
    new_reading_parser,
    show,
    show_json,
)
from packdata.describe import describe_field
from packdata.inspect.info import describe
from packdata.packing.provenance import describe_origin

if TYPE_CHECKING:
    import argparse

    from loaders.commandline import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "show fields, samples, shards and origin of a packed dataset"
    details = (
        "Fields marked 'served' are in a batch unless you ask for others. Of the origin, only options\n"
        "other than the defaults are shown; --json has all of it."
    )
    example = "packdata info packed/train"
    parser = new_reading_parser(commands, "info", summary, example, details, several=True)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    described = [describe(folder) for folder in datasets_at(args.dataset)]
    if args.json:
        show_json(described if len(described) > 1 else described[0])
    else:
        for about in described:
            _show(about)
    return 0


def _show(about: dict[str, Any]) -> None:
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
    show(f"  made from    {describe_origin(about['provenance']) or '(not recorded)'}")
