"""``packdata copy``, ``split``, ``merge`` and ``extend``: datasets made of packed ones."""

from __future__ import annotations

import os
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from loaders.commandline import Command, show
from loaders.errors import ManifestError
from loaders.progress import Meter
from loaders.remote.options import add_remote
from loaders.remote.url import is_url
from packdata.commands.common import (
    add_dataset,
    add_json,
    add_number,
    add_shards,
    add_switch,
    made,
    show_json,
    show_made,
    show_notes,
    usage_errors,
)
from packdata.describe import counted
from packdata.options import add_options, parse_path, parse_size, parse_source

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from loaders.commandline import Parser
    from loaders.data.manifest import Manifest


def _add_writing(parser: Parser) -> None:
    add_shards(parser, "that of the source")
    add_switch(parser, "--overwrite", "replace a dataset at the target")
    add_json(parser)


# -- copy ------------------------------------------------------------------------------------------


def _copy(args: argparse.Namespace) -> int:
    from packdata.packed.edit import CopyOptions, copy_dataset

    with usage_errors(args, schema=True):
        options = CopyOptions(**{f.name: getattr(args, f.name) for f in fields(CopyOptions)})
    notes: list[str] = []
    with usage_errors(args, schema=False), Meter("writing", "samples") as meter:
        manifest = copy_dataset(
            args.src,
            args.dst,
            options,
            format=args.format,
            shard_bytes=args.shard_bytes,
            overwrite=args.overwrite,
            workers=args.workers,
            tick=meter.tick,
            note=notes.append,
        )
    show_made(args, args.dst, manifest)
    show_notes(notes)
    return 0


def _add_copy(parser: Parser) -> None:
    from packdata.packed.edit import CopyOptions

    add_dataset(parser, name="src")
    add_dataset(parser, "folder of the copy, or its URL in a store", "dst")
    add_options(parser, CopyOptions)
    add_number(parser, "--workers", "threads (default: all usable cores)")
    _add_writing(parser)
    add_remote(parser)


COPY = Command(
    name="copy",
    summary="copy a dataset with other samples, fields or codecs",
    add=_add_copy,
    run=_copy,
    details="""\
Records that need no change are copied byte for byte. A condition is made of comparisons, and, or,
not, in, literals, and names of fields that hold one value. Labels compare with numbers and class
names; 'x' in key finds part of a text. In a packed table, name columns: carat > 1 and cut == 'Ideal'.
To a URL, --overwrite replaces the manifest and deletes no shard: others may still be reading it.""",
    example="packdata copy packed/all packed/cats --where 'label == \"cat\"' --fields image,key",
)


# -- split -----------------------------------------------------------------------------------------


def _split(args: argparse.Namespace) -> int:
    from loaders.data.view import open_view
    from packdata.packed.partition import parse_parts, split
    from packdata.tokens.stream import has_tokens

    view = open_view(args.src)
    num = len(view)
    notes: list[str] = []
    with usage_errors(args, schema=False), Meter("writing", "samples", num) as meter:
        manifests = split(
            args.src,
            args.dst,
            parse_parts(args.parts),
            by=args.by,
            stratify=args.stratify,
            seed=args.seed,
            format=args.format,
            shard_bytes=args.shard_bytes,
            overwrite=args.overwrite,
            tick=meter.tick,
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
        are = f"{counted(left, 'sample')} {'is' if left == 1 else 'are'}"
        show(f"{are} in no part: the fractions add up to less than 1")
    return 0


def _add_split(parser: Parser) -> None:
    add = parser.add_argument
    add("src", metavar="SRC", type=parse_path, help="folder of the dataset")
    add("dst", metavar="DST", type=parse_path, help="folder of the parts' folders")
    what = "each part's share of the samples (for tokens, of different documents): above 0, together at most 1"
    add("--parts", nargs="+", required=True, metavar="NAME=FRACTION", help=what)
    what = "divide each class (or whole number, or value of a table's column) in these shares"
    add("--stratify", metavar="FIELD", help=what)
    what = "key-hash: a key stays in its part when samples are added (default: shuffle, exact)"
    add("--by", choices=("shuffle", "key-hash"), default="shuffle", help=what)
    what = "another seed gives another division (default: 0)"
    add("--seed", type=int, default=0, metavar="N", help=what)
    _add_writing(parser)


SPLIT = Command(
    name="split",
    summary="divide a dataset into parts, such as train and val",
    add=_add_split,
    run=_split,
    details="Each part is a dataset DST/NAME with the same fields and classes; records stay as they are.",
    example="packdata split packed/all packed --parts train=0.9 val=0.1 --stratify label",
)


# -- merge and extend ------------------------------------------------------------------------------


def _join(how: str, names: Sequence[str], args: argparse.Namespace) -> int:
    from packdata.packed import combine

    join: Callable[..., Manifest] = getattr(combine, how)
    notes: list[str] = []
    options: dict[str, Any] = {name: getattr(args, name) for name in names}
    options |= {"link": not args.no_link, "note": notes.append}
    try:
        manifest = join(args.dst, args.src, **options)
    except ManifestError as error:
        if not is_url(args.src[0]) and not os.path.lexists(args.src[0]):
            error.add_note(f"the target comes last, and is {args.dst} here")
        raise
    show_made(args, args.dst, manifest)
    show_notes(notes)
    return 0


def _add_sources(parser: Parser, src: str, dst: str) -> None:
    parser.add_argument("src", nargs="+", metavar="SRC", type=parse_source, help=src)
    add_dataset(parser, dst, "dst")
    add_switch(parser, "--no-link", "copy and verify the shards, even where links work")
    add_json(parser)
    add_remote(parser)


def _add_merge(parser: Parser) -> None:
    _add_sources(parser, "datasets, in order; they stay as they are", "folder of the new dataset")
    add_switch(parser, "--overwrite", "replace a dataset that merge has made in DST")
    what = "rewrite shards to this size, to join many small ones (default: keep them)"
    parser.add_argument(
        "--shard-size", dest="shard_bytes", type=parse_size, metavar="SIZE", help=what
    )


def _add_extend(parser: Parser) -> None:
    _add_sources(parser, "datasets to add; they stay as they are", "dataset that grows")


_LINKS = """\
Shards become hard links where the file system has them: nothing is copied or verified. Damage to
a shard then damages both datasets. At a URL no shard is deleted."""
MERGE = Command(
    name="merge",
    summary="make one dataset of several with the same fields and classes",
    add=_add_merge,
    run=partial(_join, "merge", ("overwrite", "shard_bytes")),
    details=_LINKS,
    example="packdata merge packed/train packed/val packed/all",
)
EXTEND = Command(
    name="extend",
    summary="add the shards of other datasets with the same fields to a dataset",
    add=_add_extend,
    run=partial(_join, "extend", ()),
    details=_LINKS,
    example="packdata extend packed/new-photos packed/train",
)
