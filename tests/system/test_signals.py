"""Signals that were held back reach their handlers."""

import gc
import signal
import sys
import weakref
from typing import Any

import pytest

from loaders.system.signals import Living, finalize, handlers_later


def test_of_signals_that_were_held_back_each_reaches_its_handler() -> None:
    """Though the handler of another raises; and the next one reaches it at once."""
    came: list[int] = []

    def raises(number: int, frame: Any) -> None:
        came.append(number)
        raise TimeoutError

    def notes(number: int, frame: Any) -> None:
        came.append(number)

    def hold_both() -> None:
        with handlers_later():
            signal.raise_signal(signal.SIGALRM)
            signal.raise_signal(signal.SIGUSR2)
            assert came == []

    before = signal.signal(signal.SIGALRM, raises), signal.signal(signal.SIGUSR2, notes)
    try:
        with pytest.raises(TimeoutError):
            hold_both()
        assert came == [signal.SIGALRM, signal.SIGUSR2]
        signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGUSR2, before[1])

    assert came == [signal.SIGALRM, signal.SIGUSR2, signal.SIGUSR2]


def test_each_handler_is_put_back_though_one_raises_while_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raises(number: int, frame: Any) -> None:
        raise TimeoutError

    put = signal.signal

    def put_and_raise(number: int, handler: Any) -> Any:
        before = put(number, handler)
        if handler is raises:
            signal.raise_signal(signal.SIGALRM)
        return before

    before = {number: signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGUSR2)}
    put(signal.SIGALRM, raises)
    put(signal.SIGUSR2, raises)
    given = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        with pytest.raises(TimeoutError), handlers_later():
            monkeypatch.setattr(signal, "signal", put_and_raise)
        assert {number: signal.getsignal(number) for number in given} == given
    finally:
        for number, handler in before.items():
            put(number, handler)


def test_of_what_is_raised_behind_the_hold_nothing_keeps_its_callers() -> None:
    """Else what it owns lives until the garbage is collected."""

    class Owner:
        def hold(self) -> None:
            with handlers_later():
                signal.raise_signal(signal.SIGINT)

    owner = Owner()
    is_gone = weakref.ref(owner)
    with pytest.raises(KeyboardInterrupt):
        owner.hold()
    gc.disable()
    try:
        del owner
        assert is_gone() is None
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_ctrl_c_keeps_from_being_finalized_is() -> None:
    class Owner:
        pass

    owner = Owner()
    ended: list[int] = []
    end = finalize(owner, ended.append, 1)
    finalize_code = weakref.finalize.__call__.__code__

    def interrupt(frame: Any, event: str, arg: Any) -> None:
        if frame.f_code is finalize_code and not seen:
            seen.append(frame)
            raise KeyboardInterrupt

    seen: list[Any] = []
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        del owner
    finally:
        sys.settrace(before)

    assert seen
    assert ended == [1]
    assert not end.alive


def test_the_end_of_what_was_finalized_by_hand_runs_no_code() -> None:
    """Of Python: Ctrl-C that comes into a callback is printed and lost."""

    class Owner:
        pass

    owner = Owner()
    finalize(owner, list)()
    called: list[Any] = []
    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: called.append(frame.f_code.co_name))
    try:
        del owner
    finally:
        sys.settrace(before)

    assert called == []


def test_who_is_gone_is_forgotten_without_a_callback() -> None:
    class One:
        pass

    living: Living[One] = Living()
    kept = [One(), One(), One()]
    for one in kept:
        living.add(one)

    del kept[1], one
    last = One()
    living.add(last)

    assert living.all() == [*kept, last]
    assert len(living._references) == 3
    assert all(reference.__callback__ is None for reference in living._references.values())
