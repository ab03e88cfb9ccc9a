"""``packdata fetch``: bring a dataset at a URL to this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.data.manifest import read_manifest
from loaders.data.view import open_view
from loaders.remote.options import add_remote
from loaders.text import describe_size
from packdata.commands.common import (
    new_parser,
    parse_path,
    parse_source,
    show,
)
from packdata.describe import counted
from packdata.packed.remote import fetch
from packdata.packed.views import write
from packdata.packing.progress import progress_of

if TYPE_CHECKING:
    import argparse

    from loaders.commandline import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "download a dataset from a URL to the cache, or to a folder"
    details = "Shards already in the cache are not downloaded again; all are verified."
    example = "packdata fetch s3://bucket/packed/train"
    parser = new_parser(commands, "fetch", summary, example, details)
    parser.add_argument("url", type=parse_source, metavar="URL", help="of the dataset")
    parser.add_argument(
        "folder", type=parse_path, nargs="?", metavar="FOLDER", help="copy it there, too"
    )
    add_remote(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    total = read_manifest(args.url).size_bytes
    with progress_of("fetching", total, unit="bytes") as tick:
        num, size = fetch(args.url, tick)
    show(f"{counted(num, 'shard')}, {describe_size(size)}: all here")
    if args.folder is not None:
        write(open_view(args.url), args.folder)
        show(f"copied to {args.folder}")
    return 0
