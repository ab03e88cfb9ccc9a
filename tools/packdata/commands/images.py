"""``packdata images``: pictures with their labels and masks to a packed dataset."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from loaders.codecs.heads import MAX_PICTURE_MB
from loaders.schema import PICTURE_CODECS
from packdata.commands.common import REPEATED, TARGET
from packdata.commands.packing import (
    AGAIN,
    AT_URLS,
    OF_SOURCE,
    SOURCE_OPTIONS,
    packing_command,
    parse_shuffle,
    run_packing,
    source_options,
)

if TYPE_CHECKING:
    import argparse

_EXAMPLE = """\
packdata images imagenet packed --size 256
packdata images photos packed --size 224x224 --fit cover --codec raw
packdata images photos packed --size 224 --fit cover --codec dct     finished on the GPU
packdata images photos packed --size 256 --size 128       both, from one decoding
packdata images scans packed --masks masks --keep-depth
packdata images part1 part2 packed                        one after the other, one list of classes
packdata images val packed/val --classes packed/train     the classes of another dataset
packdata images photos packed --on-error skip --dry-run"""

_PICTURES = f"""
--size N|HxW
  size in pixels; HxW needs --fit. Give it several times to pack a dataset DST/SIZE (or
  DST/SPLIT/SIZE) for each size; JPEGs are then decoded once, for the largest, and the smaller
  ones differ slightly from those packed alone (default: the size of the files)
--fit {{shorter,cover,contain,stretch}}
  with --size: shorter: scale the shorter side down to N, never up (default); cover: scale
  and crop; contain: scale and pad with 0, masks too; stretch: ignore the aspect ratio
--codec {{{",".join(PICTURE_CODECS)}}}
  encode all pictures with this codec (default: keep files as they are; with --size: jpeg, or png
  for 16 bits)
--quality Q
  quality of jpeg, webp or dct, 1 to 100 (default: 90)
--subsampling {{420,444}}
  chroma subsampling of dct (default: 420)
--compression {{lz4,zstd}}
  of dct: lz4 is fast, zstd is small (default: lz4)
--segments
  divide JPEGs into segments with jpegtran, so that a crop decodes only the segments it touches:
  no pixel changes, progressive files become sequential (default: keep them byte for byte)
--icc {{srgb}}
  convert pictures that have a colour profile to sRGB (default: keep their pixel values, and say how
  many there are)
--max-picture-mb N
  largest picture to accept, in MiB when decoded; each worker holds one at a time
  (default: {MAX_PICTURE_MB:,})
--gray
  store one channel (default: three, RGB)
--keep-depth
  keep 16 bits per channel (default: 8)
"""
_SOURCE = """\
--palette FILE
  colours of masks, one per line, in the order of the classes: R G B or #RRGGBB
--label-map FILE
  renumber the classes of masks: two numbers per line, old and new
--boxes COLUMN[:FORMAT]
  column of boxes, or member of a struct (objects.bbox); FORMAT is xyxy (pixels, default), xywh,
  cxcywh, or yolo (fractions of the picture); may be repeated
--box-labels COLUMN
  column with a class for each box, numbers or names (objects.category); becomes the field box_labels
--keypoints COLUMN
  column of keypoints, (x, y) or (x, y, visibility), in pixels; may be repeated
--flip-pairs PAIRS
  points of --keypoints that a horizontal flip exchanges, counted from 0: 1-2,3-4
--annotations FILE|FOLDER
  COCO JSON, or a folder of YOLO labels or VOC XML; gives the fields boxes, box_labels and whatever else
  it holds
"""


def run(args: argparse.Namespace) -> int:
    """Run ``packdata images``."""
    from packdata.images.plan import plan_images

    names = (
        *("fit", "codec", "quality", "gray", "keep_depth", "subsampling", "compression"),
        *("max_picture_mb", "icc", "segments", "palette", "label_map"),
        *("boxes", "box_labels", "keypoints", "flip_pairs", "annotations"),
        *("image_column", "format"),
        *SOURCE_OPTIONS,
    )
    options = {name: getattr(args, name) for name in names}
    return run_packing(args, partial(plan_images, args.src, sizes=tuple(args.sizes), **options))


IMAGES = packing_command(
    "images",
    "pack pictures with their labels and masks",
    src="folder, list, tar, Parquet or IDX file, or its URL, or a pattern; several become one dataset, in order",
    takes={"pictures": _PICTURES, "source": source_options("image", "picture") + _SOURCE},
    item="file",
    shuffles="the pictures of folders and lists",
    order="source order; to a URL a random one",
    usual="lmdb for files, else parquet",
    run=run,
    details=f"""\
The source is a folder per class, a flat folder, a .csv, .tsv or .jsonl list, WebDataset
tars, Parquet or IDX (MNIST). A folder of splits (train, val, test, ...) becomes one dataset per
split. Without --size and --codec, files are kept byte for byte, except those that decoders read
differently.
{AGAIN}""",
    example=_EXAMPLE,
    how={
        "size": REPEATED | {"type": str, "dest": "sizes"},
        "fit": {"default": "shorter"},
        "quality": {"default": 90},
        "max-picture-mb": {"default": MAX_PICTURE_MB},
        "boxes": REPEATED,
        "keypoints": REPEATED,
        "annotations": TARGET,
        "palette": TARGET,
        "label-map": TARGET,
        **OF_SOURCE,
        "shuffle": {"type": parse_shuffle, "default": AT_URLS},
    },
)
