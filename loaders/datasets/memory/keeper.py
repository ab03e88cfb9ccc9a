"""The thread that shares a copy with other processes, and the socket at which they meet.

Processes meet at an abstract unix socket, which the kernel forgets when the process bound to it
goes. A keeper is one daemon thread:

1. With the name bound, it tells everyone who connects how far loading is, and at the end passes
   the sealed memfd on, or says why there is none. Connections stay open.
2. Without, it holds its own connection. When that ends it binds the name itself, or connects to
   the process that was faster: so late comers find the copy for as long as anyone has it. (Should a new
   process bind the name in the moment between, it loads a second copy.)
3. Both ends ask the kernel whose process the other one is, and deal with their own user and root
   only, unless the name says that it is everybody's.
4. ``close`` ends it, from any thread and twice; so does the end of its process, whatever the way.
   A forked child closes its ends of the sockets at once: they would outlive its parent.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import select
import socket
import struct
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from loaders.errors import LoadersError

logger = logging.getLogger(__name__)
_TELL_S = 0.5
_RETRY_S = 0.05
_MESSAGE_BYTES = 1 << 14
_WHY_BYTES = _MESSAGE_BYTES // 8  # JSON takes up to six bytes for one
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """Where processes that share a copy meet."""

    identity: str  # says what the copy holds
    all_users: bool = False  # whether everyone may share it, or one user

    @property
    def address(self) -> str:
        """The abstract socket."""
        who = "all" if self.all_users else os.geteuid()
        return f"\0loaders/1/{who}/{self.identity}"

    def bind(self) -> socket.socket | None:
        """Return the listening socket, or None if a process has it already."""
        listener = _socket()
        try:
            listener.bind(self.address)
            listener.listen(4096)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return None
        return listener

    def connect(self) -> socket.socket | None:
        """Return a connection to the process that has the name, or None if just now there is none."""
        connection = _socket()
        try:
            connection.connect(self.address)
        except (ConnectionError, BlockingIOError):
            connection.close()
            return None
        return connection

    def admits(self, peer: Peer) -> bool:
        """Tell whether to deal with a process."""
        return self.all_users or peer.uid in (os.geteuid(), 0)


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a connection, as the kernel knows it."""

    pid: int
    uid: int

    @classmethod
    def of(cls, connection: socket.socket) -> Peer:
        """Ask the kernel."""
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(data)
        return cls(pid, uid)


def _socket() -> socket.socket:
    # Of all kinds it is this one that keeps messages whole and tells of the other side's end.
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def receive(connection: socket.socket) -> tuple[dict[str, Any] | None, int | None]:
    """Return the next message, None at the end, and the descriptor that came with it.

    Raises:
        TimeoutError: The connection has a timeout, and it passed.
        LoadersError: What came is not a message.
    """
    try:
        data, fds, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 1)
        for fd in fds:
            os.set_inheritable(fd, False)
    except ConnectionError:
        return None, None
    try:
        message = _parse(data) if data else None
    except LoadersError:
        for fd in fds:
            os.close(fd)
        raise
    return message, (fds[0] if fds else None)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or not _is_news(message):
        raise LoadersError(
            f"the process that offers the shared copy sent {data[:40]!r}, not a message of this "
            "release: end the one that has taken its name"
        )
    return message


def _is_news(message: dict[str, Any]) -> bool:
    """Tell whether a message says how things are, with all that belongs to it."""
    state = message.get("state")
    if state == "loading":
        return all(type(message.get(name)) is int for name in ("done", "total"))
    return state == "ready" or (state == "failed" and isinstance(message.get("why"), str))


