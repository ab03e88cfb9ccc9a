"""A dataset of LitData as a packed one, read by its own library. Edit FIELDS to your columns.

pip install litdata
python examples/from_litdata.py optimized/train packed/train

JPEGs are packed as the files that they are. For other pictures LitData gives pixels, which are packed without loss, as
PNG. Samples that are no dictionaries, as of TokensLoader: yield {"tokens": item}.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from litdata import StreamingDataset
from litdata.streaming.serializers import BytesSerializer
from PIL.Image import Image as Picture

import packdata
from loaders.schema import Field, Image, Label, Text

FIELDS: dict[str, Field] = {
    "image": Image(codec="jpeg"),  # "png" where LitData gives pixels
    "label": Label(),
    "text": Text(),
}


def packable(value: Any) -> Any:
    """Return the pixels of a picture, other values as they are."""
    return np.asarray(value) if isinstance(value, Picture) else value


def samples(folder: Path) -> Iterator[dict[str, Any]]:
    dataset = StreamingDataset(str(folder), serializers={"jpeg": BytesSerializer()})
    for i in range(len(dataset)):
        sample = dataset[i]
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
