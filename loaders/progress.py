"""How far something long is: a bar on a terminal, else a plain line now and then; on stderr."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self, TextIO

from loaders.text import describe_size

if TYPE_CHECKING:
    from collections.abc import Callable

_LINE_EVERY_S = 5.0


class Meter:
    """Counts what is done, and shows it; threads may share one."""

    def __init__(
        self,
        doing: str,  # what is done, as a word
        unit: str,  # what is counted; ``bytes`` are shown as sizes
        total: int | None = None,  # how many there are, if that is known
        *,
        stream: TextIO | None = None,  # where to show it; default: stderr
        lines: bool = True,  # print lines where that is no terminal
        delay_s: float = 0.0,  # how long a bar waits, to stay away where it is soon done
        clock: Callable[[], float] = time.monotonic,  # seconds
        every_s: float = _LINE_EVERY_S,  # time between lines
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._doing, self._unit, self._lines, self._delay_s = doing, unit, lines, delay_s
        self._clock, self._every_s = clock, every_s
        self._lock = threading.Lock()
        self._bar: Any = None
        self._rejected = self._first = 0
        self._began = self._shown = 0.0
        self.total, self.done = total, 0

    def start(self, total: int | None, done: int) -> None:
        """Begin, with ``done`` of ``total`` (None: not known) done earlier."""
        self.total, self.done, self._first = total, done, done
        self._began = self._shown = self._clock()
        if self._stream.isatty():
            self._bar = self._new_bar()

    def _new_bar(self) -> Any:
        from tqdm import tqdm

        is_size = self._unit == "bytes"
        bar = type("Bar", (tqdm,), {"monitor_interval": 0})  # else tqdm starts a thread that stays
        return bar(
            file=self._stream,
            desc=self._doing,
            total=self.total,
            initial=self.done,
            unit="B" if is_size else f" {self._unit}",
            unit_scale=is_size,
            unit_divisor=1024,
            smoothing=0.1,
            delay=self._delay_s,
            **_size_of(self._stream),
        )

    def advance(self, rejected: int, samples: int = 1) -> None:
        """Count more; ``rejected`` is how many were left out so far."""
        with self._lock:
            self.done += samples
            if rejected != self._rejected:
                self._rejected = rejected
                if self._bar is not None:
                    self._bar.set_postfix_str(f"{rejected} rejected", refresh=False)
            self._show()

    def tick(self, num: int) -> None:
        """Count more."""
        self.advance(self._rejected, num)

    def show(self, done: int, total: int) -> None:
        """Show a state that another process counts."""
        with self._lock:
            self.done, self.total = done, total
            self._show()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.total = self.total
            self._bar.update(self.done - self._bar.n)
            return
        now = self._clock() if self._lines else self._shown
        if now - self._shown >= self._every_s:
            self._shown = now
            print(self._line(now), file=self._stream, flush=True)

    def _line(self, now: float) -> str:
        rate = (self.done - self._first) / max(now - self._began, 1e-9)
        parts = [f"{self._doing} {self._amount(self.done)}", self._rate(rate)]
        if self.total is not None:
            share = self.done / max(self.total, 1)
            parts[0] += f" of {self._amount(self.total)} ({share:.0%})"
            parts.append(f"{duration((self.total - self.done) / max(rate, 1e-9))} left")
        if self._rejected:
            parts.append(f"{self._rejected} rejected")
        return ", ".join(parts)

    def _amount(self, num: int) -> str:
        return describe_size(num) if self._unit == "bytes" else f"{num:,}"

    def _rate(self, rate: float) -> str:
        return (
            f"{describe_size(rate)}/s" if self._unit == "bytes" else f"{rate:,.0f} {self._unit}/s"
        )

    def close(self) -> None:
        """Leave the bar as it stands; may be called twice, or without a start."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Self:
        self.start(self.total, 0)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _size_of(stream: TextIO) -> dict[str, int]:
    """Return the size of a terminal that reports none, where tqdm would show nothing; else leave it to tqdm."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # no terminal
        return {}
    return {} if all(size) else {"ncols": (size.columns or 80) - 1, "nrows": size.lines or 24}


def duration(seconds: float) -> str:
    """Return a time span as people read it.

    Example:
        >>> duration(42.3), duration(4000)
        ('42 s', '1 h 06 min')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
