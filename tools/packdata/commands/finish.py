"""``packdata finish``: the parts of a packing to the dataset that they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.remote.options import add_remote
from packdata.commands.common import (
    add_json,
    new_parser,
    parse_target,
    show,
    show_json,
    usage_errors,
)

if TYPE_CHECKING:
    import argparse

    from loaders.commandline import Commands

_DETAILS = """\
The parts are those that --part has packed into DST, on one machine or on many. Nothing is read of
what they hold: their shards are linked, in their order. Parts of other sources, options or versions
are refused, and those that are missing are named. Killed, the same command finishes."""


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "join the parts that were packed with --part"
    parser = new_parser(commands, "finish", summary, "packdata finish packed", _DETAILS)
    parser.add_argument(
        "dst", type=parse_target, metavar="DST", help="where the parts were packed"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a dataset in DST")
    parser.add_argument(
        "--delete-old",
        action="store_true",
        help="at a URL, delete shards beside the dataset that it does not have, and end uploads that were not "
        "finished; nobody may read an earlier one, or pack another, meanwhile",
    )
    add_remote(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run ``packdata finish``."""
    from packdata.parts.local import finish

    with usage_errors(args, schema=False):
        summary = finish(args.dst, overwrite=args.overwrite, delete_old=args.delete_old)
    if args.json:
        show_json(summary.to_json())
    else:
        show(str(summary))
    return 3 if summary.rejected else 0
