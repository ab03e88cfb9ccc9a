"""A memory file is mapped where huge pages can be seen as such, and has them where the kernel gives any."""

import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from loaders.system.hugepages import HUGE, collapse, lay

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
NBYTES = 3 * HUGE + 5000


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.memfd_create("test")
    os.ftruncate(fd, NBYTES)
    yield fd
    os.close(fd)


def map_shared(fd: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """Map a memory file for reading and writing, for as long as the array lives."""
    room, start = lay(fd, nbytes)
    return np.frombuffer(room, np.uint8, nbytes, start)


def in_huge_pages(address: int) -> int:
    """Return the bytes that a map shows in huge pages."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            first, last = (int(end, 16) for end in name.split("-"))
            here = first <= address < last
        elif here and name == "ShmemPmdMapped:":
            return int(values[0]) << 10
    return 0


def gives_huge_pages() -> bool:
    """Tell whether the kernel puts pages of a program together; those of memory files it does then, too."""
    memory = mmap.mmap(-1, 2 * HUGE, mmap.MAP_PRIVATE)
    memory[::4096] = bytes(2 * HUGE // 4096)
    try:
        memory.madvise(25)
    except OSError:
        return False
    return True


def test_what_one_map_writes_another_sees(fd: int) -> None:
    ours, theirs = map_shared(fd, NBYTES), map_shared(fd, NBYTES)
    room, start = lay(fd, NBYTES, is_writable=False)
    read = np.frombuffer(room, np.uint8, NBYTES, start)

    ours[:] = np.arange(NBYTES) % 251

    assert len(theirs) == NBYTES
    assert np.array_equal(ours, theirs)
    assert np.array_equal(ours, read)
    assert not read.flags.writeable
    assert {array.ctypes.data % HUGE for array in (ours, theirs, read)} == {0}


@pytest.mark.parametrize("nbytes", [1, 4096, 4097, HUGE - 1, HUGE, HUGE + 1])
def test_of_any_size(fd: int, nbytes: int) -> None:
    array = map_shared(fd, nbytes)
    array[:] = 7
    collapse(array)

    assert len(array) == nbytes
    assert os.pread(fd, nbytes + 1, 0) == bytes([7]) * nbytes + b"\0"


def test_a_map_keeps_no_descriptor_and_lives_as_long_as_its_array(fd: int) -> None:
    before = set(os.listdir("/proc/self/fd"))
    array = map_shared(fd, NBYTES)
    address = int(array.ctypes.data)
    part = array[HUGE:]
    del array
    part[:] = 1

    assert set(os.listdir("/proc/self/fd")) == before
    assert f"{address:x}-" in Path("/proc/self/maps").read_text()
    del part
    assert f"{address:x}-" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("written", [(), (0, 1, 4096, HUGE - 1, HUGE, 2 * HUGE + 9, NBYTES - 1)])
def test_huge_pages_are_seen_by_every_map_and_hold_what_was_written(
    fd: int, written: tuple[int, ...]
) -> None:
    ours, theirs = map_shared(fd, NBYTES), map_shared(fd, NBYTES)
    expected = np.zeros(NBYTES, np.uint8)
    for at in written:
        ours[at] = expected[at] = 9

    is_huge = any(collapse(ours) for _ in range(5))  # it may find no room at once

    assert np.array_equal(ours, expected)
    assert np.array_equal(theirs, expected)
    if not gives_huge_pages():
        pytest.skip("this kernel gives none, or has none left")
    assert is_huge
    assert in_huge_pages(int(ours.ctypes.data)) == 3 * HUGE
    assert in_huge_pages(int(theirs.ctypes.data)) == 3 * HUGE


def test_a_file_in_huge_pages_can_be_sealed_and_read(fd: int) -> None:
    sealable = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(sealable, NBYTES)
    room, start = lay(sealable, NBYTES)
    collapse(np.frombuffer(room, np.uint8, NBYTES, start))
    np.frombuffer(room, np.uint8, NBYTES, start)[:] = 5
    room.close()

    fcntl.fcntl(sealable, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK)
    room, start = lay(sealable, NBYTES, is_writable=False)

    assert (np.frombuffer(room, np.uint8, NBYTES, start) == 5).all()
    os.close(sealable)


def test_what_cannot_be_mapped_is_an_error() -> None:
    ours, theirs = os.pipe()
    with pytest.raises(OSError):
        map_shared(ours, 4096)
    os.close(ours)
    os.close(theirs)
