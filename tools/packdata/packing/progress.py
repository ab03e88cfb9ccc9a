"""Progress of a packing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called by the packer while it works, in one thread."""

    def start(self, total: int | None, done: int) -> None:
        """Begin, with ``done`` samples of ``total`` (None: not known) packed earlier."""
        return

    def advance(self, rejected: int, samples: int = 1) -> None:
        """Count more samples; ``rejected`` is how many items were left out so far."""
        return

    def close(self) -> None:
        """End, whether complete or not; may be called twice, or without a start."""
        return


class Quiet(Progress):
    """Shows nothing: what ``Progress`` has does nothing."""
