"""``packdata fetch`` and ``cache``: datasets at URLs, and what of them lies on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.commandline import show
from loaders.progress import Meter
from loaders.remote.options import add_remote
from loaders.text import describe_size
from packdata.commands.common import JSON, argument, command, place, show_result, switch
from packdata.describe import counted

if TYPE_CHECKING:
    from argparse import Namespace


@command(
    place("url", "of the dataset"),
    add_remote,
    example="packdata fetch s3://bucket/packed/train",
)
def fetch(args: Namespace) -> int:
    """Download a dataset from a URL to the cache.

    Shards already in the cache are not downloaded again; all are verified.
    """
    from packdata.packed import remote

    num, size = remote.fetch(args.url, Meter("fetching", "bytes"))
    show(f"{counted(num, 'shard')}, {describe_size(size)}: all here")
    return 0


@command(
    argument(
        "folder",
        "folder of the cache (default: $LOADERS_CACHE, else that of this user)",
        nargs="?",
        metavar="FOLDER",
    ),
    switch("--clear", "delete all shards"),
    JSON,
    example="packdata cache",
)
def cache(args: Namespace) -> int:
    """Show what is in the download cache."""
    from loaders.remote.folder import Cache, default_folder
    from packdata.packed.remote import cache_report, clear_cache

    folder = Cache.parse(args.folder).folder or default_folder()
    if args.clear:
        num = clear_cache(folder)
        show_result(args, {"num_deleted": num}, [f"{counted(num, 'shard')} deleted"])
        return 0
    report = cache_report(folder)
    lines = [f"{folder}: {describe_size(report['size_bytes'])}"]
    for each in report["datasets"]:
        part = f"{each['num_shards']} of {each['of_shards']} shards"
        lines.append(f"  {each['url']}  {part}, {describe_size(each['size_bytes'])}")
    show_result(args, report, lines)
    return 0
