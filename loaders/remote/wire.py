"""Messages between clients and the fetcher: a line of JSON each, over a socket of the cache folder.

A request is answered by any number of ``{"wait": ...}`` (work in progress), then by one line with ``"ok"`` or
``"error"``. A fetcher that is silent for ``SILENCE_S`` while it owes an answer counts as stopped. A message with
``"op": "hit"`` has no answer.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from loaders.errors import CacheError, ChecksumError, ManifestError, RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BEAT_S = 1.0  # between two lines of a request that is being worked on
SILENCE_S = 60.0
MAX_CONNECTIONS = 16  # of the fetcher to stores: 10 Gbit/s of one that gives 80 MB/s on each
PART_BYTES = 8 << 20  # of a shard, by a request
MAX_LINE_BYTES = 256 << 20
SOCKET_NAME = "socket"
KILLED = 3  # exit status of the command that starts a fetcher, if the fetcher is killed before it listens
_GONE = "the fetcher has gone"
Failure = RemoteError | CacheError | ChecksumError | ManifestError
_ERRORS = {kind.__name__: kind for kind in (RemoteError, CacheError, ChecksumError, ManifestError)}


class Entry(NamedTuple):
    """An object as a listing tells of it.

    Attributes:
        name: Below the URL.
        size: In bytes.
        mark: A hash of its e-tag, which is odd; or else of when it was written, which is even.
    """

    name: str
    size: int
    mark: int


class File(NamedTuple):
    """A shard at a URL.

    Attributes:
        file: Its name there.
        size: In bytes.
        hash: Its xxh3-128, hexadecimal.
    """

    file: str
    size: int
    hash: str


def encoded(message: dict[str, Any]) -> bytes:
    """Return a message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def error_message(error: Failure) -> dict[str, Any]:
    """Return the message that an error is sent as."""
    args = [None if each is None else str(each) for each in error.args]
    return {"error": type(error).__name__, "args": args}


def raise_error(message: dict[str, Any]) -> None:
    """Raise the error that a message stands for, if it does."""
    if "error" in message:
        raise _ERRORS[message["error"]](*message["args"])


def peer(connection: Any) -> tuple[int, int]:
    """Return the process and the user at the other end of a socket; 0 for a process of another container."""
    option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", option)
    return pid, uid


@contextmanager
def socket_name(folder: Path) -> Iterator[str]:
    """Yield a short name of a folder's socket (names of sockets are limited), which holds during the block."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


class Connection:
    """A client's end, for one thread at a time."""

    def __init__(self, folder: Path, timeout_s: float = SILENCE_S) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_s)
            with socket_name(folder) as name:
                self._socket.connect(name)
            if peer(self._socket)[1] != os.getuid():
                what = "another user's process answers at its socket"
                raise CacheError(what, folder, "Give a folder of your own by cache=")
        except BaseException:
            self._socket.close()
            raise
        self._rest = bytearray()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message."""
        self._socket.sendall(encoded(message))

    def receive(self) -> dict[str, Any]:
        """Return the next message; ``OSError`` if the other end is gone, ``TimeoutError`` if it is silent."""
        while (end := self._rest.find(b"\n")) < 0:
            self._rest += self._more()
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        message: dict[str, Any] = json.loads(line)
        return message

    def receive_bytes(self, nbytes: int) -> bytearray:
        """Return the bytes that follow a message."""
        data, at = bytearray(nbytes), min(nbytes, len(self._rest))
        data[:at] = self._rest[:at]
        del self._rest[:at]
        with memoryview(data) as view:
            while at < nbytes:
                got = self._socket.recv_into(view[at:])
                if not got:
                    raise ConnectionResetError(_GONE)
                at += got
        return data

    def answer(
        self, on_wait: Callable[[dict[str, Any]], object] = bool, nbytes: int = 0
    ) -> dict[str, Any]:
        """Return the answer to what was sent, or raise its error.

        Args:
            on_wait: Called with what the fetcher says while it works.
            nbytes: How many bytes follow, as ``"data"`` of the answer, where the answer itself does not say so.
        """
        while "wait" in (message := self.receive()):
            on_wait(message["wait"])
        raise_error(message)
        if nbytes := message.get("nbytes", nbytes):
            message["data"] = self.receive_bytes(nbytes)
        return message

    def _more(self) -> bytes:
        data = self._socket.recv(1 << 18)
        if not data:
            raise ConnectionResetError(_GONE)
        return data

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
