"""Messages between two processes over one socket, with file descriptors beside them.

A message is a header (how many bytes, how many descriptors) and its bytes; the descriptors travel with the header.
Waiting is one call of ``poll``: what ``multiprocessing.connection`` does in Python costs more than the message itself.
"""

from __future__ import annotations

import math
import os
import select
import socket
import struct
from array import array
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADER = struct.Struct("<II")
_MAX_FDS = 250  # that one call may send
_LONG_S = 1e6  # the kernel takes no more than 24 days
_REST_TIMEOUT_S = 60.0  # for the rest of a message that has begun to come


class Channel:
    """One end.

    Args:
        end: Of a connected pair of stream sockets that block.

    Attributes:
        fds: Descriptors that came, in order; whoever takes one out closes it.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.fds: deque[int] = deque()

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a message, waiting for room; the descriptors can be closed afterwards.

        Raises:
            OSError: The other end is closed.
        """
        while len(fds) > _MAX_FDS:
            self._send(b"", fds[:_MAX_FDS])
            fds = fds[_MAX_FDS:]
        self._send(data, fds)

    def _send(self, data: bytes, fds: Sequence[int]) -> None:
        parts = [_HEADER.pack(len(data), len(fds)), data]
        sent = socket.send_fds(self.socket, parts, fds) if fds else self.socket.sendmsg(parts)
        if sent < _HEADER.size + len(data):  # a signal came between
            self.socket.sendall(b"".join(parts)[sent:])

    def is_ready(self, timeout_s: float | None = 0) -> bool:
        """Wait until something came, or the other end was closed; None waits for ever."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(
            poll.poll(None if timeout_s is None else math.ceil(1000 * min(timeout_s, _LONG_S)))
        )

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """Return the next message, or None if none came in time.

        Raises:
            EOFError: The other end was closed.
            OSError: The connection broke, or no descriptor is free for one that came.
        """
        data = b""
        while not data:  # one without bytes brings descriptors
            if not self.is_ready(timeout_s):
                return None
            data = self._receive()
        return data

    def _receive(self) -> bytes:
        # Not recv_fds, which leaves them to be inherited.
        room = socket.CMSG_SPACE(_MAX_FDS * array("i").itemsize)
        head, beside, _, _ = self.socket.recvmsg(_HEADER.size, room, socket.MSG_CMSG_CLOEXEC)
        fds = array("i", b"".join(value for _, _, value in beside))
        self.fds.extend(fds)
        size, num_fds = _HEADER.unpack(head + self._rest(_HEADER.size - len(head)))
        if len(fds) < num_fds:
            raise OSError(
                "no file descriptor is free for a batch slot: raise the limit (ulimit -n)"
            )
        return self._rest(size)

    def _rest(self, size: int) -> bytes:
        data = bytearray(size)
        left = memoryview(data)
        while left:
            if not self.is_ready(_REST_TIMEOUT_S):
                raise OSError(f"the rest of a message did not come within {_REST_TIMEOUT_S:.0f} s")
            count = self.socket.recv_into(left)
            if not count:
                raise EOFError
            left = left[count:]
        return bytes(data)

    def close(self) -> None:
        """Close this end, and what came and was not taken; the other end is told."""
        self.socket.close()
        while self.fds:
            os.close(self.fds.popleft())
