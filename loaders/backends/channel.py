"""Messages between two processes over one SEQPACKET socket.

A message is one packet, or several if it is long; the first byte of each says whether it is the last one. A packet is
read by one call, which waits in the kernel: reading in pieces releases the GIL between them, and what
``multiprocessing.connection`` does costs more than the message.
"""

from __future__ import annotations

import math
import select
import socket
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    Packet = tuple[bytes, bytes | memoryview]

_MORE, _LAST = b"\0", b"\1"
_PACKET_BYTES = 64 << 10
_SEND_BYTES = 4 * _PACKET_BYTES
_LONG_S = 1e6  # the kernel takes no more than 24 days


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection: each for a ``Channel``."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:  # wherever the machine's default is too small for a packet
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
    return ends


def _packets(data: bytes) -> Iterator[Packet]:
    left = memoryview(data)
    while len(left) > _PACKET_BYTES:
        yield _MORE, left[:_PACKET_BYTES]
        left = left[_PACKET_BYTES:]
    yield _LAST, left


class Channel:
    """One end of a ``pair``; ``unsent`` has the packets that were posted, and for which there was no room yet."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._room = memoryview(bytearray(1 + _PACKET_BYTES))
        self._parts: list[bytes] = []  # of a message that has begun to come
        self.unsent: deque[Packet] = deque()
        end.settimeout(None)  # whatever ``socket.setdefaulttimeout`` was told
        self._poll = select.poll()
        self._events = select.POLLIN
        self._poll.register(end, self._events)

    def send(self, data: bytes) -> None:
        """Send a message, waiting for room. OSError if the other end is closed."""
        for packet in _packets(data):
            self.socket.sendmsg(packet)

    def post(self, data: bytes) -> None:
        """Send a message as far as there is room; ``flush`` sends the rest. OSError as ``send``."""
        self.unsent.extend(_packets(data))
        self.flush()

    def flush(self) -> None:
        """Send what there is room for of what was posted. OSError as ``send``."""
        while self.unsent:
            try:
                self.socket.sendmsg(self.unsent[0], (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            self.unsent.popleft()

    def is_ready(self, timeout_s: float = 0, *, or_has_room: bool = False) -> bool:
        """Wait until something came, the other end was closed, or there is room for what is unsent."""
        events = select.POLLIN | (select.POLLOUT if or_has_room and self.unsent else 0)
        if events != self._events:
            self._poll.modify(self.socket, events)
            self._events = events
        return bool(self._poll.poll(math.ceil(1000 * min(timeout_s, _LONG_S))))

    def receive(self, *, now: bool = False) -> bytes | None:
        """Return the next message; with ``now`` None if the rest of it is not here: it is kept for the next call.

        Raises:
            EOFError: The other end was closed.
            OSError: The connection broke.
        """
        flags = socket.MSG_DONTWAIT if now else 0
        is_last = False
        while not is_last:
            try:
                nbytes = self.socket.recv_into(self._room, 0, flags)
            except BlockingIOError:
                return None
            if not nbytes:
                raise EOFError
            is_last = self._room[0] == _LAST[0]
            self._parts.append(self._room[1:nbytes].tobytes())
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Close this end; the other end sees end of file."""
        self.socket.close()
