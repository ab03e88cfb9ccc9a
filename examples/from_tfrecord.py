"""TFRecord files as a packed dataset, read by the package tfrecord. Edit FIELDS and ``sample`` to your features.

pip install tfrecord crc32c
python examples/from_tfrecord.py 'train-*.tfrecord' packed/train

Pictures are packed as the files that they are. The package checks no checksums: a damaged record may pass.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Any

from tfrecord.reader import tfrecord_loader

import packdata
from loaders.schema import Field, Image, Label, Text

FIELDS: dict[str, Field] = {"image": Image(codec="jpeg"), "label": Label(), "text": Text()}


def sample(features: dict[str, Any]) -> dict[str, Any]:
    """Return the values of one example: bytes as they are, numbers out of arrays."""
    return {
        "image": features["image/encoded"],
        "label": int(features["image/class/label"][0]),
        "text": features["text"].decode(),
    }


def samples(pattern: str) -> Iterator[dict[str, Any]]:
    for path in sorted(glob(pattern)):
        examples: Any = tfrecord_loader(path, None)
        yield from map(sample, examples)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="pattern of the files")
    parser.add_argument("packed", type=Path, help="folder to write")
    args = parser.parse_args()

    print(packdata.pack(samples(args.data), args.packed, FIELDS, format="parquet"))


if __name__ == "__main__":
    main()
