"""PNG files of the kinds that no library writes."""

import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt


def png(
    rows: npt.NDArray[Any], width: int, depth: int, color: int, *chunks: tuple[bytes, bytes]
) -> bytes:
    """Write a PNG of any kind, from rows of packed bytes."""
    header = struct.pack(">IIBBBBB", width, len(rows), depth, color, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )


def clear_png() -> bytes:
    """Return a gray PNG of 2 bits, one pixel of each value, of which 1 is transparent."""
    return png(np.array([[0b00_01_10_11]], np.uint8), 4, 2, 0, (b"tRNS", b"\0\1"))
