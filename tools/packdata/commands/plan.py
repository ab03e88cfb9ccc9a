"""``packdata plan``: the list of a source at a URL, made once for all parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.remote.options import add_remote
from loaders.remote.url import is_url
from loaders.text import describe_size
from packdata.commands.common import (
    add_json,
    new_parser,
    parse_target,
    show,
    show_json,
)
from packdata.describe import counted

if TYPE_CHECKING:
    import argparse

    from loaders.commandline import Commands

_DETAILS = """\
Parts of a packing whose SRC is a URL read the list of its objects beside DST, where this command keeps it until
'packdata finish': a thousand parts need not list the store each, and all see the same."""


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "list sources at URLs once, for packing in parts"
    example = "packdata plan s3://raw/photos s3://bucket/packed"
    parser = new_parser(commands, "plan", summary, example, _DETAILS)
    parser.add_argument("src", type=parse_target, nargs="+", metavar="SRC", help="URL of a source")
    parser.add_argument(
        "dst",
        type=parse_target,
        metavar="DST",
        help="folder or URL that parts will be packed into",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a list in DST; parts packed by it are refused",
    )
    add_remote(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run ``packdata plan``."""
    from packdata.packing.outside import check_outside
    from packdata.parts.lists import keep_list

    if local := [source for source in args.src if not is_url(source)]:
        args.parser.error(f"{local[0]} is no URL: parts list folders and files themselves")
    check_outside(args.dst, args.src)
    for source in args.src:
        num, nbytes = keep_list(source, args.dst, overwrite=args.overwrite)
        if args.json:
            show_json({"src": str(source), "dst": str(args.dst), "objects": num, "bytes": nbytes})
        else:
            show(
                f"{source}: {counted(num, 'object')}, {describe_size(nbytes)}, listed in {args.dst}"
            )
    return 0
