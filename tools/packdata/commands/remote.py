"""``packdata fetch`` and ``cache``: datasets at URLs, and what of them lies on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.commandline import show
from loaders.data.manifest import read_manifest
from loaders.progress import Meter
from loaders.text import describe_size, printable
from packdata.commands.common import JSON, PATH, SOURCE, Command, show_json
from packdata.describe import counted

if TYPE_CHECKING:
    import argparse


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


FETCH = Command(
    name="fetch",
    summary="download a dataset from a URL to the cache, or to a folder",
    takes={"": "URL\n  of the dataset\nFOLDER?\n  copy it there, too"},
    run=_fetch,
    details="Shards already in the cache are not downloaded again; all are verified.",
    example="packdata fetch s3://bucket/packed/train",
    how={"url": SOURCE, "folder": PATH},
    has_remote=True,
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


CACHE = Command(
    name="cache",
    summary="show what is in the download cache",
    takes={
        "": f"""
FOLDER?
  folder of the cache
--clear
  delete all shards
{JSON}"""
    },
    run=_cache,
    details="Without FOLDER: the cache at $LOADERS_CACHE, or this user's default one.",
    example="packdata cache",
    how={"folder": {"type": str}},
)