class Keeper:
    """Shares a copy until it is closed.

    It has the bound socket of a process that is about to load, or the connection over which a copy came instead. The
    copy's descriptor is the keeper's, once there is one.
    """

    def __init__(
        self,
        name: MeetingPlace,
        *,
        listener: socket.socket | None = None,
        connection: socket.socket | None = None,
        fd: int | None = None,
    ) -> None:
        self._name, self._listener, self._connection, self.fd = name, listener, connection, fd
        self._news: dict[str, Any] = {"state": "loading", "done": 0, "total": 0}
        if fd is not None:
            self._news = {"state": "ready"}
        self._untold: list[socket.socket] = []  # who waits for the copy
        self._told: list[socket.socket] = []  # who has it
        self._closing, self._pid = False, os.getpid()
        self._thread = threading.Thread(target=self._run, name="loaders-keeper", daemon=True)
        try:
            self._poke, self._poked = socket.socketpair()
            self._poke.setblocking(False)
            _keepers.add(self)
            self._thread.start()
        # No descriptor or thread is left, say: nothing else closes what it was given.
        except BaseException:
            self.hang_up()
            raise

    # -- of its owner ------------------------------------------------------------------------------

    def report(self, done: int, total: int) -> None:
        """Let others know how far loading is, the next time they are told."""
        self._news = {"state": "loading", "done": done, "total": total}

    def ready(self, fd: int) -> None:
        """Pass the copy on from now on; its descriptor becomes the keeper's."""
        self.fd, self._news = fd, {"state": "ready"}
        self._wake()

    def fail(self, why: str) -> None:
        """Tell all who wait that there will be no copy, and end."""
        cut = why.encode(errors="backslashreplace")[:_WHY_BYTES].decode(errors="ignore")
        self._news = {"state": "failed", "why": cut}
        self.close()

    def close(self) -> None:
        """Share no more; another process that has the copy goes on."""
        if self._pid != os.getpid():  # in a forked child there is only the memory
            return
        self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:  # where garbage may be collected
            self._thread.join()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it has ended, or was woken already
            self._poke.send(b"!")

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                if self._listener is not None:
                    self._serve(self._listener)
                else:
                    self._follow()
            self._tell()
        except Exception:  # whatever it is: the copy is of use without being shared further
            logger.exception("the shared copy is no longer offered to other processes")
        finally:
            self.hang_up()

    def _serve(self, listener: socket.socket) -> None:
        """Admit those who connect, tell them the news, and let go of those who left."""
        patience = _TELL_S if self._untold else None
        for each in self._wait([listener, *self._untold, *self._told], patience):
            if each is not listener:
                self._drop(each)
            elif (client := self._accept(listener)) is not None:
                self._untold.append(client)
        self._tell()

    def _accept(self, listener: socket.socket) -> socket.socket | None:
        try:
            client, _ = listener.accept()
        except OSError as error:  # too many open files, most likely
            logger.warning("cannot share with one more process: %s", error)
            self._wait([], _TELL_S)
            return None
        client.setblocking(False)
        peer = Peer.of(client)
        if self._name.admits(peer):
            return client
        why = f"it belongs to user {os.geteuid()}, and process {peer.pid} to user {peer.uid}"
        with contextlib.suppress(OSError):  # it may have hung up
            _send(client, {"state": "failed", "why": why})
        client.close()
        return None

    def _tell(self) -> None:
        """Tell everyone who waits how things are; ready is the last that they hear."""
        news = self._news
        fd = self.fd if news["state"] == "ready" else None
        for client in list(self._untold):
            try:
                told = _send(client, news | {"pid": self._pid}, fd)
            except OSError:
                self._drop(client)
                continue
            if told and fd is not None:
                self._untold.remove(client)
                self._told.append(client)

    def _follow(self) -> None:
        """Wait for the end of the process that shares; then take its place, or find who did."""
        connection = self._connection
        if connection is None:
            self._listener = self._name.bind()
            if self._listener is None:
                self._connection = self._reconnect()
            return
        if not self._wait([connection], None):
            return
        message, fd = receive(connection)
        if fd is not None:  # the same copy again, or one that was made in the meantime
            os.close(fd)
        if message is None:
            connection.close()
            self._connection = None

    def _reconnect(self) -> socket.socket | None:
        connection = self._name.connect()
        if connection is not None and not self._name.admits(Peer.of(connection)):
            connection.close()
            connection = None
        if connection is None:
            self._wait([], _RETRY_S)
        return connection

    def _wait(self, sockets: list[socket.socket], timeout_s: float | None) -> list[socket.socket]:
        """Return those of the sockets on which something happened, once one did or time is up."""
        poll = select.poll()  # unlike epoll it leaves nothing that a forked child would share
        by_fd = {each.fileno(): each for each in [self._poked, *sockets]}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        ready = [by_fd[fd] for fd, _ in poll.poll(timeout_s and timeout_s * 1000)]
        if self._poked in ready:
            self._poked.recv(1 << 10)
            ready.remove(self._poked)
        return ready

    def _drop(self, client: socket.socket) -> None:
        for clients in (self._untold, self._told):
            if client in clients:
                clients.remove(client)
        client.close()

    def hang_up(self) -> None:
        """Close everything; in a forked child, its copies of the parent's."""
        pair = [getattr(self, name, None) for name in ("_poke", "_poked")]  # may not be there yet
        ours = [self._listener, self._connection, *pair]
        for each in [*ours, *self._untold, *self._told]:
            if each is not None:
                each.close()
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def _send(client: socket.socket, message: dict[str, Any], fd: int | None = None) -> bool:
    """Send a message; return False if the other side does not read."""
    data = json.dumps(message, ensure_ascii=False).encode()
    try:
        socket.send_fds(client, [data], [] if fd is None else [fd])
    except BlockingIOError:
        return False
    return True


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


def _in_forked_child() -> None:
    for keeper in list(_keepers):
        keeper.hang_up()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
