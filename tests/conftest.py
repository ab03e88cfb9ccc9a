"""Ctrl-C means the same in every run: a shell starts what runs in its background with it ignored."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
