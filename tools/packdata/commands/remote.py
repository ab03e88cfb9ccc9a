"""``packdata fetch`` and ``cache``: datasets at URLs, and what of them lies on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.commandline import Command, show
from loaders.data.manifest import read_manifest
from loaders.progress import Meter
from loaders.remote.options import add_remote
from loaders.text import describe_size, printable
from packdata.commands.common import add_dataset, add_json, add_switch, show_json
from packdata.describe import counted
from packdata.options import parse_path

if TYPE_CHECKING:
    import argparse

    from loaders.commandline import Parser


def _fetch(args: argparse.Namespace) -> int:
    from loaders.data.view import open_view
    from packdata.packed.remote import fetch
    from packdata.packed.views import write

    total = read_manifest(args.url).size_bytes
    with Meter("fetching", "bytes", total) as meter:
        num, size = fetch(args.url, meter.tick)
    show(f"{counted(num, 'shard')}, {describe_size(size)}: all here")
    if args.folder is not None:
        write(open_view(args.url), args.folder)
        show(f"copied to {args.folder}")
    return 0


def _add_fetch(parser: Parser) -> None:
    add_dataset(parser, "of the dataset", "url")
    parser.add_argument(
        "folder", nargs="?", metavar="FOLDER", type=parse_path, help="copy it there, too"
    )
    add_remote(parser)


FETCH = Command(
    name="fetch",
    summary="download a dataset from a URL to the cache, or to a folder",
    add=_add_fetch,
    run=_fetch,
    details="Shards already in the cache are not downloaded again; all are verified.",
    example="packdata fetch s3://bucket/packed/train",
)


def _cache(args: argparse.Namespace) -> int:
    from packdata.packed.remote import cache_folder, cache_report, clear_cache

    folder = cache_folder(args.folder)
    if args.clear:
        show(f"{counted(clear_cache(folder), 'shard')} deleted")
        return 0
    report = cache_report(folder)
    if args.json:
        show_json(report._asdict() | {"folder": str(folder)})
        return 0
    show(f"{folder}: {describe_size(report.size_bytes)}")
    for each in report.datasets:
        part = f"{each['num_shards']} of {each['of_shards']} shards"
        show(f"  {printable(each['url'])}  {part}, {describe_size(each['size_bytes'])}")
    if report.num_unknown:
        show(f"  {counted(report.num_unknown, 'shard')} of other datasets")
    return 0


def _add_cache(parser: Parser) -> None:
    what = "folder of the cache (default: $LOADERS_CACHE, else that of this user)"
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help=what)
    add_switch(parser, "--clear", "delete all shards")
    add_json(parser)


CACHE = Command(
    name="cache",
    summary="show what is in the download cache",
    add=_add_cache,
    run=_cache,
    example="packdata cache",
)
