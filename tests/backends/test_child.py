"""The child's side of ``backend="subprocess"``, here as threads of this process."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import Dataset

from loaders.backends import child as module
from loaders.backends.asking import ask
from loaders.backends.channel import Channel, pair
from loaders.backends.forms import MessageReader
from loaders.backends.maker import Maker
from loaders.backends.wire import Mapped, SharedSlots

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from loaders.backends.threads import ThreadPool

TIMEOUT_S = 20.0


class Watched(Dataset[int]):
    """Tells which samples were read."""

    def __init__(self) -> None:
        self.read = [threading.Event() for _ in range(9)]

    def __getitem__(self, index: int) -> int:
        self.read[index].set()
        return index


class Held(Channel):
    """Whose messages wait until they may go."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end, 0.05)
        self.began, self.may_go = threading.Event(), threading.Event()

    def send(self, data: bytes, fds: Any = ()) -> None:
        self.began.set()
        assert self.may_go.wait(TIMEOUT_S)
        super().send(data, fds)


class Side:
    """A child and its parent's end."""

    def __init__(self, *, is_full: bool = True) -> None:
        ours, theirs = pair()
        self.parent, self.held, self.data = Channel(ours, TIMEOUT_S), Held(theirs), Watched()
        maker = Maker(self.data, list, 1, True, 2, slots=SharedSlots())
        self.child = module._Child(maker, self.held, is_full=is_full)
        self.listener = threading.Thread(target=self.child.listen)
        self.listener.start()
        self._messages = MessageReader(Mapped(self.parent.fds.popleft))

    def ask(self, *message: Any) -> None:
        self.parent.send(ask(*message))

    def received(self) -> Any:
        data = self.parent.receive()
        assert data is not None
        return self._messages.read(data)[1]

    def wait_until(self, condition: Callable[[ThreadPool], bool]) -> None:
        """Wait for something of its workers."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition(self.child._pool):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def close(self) -> None:
        self.held.may_go.set()
        self.ask("close")
        self.parent.close()
        self.listener.join(TIMEOUT_S)
        assert not self.listener.is_alive()
        self.child._pool.close()
        self.held.close()


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Side]:
    monkeypatch.setattr(module, "dump_in_child", lambda _: None)  # a handler of this process
    settings = getattr(request, "param", {})
    monkeypatch.setattr(module, "_BUSY_POLL_S", settings.get("poll_s", 0.1))
    side = Side(is_full=settings.get("is_full", True))
    yield side
    side.close()


def test_what_is_completed_while_another_is_sent_is_sent_after_it(side: Side) -> None:
    """The worker that finds another one sending goes on with its work."""
    for i in range(5):
        side.ask("make", 1, [[i]])
    assert side.held.began.wait(TIMEOUT_S)

    assert all(event.wait(TIMEOUT_S) for event in side.data.read[:5])
    side.held.may_go.set()

    assert [side.received() for _ in range(5)] == [[[i]] for i in range(5)]


def test_what_is_completed_while_the_parent_is_told_of_the_workers_is_sent_then(
    side: Side,
) -> None:
    side.ask("describe")
    assert side.held.began.wait(TIMEOUT_S)
    side.child._make("make", 1, [[7]])
    assert side.data.read[7].wait(TIMEOUT_S)
    while not side.child._pool.is_ready:
        pass
    side.held.may_go.set()

    assert side.received() == "no worker is running"
    assert side.received() == [[7]]


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
    side.ask("make", 1, [[3]])

    assert side.received() == [[3]]
    assert not side.parent.is_ready(0.3)


def slow(side: Side, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let sample 1 wait for an event, and messages for nothing."""
    may_end = threading.Event()
    monkeypatch.setattr(
        Watched, "__getitem__", lambda _, i: i if i > 1 else may_end.wait(TIMEOUT_S)
    )
    side.held.may_go.set()
    return may_end


@pytest.mark.parametrize("side", [{"poll_s": 2 * TIMEOUT_S}], indirect=True)
def test_where_workers_fill_all_cores_one_that_has_nothing_to_do_listens(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other thread is woken; also when it listened in vain before."""
    may_end, heard = slow(side, monkeypatch), []
    make = side.child._make

    def note(kind: str, number: int, group: list[Any]) -> None:
        heard.append(threading.current_thread())
        make(kind, number, group)

    monkeypatch.setattr(side.child, "_make", note)
    side.ask("make", 1, [[1]])
    side.ask("make", 1, [[1]])
    side.wait_until(lambda pool: len(pool) == 2 and not pool.num_idle)
    side.ask("make", 1, [[2]])
    time.sleep(0.2)
    assert len(heard) == 2
    may_end.set()

    assert [side.received() for _ in range(3)] == [[[True]], [[True]], [[2]]]
    for i in range(3, 20):
        time.sleep(0.02 * (i % 3))
        side.ask("make", 1, [[i]])
        assert side.received() == [[i]]
    assert side.listener not in heard[1:]  # it looks once, before any worker does


@pytest.mark.parametrize("side", [{"poll_s": 2 * TIMEOUT_S}], indirect=True)
def test_a_worker_listens_that_found_another_thread_about_to_leave_off(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = slow(side, monkeypatch)
    for _ in range(2):
        side.ask("make", 1, [[1]])
    side.wait_until(lambda pool: len(pool) == 2 and not pool.num_idle)
    assert side.child._listening.acquire(timeout=TIMEOUT_S)
    may_end.set()
    assert [side.received() for _ in range(2)] == [[[True]]] * 2
    time.sleep(0.1)
    side.child._leave_listening()
    side.ask("make", 1, [[1]])

    assert side.received() == [[True]]


@pytest.mark.parametrize("side", [{"is_full": False, "poll_s": 2 * TIMEOUT_S}], indirect=True)
def test_where_a_core_is_left_the_listener_does_not_wait_for_workers(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = slow(side, monkeypatch)
    for _ in range(5):
        side.ask("make", 1, [[1]])
    side.wait_until(lambda pool: len(pool) == 5)
    may_end.set()

    assert [side.received() for _ in range(5)] == [[[True]]] * 5


def test_a_child_whose_workers_are_busy_listens_all_the_same(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = slow(side, monkeypatch)
    for _ in range(2):
        side.ask("make", 1, [[1]])
    side.ask("describe")

    assert side.received().count("fetching 1 samples") == 2
    may_end.set()
    assert [side.received() for _ in range(2)] == [[[True]]] * 2
