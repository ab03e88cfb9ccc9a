"""``packdata preview``: look at samples."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from loaders.augment import presets
from loaders.data.view import open_view
from loaders.errors import SchemaError
from loaders.text import printable
from packdata.commands.common import (
    new_reading_parser,
    parse_count,
    show,
    show_notes,
)
from packdata.describe import counted
from packdata.inspect.preview import (
    as_text,
    augmented_sheet,
    choose,
    contact_sheet,
    has_pictures,
    save_sheet,
)

if TYPE_CHECKING:
    from loaders.commandline import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = (
        "draw a labelled contact sheet of some samples, or print them if they have no pictures"
    )
    example = "packdata preview packed/train --out sheet.png --num 24"
    parser = new_reading_parser(commands, "preview", summary, example)
    parser.add_argument(
        "--out",
        type=_png,
        metavar="SHEET.png",
        help="file to write (default: the dataset's name, .png, in this folder)",
    )
    parser.add_argument(
        "--num",
        type=parse_count,
        default=24,
        metavar="N",
        help="samples to show (default: 24)",
    )
    parser.add_argument(
        "--columns",
        type=parse_count,
        metavar="N",
        help="samples per row (default: makes the sheet a little wider than high)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="another seed shows other samples (default: 0)",
    )
    parser.add_argument(
        "--augment",
        choices=presets.NAMES,
        metavar="PRESET",
        help=f"what a recipe makes of each, side by side: {', '.join(presets.NAMES)}",
    )
    parser.add_argument("--text", action="store_true", help="print the samples, draw nothing")
    parser.set_defaults(run=run)


def _png(text: str) -> Path:
    if not text.lower().endswith(".png"):
        raise argparse.ArgumentTypeError(
            f"the sheet is a PNG: its name ends with .png, got {text!r}"
        )
    return Path(text)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    sheet = [name for name in ("out", "columns", "augment") if getattr(args, name) is not None]
    if sheet and args.text:
        args.parser.error(f"--{sheet[0]} is of a sheet, and --text draws none")
    view = open_view(args.dataset)
    indices = choose(len(view), args.num, args.seed)
    if sheet and not has_pictures(view):
        hint = f"leave --{sheet[0]} out, and its samples are printed"
        raise SchemaError(f"{args.dataset} has no pictures to draw a sheet of: {hint}")
    if args.text or not has_pictures(view):
        for i in indices:
            show(as_text(view, i))
        return 0
    out: Path = args.out or Path(f"{args.dataset.absolute().name}.png")
    notes: list[str] = []
    if args.augment is None:
        sheet_of = contact_sheet(view, indices, columns=args.columns, notes=notes)
    else:
        sheet_of = augmented_sheet(view, indices, args.augment, notes=notes)
    save_sheet(sheet_of, out)
    show_notes(notes)
    show(f"{printable(str(out))}: {len(indices)} of {counted(len(view), 'sample')}")
    return 0
