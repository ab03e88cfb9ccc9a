"""What is read of a file before it is decoded, where shortcuts are taken."""

import os
import struct
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from loaders.codecs.picture import encode_jpeg
from packdata.images.pictures import decode_picture
from packdata.reading import LocalFile
from packdata.sources.names import key_of
from packdata.sources.npy import read_header as read_array_header

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

    picture = decode_picture(plain[:2] + before + segment(0xE1, EXIF) + plain[2:])

    assert (picture.size, picture.changes) == ((16, 8), ("rotated",))


@pytest.mark.parametrize(
    "relative",
    ["1.jpg", "cats/1.jpg", "a b/é.1.jpg", "cats/1", "a.b/1", "..a/1.jpg", "/a/1.jpg", "a/..1.jpg", "a/.1.jpg"],
)  # fmt: skip
def test_a_key_is_the_path_without_its_suffix(relative: str) -> None:
    path = PurePosixPath(relative)

    assert key_of(relative) == str(path.with_name(os.path.splitext(path.name)[0]))


class Garbage:
    """A cycle whose end gives other threads a turn, wherever the collector happens to run."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        for _ in range(200):
            pass


@pytest.mark.usefixtures("short_turns")
def test_headers_of_arrays_are_read_by_several_threads(tmp_path: Path) -> None:
    path = str(tmp_path / "volume.npy")
    np.save(path, np.zeros((2, 3, 4)))

    def read(depth: int) -> int:  # from another depth of calls each, which the parser tells apart
        if depth:
            return read(depth - 1)
        end = time.monotonic() + 2
        count = 0
        while time.monotonic() < end:
            Garbage()
            assert read_array_header(LocalFile(path, path)).shape == (2, 3, 4)
            count += 1
        return count

    with ThreadPoolExecutor(3) as threads:
        counts = list(threads.map(read, range(3)))

    assert min(counts) > 100


@pytest.fixture
def short_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
