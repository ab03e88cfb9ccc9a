"""``packdata merge``: one dataset of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packdata.combine import merge
from packdata.commands.common import (
    LINKS,
    add_json,
    add_sources,
    add_writing,
    new_parser,
    parse_path,
    show_combined,
    show_notes,
)

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    summary = "make one dataset of several with the same fields and classes"
    example = "packdata merge packed/all packed/train packed/val"
    parser = new_parser(subparsers, "merge", summary, example, f"\n{LINKS}")
    parser.add_argument("dst", type=parse_path, help="folder of the new dataset")
    add_sources(parser, "datasets, in order")
    add_writing(parser, shards=False)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    linked: list[Path] = []
    notes: list[str] = []
    options = {"link": not args.no_link, "overwrite": args.overwrite}
    made = merge(args.dst, args.sources, **options, on_link=linked.append, note=notes.append)
    show_combined(args, args.dst, made, len(linked))
    show_notes(notes)
    return 0
