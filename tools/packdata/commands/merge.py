"""``packdata merge``: one dataset of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packdata.combine import merge
from packdata.commands.common import (
    LINKS,
    add_json,
    add_sources,
    new_parser,
    show_combined,
    show_notes,
    target_is_last,
)

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from loaders.commandline import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "make one dataset of several with the same fields and classes"
    example = "packdata merge packed/train packed/val packed/all"
    parser = new_parser(commands, "merge", summary, example, LINKS)
    add_sources(parser, "datasets, in order; they stay as they are", "folder of the new dataset")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a dataset that merge has made in DST"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    linked: list[Path] = []
    notes: list[str] = []
    options = {"link": not args.no_link, "overwrite": args.overwrite}
    with target_is_last(args):
        made = merge(args.dst, args.src, **options, on_link=linked.append, note=notes.append)
    show_combined(args, args.dst, made, len(linked))
    show_notes(notes)
    return 0
