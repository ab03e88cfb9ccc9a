"""Messages between two processes over one socket, with file descriptors beside them.

A message is one packet, or several if it is long: in each a header (whether it is the last one, how many descriptors
come with it), and bytes. A packet is read by one call, that waits in the kernel: who reads in pieces gives the
interpreter's lock away between them, and what ``multiprocessing.connection`` does costs more than the message.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import struct
from array import array
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Parts = list[bytes | memoryview]

NO_DESCRIPTOR = "no file descriptor is free for a batch slot: raise the limit (ulimit -n)"
_HEADER = struct.Struct("<?B")
_ONLY = _HEADER.pack(True, 0)  # of a message that is one packet, without descriptors
_WAITING = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))  # computing with flags is Python code
_AT_ONCE = _WAITING | int(getattr(socket, "MSG_DONTWAIT", 0))
_PACKET_BYTES = 64 << 10
_SEND_BYTES = 4 * _PACKET_BYTES
_MAX_FDS = 250  # that one call may send
_FDS_ROOM = (
    socket.CMSG_SPACE(_MAX_FDS * array("i").itemsize) if hasattr(socket, "CMSG_SPACE") else 0
)
_LONG_S = 1e6  # the kernel takes no more than 24 days


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection: each for a ``Channel``."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:  # wherever the machine's default is too small for a packet
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
    return ends


def _packets(data: bytes, fds: Sequence[int]) -> Iterable[tuple[Parts, Sequence[int]]]:
    """Cut a message into packets: header and bytes, and the descriptors that come with them."""
    if len(data) <= _PACKET_BYTES and not fds:
        return (([_ONLY, data], fds),)
    return _cut(data, fds)


def _cut(data: bytes, fds: Sequence[int]) -> Iterator[tuple[Parts, Sequence[int]]]:
    left = memoryview(data)
    while len(left) > _PACKET_BYTES or len(fds) > _MAX_FDS:
        yield [_HEADER.pack(False, len(fds[:_MAX_FDS])), left[:_PACKET_BYTES]], fds[:_MAX_FDS]
        left, fds = left[_PACKET_BYTES:], fds[_MAX_FDS:]
    yield [_HEADER.pack(True, len(fds)), left], fds


class Channel:
    """One end.

    Args:
        end: Of a ``pair``.
        patience_s: How long ``receive`` waits for each packet; 0 takes what is here.

    Attributes:
        fds: Descriptors that came, in order; whoever takes one out closes it.
        unsent: Packets of messages that were posted, and for which there was no room yet.
    """

    def __init__(self, end: socket.socket, patience_s: float = 0) -> None:
        self.socket = end
        self._is_patient = patience_s > 0
        self._room = memoryview(bytearray(_HEADER.size + _PACKET_BYTES))
        self._parts: list[bytearray] = []  # of a message that has begun to come
        self.unsent: deque[Parts] = deque()
        end.settimeout(None)  # whatever ``socket.setdefaulttimeout`` was told
        # By the kernel: what Python does for a time limit is another call.
        limit = struct.pack("ll", int(patience_s), int(patience_s % 1 * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._poll = select.poll()
        self._events = select.POLLIN
        self._poll.register(end, self._events)
        self.fds: deque[int] = deque()

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a message, waiting for room; the descriptors can be closed afterwards.

        Raises:
            OSError: The other end is closed.
        """
        for parts, beside in _packets(data, fds):
            if beside:
                socket.send_fds(self.socket, parts, beside)
            else:
                self.socket.sendmsg(parts)

    def post(self, data: bytes) -> None:
        """Send a message as far as there is room; ``flush`` sends the rest. OSError as ``send``."""
        self.unsent.extend(parts for parts, _ in _packets(data, ()))
        self.flush()

    def flush(self) -> None:
        """Send what there is room for of what was posted. OSError as ``send``."""
        while self.unsent:
            try:
                self.socket.sendmsg(self.unsent[0], (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            self.unsent.popleft()

    def is_ready(self, timeout_s: float | None = 0, *, or_has_room: bool = False) -> bool:
        """Wait until something came, or the other end was closed; None waits for ever.

        With ``or_has_room`` it is enough that there is room for what is unsent.
        """
        events = select.POLLIN | (select.POLLOUT if or_has_room and self.unsent else 0)
        if events != self._events:
            self._poll.modify(self.socket, events)
            self._events = events
        limit = None if timeout_s is None else math.ceil(1000 * min(timeout_s, _LONG_S))
        return bool(self._poll.poll(limit))

    def receive(self, *, now: bool = False) -> bytearray | None:
        """Return the next message, or None if the rest of it does not come in time; it is kept for the next call.

        With ``now`` only what is here is read, whatever the patience.

        Raises:
            EOFError: The other end was closed.
            OSError: The connection broke, or no descriptor is free for one that came.
        """
        flags = _AT_ONCE if now or not self._is_patient else _WAITING
        is_last = False
        while not is_last:
            try:
                is_last, data = self._receive(flags)
            except BlockingIOError:
                return None
            self._parts.append(data)
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else bytearray().join(parts)

    def _receive(self, flags: int) -> tuple[bool, bytearray]:
        # Not recv_fds, which leaves them to be inherited; nor into new memory, whose pages would be new, too.
        nbytes, beside, _, _ = self.socket.recvmsg_into((self._room,), _FDS_ROOM, flags)
        if not nbytes:
            raise EOFError
        is_last, num_fds = _HEADER.unpack_from(self._room)
        if num_fds:
            self._keep(array("i", b"".join(value for _, _, value in beside)), num_fds)
        return is_last, bytearray(self._room[_HEADER.size : nbytes])

    def _keep(self, fds: array[int], count: int) -> None:
        self.fds.extend(fds)
        if len(fds) < count:
            raise OSError(errno.EMFILE, NO_DESCRIPTOR)

    def close(self) -> None:
        """Close this end, and what came and was not taken; the other end is told."""
        self.socket.close()
        while self.fds:
            os.close(self.fds.popleft())
