"""Messages between clients and the fetcher: pickles, each behind its length, over a socket of the cache folder.

A question is a word and its arguments. It is answered by any number of ``...`` (work in progress), then by a value, or
by the error to raise. A fetcher that is silent for ``SILENCE_S`` while it owes an answer counts as stopped. Both ends
are processes of one user, and make sure of that before they read.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from loaders.errors import CacheError, RemoteError
from loaders.remote.patience import SILENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_CONNECTIONS = 16  # of the fetcher to stores: 10 Gbit/s of one that gives 80 MB/s on each
PART_BYTES = 8 << 20  # of a shard, by a request
PUT_BYTES = 8 << 20  # a larger object is sent in parts of this size
LENGTH_BYTES = 8  # of a message's length
SOCKET_NAME = "socket"


class Entry(NamedTuple):
    """An object in a listing."""

    name: str  # below the URL
    size: int  # in bytes
    mark: int  # a hash of its e-tag, which is odd; or else of when it was written, which is even


class File(NamedTuple):
    """A shard at a URL."""

    file: str  # its name there
    size: int  # in bytes
    hash: str  # its xxh3-128, hexadecimal


def encoded(message: Any) -> bytes:
    """Return a message as it is sent."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


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
        self._folder = folder
        self.is_idle = True  # the last question was answered, so another one can follow
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_s)
            with socket_name(folder) as name:
                self._socket.connect(name)
            if peer(self._socket)[1] != os.getuid():
                what = "another user's process answers at the fetcher's socket"
                raise CacheError(what, folder, "Pass a folder of your own as cache=")
        except BaseException:
            self._socket.close()
            raise
        self._answers = self._socket.makefile("rb", 1 << 18)

    def ask(self, op: str, **about: Any) -> Any:
        """Return the answer to a question, or raise its error; ConnectionError if the fetcher has gone."""
        self.is_idle, answer = False, ...
        try:
            self._socket.sendall(encoded((op, about)))
            while answer is ...:
                size = int.from_bytes(self._read(LENGTH_BYTES), "little")
                answer = pickle.loads(self._read(size))  # noqa: S301  # of our own fetcher
        except TimeoutError as error:
            pid = (self._folder / "lock").read_text()
            hint = f"End the fetcher ('kill -9 {pid}'): the next request starts another"
            raise RemoteError(
                "the cache's fetcher does not answer", self._folder.parent, hint
            ) from error
        self.is_idle = True
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _read(self, nbytes: int) -> bytes:
        data: bytes = self._answers.read(nbytes)
        if len(data) != nbytes:
            raise ConnectionResetError("the fetcher has gone")
        return data

    def close(self) -> None:
        """Hang up."""
        self._answers.close()
        self._socket.close()
