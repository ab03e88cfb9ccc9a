"""How far something long is, on standard error: a bar of tqdm; where that is no terminal, every few seconds."""

from __future__ import annotations

import sys
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from typing import TextIO

_LOG_EVERY_S = 5.0


class Meter:
    """Counts what is done, and shows it; threads may share one.

    Args:
        doing: What is done, as a word.
        unit: What is counted; ``bytes`` are shown as sizes.
        total: How many there are, if that is known.
        stream: Where to show it; None for standard error.
        logs: Show it where that is no terminal, too.
        delay_s: Time before anything is shown on a terminal.
    """

    def __init__(
        self,
        doing: str,
        unit: str,
        total: int | None = None,
        *,
        stream: TextIO | None = None,
        logs: bool = True,
        delay_s: float = 0.0,
    ) -> None:
        stream = stream or sys.stderr
        is_size, is_terminal = unit == "bytes", stream.isatty()
        self._options: dict[str, Any] = {
            "desc": doing,
            "file": stream,
            "disable": not (is_terminal or logs),
            "unit": "B" if is_size else f" {unit}",
            "unit_scale": is_size,
            "unit_divisor": 1024,
            "miniters": 1,
            "mininterval": 0.1 if is_terminal else _LOG_EVERY_S,
            "delay": delay_s if is_terminal else _LOG_EVERY_S,
        }
        self._total, self.done, self._lock = total, 0, Lock()
        self._bar: Any = None

    def start(self, total: int | None, done: int) -> None:
        """Begin, with ``done`` of ``total`` (None: not known) done earlier."""
        from tqdm import tqdm

        self.done = done
        bar = type("Bar", (tqdm,), {"monitor_interval": 0})  # else tqdm starts a thread that stays
        self._bar = bar(total=total, initial=done, **self._options)

    def advance(self, rejected: int, samples: int = 1) -> None:
        """Count more; ``rejected`` is how many were left out so far."""
        with self._lock:
            self.done += samples
            if rejected:
                self._bar.set_postfix_str(f"{rejected} rejected", refresh=False)
            self._bar.update(samples)

    def tick(self, num: int) -> None:
        """Count more."""
        self.advance(0, num)

    def close(self) -> None:
        """Leave the bar as it stands; may be called twice, or without a start."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Self:
        self.start(self._total, 0)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
