"""``packdata diff``: how two datasets differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.remote.options import add_remote
from loaders.text import printable
from packdata.commands.common import (
    add_json,
    new_parser,
    parse_count,
    parse_source,
    show,
    show_json,
)
from packdata.describe import counted
from packdata.inspect.compare import Difference, diff

if TYPE_CHECKING:
    import argparse

    from loaders.commandline import Commands

_DETAILS = (
    "The exit status is 1 if they differ, or if one of them is damaged.\n"
    "Records are compared as stored, and checked against their checksums."
)


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "list the differences of two datasets: fields, samples by key, order, records"
    example = "packdata diff packed/v1 packed/v2"
    parser = new_parser(commands, "diff", summary, example, _DETAILS)
    parser.add_argument("a", type=parse_source, metavar="A", help="folder or URL of a dataset")
    parser.add_argument("b", type=parse_source, metavar="B", help="folder or URL of the other")
    parser.add_argument(
        "--limit",
        type=parse_count,
        default=10,
        metavar="N",
        help="samples to name for each kind of difference (default: 10)",
    )
    add_json(parser)
    add_remote(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    found = diff(args.a, args.b, limit=args.limit)
    if args.json:
        show_json(found.to_json())
    else:
        _show(found)
    return 1 if found else 0


def _show(found: Difference) -> None:
    for what in found.schema:
        show(printable(what))
    for kind, num in (("only_a", found.only_a), ("only_b", found.only_b)):
        if num:
            show(
                f"only {kind[-1].upper()} has {counted(num, 'sample')}: {_examples(found, kind, num)}"
            )
    if found.moved:
        examples = _examples(found, "moved", found.moved)
        show(f"the order differs, {counted(found.moved, 'sample')} stand elsewhere: {examples}")
    for name, num in found.changed.items():
        show(f"{name} differs in {counted(num, 'sample')}: {_examples(found, name, num)}")
    matched = "key" if found.by_key else "position"
    where = " in the fields that both have" if found.schema else ""
    verb = "is" if found.num_same == 1 else "are"
    show(f"{counted(found.num_same, 'sample')} {verb} the same{where} (matched by {matched})")


def _examples(found: Difference, kind: str, num: int) -> str:
    names = found.examples.get(kind, [])
    return ", ".join(map(printable, names)) + (", ..." if num > len(names) else "")
