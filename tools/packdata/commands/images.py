"""``packdata images``: pictures with their labels and masks to a packed dataset."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from packdata.commands.common import add_packing_options, show, show_json, usage_errors

if TYPE_CHECKING:
    from packdata.engine import Summary
    from packdata.plan import ImagesPlan

_ABOUT = """\
Pack pictures from a folder per class, a flat folder, a .csv, .tsv or .jsonl list, WebDataset
tars, Parquet or IDX (MNIST). A folder of splits (train, val, test, ...) gives one dataset each.
Without --size and --codec, files are kept verbatim where they serve right.

The same command run again continues after a kill, a full disk or Ctrl-C; the result does not
depend on --workers."""

_EXAMPLES = """\
examples:
  packdata images imagenet packed --size 256
  packdata images photos packed --size 224x224 --fit cover --codec raw
  packdata images photos packed --size 224 --fit cover --codec dct     finished on the GPU
  packdata images photos packed --size 256 --size 128       both, from one decoding
  packdata images scans packed --masks masks --keep-depth
  packdata images val packed/val --classes packed/train     the classes of another dataset
  packdata images photos packed --on-error skip --dry-run"""


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "images",
        help="pack pictures with their labels and masks",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("src", metavar="SRC", help="folder, list, tar, Parquet or IDX file")
    parser.add_argument("dst", metavar="DST", help="folder to pack into: new or empty")
    _add_picture_options(parser.add_argument_group("pictures"))
    _add_source_options(parser.add_argument_group("source"))
    add_packing_options(parser.add_argument_group("packing"), usual="lmdb for files, else parquet")
    parser.set_defaults(run=run, parser=parser)


def _add_picture_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--size",
        action="append",
        default=[],
        metavar="N|HxW",
        help="target size in pixels; repeated: each size becomes its own dataset DST/SIZE",
    )
    add(
        "--fit",
        choices=("shorter", "cover", "contain", "stretch"),
        default="shorter",
        help="what --size means: scale the shorter side (default), scale and cut, scale and pad, "
        "or stretch",
    )
    add(
        "--codec",
        choices=("jpeg", "png", "webp", "raw", "yuv420", "dct"),
        help="encode all pictures so",
    )
    add(
        "--quality",
        type=_quality,
        default=90,
        metavar="Q",
        help="of JPEG, WebP and dct (default 90)",
    )
    add("--subsampling", choices=("420", "444"), help="of the chroma of dct (default 420)")
    add("--compression", choices=("lz4", "zstd"), help="of dct: fast (default) or small")
    add("--gray", action="store_true", help="store one channel")
    add("--keep-depth", action="store_true", help="store 16 bits")


def _add_source_options(group: Any) -> None:
    add = group.add_argument
    add("--masks", metavar="FOLDER", help="one mask for each picture, of the same relative name")
    add(
        "--classes",
        metavar="FILE|DATASET",
        help="class names that fix the numbers: a file with one a line, or a packed dataset",
    )
    add("--image-column", metavar="NAME", help="column of paths or pictures (default: guessed)")
    add("--mask-column", metavar="NAME", help="column of masks (default: 'mask', if there is one)")


_SOURCE_OPTIONS = ("masks", "classes", "image_column", "mask_column")


def _quality(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"takes a whole number of 1 to 100, got {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Run ``packdata images``."""
    from packdata.plan import make_plan, pack_plan
    from packdata.progress import progress_on
    from packdata.shards import check_shard_options

    with usage_errors(args):
        plan = make_plan(args.src, format=args.format, **_plan_options(args))
        check_shard_options(plan.format, args.shard_size)
    if args.dry_run:
        _show(args, plan)
        return 0
    try:
        summary = pack_plan(
            plan,
            args.dst,
            shard_bytes=args.shard_size,
            workers=args.workers,
            on_error=args.on_error,
            overwrite=args.overwrite,
            progress=progress_on(),
        )
    except SourceError:
        sys.stderr.write(
            "packdata: stopped at the first file that cannot be packed; "
            "--on-error skip continues and lists such files\n"
        )
        raise
    _show(args, summary)
    return 3 if summary.rejected else 0


def _show(args: argparse.Namespace, result: ImagesPlan | Summary) -> None:
    if args.json:
        show_json(result.to_json())
    else:
        show(str(result))


def _plan_options(args: argparse.Namespace) -> dict[str, Any]:
    names = ("fit", "codec", "quality", "gray", "keep_depth", "subsampling", "compression")
    options = {name: getattr(args, name) for name in (*names, *_SOURCE_OPTIONS)}
    return {"sizes": tuple(args.size), **options}
