"""LitData's `optimize` for `cluster.py`, in an environment of its own: `cluster_peer.py SRC DST WORKERS`.

JPEGs below SRC become JPEGs of quality 90 whose shorter side is 256, with the name of their folder, in chunks of 16 MB.
"""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path

import litdata
from PIL import Image


def picture(path: str) -> dict[str, object]:
    """Return what is stored of a picture."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    scale = 256 / min(image.size)
    made = BytesIO()
    size = [max(1, round(side * scale)) for side in image.size]
    image.resize(size, Image.Resampling.BILINEAR).save(made, "JPEG", quality=90)
    return {"image": made.getvalue(), "label": Path(path).parent.name}


if __name__ == "__main__":
    src, dst, workers = sys.argv[1:]
    paths = sorted(map(str, Path(src).rglob("*.jpg")))
    litdata.optimize(picture, paths, dst, num_workers=int(workers), chunk_bytes=16 << 20)
