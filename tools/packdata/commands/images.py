"""``packdata images``: pictures with their labels and masks to a packed dataset."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from loaders.codecs.heads import MAX_PICTURE_MB
from loaders.schema import PICTURE_CODECS
from packdata.commands.common import parse_count, parse_place, parse_quality, parse_target
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
Pack pictures from a folder per class, a flat folder, a .csv, .tsv or .jsonl list, WebDataset
tars, Parquet or IDX (MNIST). A folder of splits (train, val, test, ...) becomes one dataset per
split. Without --size and --codec, files are kept byte for byte, except those that decoders read
differently.

After a kill, a full disk or Ctrl-C, run the same command again to continue. The result does not
depend on --workers."""

_EXAMPLES = """\
examples:
  packdata images imagenet packed --size 256
  packdata images photos packed --size 224x224 --fit cover --codec raw
  packdata images photos packed --size 224 --fit cover --codec dct     finished on the GPU
  packdata images photos packed --size 256 --size 128       both, from one decoding
  packdata images scans packed --masks masks --keep-depth
  packdata images part1 part2 packed                        one after the other, one list of classes
  packdata images val packed/val --classes packed/train     the classes of another dataset
  packdata images photos packed --on-error skip --dry-run"""


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "pack pictures with their labels and masks"
    src = "folder, list, tar, Parquet or IDX file, or its URL, or a pattern; several become one dataset, in order"
    parser = new_packing_parser(commands, "images", summary, _ABOUT, _EXAMPLES, src=src)
    _add_picture_options(parser.add_argument_group("pictures"))
    source = parser.add_argument_group("source")
    add_source_options(source, files="picture")
    _add_mask_options(source)
    _add_shape_options(source)
    add_packing_options(parser, item="file", usual="lmdb for files, else parquet")
    parser.set_defaults(run=run)


def _add_picture_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--size",
        action="append",
        default=[],
        metavar="N|HxW",
        help="size in pixels; HxW needs --fit. Give it several times to pack a dataset DST/SIZE (or "
        "DST/SPLIT/SIZE) for each size; JPEGs are then decoded once, for the largest, and the smaller "
        "ones differ slightly from those packed alone (default: the size of the files)",
    )
    add(
        "--fit",
        choices=("shorter", "cover", "contain", "stretch"),
        default="shorter",
        help="with --size: shorter: scale the shorter side down to N, never up (default); cover: scale "
        "and crop; contain: scale and pad with 0, masks too; stretch: ignore the aspect ratio",
    )
    add(
        "--codec",
        choices=PICTURE_CODECS,
        help="encode all pictures with this codec (default: keep files as they are; with --size: jpeg, or png "
        "for 16 bits)",
    )
    add(
        "--quality",
        type=parse_quality,
        default=90,
        metavar="Q",
        help="quality of jpeg, webp or dct, 1 to 100 (default: 90)",
    )
    add("--subsampling", choices=("420", "444"), help="chroma subsampling of dct (default: 420)")
    add(
        "--compression",
        choices=("lz4", "zstd"),
        help="of dct: lz4 is fast, zstd is small (default: lz4)",
    )
    _add_kept_options(group)


def _add_kept_options(group: Any) -> None:
    """Add how the pixels of a file are kept."""
    add = group.add_argument
    add(
        "--lossless-rotate",
        action="store_true",
        help="rotate JPEGs by their Exif orientation with jpegtran wherever no pixel is lost, that is, where the "
        "sides are multiples of the block size (default: decode, rotate, and encode with their own tables)",
    )
    add(
        "--segments",
        action="store_true",
        help="divide JPEGs into segments with jpegtran, so that a crop decodes only the segments it touches: "
        "no pixel changes, progressive files become sequential (default: keep them byte for byte)",
    )
    add(
        "--icc",
        choices=("srgb",),
        help="convert pictures that have a colour profile to sRGB (default: keep their pixel values, and say how "
        "many there are)",
    )
    add(
        "--max-picture-mb",
        type=parse_count,
        default=MAX_PICTURE_MB,
        metavar="N",
        help="largest picture to accept, in MiB when decoded; each worker holds one at a time "
        f"(default: {MAX_PICTURE_MB:,})",
    )
    add("--gray", action="store_true", help="store one channel (default: three, RGB)")
    add("--keep-depth", action="store_true", help="keep 16 bits per channel (default: 8)")


def _add_mask_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--palette",
        type=parse_place,
        metavar="FILE|voc|cityscapes|ade20k",
        help="colours of masks, one per line, in the order of the classes: R G B or #RRGGBB",
    )
    add(
        "--label-map",
        type=parse_place,
        metavar="FILE|cityscapes|ade20k",
        help="renumber the classes of masks: two numbers per line, old and new; cityscapes turns labelIds into its "
        "19 classes, ade20k turns 1 to 150 into 0 to 149; the rest becomes 255",
    )


def _add_shape_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--boxes",
        action="append",
        default=[],
        metavar="COLUMN[:FORMAT]",
        help="column of boxes, or member of a struct (objects.bbox); FORMAT is xyxy (pixels, default), xywh, "
        "cxcywh, or yolo (fractions of the picture); may be repeated",
    )
    add(
        "--keypoints",
        action="append",
        default=[],
        metavar="COLUMN",
        help="column of keypoints, (x, y) or (x, y, visibility), in pixels; may be repeated",
    )
    add(
        "--annotations",
        type=parse_target,
        metavar="FILE|FOLDER",
        help="COCO JSON, or a folder of YOLO labels or VOC XML; gives the fields boxes, box_labels and whatever else "
        "it holds",
    )


def run(args: argparse.Namespace) -> int:
    """Run ``packdata images``."""
    from packdata.images.plan import plan_images

    names = (
        *("fit", "codec", "quality", "gray", "keep_depth", "subsampling", "compression"),
        *("max_picture_mb", "lossless_rotate", "icc", "segments"),
        *(
            "palette",
            "label_map",
            "masks",
            "mask_suffix",
            "classes",
            "image_column",
            "mask_column",
            "label_column",
        ),
        *("boxes", "keypoints", "annotations"),
    )
    options = {name: getattr(args, name) for name in names}
    sizes = tuple(args.size)
    return run_packing(
        args, partial(plan_images, args.src, format=args.format, sizes=sizes, **options)
    )
