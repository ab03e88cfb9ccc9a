"""``packdata repair``: restore damaged shards from a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.text import printable
from packdata.commands.common import add_json, new_parser, parse_path, show, show_json
from packdata.describe import counted
from packdata.packed.repair import repair
from packdata.packing.progress import progress_of

if TYPE_CHECKING:
    import argparse

    from loaders.commandline import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "restore damaged or missing shards from a copy of the dataset"
    example = "packdata repair packed/train --from /backup/train"
    parser = new_parser(commands, "repair", summary, example)
    parser.add_argument(
        "dataset", type=parse_path, metavar="DATASET", help="folder of the damaged dataset"
    )
    parser.add_argument(
        "--from", dest="source", type=parse_path, required=True, metavar="OTHER", help="the copy"
    )
    parser.add_argument(
        "--manifest",
        action="store_true",
        help="also take the copy's manifest if the dataset's own is damaged or missing",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    with progress_of("repairing", None, unit="bytes") as tick:
        done = repair(args.dataset, args.source, manifest=args.manifest, tick=tick)
    if args.json:
        show_json(done.to_json())
    else:
        for file in done.restored:
            show(f"{printable(file)}: restored")
        for file, what in done.failed.items():
            show(f"{printable(file)}: not restored: {what}")
        verb = "was" if done.num_whole == 1 else "were"
        whole = f"{counted(done.num_whole, 'shard')} {verb} whole"
        show(f"{whole}, {counted(len(done.restored), 'file')} restored")
    return 1 if done.failed else 0
