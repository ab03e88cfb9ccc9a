"""A dataset of MosaicML Streaming (MDS) as a packed one, read by its own library. Edit FIELDS to your columns.

pip install mosaicml-streaming
python examples/from_mds.py mds/train packed/train

Columns of the encodings jpeg and png are packed as the files that they are; those of pil without loss, as PNG.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image as Picture
from PIL.ImageFile import ImageFile
from streaming import LocalDataset

import packdata
from loaders.schema import Field, Image, Label, Text

FIELDS: dict[str, Field] = {
    "image": Image(codec="jpeg"),  # "png" for columns of png and pil
    "label": Label(),
    "text": Text(),
}


def packable(value: Any) -> Any:
    """Return the file of a picture that was opened and not decoded, the pixels of another, other values as they are."""
    if isinstance(value, ImageFile) and value.fp is not None:
        value.fp.seek(0)
        return value.fp.read()
    return np.asarray(value) if isinstance(value, Picture) else value


def samples(folder: Path) -> Iterator[dict[str, Any]]:
    for sample in LocalDataset(str(folder)):
        yield {name: packable(sample[name]) for name in FIELDS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder with the index.json of one split")
    parser.add_argument("packed", type=Path, help="folder to write")
    args = parser.parse_args()

    print(packdata.pack(samples(args.data), args.packed, FIELDS, format="parquet"))


if __name__ == "__main__":
    main()
