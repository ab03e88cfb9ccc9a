"""``packdata arrays``: volumes, feature maps and other arrays, with labels and masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packdata.commands.packing import packing_command

if TYPE_CHECKING:
    import argparse

    from packdata.plan import SourcePlan


def _plan(args: argparse.Namespace, options: dict[str, Any]) -> SourcePlan:
    from packdata.arrays.plan import plan_arrays

    return plan_arrays(args.src, format=args.format, **options)


ARRAYS = packing_command(
    "arrays",
    "pack volumes and other arrays with their labels and masks",
    _plan,
    src="folder of .npy and .npz files, or a list, or the URL of one",
    options={
        "arrays": "packdata.arrays.recipe:ArrayOptions",
        "source": "packdata.files.splits:SourceOptions",
    },
    names={"column": "array_column"},
    unit="arrays",
    usual="lmdb for arrays of 1 MB and more, else parquet",
    shuffles="the arrays of folders and lists",
    details="""\
The source is a folder per class, a flat folder, a .csv, .tsv or .jsonl list, or a folder of splits
of these, each of which becomes a dataset. Volumes are served as (C, D, H, W), masks as (D, H, W).""",
    example="""\
packdata arrays scans packed --masks labels --dtype float16 --mask-dtype uint8
packdata arrays cases packed --array image --mask-array label""",
)
