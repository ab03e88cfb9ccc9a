"""``packdata arrays``: volumes, feature maps and other arrays, with labels and masks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from packdata.commands.packing import (
    add_packing_options,
    add_source_options,
    new_packing_parser,
    run_packing,
)

if TYPE_CHECKING:
    import argparse

    from loaders.commandline import Commands

_ABOUT = """\
Pack .npy and .npz files from a folder per class, a flat folder, or a .csv, .tsv or .jsonl list.
A folder of splits (train, val, test, ...) becomes one dataset per split. All arrays must have one
dtype; if they share a shape, a batch is one tensor. Volumes are served as (C, D, H, W), masks as (D, H, W);
augment.RandomCrop then reads no more than the crop. Pickled objects are never loaded.

After a kill, a full disk or Ctrl-C, run the same command again to continue. The result does not
depend on --workers."""

_EXAMPLES = """\
examples:
  packdata arrays scans packed --masks labels
  packdata arrays scans packed --masks labels --dtype float16 --mask-dtype uint8
  packdata arrays cases.csv packed --array-column ct --mask-column seg
  packdata arrays cases packed --array image --mask-array label    both in one .npz
  packdata arrays maps packed --channels last                      H x W x C becomes C x H x W"""


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "pack volumes and other arrays (.npy, .npz) with their labels and masks"
    src = "folder of .npy and .npz files, or a list, or the URL of one; several become one dataset, in order"
    parser = new_packing_parser(commands, "arrays", summary, _ABOUT, _EXAMPLES, src=src)
    _add_array_options(parser.add_argument_group("arrays"))
    add_source_options(parser.add_argument_group("source"), files="array")
    usual = "lmdb for arrays of 1 MB and more, else parquet"
    add_packing_options(parser, item="file", usual=usual)
    parser.set_defaults(run=run)


def _add_array_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--dtype",
        help="type to store: bool, int8 to int64, uint8 to uint64, float16 to float64; a value that does "
        "not fit is an error (default: that of the files)",
    )
    add(
        "--mask-dtype",
        metavar="DTYPE",
        help="the same for masks: int8 to uint64 (default: that of the files)",
    )
    add(
        "--channels",
        choices=("first", "last", "none"),
        help="channel axis of the files; none: add an axis of length 1 in front (default: first for 4 axes, "
        "none for 3; arrays of 1 or 2 axes stay as they are)",
    )
    add("--array", metavar="NAME", help="name of the array in an .npz that holds several")
    add(
        "--mask-array",
        metavar="NAME",
        help="name of the mask in an .npz, the array's own or one of --masks",
    )


def run(args: argparse.Namespace) -> int:
    """Run ``packdata arrays``."""
    from packdata.arrays.plan import plan_arrays

    names = (
        *("dtype", "mask_dtype", "channels", "array", "mask_array"),
        *("masks", "mask_suffix", "classes", "array_column", "mask_column", "label_column"),
    )
    options = {name: getattr(args, name) for name in names}
    make_plan = partial(plan_arrays, args.src, format=args.format, **options)
    return run_packing(args, make_plan, unit="arrays")
