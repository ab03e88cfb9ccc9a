"""The child's side of ``backend="subprocess"``, here as threads of this process."""

import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

import pytest
from torch.utils.data import Dataset

from loaders.backends import serving as module
from loaders.backends.maker import Chunk, Maker
from loaders.backends.messages import Begin, Message, Put, Turn, from_plain, to_plain
from loaders.backends.slots import MappedSlots, SharedSlots, make_file
from tests.waiting import wait_until

TIMEOUT_S = 20.0


class Watched(Dataset[int]):
    """Tells which samples were read; sample 1 waits for an event."""

    def __init__(self) -> None:
        self.read = [threading.Event() for _ in range(9)]
        self.may_end = threading.Event()

    def __getitem__(self, index: int) -> int:
        self.read[index].set()
        if index == 1:
            assert self.may_end.wait(TIMEOUT_S)
        return index


class Held:
    """A connection whose messages wait until they may go."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.recv_bytes, self.close = connection.recv_bytes, connection.close
        self.began, self.may_go = threading.Event(), threading.Event()

    def send_bytes(self, data: bytes) -> None:
        self.began.set()
        assert self.may_go.wait(TIMEOUT_S)
        self._connection.send_bytes(data)


class Side:
    """A child and its trainer's end."""

    def __init__(self, data: Watched) -> None:
        self.parent, theirs = Pipe()
        fd = make_file()
        self.held, self.data = Held(theirs), data
        self.slots = MappedSlots(fd)
        connection: Any = self.held
        self.child = module.Serving(connection, SharedSlots(fd))
        self.held.may_go.set()
        self.child._maker = Maker(data, list, 1, True, 2)  # it has events, which do not pickle
        self.child._begin(Begin(None, None))
        self.held.may_go.clear()
        self.held.began.clear()
        os.close(fd)
        self.listener = threading.Thread(target=self.listen)
        self.listener.start()

    def listen(self) -> None:
        with suppress(EOFError):
            self.child.listen()

    def put(self, *indices: int) -> None:
        for i in indices:
            self.ask(Put(self.slots.free(), Chunk([[i]]), 0))

    def ask(self, message: Message) -> None:
        self.parent.send_bytes(pickle.dumps(to_plain(message)))

    def received(self) -> Any:
        assert self.parent.poll(TIMEOUT_S)
        message = from_plain(self.slots.load(self.parent.recv_bytes()))
        return message.group if isinstance(message, Turn) else message.error

    def close(self) -> None:
        self.held.may_go.set()
        self.data.may_end.set()
        self.parent.close()
        self.listener.join(TIMEOUT_S)
        assert not self.listener.is_alive()
        self.child._pool.close()
        self.held.close()


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> Iterator[Side]:
    monkeypatch.setattr(module, "dump_in_child", lambda _: None)  # a handler of this process
    side = Side(Watched())
    yield side
    side.close()


def test_what_is_completed_while_another_is_sent_is_sent_after_it(side: Side) -> None:
    """The worker that finds another one sending goes on with its work."""
    side.data.may_end.set()
    side.put(*range(5))
    assert side.held.began.wait(TIMEOUT_S)

    assert all(event.wait(TIMEOUT_S) for event in side.data.read[:5])
    side.held.may_go.set()

    assert [side.received() for _ in range(5)] == [[[i]] for i in range(5)]


def test_a_worker_that_comes_too_late_sends_nothing(side: Side) -> None:
    """Another one sends what was ready between its look and its turn."""

    class Taken:
        def acquire(self, *, blocking: bool) -> bool:
            side.child._send(side.child._take())
            return True

        def release(self) -> None:
            pass

    side.held.may_go.set()
    side.child._sending = Taken()  # type: ignore[assignment]
    side.put(3)

    assert side.received() == [[3]]
    assert not side.parent.poll(0.3)


def test_a_child_whose_workers_are_busy_listens_all_the_same(side: Side) -> None:
    side.held.may_go.set()
    side.put(1, 1, 2)
    assert side.data.read[1].wait(TIMEOUT_S)

    wait_until(lambda: len(side.child._pool) == 3)
    side.data.may_end.set()
    assert [side.received() for _ in range(3)] == [[[1]], [[1]], [[2]]]


def test_a_pass_that_begins_gives_up_the_one_before(side: Side) -> None:
    """What a worker completes meanwhile is of a pass that has ended: neither sent for ever nor behind the answer."""
    side.held.may_go.set()
    side.put(1, 2, 3)
    assert side.data.read[1].wait(TIMEOUT_S)

    side.ask(Begin(None, None))
    wait_until(lambda: not side.child._pool._close.alive)
    side.data.may_end.set()
    side.put(4)

    answers = list(iter(side.received, None))
    assert len(answers) <= 1
    assert side.received() == [[4]]
