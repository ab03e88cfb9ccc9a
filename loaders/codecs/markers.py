"""The segments of a JPEG file: where they are, which frame it has, and whether its scans are all there.

Source: ITU-T T.81, annex B, and G.1.1.1 for what the scans of a progressive JPEG send.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

JPEG_START = b"\xff\xd8"
SOS, EOI = 0xDA, 0xD9
_NO_LENGTH = frozenset({0x00, 0x01, *range(0xD0, 0xD9), 0xFF})  # what no segment follows
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
_NUM_COEFFICIENTS = 64


class Frame(NamedTuple):
    """What the frame header says."""

    mark: int  # its marker, which says how the picture is encoded
    depth: int  # bits a channel
    height: int  # in pixels
    width: int  # in pixels
    components: tuple[int, ...]  # the number of each channel
    # Of each how finely it is sampled, across in the upper and down in the lower 4 bits.
    sampling: bytes

    @property
    def unit(self) -> tuple[int, int]:
        """Height and width of a unit (MCU): what the components' blocks cover; of a single one, a block."""
        if len(self.sampling) < 2:
            return 8, 8
        across, down = zip(*((both >> 4, both & 15) for both in self.sampling), strict=True)
        return 8 * max(down), 8 * max(across)


def segments(data: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield marker, start and end of what each segment holds, up to the header of the first scan."""
    at, last = len(JPEG_START), len(data) - 4
    while at <= last and data[at] == 0xFF:
        mark = data[at + 1]
        if mark == 0xFF:  # a fill byte
            at += 1
            continue
        end = at + 2 + (data[at + 2] << 8 | data[at + 3])
        yield mark, at + 4, end
        if mark == SOS:
            return
        at = end


def frame_of(data: bytes | memoryview) -> Frame | None:
    """Return what the frame header says; None if there is none."""
    for mark, start, end in segments(data):
        if mark in _FRAMES:
            return read_frame(mark, bytes(data[start:end]))
    return None


def read_frame(mark: int, body: bytes) -> Frame | None:
    """Return what the segment of a frame header says; None if the segment is cut."""
    if len(body) < 6:
        return None
    depth, height, width, _ = struct.unpack_from(">BHHB", body)
    return Frame(mark, depth, height, width, tuple(body[6::3]), body[7::3])


def markers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each marker stands, and which it is, to the end of the picture.

    Bytes between segments are passed over as libjpeg does; those of scans cannot be taken for a
    marker.
    """
    at = data.find(0xFF, 2)
    while 0 <= at < len(data) - 1:
        mark = data[at + 1]
        if mark not in _NO_LENGTH:
            yield at, mark
            if mark == EOI:
                return
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        else:
            at += 1 if mark == 0xFF else 2
        at = data.find(0xFF, at)


def with_end(data: bytes) -> bytes | None:
    """Return a file with the end marker that it lacks; None if it has one, or more may be missing.

    All scans have begun. Whether the last is whole, the decoder says: only Huffman's warns.
    """
    frame = frame_of(data)
    if frame is None or frame.mark not in (*_SEQUENTIAL, _PROGRESSIVE) or _unsent(data, frame):
        return None
    if any(mark == EOI for _, mark in markers(data)):
        return None
    return data + (b"\xd9" if data.endswith(b"\xff") else b"\xff\xd9")


def _unsent(data: bytes, frame: Frame) -> set[tuple[int, int]]:
    """Return the coefficients that no scan sends to the last bit, as (component, number)."""
    every = range(_NUM_COEFFICIENTS)
    left = {(component, k) for component in frame.components for k in every}
    for at, mark in markers(data):
        if mark != SOS:
            continue
        count = data[at + 4]
        behind = at + 5 + 2 * count
        first, last, bits = data[behind : behind + 3].ljust(3, b"\0")
        sent = range(first, last + 1) if frame.mark == _PROGRESSIVE else every
        if not (frame.mark == _PROGRESSIVE and bits & 15):
            left -= {(each, k) for each in data[at + 5 : behind : 2] for k in sent}
    return left
