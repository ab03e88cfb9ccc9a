"""OpenCV's own threads: none beside workers, and none at a fork."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import cv2

if TYPE_CHECKING:
    from collections.abc import Iterator


def use_one_thread() -> None:
    """Let each call of OpenCV use the thread that makes it: workers are the threads."""
    cv2.setNumThreads(1)


@contextmanager
def no_threads() -> Iterator[None]:
    """End OpenCV's threads while a process is forked; they begin again when they are used.

    A forked child has them no more. When it sets their number it may wait for their end, for ever (OpenCV 5.0: every
    other time).
    """
    num_threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(num_threads)
