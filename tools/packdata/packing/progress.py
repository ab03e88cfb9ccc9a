"""What a packing tells while it works, and what shows it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from loaders.progress import Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


@contextmanager
def progress_of(
    doing: str, total: int | None, *, unit: str = "samples"
) -> Iterator[Callable[[int], None]]:
    """Yield what to call with each step, on any thread; ``bytes`` are shown as sizes."""
    with Meter(doing, unit, total) as meter:
        yield meter.tick
