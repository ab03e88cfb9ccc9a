"""``packdata merge``: one dataset of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packdata.commands.common import SIZES, new_joining_parser, parse_size
from packdata.packed.combine import merge

if TYPE_CHECKING:
    from loaders.commandline import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "make one dataset of several with the same fields and classes"
    example = "packdata merge packed/train packed/val packed/all"
    src, dst = "datasets, in order; they stay as they are", "folder of the new dataset"
    parser = new_joining_parser(commands, "merge", summary, example, src=src, dst=dst)
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a dataset that merge has made in DST"
    )
    parser.add_argument(
        "--shard-size",
        dest="shard_bytes",
        type=parse_size,
        metavar="SIZE",
        help=f"rewrite shards to this size, to join many small ones; {SIZES} (default: keep them)",
    )
    parser.set_defaults(join=merge, options=["overwrite", "shard_bytes"])
