"""``packdata split``: divide a dataset into parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.data.view import open_view
from packdata.commands.common import (
    add_json,
    add_writing,
    made,
    new_parser,
    parse_path,
    show_json,
    show_made,
    show_notes,
    usage_errors,
)
from packdata.describe import counted
from packdata.packed.partition import parse_parts, split
from packdata.packing.progress import progress_of
from packdata.tokens.stream import has_tokens

if TYPE_CHECKING:
    import argparse

    from loaders.commandline import Commands

_DETAILS = (
    "Each part is a dataset DST/NAME with the same fields and classes; records stay as they are."
)


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "divide a dataset into parts, such as train and val"
    example = "packdata split packed/all packed --parts train=0.9 val=0.1 --stratify label"
    parser = new_parser(commands, "split", summary, example, _DETAILS)
    parser.add_argument(
        "dataset", type=parse_path, metavar="DATASET", help="folder of the dataset"
    )
    parser.add_argument("dst", type=parse_path, metavar="DST", help="folder of the parts' folders")
    parser.add_argument(
        "--parts",
        nargs="+",
        required=True,
        metavar="NAME=FRACTION",
        help="each part's share of the samples (of documents, for tokens): above 0, together at most 1; "
        "the rest is in no part",
    )
    parser.add_argument(
        "--stratify",
        metavar="FIELD",
        help="divide each class (or whole number, or value of a table's column) in these shares",
    )
    parser.add_argument(
        "--by",
        choices=("shuffle", "key-hash"),
        default="shuffle",
        help="key-hash: a key stays in its part when samples are added (default: shuffle, exact)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="another seed gives another division (default: 0)",
    )
    add_writing(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    view = open_view(args.dataset)
    num = len(view)
    notes: list[str] = []
    with usage_errors(args, schema=False), progress_of("writing", num) as tick:
        manifests = split(
            args.dataset,
            args.dst,
            parse_parts(args.parts),
            by=args.by,
            stratify=args.stratify,
            seed=args.seed,
            format=args.format,
            shard_bytes=args.shard_size,
            overwrite=args.overwrite,
            tick=tick,
            note=notes.append,
        )
    show_notes(notes)
    if args.json:
        show_json({name: made(args.dst / name, part) for name, part in manifests.items()})
        return 0
    for name, part in manifests.items():
        show_made(args, args.dst / name, part)
    left = num - sum(part.num_samples for part in manifests.values())
    if left and not has_tokens(view.schema):  # their rows are laid out anew
        show_left(left)
    return 0


def show_left(num: int) -> None:
    """Say how many samples are in no part."""
    from packdata.commands.common import show

    verb = "is" if num == 1 else "are"
    show(f"{counted(num, 'sample')} {verb} in no part: the fractions add up to less than 1")
