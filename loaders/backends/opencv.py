"""OpenCV's own threads: none beside workers, and none at a fork.

A forked process has them no more. When it sets their number, it may wait for their end for ever (OpenCV 5.0:
every other time). So they are ended before each fork, whoever forks, and begin again when they are used.
"""

from __future__ import annotations

import os

import cv2

_num_threads = 1  # at the fork that is under way


def use_one_thread() -> None:
    """Let each call of OpenCV use the thread that makes it: workers are the threads."""
    cv2.setNumThreads(1)


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
