"""``packdata arrays``: volumes, feature maps and other arrays, with labels and masks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from packdata.commands.packing import (
    AGAIN,
    OF_SOURCE,
    SOURCE_OPTIONS,
    packing_command,
    run_packing,
    source_options,
)

if TYPE_CHECKING:
    import argparse

_ARRAYS = """
--dtype DTYPE
  type to store: bool, int8 to int64, uint8 to uint64, float16 to float64; a value that does
  not fit is an error (default: that of the files)
--mask-dtype DTYPE
  the same for masks: int8 to uint64 (default: that of the files)
--channels {first,last,none}
  channel axis of the files; none: add an axis of length 1 in front (default: first for 4 axes,
  none for 3; arrays of 1 or 2 axes stay as they are)
--array NAME
  name of the array in an .npz that holds several
--mask-array NAME
  name of the mask in an .npz, the array's own or one of --masks
"""


def run(args: argparse.Namespace) -> int:
    """Run ``packdata arrays``."""
    from packdata.arrays.plan import plan_arrays

    names = ("dtype", "mask_dtype", "channels", "array", "mask_array", "array_column", "format")
    options = {name: getattr(args, name) for name in (*names, *SOURCE_OPTIONS)}
    return run_packing(args, partial(plan_arrays, args.src, **options), unit="arrays")


ARRAYS = packing_command(
    "arrays",
    "pack volumes and other arrays (.npy, .npz) with their labels and masks",
    src="folder of .npy and .npz files, or a list, or the URL of one; several become one dataset, in order",
    takes={"arrays": _ARRAYS, "source": source_options("array", "array")},
    item="file",
    shuffles="the arrays of folders and lists",
    usual="lmdb for arrays of 1 MB and more, else parquet",
    run=run,
    details=f"""\
The source is a folder per class, a flat folder, or a .csv, .tsv or .jsonl list.
A folder of splits (train, val, test, ...) becomes one dataset per split. All arrays must have one
dtype; if they share a shape, a batch is one tensor. Volumes are served as (C, D, H, W), masks as (D, H, W);
augment.RandomCrop then reads no more than the crop. Pickled objects are never loaded.
{AGAIN}""",
    example="""\
packdata arrays scans packed --masks labels
packdata arrays scans packed --masks labels --dtype float16 --mask-dtype uint8
packdata arrays cases.csv packed --array-column ct --mask-column seg
packdata arrays cases packed --array image --mask-array label    both in one .npz
packdata arrays maps packed --channels last                      H x W x C becomes C x H x W""",
    how=OF_SOURCE,
)
