"""``packdata images``: pictures with their labels and masks to a packed dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packdata.commands.packing import AT_URLS, packing_command

if TYPE_CHECKING:
    import argparse

    from packdata.plan import SourcePlan


def _plan(args: argparse.Namespace, options: dict[str, Any]) -> SourcePlan:
    from packdata.images.plan import plan_images

    return plan_images(args.src, format=args.format, **options)


IMAGES = packing_command(
    "images",
    "pack pictures with their labels and masks",
    _plan,
    src="folder, list, tar, Parquet or IDX file, or its URL, or a pattern; several tars or Parquet files are one",
    options={
        "pictures": "packdata.images.recipe:ImageOptions",
        "source": "packdata.files.splits:SourceOptions",
        "shapes": "packdata.images.shapes:ShapeOptions",
    },
    names={"column": "image_column"},
    unit="images",
    usual="lmdb for files, else parquet",
    shuffles="the pictures of folders and lists",
    shuffle=AT_URLS,
    details="""\
The source is a folder per class, a flat folder, a .csv, .tsv or .jsonl list, WebDataset tars,
Parquet or IDX (MNIST), or a folder of splits of these, each of which becomes a dataset. Without
--size and --codec, files are kept byte for byte, except those that decoders read differently.""",
    example="""\
packdata images imagenet packed --size 256
packdata images scans packed --masks masks --keep-depth""",
)
