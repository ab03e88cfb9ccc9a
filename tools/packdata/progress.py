"""How far a packing is: a bar on a terminal, else a plain line now and then; on stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

LINE_EVERY_S = 5.0


class Progress(Protocol):
    """What the packer tells while it works; called in one thread."""

    def start(self, total: int | None, done: int) -> None:
        """Begin, with ``done`` samples of ``total`` (None: not known) packed earlier."""

    def advance(self, rejected: int, samples: int = 1) -> None:
        """Count more samples; ``rejected`` is how many items were left out so far."""

    def close(self) -> None:
        """End, whether complete or not; may be called twice, or without a start."""


class Quiet:
    """Tells nothing."""

    def start(self, total: int | None, done: int) -> None:
        """Ignore it."""

    def advance(self, rejected: int, samples: int = 1) -> None:
        """Ignore it."""

    def close(self) -> None:
        """Ignore it."""


class Bar:
    """A bar with rate and ETA, for terminals."""

    def __init__(self, stream: TextIO, unit: str = "images") -> None:
        self._stream, self._unit = stream, unit
        self._bar: Any = None
        self._rejected = 0

    def start(self, total: int | None, done: int) -> None:
        """Show the bar."""
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # no thread of its own
        self._bar = tqdm(
            total=total, initial=done, unit=f" {self._unit}", file=self._stream, smoothing=0.1
        )

    def advance(self, rejected: int, samples: int = 1) -> None:
        """Move the bar."""
        if rejected != self._rejected:
            self._rejected = rejected
            self._bar.set_postfix_str(f"{rejected} rejected", refresh=False)
        self._bar.update(samples)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()


class Lines:
    """A line every few seconds, for logs and pipes."""

    def __init__(
        self,
        stream: TextIO,
        unit: str = "images",
        clock: Callable[[], float] = time.monotonic,
        every_s: float = LINE_EVERY_S,
    ) -> None:
        self._stream, self._unit, self._clock, self._every_s = stream, unit, clock, every_s
        self._total: int | None = None
        self._done = self._first = self._rejected = 0
        self._began = self._shown = 0.0

    def start(self, total: int | None, done: int) -> None:
        """Begin to count."""
        self._total, self._done, self._first = total, done, done
        self._began = self._shown = self._clock()

    def advance(self, rejected: int, samples: int = 1) -> None:
        """Count, and print if the last line is old."""
        self._done, self._rejected = self._done + samples, rejected
        now = self._clock()
        if now - self._shown >= self._every_s:
            self._shown = now
            print(self._line(now), file=self._stream, flush=True)

    def _line(self, now: float) -> str:
        rate = (self._done - self._first) / max(now - self._began, 1e-9)
        parts = [f"packed {self._done:,}", f"{rate:,.0f} {self._unit}/s"]
        if self._total is not None:
            parts[0] += f" of {self._total:,} ({self._done / max(self._total, 1):.0%})"
            parts.append(f"{duration((self._total - self._done) / max(rate, 1e-9))} left")
        if self._rejected:
            parts.append(f"{self._rejected} rejected")
        return ", ".join(parts)

    def close(self) -> None:
        """Print nothing more: the summary says how it ended."""


def progress_on(stream: TextIO | None = None, unit: str = "images") -> Progress:
    """Return what suits a stream (default: stderr)."""
    stream = sys.stderr if stream is None else stream
    return Bar(stream, unit) if stream.isatty() else Lines(stream, unit)


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
