"""JPEG files to pixels, strictly: libjpeg fills what is missing with gray, and only warns.

Some warnings are about oddities that cost no pixel. These are taken out of a copy of the file, and
the copy has to decode without any: libjpeg names its first warning only, and another may be behind.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from loaders.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterator

UInt8Array = npt.NDArray[np.uint8]

_EXTRA = re.compile(r"(\d+) extraneous bytes before marker 0x([0-9a-f]{2})")
_ODD_HEADERS = ("unknown JFIF revision", "bad ICC marker", "Unknown Adobe", "Invalid SOS")
_NO_SEGMENT = frozenset({0x00, 0x01, *range(0xD0, 0xD9), 0xFF})  # no length behind it
_JFIF, _ICC, _ADOBE, _COMMENT, _SOS, _EOI = 0xE0, 0xE2, 0xEE, 0xFE, 0xDA, 0xD9
_MIN_TEXT = 16  # bytes; of a scan's, half have their top bit set
_MAX_ODDITIES = 8


def decode_strictly(data: bytes, **options: Any) -> tuple[UInt8Array, bool]:
    """Return the pixels of a JPEG as ``simplejpeg`` decodes them, and whether the file is odd.

    Args:
        data: The file.
        options: Of ``simplejpeg.decode_jpeg``.

    Raises:
        CodecError: It is cut or damaged: not all pixels are there, or not all bytes were used.
    """
    is_odd, reason = False, ""
    for _ in range(_MAX_ODDITIES):
        try:
            return simplejpeg.decode_jpeg(data, **options), is_odd
        except ValueError as error:
            reason = str(error)
        plain = _without_oddity(bytes(data), reason)
        if plain is None:
            break
        data, is_odd = plain, True
    raise CodecError(f"the JPEG is cut or damaged ({reason})")


def _without_oddity(data: bytes, warning: str) -> bytes | None:
    """Return the file without what libjpeg warns of; None if that may have cost pixels."""
    if extra := _EXTRA.search(warning):
        return _without_padding(data, int(extra[1]), int(extra[2], 16))
    if any(words in warning for words in _ODD_HEADERS):
        return _with_plain_headers(data, mend_scans="Invalid SOS" in warning)
    return None


def _without_padding(data: bytes, num_extra: int, wanted: int) -> bytes | None:
    """Cut out the bytes before a marker, if they are padding or text.

    A scan with a flipped bit may give all of its blocks too early, and leaves bytes there too: these
    were pixels.
    """
    for at, mark in _markers(data):
        start = max(2, at - num_extra)
        extra = data[start:at]
        is_padding = not extra.strip(b"\0\xff")
        is_text = len(extra) >= _MIN_TEXT and extra.isascii()
        if mark == wanted and start < at and (is_padding or is_text):
            return data[:start] + data[at:]
    return None


def _with_plain_headers(data: bytes, *, mend_scans: bool) -> bytes | None:
    """Give headers the values that libjpeg goes on with; color profiles become comments."""
    plain = bytearray(data)
    for at, mark in _markers(data):
        body = at + 4
        if mark == _JFIF and data[body : body + 5] == b"JFIF\0":
            plain[body + 5 : body + 6] = b"\1"
        elif mark == _ICC:
            plain[at + 1] = _COMMENT
        elif mark == _ADOBE and data[body : body + 5] == b"Adobe":
            if data[body + 11 : body + 12] > b"\2":
                plain[body + 11] = 1
        elif mark == _SOS and mend_scans:
            behind = body + 1 + 2 * int.from_bytes(data[body : body + 1], "big")
            plain[behind : behind + 3] = b"\0\x3f\0"
    return None if plain == data else bytes(plain)


def _markers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each marker stands, and which it is, to the end of the picture.

    Bytes between segments are passed over as libjpeg does; those of scans cannot be taken for a
    marker.
    """
    at = data.find(0xFF, 2)
    while 0 <= at < len(data) - 1:
        mark = data[at + 1]
        if mark not in _NO_SEGMENT:
            yield at, mark
            if mark == _EOI:
                return
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        else:
            at += 1 if mark == 0xFF else 2
        at = data.find(0xFF, at)
