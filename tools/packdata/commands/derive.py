"""``packdata copy``, ``split``, ``merge`` and ``extend``: datasets made of packed ones."""

from __future__ import annotations

import os
import shlex
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from loaders.commandline import show
from loaders.data.manifest import read_manifest
from loaders.errors import ManifestError
from loaders.progress import Meter
from loaders.remote.url import is_url
from loaders.schema import PICTURE_CODECS
from packdata.commands.common import (
    JSON,
    PATH,
    SIZES,
    SOURCE,
    Command,
    made,
    parse_names,
    parse_size,
    show_json,
    show_made,
    show_notes,
    usage_errors,
)
from packdata.describe import counted
from packdata.packing.shards import DEFAULT_SHARD_BYTES, FORMATS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from loaders.data.manifest import Manifest
    from packdata.packed.edit import CopyOptions

    Note = Callable[[str], object]

_WRITING = f"""\
--format {{{",".join(FORMATS)}}}
  file format of the shards (default: that of the source)
--shard-size SIZE
  size of a shard; {SIZES} (default: 64MB)
--overwrite
  replace a dataset at the target
{JSON}"""
_SHARD_SIZE: dict[str, dict[str, Any]] = {
    "shard-size": {"dest": "shard_bytes", "default": DEFAULT_SHARD_BYTES}
}


# -- copy ------------------------------------------------------------------------------------------


def _copy(args: argparse.Namespace) -> int:
    from packdata.packed.edit import CopyOptions

    names = ("where", "fields", "codec", "quality", "subsampling", "compression")
    with usage_errors(args, schema=True):
        options = CopyOptions(**{name: getattr(args, name) for name in names})
    notes: list[str] = []
    with usage_errors(args, schema=False):
        write = _send if is_url(args.dst) else _write_copy
        manifest = write(args, args.dst, options, notes.append)
    show_made(args, args.dst, manifest)
    show_notes(notes)
    return 0


def _write_copy(args: argparse.Namespace, dst: Path, options: CopyOptions, note: Note) -> Manifest:
    from packdata.packed.edit import copy_dataset

    with Meter("writing", "samples") as meter:
        return copy_dataset(
            args.src,
            dst,
            options,
            format=args.format,
            shard_bytes=args.shard_bytes,
            overwrite=args.overwrite,
            workers=args.workers,
            tick=meter.tick,
            note=note,
        )


def _send(args: argparse.Namespace, url: Path, options: CopyOptions, note: Note) -> Manifest:
    """Send a dataset as it is, or what is made of it."""
    from loaders.data.view import open_view
    from packdata.packed.combine import upload
    from packdata.packed.edit import CopyOptions
    from packdata.packed.rewrite import format_of

    is_same = options == CopyOptions() and args.shard_bytes == DEFAULT_SHARD_BYTES
    if is_same and args.format in (None, format_of(open_view(args.src))):
        with Meter("sending", "bytes", read_manifest(args.src).size_bytes) as meter:
            return upload(args.src, url, overwrite=args.overwrite, tick=meter.tick, note=note)
    return _write_copy(args, url, options, note)


