"""``packdata extend``: add the samples of datasets to one."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from packdata.commands.common import new_joining_parser
from packdata.packed.combine import extend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.commandline import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "add the shards of other datasets with the same fields to a dataset"
    example = "packdata extend packed/new-photos packed/train"
    src, dst = "datasets to add; they stay as they are", "dataset that grows"
    parser = new_joining_parser(commands, "extend", summary, example, src=src, dst=dst)
    parser.set_defaults(join=extend)


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
