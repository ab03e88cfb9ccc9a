"""What the program ``jpegtran`` does to JPEGs: coefficients stay as they are.

It divides files into segments that decode alone (``loaders.codecs.jpeg``). Its bytes depend on
its version, so that is among the options of a packing.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

import numpy as np

from loaders.codecs.heads import jpeg_head
from loaders.codecs.jpeg import num_segments, restart_interval, with_index
from loaders.codecs.markers import frame_of
from loaders.errors import SchemaError
from packdata.images.jpegs import decode_strictly

JPEGTRAN = "jpegtran"
_TIMEOUT_S = 600


def check_jpegtran() -> None:
    """Raise SchemaError if there is no ``jpegtran``."""
    if shutil.which(JPEGTRAN) is None:
        raise SchemaError(
            f"dividing JPEGs takes the program {JPEGTRAN!r}, which is not installed here: "
            "it comes with libjpeg-turbo (Debian: libjpeg-turbo-progs)"
        )


@cache
def jpegtran_version() -> str:
    """Return what ``jpegtran`` says of itself."""
    done = subprocess.run([JPEGTRAN, "-version"], capture_output=True, timeout=_TIMEOUT_S)
    return (done.stdout + done.stderr).decode(errors="replace").strip()


def divide_without_loss(data: bytes) -> bytes | None:
    """Return a JPEG in segments, with an index of them: sequential, of the same pixels and metadata.

    Huffman tables are made anew, which saves about what the markers cost. None where parts of the picture are not
    worth making, and where ``jpegtran`` does not do it without loss.
    """
    frame = frame_of(data)
    interval = frame and restart_interval(frame.height, frame.width, frame.unit[1])
    if not interval:
        return None
    divided = data
    if not _is_divided(data):
        command = [JPEGTRAN, "-copy", "all", "-optimize", "-restart", f"{interval}B"]
        done = subprocess.run(command, input=data, capture_output=True, timeout=_TIMEOUT_S)
        divided = done.stdout
        if done.returncode != 0 or not _is_divided(divided):
            return None
    record = with_index(np.frombuffer(divided, np.uint8)).tobytes()
    (before, _), (after, _) = decode_strictly(data), decode_strictly(record)
    return record if np.array_equal(before, after) else None


def _is_divided(data: bytes) -> bool:
    head = jpeg_head(memoryview(data))
    return head is not None and num_segments(head) > 0
