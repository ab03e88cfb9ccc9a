"""Progress of a packing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called by the packer while it works, in one thread."""

    def start(self, total: int | None, done: int) -> None:
        """Begin, with ``done`` samples of ``total`` (None: not known) packed earlier."""

    def advance(self, rejected: int, samples: int = 1) -> None:
        """Count more samples; ``rejected`` is how many items were left out so far."""

    def close(self) -> None:
        """End, whether complete or not; may be called twice, or without a start."""


class Quiet:
    """Show nothing."""

    def start(self, total: int | None, done: int) -> None:
        """Do nothing."""

    def advance(self, rejected: int, samples: int = 1) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