COPY = Command(
    name="copy",
    summary="copy a dataset with other samples, fields or codecs",
    takes={
        "": f"""
SRC
  folder or URL of the dataset
DST
  folder of the copy, or its URL in a store
--where EXPR
  keep the samples that meet a condition (default: all)
--fields A,B
  fields to keep, in this order (default: all)
--codec {{{",".join(PICTURE_CODECS)}}}
  encode pictures with this codec (default: leave them as they are)
--quality Q
  with --codec jpeg, webp or dct: 1 to 100, also of pictures that have this codec
  (default: these stay as they are, others get 90)
--subsampling {{420,444}}
  with --codec dct: of the chroma (default: as it is, else 420)
--compression {{lz4,zstd}}
  with --codec dct: fast or small (default: as it is, else lz4)
--workers N
  threads (default: all usable cores)
{_WRITING}"""
    },
    run=_copy,
    details="""\
Records that need no change are copied byte for byte.

A condition is made of comparisons, and, or, not, in, literals, and names of fields that hold
one value. Labels compare with numbers and class names; 'x' in key finds part of a text. In a
packed table, name columns: carat > 1 and cut == 'Ideal'; cut == '' finds missing categories.
Numbers are those of the source, even where --standardize changed what is stored.

To a URL, the shards are sent first, each under a name with its hash, then the manifest. If it
is stopped, the same command continues. Shards that need no change are sent as they are.
--overwrite replaces the manifest there and deletes no shard: others may still be reading it.""",
    example="packdata copy packed/all packed/cats --where 'label == \"cat\"' --fields image,key",
    how={
        "src": SOURCE,
        "dst": SOURCE,
        "fields": {"type": parse_names},
        **_SHARD_SIZE,
    },
    has_remote=True,
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


SPLIT = Command(
    name="split",
    summary="divide a dataset into parts, such as train and val",
    takes={
        "": f"""
SRC
  folder of the dataset
DST
  folder of the parts' folders
--parts NAME=FRACTION
  each part's share of the samples (for tokens, of different documents: equal ones come to one
  part): above 0, together at most 1; the rest is in no part
--stratify FIELD
  divide each class (or whole number, or value of a table's column) in these shares
--by {{shuffle,key-hash}}
  key-hash: a key stays in its part when samples are added (default: shuffle, exact)
--seed N
  another seed gives another division (default: 0)
{_WRITING}"""
    },
    run=_split,
    details="Each part is a dataset DST/NAME with the same fields and classes; records stay as they are.",
    example="packdata split packed/all packed --parts train=0.9 val=0.1 --stratify label",
    how={
        "src": PATH,
        "dst": PATH,
        "parts": {"nargs": "+", "required": True},
        "by": {"default": "shuffle"},
        "seed": {"type": int, "default": 0},
        **_SHARD_SIZE,
    },
)


# -- merge and extend ------------------------------------------------------------------------------


def _join(how: str, names: Sequence[str], args: argparse.Namespace) -> int:
    from packdata.packed import combine

    join: Callable[..., Manifest] = getattr(combine, how)
    linked: list[Path] = []
    notes: list[str] = []
    options: dict[str, Any] = {name: getattr(args, name) for name in names}
    options |= {"link": not args.no_link, "on_link": linked.append, "note": notes.append}
    try:
        with Meter("sending", "bytes") if is_url(args.dst) else nullcontext() as meter:
            options |= {} if meter is None else {"tick": meter.tick}
            manifest = join(args.dst, args.src, **options)
    except ManifestError as error:
        if not is_url(args.src[0]) and not os.path.lexists(args.src[0]):
            error.add_note(f"the target comes last, and is {args.dst} here")
        raise
    show_made(args, args.dst, manifest, num_linked=len(linked))
    if linked and not args.json:
        num = len(linked)
        what = (
            f"{num:,} shards are hard links and were"
            if num > 1
            else "1 shard is a hard link and was"
        )
        show(f"{what} not verified: packdata verify {shlex.quote(str(args.dst))}")
    show_notes(notes)
    return 0


_LINKS = """\
Shards become hard links where the file system has them: nothing is copied or verified. Damage to
a shard then damages both datasets. --no-link copies the shards, and verifies what
it copies. To a URL, shards that are not there are sent, and the manifest last; no shard is
deleted there."""
_NO_LINK = f"--no-link\n  copy and verify the shards, even where links work\n{JSON}"
MERGE = Command(
    name="merge",
    summary="make one dataset of several with the same fields and classes",
    takes={
        "": f"""
SRC...
  datasets, in order; they stay as they are
DST
  folder of the new dataset
{_NO_LINK}--overwrite
  replace a dataset that merge has made in DST
--shard-size SIZE
  rewrite shards to this size, to join many small ones; {SIZES} (default: keep them)
"""
    },
    run=partial(_join, "merge", ("overwrite", "shard_bytes")),
    details=_LINKS,
    example="packdata merge packed/train packed/val packed/all",
    how={"src": SOURCE, "dst": SOURCE, "shard-size": {"dest": "shard_bytes", "type": parse_size}},
    has_remote=True,
)
EXTEND = Command(
    name="extend",
    summary="add the shards of other datasets with the same fields to a dataset",
    takes={
        "": f"""
SRC...
  datasets to add; they stay as they are
DST
  dataset that grows
{_NO_LINK}"""
    },
    run=partial(_join, "extend", ()),
    details=_LINKS,
    example="packdata extend packed/new-photos packed/train",
    how={"src": SOURCE, "dst": SOURCE},
    has_remote=True,
)
