"""How far a packing or another command is: a bar on a terminal, else a plain line now and then; on stderr."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from packdata.describe import describe_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        self._bar = _new_bar(
            self._stream, total=total, initial=done, unit=f" {self._unit}", smoothing=0.1
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


@contextmanager
def progress_of(
    doing: str, total: int | None, *, unit: str = "samples"
) -> Iterator[Callable[[int], None]]:
    """Yield what to call with each step; a terminal sees a bar, a log a line now and then.

    Args:
        doing: What is done, as a word.
        total: Steps in all, if known.
        unit: What a step is; ``bytes`` are shown as sizes.
    """
    lock, stream = threading.Lock(), sys.stderr
    scaled = unit == "bytes"
    with _new_bar(
        stream,
        total=total,
        desc=doing,
        unit="B" if scaled else f" {unit}",
        unit_scale=scaled,
        unit_divisor=1024,
        disable=None if stream.isatty() else True,
        leave=False,
    ) as bar:
        done, shown = 0, time.monotonic()

        def tick(steps: int) -> None:
            nonlocal done, shown
            with lock:
                done += steps
                bar.update(steps)
                if bar.disable and time.monotonic() - shown >= LINE_EVERY_S:
                    shown = time.monotonic()
                    stream.write(f"{doing}: {_amount(done, unit)}{_of(total, unit)}\n")
                    stream.flush()

        yield tick


def _amount(num: int, unit: str) -> str:
    return describe_size(num) if unit == "bytes" else f"{num:,} {unit}"


def _of(total: int | None, unit: str) -> str:
    return "" if not total else f" of {_amount(total, unit)}"


def _new_bar(stream: TextIO, **options: Any) -> Any:
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no thread of its own
    return tqdm(file=stream, **_size_of(stream), **options)


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
