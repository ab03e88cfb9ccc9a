"""What is read of a file before it is decoded, where shortcuts are taken."""

from __future__ import annotations

import os
import struct
from pathlib import PurePosixPath

import numpy as np
import pytest

from loaders.codecs.picture import encode_jpeg
from packdata.headers import read_header
from packdata.sources.base import key_of

EXIF = b"Exif\0\0" + struct.pack("<2sHIHHHIHHI", b"II", 42, 8, 1, 0x0112, 3, 1, 6, 0, 0)


def segment(mark: int, body: bytes) -> bytes:
    return bytes([0xFF, mark]) + struct.pack(">H", len(body) + 2) + body


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"\xff",  # a fill byte
        segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0"),
        segment(0xFE, b"\xff\xda Exif\0\0"),  # a comment that looks like what is searched for
    ],
)
def test_the_orientation_is_found_behind_other_segments(before: bytes) -> None:
    plain = encode_jpeg(np.zeros((8, 16, 3), np.uint8))

    header = read_header(plain[:2] + before + segment(0xE1, EXIF) + plain[2:])

    assert header is not None
    assert (header.size, header.orientation) == ((8, 16), 6)


@pytest.mark.parametrize(
    "relative",
    ["1.jpg", "cats/1.jpg", "a b/é.1.jpg", "cats/1", "./cats/1.jpg", "a//1.jpg", "a/./1.jpg",
     "a.b/1", "..a/1.jpg", "/a/1.jpg", "//a/1.jpg", "a/..1.jpg", "a/.1.jpg", "a.jpg/"],
)  # fmt: skip
def test_a_key_is_the_path_without_its_suffix(relative: str) -> None:
    path = PurePosixPath(relative)

    assert key_of(relative) == str(path.with_name(os.path.splitext(path.name)[0]))
