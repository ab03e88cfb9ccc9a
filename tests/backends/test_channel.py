import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.backends.channel import Channel, pair


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = (Channel(end) for end in pair())
    yield ours, theirs
    ours.close()
    theirs.close()


BEGUN = b"\0abc"  # a packet of three bytes, and not the last one of its message


def received(channel: Channel) -> bytes:
    message = channel.receive()
    assert message is not None
    return bytes(message)


@given(st.lists(st.integers(1, 300_000), max_size=8))
def test_messages_of_any_size_come_whole_and_in_order(sizes: list[int]) -> None:
    """Larger ones than the socket holds: the sender waits for the reader."""
    ours, theirs = (Channel(end) for end in pair())
    messages = [bytes([i]) * size for i, size in enumerate(sizes)]
    sender = threading.Thread(target=lambda: deque(map(ours.send, messages)))
    sender.start()

    assert [received(theirs) for _ in messages] == messages

    sender.join(60)
    ours.close()
    theirs.close()


def test_waiting_ends_in_time(ends: tuple[Channel, Channel]) -> None:
    began = time.monotonic()

    assert ends[1].receive(now=True) is None
    assert not ends[1].is_ready(0.05)

    assert 0.05 <= time.monotonic() - began < 5


@pytest.mark.parametrize("begun", [[], [BEGUN], [BEGUN, BEGUN]])
def test_an_end_that_is_closed_ends_the_wait(
    ends: tuple[Channel, Channel], begun: list[bytes]
) -> None:
    """Also in the middle of a message."""
    for packet in begun:
        ends[0].socket.send(packet)
    ends[0].close()

    with pytest.raises(EOFError):
        received(ends[1])


def test_a_message_of_which_the_rest_is_late_is_not_waited_for_and_not_lost(
    ends: tuple[Channel, Channel],
) -> None:
    reader = ends[1]
    for _ in range(2):
        ends[0].socket.send(BEGUN)
        assert reader.receive(now=True) is None
        assert reader.receive(now=True) is None

        ends[0].send(b"def")

        assert received(reader) == b"abcdef"


def test_a_post_waits_for_nobody_and_goes_on_when_there_is_room() -> None:
    """Each of two that write at the same time, and read afterwards, would wait for the other for ever."""
    ends = [Channel(end) for end in pair()]
    message = os.urandom(4 << 20)
    for end in ends:
        end.post(message)
        end.post(b"and more")
    assert all(end.unsent for end in ends)
    assert not ends[0].is_ready(0) or ends[0].receive(now=True) is None  # not all of it is here

    got: list[list[bytes]] = [[], []]
    deadline = time.monotonic() + 60
    while any(len(each) < 2 for each in got) and time.monotonic() < deadline:
        for end, each in zip(ends, got, strict=True):
            end.is_ready(0.1, or_has_room=True)
            end.flush()
            while (found := end.receive(now=True)) is not None:
                each.append(bytes(found))

    assert got == [[message, b"and more"]] * 2
    for end in ends:
        assert not end.unsent
        end.close()


def test_room_is_no_message(ends: tuple[Channel, Channel]) -> None:
    ends[0].post(b"x" * (4 << 20))
    for _ in range(3):
        assert not ends[0].is_ready(0.01)
    ends[1].socket.recv(1 << 17)
    assert ends[0].unsent


def test_a_message_survives_signals_while_it_is_sent(ends: tuple[Channel, Channel]) -> None:
    """Each may cut a send short."""
    ours, theirs = ends
    message, got = os.urandom(8 << 20), list[Any]()

    def read_slowly() -> None:
        time.sleep(0.3)
        got.append(received(theirs))

    reader = threading.Thread(target=read_slowly)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        reader.start()
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.002)
        ours.send(message)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    reader.join(60)

    assert got == [message]


def test_a_default_time_limit_of_sockets_is_not_for_these() -> None:
    """Programs set it for their downloads."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.01)
    try:
        ours, theirs = (Channel(end) for end in pair())
        threading.Timer(0.1, ours.send, (b"x",)).start()
        assert received(theirs) == b"x"
        ours.close()
        theirs.close()
    finally:
        socket.setdefaulttimeout(before)


def test_a_packet_fits_whatever_the_machine_gives_a_socket(ends: tuple[Channel, Channel]) -> None:
    for end in ends:
        assert end.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > 3 * (64 << 10)
