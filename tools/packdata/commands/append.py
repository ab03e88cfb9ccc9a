"""``packdata append``: add the samples of datasets to one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from packdata.combine import append
from packdata.commands.common import add_json, new_parser, show_made

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    summary = "add the shards of other datasets with the same fields to a dataset"
    example = "packdata append packed/train packed/new-photos"
    parser = new_parser(subparsers, "append", summary, example)
    parser.add_argument("dst", type=Path, help="folder of the dataset that grows")
    parser.add_argument("sources", type=Path, nargs="+", metavar="src", help="datasets to add")
    parser.add_argument("--no-link", action="store_true", help="copy shards even where links work")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    show_made(args, args.dst, append(args.dst, args.sources, link=not args.no_link))
    return 0
