"""``packdata append``: add the samples of datasets to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packdata.combine import append
from packdata.commands.common import (
    LINKS,
    add_json,
    add_sources,
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
    summary = "add the shards of other datasets with the same fields to a dataset"
    example = "packdata append packed/train packed/new-photos"
    parser = new_parser(subparsers, "append", summary, example, f"\n{LINKS}")
    parser.add_argument("dst", type=parse_path, help="folder of the dataset that grows")
    add_sources(parser, "datasets to add")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    linked: list[Path] = []
    notes: list[str] = []
    made = append(
        args.dst, args.sources, link=not args.no_link, on_link=linked.append, note=notes.append
    )
    show_combined(args, args.dst, made, len(linked))
    show_notes(notes)
    return 0
