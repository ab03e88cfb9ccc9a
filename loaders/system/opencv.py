"""OpenCV's own threads: none beside workers, and none at a fork. Nothing else sets their number, or its other switches.

A forked process has them no more. When it sets their number, it may wait for their end for ever (OpenCV 5.0:
every other time). So they are ended before any fork, and begin again when they are used.
"""

from __future__ import annotations

import os
import threading

import cv2

_num_threads = 1  # at the fork that is under way


def use_one_thread() -> None:
    """Let each call of OpenCV use the thread that makes it: workers are the threads."""
    cv2.setNumThreads(1)


def use_no_ipp() -> None:
    """Make OpenCV compute the same bits on every CPU, on the thread that calls this."""
    if hasattr(cv2, "ipp"):
        cv2.ipp.setUseIPP(False)


class one_thread:
    """Let OpenCV use one thread for a while; may overlap with itself, on any thread."""

    _lock = threading.Lock()
    _users = 0
    _before = 0

    def __enter__(self) -> None:
        cls = one_thread
        with cls._lock:
            if cls._users == 0:
                cls._before = cv2.getNumThreads()
                cv2.setNumThreads(1)
            cls._users += 1

    def __exit__(self, *_: object) -> None:
        cls = one_thread
        with cls._lock:
            cls._users -= 1
            if cls._users == 0:
                cv2.setNumThreads(cls._before)


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
