"""``packdata copy``, ``split``, ``merge`` and ``extend``: datasets made of packed ones."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING

from loaders.progress import Meter
from loaders.remote.options import add_remote
from packdata.commands.common import (
    JSON,
    SHARD_SIZE,
    WORKERS,
    argument,
    command,
    given,
    options_of,
    place,
    seed,
    setting,
    show_made,
    usage_errors,
)
from packdata.options import take

if TYPE_CHECKING:
    from argparse import Namespace

_WRITING = (
    setting("format", usual="that of the source"),
    setting("shard_bytes", size=SHARD_SIZE),
    setting("overwrite", old="a dataset at the target"),
    JSON,
    add_remote,
)


@command(
    place("src"),
    place("dst", "folder of the copy, or its URL in a store"),
    options_of("packdata.packed.derive:CopyOptions"),
    WORKERS,
    *_WRITING,
    example="packdata copy packed/all packed/cats --where 'label == \"cat\"' --fields image,key",
)
def copy(args: Namespace) -> int:
    """Copy a dataset with other samples, fields or codecs.

    Records that need no change are copied byte for byte. A condition is made of comparisons, and, or,
    not, in, literals, and names of fields that hold one value. Labels compare with numbers and class
    names; 'x' in key finds part of a text. In a packed table, name columns: carat > 1 and cut == 'Ideal'.
    To a URL, --overwrite replaces the manifest and deletes no shard: others may still be reading it.
    """
    from packdata.packed.derive import CopyOptions, copy_dataset

    settings, meter = given(args), Meter("writing", "samples")
    with usage_errors(args, schema=True):
        changes = take(CopyOptions, settings)
    with usage_errors(args, schema=False):
        made = copy_dataset(args.src, args.dst, changes, **settings, progress=meter)
    return show_made(args, made)


def _parse_part(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    with suppress(ValueError):
        return name, float(number)
    raise argparse.ArgumentTypeError(f"takes NAME=FRACTION, got {text!r}")


@command(
    place("src"),
    place("dst", "folder or URL of the parts' folders"),
    argument(
        "--parts",
        "each part's share of the samples (for tokens, of different documents): above 0, together at most 1",
        nargs="+",
        required=True,
        type=_parse_part,
        metavar="NAME=FRACTION",
    ),
    argument(
        "--stratify",
        "divide each class (or whole number, or value of a table's column) in these shares",
        metavar="FIELD",
    ),
    argument(
        "--by",
        "key-hash: a key stays in its part when samples are added (default: shuffle, exact)",
        choices=("shuffle", "key-hash"),
        default="shuffle",
    ),
    seed("gives another division"),
    *_WRITING,
    example="packdata split packed/all packed --parts train=0.9 val=0.1 --stratify label",
)
def split(args: Namespace) -> int:
    """Divide a dataset into parts, such as train and val.

    Each part is a dataset DST/NAME with the same fields and classes; records stay as they are.
    """
    from packdata.packed import derive

    parts = dict(args.parts)
    if len(parts) < len(args.parts):
        args.parser.error(f"duplicate part in --parts, got {', '.join(n for n, _ in args.parts)}")
    with usage_errors(args, schema=False):
        made = derive.split(
            args.src,
            args.dst,
            parts,
            by=args.by,
            stratify=args.stratify,
            seed=args.seed,
            **given(args),
            progress=Meter("writing", "samples"),
        )
    return show_made(args, made)


@command(
    place("src", "datasets, in order; they stay as they are", nargs="+"),
    place("dst", "folder of the new dataset"),
    JSON,
    add_remote,
    setting("overwrite", old="a dataset that merge has made in DST"),
    setting(
        "shard_bytes",
        help="rewrite shards to this size, to join many small ones (default: keep them)",
    ),
    example="packdata merge packed/train packed/val packed/all",
)
def merge(args: Namespace) -> int:
    """Make one dataset of several with the same fields and classes.

    Shards become hard links where the file system has them: nothing is copied or verified. Damage to
    a shard then damages both datasets. At a URL no shard is deleted.
    """
    from packdata.packed import derive

    return show_made(args, derive.merge(args.dst, args.src, **given(args)))


@command(
    place("src", "datasets to add; they stay as they are", nargs="+"),
    place("dst", "dataset that grows"),
    JSON,
    add_remote,
    example="packdata extend packed/new-photos packed/train",
)
def extend(args: Namespace) -> int:
    """Add the shards of other datasets with the same fields to a dataset.

    Shards become hard links where the file system has them: nothing is copied or verified. Damage to
    a shard then damages both datasets. At a URL no shard is deleted.
    """
    from packdata.packed import derive

    return show_made(args, derive.extend(args.dst, args.src))
