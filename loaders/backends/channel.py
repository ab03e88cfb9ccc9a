"""Messages between two processes over one socket, with file descriptors beside them.

A message is one packet, or several if it is long: in each a header (whether it is the last one, how many descriptors
come with it), and bytes. A packet is read by one call, that waits in the kernel: who reads in pieces gives the
interpreter's lock away between them, and what ``multiprocessing.connection`` does costs more than the message.
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

_HEADER = struct.Struct("<?B")
_PACKET_BYTES = 64 << 10
_SEND_BYTES = 4 * _PACKET_BYTES
_MAX_FDS = 250  # that one call may send
_FDS_ROOM = socket.CMSG_SPACE(_MAX_FDS * array("i").itemsize)
_LONG_S = 1e6  # the kernel takes no more than 24 days
_REST_TIMEOUT_S = 60.0  # for the rest of a message that has begun to come


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection: each for a ``Channel``."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:  # wherever the machine's default is too small for a packet
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
    return ends


class Channel:
    """One end.

    Args:
        end: Of a ``pair``.
        patience_s: How long ``receive`` waits.

    Attributes:
        fds: Descriptors that came, in order; whoever takes one out closes it.
    """

    def __init__(self, end: socket.socket, patience_s: float = 2.0) -> None:
        self.socket = end
        end.settimeout(None)  # whatever ``socket.setdefaulttimeout`` was told
        # By the kernel: what Python does for a time limit is another call.
        limit = struct.pack("ll", int(patience_s), int(patience_s % 1 * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self.fds: deque[int] = deque()

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a message, waiting for room; the descriptors can be closed afterwards.

        Raises:
            OSError: The other end is closed.
        """
        left = memoryview(data)
        while len(left) > _PACKET_BYTES or len(fds) > _MAX_FDS:
            self._send(left[:_PACKET_BYTES], fds[:_MAX_FDS], is_last=False)
            left, fds = left[_PACKET_BYTES:], fds[_MAX_FDS:]
        self._send(left, fds, is_last=True)

    def _send(self, data: memoryview, fds: Sequence[int], *, is_last: bool) -> None:
        parts: list[bytes | memoryview] = [_HEADER.pack(is_last, len(fds)), data]
        if fds:
            socket.send_fds(self.socket, parts, fds)
        else:
            self.socket.sendmsg(parts)

    def is_ready(self, timeout_s: float | None = 0) -> bool:
        """Wait until something came, or the other end was closed; None waits for ever."""
        limit = None if timeout_s is None else math.ceil(1000 * min(timeout_s, _LONG_S))
        return bool(self._poll.poll(limit))

    def receive(self) -> memoryview | None:
        """Return the next message, or None if none begins to come in time.

        Raises:
            EOFError: The other end was closed.
            OSError: The connection broke, or no descriptor is free for one that came.
        """
        parts: list[memoryview] = []
        is_last = False
        while not is_last:
            try:
                is_last, data = self._receive()
            except BlockingIOError:  # nothing came
                if not parts:
                    return None
                self._await_rest()
            else:
                parts.append(data)
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def _receive(self) -> tuple[bool, memoryview]:
        # Not recv_fds, which leaves them to be inherited.
        size = _HEADER.size + _PACKET_BYTES
        packet, beside, _, _ = self.socket.recvmsg(size, _FDS_ROOM, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            raise EOFError
        is_last, num_fds = _HEADER.unpack_from(packet)
        if num_fds:
            self._keep(array("i", b"".join(value for _, _, value in beside)), num_fds)
        return is_last, memoryview(packet)[_HEADER.size :]

    def _keep(self, fds: array[int], count: int) -> None:
        self.fds.extend(fds)
        if len(fds) < count:
            raise OSError(
                "no file descriptor is free for a batch slot: raise the limit (ulimit -n)"
            )

    def _await_rest(self) -> None:
        if not self.is_ready(_REST_TIMEOUT_S):
            raise OSError(f"the rest of a message did not come within {_REST_TIMEOUT_S:.0f} s")

    def close(self) -> None:
        """Close this end, and what came and was not taken; the other end is told."""
        self.socket.close()
        while self.fds:
            os.close(self.fds.popleft())
