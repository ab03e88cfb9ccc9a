"""Signals that were held back reach their handlers."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from loaders.signals import handlers_later


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
