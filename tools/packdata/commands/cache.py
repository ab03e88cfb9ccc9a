"""``packdata cache``: what lies in the cache of datasets at URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.text import describe_size, printable
from packdata.commands.common import add_json, new_parser, show, show_json
from packdata.describe import counted
from packdata.packed.remote import cache_folder, cache_report, clear_cache, verify_cache

if TYPE_CHECKING:
    import argparse

    from loaders.commandline import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "show what is in the download cache"
    details = "Without FOLDER: the cache at $LOADERS_CACHE, or this user's default one."
    parser = new_parser(commands, "cache", summary, "packdata cache", details)
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="folder of the cache")
    parser.add_argument(
        "--clear", action="store_true", help="delete all shards that are not in use"
    )
    parser.add_argument(
        "--verify", action="store_true", help="check the hash of every shard, and delete bad ones"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    folder = cache_folder(args.folder)
    if args.clear:
        deleted, left = clear_cache(folder)
        show(f"{counted(deleted, 'shard')} deleted, {left} in use")
        return 0
    if args.verify:
        bad = verify_cache(folder)
        show(
            f"{counted(len(bad), 'shard')} had other bytes than their names say, and were deleted"
        )
        return 1 if bad else 0
    report = cache_report(folder)
    if args.json:
        show_json(report._asdict() | {"folder": str(folder)})
        return 0
    used = counted(report.num_used, "shard")
    show(f"{folder}: {describe_size(report.size_bytes)}, {used} in use")
    for each in report.datasets:
        part = f"{each['num_shards']} of {each['of_shards']} shards"
        show(f"  {printable(each['url'])}  {part}, {describe_size(each['size_bytes'])}")
    if report.num_unknown:
        show(f"  {counted(report.num_unknown, 'shard')} of other datasets")
    return 0
