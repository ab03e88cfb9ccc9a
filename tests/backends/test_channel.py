from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.backends import channel as module
from loaders.backends.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = (Channel(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
    yield ours, theirs
    ours.close()
    theirs.close()


def temporary_fds(count: int) -> list[int]:
    return [os.memfd_create(f"number-{i}") for i in range(count)]


@given(st.lists(st.integers(1, 300_000), max_size=8))
def test_messages_of_any_size_come_whole_and_in_order(sizes: list[int]) -> None:
    """Larger ones than the socket holds: the sender waits for the reader."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours, theirs = Channel(one), Channel(other)
    messages = [bytes([i]) * size for i, size in enumerate(sizes)]
    sender = threading.Thread(target=lambda: deque(map(ours.send, messages)))
    sender.start()

    assert [theirs.receive(10) for _ in messages] == messages

    sender.join(10)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("count", [1, 2, 250, 251, 600])
def test_descriptors_come_in_order_with_their_message(
    ends: tuple[Channel, Channel], count: int
) -> None:
    ours, theirs = ends
    fds = temporary_fds(min(count, 251))  # and some of them again: often 1,024 may be open

    sent = [fds[i % 251] for i in range(count)]
    sender = threading.Thread(target=ours.send, args=(b"slots", sent))
    sender.start()
    assert theirs.receive(10) == b"slots"
    sender.join(10)

    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in theirs.fds]
    assert names == [f"/memfd:number-{i % 251} (deleted)" for i in range(count)]
    assert not any(os.get_inheritable(fd) for fd in theirs.fds)
    for fd in fds:
        os.close(fd)


def test_descriptors_that_nobody_took_are_closed_with_the_end(
    ends: tuple[Channel, Channel],
) -> None:
    ends[0].send(b"slots", fds := temporary_fds(3))
    ends[1].receive(10)
    came = list(ends[1].fds)

    ends[1].close()

    for fd in came:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    for fd in fds:
        os.close(fd)


def test_waiting_ends_in_time(ends: tuple[Channel, Channel]) -> None:
    began = time.monotonic()

    assert ends[1].receive(0.05) is None
    assert not ends[1].is_ready()

    assert 0.05 <= time.monotonic() - began < 5


@pytest.mark.parametrize("begun", [b"", b"\x09", b"\x09\0\0\0\0\0\0\0abc"])
def test_an_end_that_is_closed_ends_the_wait(ends: tuple[Channel, Channel], begun: bytes) -> None:
    """Also in the middle of a message."""
    ends[0].socket.sendall(begun)
    ends[0].close()

    with pytest.raises(EOFError):
        ends[1].receive(10)


def test_a_sender_that_stops_in_the_middle_of_a_message_is_an_error(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REST_TIMEOUT_S", 0.05)
    ends[0].socket.sendall(b"\x09\0\0\0\0\0\0\0abc")

    with pytest.raises(OSError, match="the rest of a message did not come"):
        ends[1].receive(10)


def test_a_message_survives_signals_while_it_is_sent(ends: tuple[Channel, Channel]) -> None:
    """Each may cut a send short."""
    ours, theirs = ends
    message, got = os.urandom(8 << 20), list[Any]()

    def read_slowly() -> None:
        time.sleep(0.3)
        got.append(theirs.receive(10))

    reader = threading.Thread(target=read_slowly)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        reader.start()
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.002)
        ours.send(message, fds := temporary_fds(2))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    reader.join(10)

    assert got == [message]
    assert len(theirs.fds) == 2
    for fd in fds:
        os.close(fd)


def test_a_descriptor_for_which_there_is_no_room_is_told(ends: tuple[Channel, Channel]) -> None:
    fds = temporary_fds(1)
    ends[0].send(b"slot", fds)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
    try:
        blocked = []
        while True:  # what is free below the limit
            try:
                blocked.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        with pytest.raises(OSError, match="ulimit -n"):
            ends[1].receive(10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in (*blocked, *fds):
            os.close(fd)
