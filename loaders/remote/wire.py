"""Messages between clients and the fetcher: a line of JSON each, over a socket of the cache folder.

A request is answered by any number of ``{"wait": true}`` (work in progress), then by one line with ``"ok"`` or
``"error"``; an answer with ``"nbytes"`` is followed by so many bytes. A fetcher that is silent for ``SILENCE_S`` while
it owes an answer counts as stopped.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from loaders.errors import CacheError, ChecksumError, ManifestError, RemoteError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BEAT_S = 1.0  # between two lines of a request that is being worked on
SILENCE_S = 60.0
MAX_CONNECTIONS = 16  # of the fetcher to stores: 10 Gbit/s of one that gives 80 MB/s on each
PART_BYTES = 8 << 20  # of a shard, by a request
PUT_BYTES = 8 << 20  # a larger object is sent in parts of this size
MAX_LINE_BYTES = 256 << 20
SOCKET_NAME = "socket"
_GONE = "the fetcher has gone"
ERRORS = (RemoteError, CacheError, ChecksumError, ManifestError)


class Entry(NamedTuple):
    """An object in a listing.

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


def error_message(error: Exception) -> dict[str, Any]:
    """Return the message that one of ``ERRORS`` is sent as."""
    args = [None if each is None else str(each) for each in error.args]
    return {"error": type(error).__name__, "args": args}


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
    """A client's end, for one thread at a time.

    Attributes:
        is_idle: Whether the last question was answered, so that another one can follow.
    """

    def __init__(self, folder: Path, timeout_s: float = SILENCE_S) -> None:
        self._folder, self.is_idle = folder, True
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
        self._answers: Any = self._socket.makefile("rb", 1 << 18)

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a message, with bytes that follow as its ``"data"``, or raise its error.

        Raises:
            ConnectionError: The fetcher has gone.
            RemoteError: It is silent.
        """
        self.is_idle = False
        try:
            self._socket.sendall(encoded(message))
            answer = self._answer()
        except TimeoutError as error:
            raise self._silent() from error
        self.is_idle = True
        if "error" in answer:
            kinds = {kind.__name__: kind for kind in ERRORS}
            raise kinds[answer["error"]](*answer["args"])
        return answer

    def _answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"wait": True}
        while "wait" in answer:
            line = self._answers.readline()
            if not line.endswith(b"\n"):
                raise ConnectionResetError(_GONE)
            answer = json.loads(line)
        if nbytes := answer.get("nbytes", 0):
            answer["data"] = bytearray(nbytes)
            if self._answers.readinto(answer["data"]) != nbytes:
                raise ConnectionResetError(_GONE)
        return answer

    def _silent(self) -> RemoteError:
        hint = "Look for it with ps"
        with suppress(OSError):
            if pid := (self._folder / "lock").read_text().strip():
                hint = f"End it ('kill -9 {pid}'): another one is started"
        return RemoteError("its fetcher does not answer", self._folder.parent, hint)

    def close(self) -> None:
        """Hang up."""
        self._answers.close()
        self._socket.close()
