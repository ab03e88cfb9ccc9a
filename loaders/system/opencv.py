"""OpenCV's own threads: none beside workers, and none at a fork. Nothing else sets their number, or its other switches.

A forked process has them no more. When it sets their number, it may wait for their end for ever (OpenCV 5.0:
every other time). So they are ended before any fork, and begin again when they are used.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import cv2

if TYPE_CHECKING:
    from collections.abc import Iterator

_num_threads = 1  # at the fork that is under way


def use_one_thread() -> None:
    """Let each call of OpenCV use the thread that makes it: workers are the threads."""
    cv2.setNumThreads(1)


def use_no_ipp() -> None:
    """Make OpenCV compute the same bits on every CPU, on the thread that calls this."""
    if hasattr(cv2, "ipp"):
        cv2.ipp.setUseIPP(False)


_lock = threading.Lock()
_num_users = _num_before = 0


@contextmanager
def one_thread() -> Iterator[None]:
    """Let OpenCV use one thread for a while; may overlap with itself, on any thread."""
    global _num_users, _num_before
    with _lock:
        if not _num_users:
            _num_before = cv2.getNumThreads()
            cv2.setNumThreads(1)
        _num_users += 1
    try:
        yield
    finally:
        with _lock:
            _num_users -= 1
            if not _num_users:
                cv2.setNumThreads(_num_before)


def _end_threads() -> None:
    global _num_threads
    _num_threads = cv2.getNumThreads()
    if _num_threads != 1:
        cv2.setNumThreads(1)


def _allow_threads() -> None:
    if _num_threads != 1:
        cv2.setNumThreads(_num_threads)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_end_threads, after_in_parent=_allow_threads, after_in_child=_allow_threads
    )
