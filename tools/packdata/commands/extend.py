"""``packdata extend``: add the samples of datasets to one."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from packdata.combine import extend
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
    from collections.abc import Sequence
    from pathlib import Path

    from loaders.commandline import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "add the shards of other datasets with the same fields to a dataset"
    example = "packdata extend packed/new-photos packed/train"
    parser = new_parser(commands, "extend", summary, example, LINKS)
    add_sources(parser, "datasets to add; they stay as they are", "dataset that grows")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    linked: list[Path] = []
    notes: list[str] = []
    with target_is_last(args):
        made = extend(
            args.dst, args.src, link=not args.no_link, on_link=linked.append, note=notes.append
        )
    show_combined(args, args.dst, made, len(linked))
    show_notes(notes)
    return 0


def spelled_anew(words: Sequence[str]) -> str:
    """Return the command that does what ``append DST SRC...`` did with these words.

    Example:
        >>> spelled_anew(["all", "a", "b", "--no-link"])
        'packdata extend --no-link a b all'
    """
    options = [word for word in words if word.startswith("-")]
    dst, *src = [word for word in words if not word.startswith("-")] or ["DST"]
    return (
        shlex.join(["packdata", "extend", *options])
        + f" {shlex.join(src) or 'SRC...'} {shlex.quote(dst)}"
    )
