"""``packdata arrays``: volumes, feature maps and other arrays, with labels and masks."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from packdata.commands.common import add_packing_options, show, show_json, usage_errors

if TYPE_CHECKING:
    from packdata.arrays_plan import ArraysPlan
    from packdata.engine import Summary

_ABOUT = """\
Pack .npy and .npz files from a folder per class, a flat folder, or a .csv, .tsv or .jsonl list.
A folder of splits (train, val, test, ...) gives one dataset each. Arrays have one dtype; where
they share a shape, batches are one tensor. Volumes are served as (C, D, H, W), masks as (D, H, W);
augment.RandomCrop then reads no more than the crop. Pickled objects are never loaded.

The same command run again continues after a kill, a full disk or Ctrl-C; the result does not
depend on --workers."""

_EXAMPLES = """\
examples:
  packdata arrays scans packed --masks labels
  packdata arrays scans packed --masks labels --dtype float16 --mask-dtype uint8
  packdata arrays cases.csv packed --array-column ct --mask-column seg
  packdata arrays cases packed --array image --mask-array label    both in one .npz
  packdata arrays maps packed --channels last                      H x W x C becomes C x H x W"""


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "arrays",
        help="pack volumes and other arrays (.npy, .npz) with their labels and masks",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("src", metavar="SRC", help="folder of .npy and .npz files, or a list")
    parser.add_argument("dst", metavar="DST", help="folder to pack into: new or empty")
    _add_array_options(parser.add_argument_group("arrays"))
    _add_source_options(parser.add_argument_group("source"))
    add_packing_options(
        parser.add_argument_group("packing"),
        usual="lmdb for arrays of 1 MB and more, else parquet",
    )
    parser.set_defaults(run=run, parser=parser)


def _add_array_options(group: Any) -> None:
    add = group.add_argument
    add("--dtype", help="to store; a value that does not fit is an error (default: the files')")
    add("--mask-dtype", metavar="DTYPE", help="the same for masks: a type of whole numbers")
    add(
        "--channels",
        choices=("first", "last", "none"),
        help="where the files have their channels; none: an axis of 1 is put in front "
        "(default: first of 4 axes, none of 3; 1 and 2 axes stay as they are)",
    )


def _add_source_options(group: Any) -> None:
    add = group.add_argument
    add("--masks", metavar="FOLDER", help="one mask for each array, of the same relative name")
    add("--array", metavar="NAME", help="the array in an .npz that holds several")
    add(
        "--mask-array",
        metavar="NAME",
        help="the mask in an .npz, in the array's own or in --masks",
    )
    add(
        "--classes",
        metavar="FILE|DATASET",
        help="class names that fix the numbers: a file with one a line, or a packed dataset",
    )
    add("--array-column", metavar="NAME", help="column of paths in a list (default: guessed)")
    add("--mask-column", metavar="NAME", help="column of masks (default: 'mask', if there is one)")


def run(args: argparse.Namespace) -> int:
    """Run ``packdata arrays``."""
    from packdata.arrays_plan import make_arrays_plan, pack_arrays_plan
    from packdata.progress import progress_on
    from packdata.shards import check_shard_options

    with usage_errors(args):
        plan = make_arrays_plan(args.src, format=args.format, **_plan_options(args))
        check_shard_options(plan.format, args.shard_size)
    if args.dry_run:
        _show(args, plan)
        return 0
    try:
        summary = pack_arrays_plan(
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


def _show(args: argparse.Namespace, result: ArraysPlan | Summary) -> None:
    if args.json:
        show_json(result.to_json())
    else:
        show(str(result))


def _plan_options(args: argparse.Namespace) -> dict[str, Any]:
    names = ("dtype", "mask_dtype", "channels", "array", "mask_array", "masks", "classes")
    return {name: getattr(args, name) for name in (*names, "array_column", "mask_column")}
