"""JPEG files to pixels, strictly: libjpeg fills what is missing with gray, and only warns.

Some warnings are about oddities that cost no pixel, such as a missing end marker. These are mended in a
copy of the file, and the copy has to decode without any: libjpeg names its first warning only, and another
may be behind.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from loaders.codecs.markers import ADOBE, COMMENT, ICC, JFIF, SOS, frame_of, markers, with_end
from loaders.errors import CodecError

UInt8Array = npt.NDArray[np.uint8]

_EXTRA = re.compile(r"(\d+) extraneous bytes before marker 0x([0-9a-f]{2})")
_ODD_HEADERS = ("unknown JFIF revision", "bad ICC marker", "Unknown Adobe", "Invalid SOS")
_NO_END = "Premature end of JPEG file"
_MIN_TEXT = 16  # bytes; of a scan's, half have their top bit set
_MAX_ODDITIES = 8


def decode_strictly(data: bytes, **options: Any) -> tuple[UInt8Array, bytes | None]:
    """Return the pixels of a JPEG as ``simplejpeg`` decodes them by these options, and of an odd file what was decoded.

    Raises:
        CodecError: It is cut or damaged: not all pixels are there, or not all bytes were used; or of a
            kind that is not read.
    """
    mended, reason = None, ""
    for _ in range(_MAX_ODDITIES):
        try:
            return simplejpeg.decode_jpeg(mended or data, **options), mended
        except ValueError as error:
            reason = str(error)
        plain = _without_oddity(mended or bytes(data), reason)
        if plain is None:
            break
        mended = plain
    check_jpeg_kind(data)
    if "subsampling" in reason and any(mark == SOS for _, mark in markers(bytes(data))):
        raise CodecError(
            "the JPEG has a sampling of its channels that is not read: save it with another"
        )
    raise CodecError(f"the JPEG is cut or damaged ({reason})")


def check_jpeg_kind(data: bytes) -> None:
    """Raise CodecError for a JPEG of a kind that no decoder here reads."""
    frame = frame_of(data)
    if frame is not None and frame.unusual:
        raise CodecError(f"it is {frame.unusual}, which cannot be read: convert it to a PNG")


def _without_oddity(data: bytes, warning: str) -> bytes | None:
    """Return the file without what libjpeg warns of; None if that may have cost pixels."""
    if extra := _EXTRA.search(warning):
        return _without_padding(data, int(extra[1]), int(extra[2], 16))
    if _NO_END in warning:
        return with_end(data)
    if any(words in warning for words in _ODD_HEADERS):
        return _with_plain_headers(data, mend_scans="Invalid SOS" in warning)
    return None


def _without_padding(data: bytes, num_extra: int, wanted: int) -> bytes | None:
    """Cut out the bytes before a marker, if they are padding or text.

    A scan with a flipped bit may give all of its blocks too early, and leaves bytes there too: these
    were pixels.
    """
    for at, mark in markers(data):
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
    for at, mark in markers(data):
        body = at + 4
        if mark == JFIF and data[body : body + 5] == b"JFIF\0":
            plain[body + 5 : body + 6] = b"\1"
        elif mark == ICC:
            plain[at + 1] = COMMENT
        elif mark == ADOBE and data[body : body + 5] == b"Adobe":
            if data[body + 11 : body + 12] > b"\2":
                plain[body + 11] = 1
        elif mark == SOS and mend_scans:
            behind = body + 1 + 2 * int.from_bytes(data[body : body + 1], "big")
            plain[behind : behind + 3] = b"\0\x3f\0"
    return None if plain == data else bytes(plain)
