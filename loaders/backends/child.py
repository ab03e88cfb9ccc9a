"""What runs in the child process of ``backend="subprocess"``: the same threads, and a connection.

It is a fresh interpreter. Signals that launchers send to whole groups do not end it; it ends when the trainer closes
its end of the connection, or is gone.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # launchers send them to whole groups
MASKED = (*IGNORED, signal.SIGUSR1, signal.SIGUSR2)  # until the child has its handlers


def main(connection: Connection, slots: int, owner: int) -> None:
    """Serve batches until the trainer, process ``owner``, closes its end, or is gone; ``slots`` is a descriptor."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
    threading.Thread(target=_end_with, args=(owner,), daemon=True).start()
    code = 0
    try:
        # Not at the top: they import torch, which takes seconds, and the watch has begun by now.
        from loaders.backends.serving import Serving
        from loaders.backends.slots import SharedSlots

        Serving(connection, SharedSlots(slots)).listen()
    except (EOFError, ConnectionError):
        pass  # the trainer has closed its end
    except BaseException:  # or it would wait for us
        traceback.print_exc()
        code = 1
    finally:
        with suppress(Exception):  # what was printed by transforms
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # no exit handlers, no waiting for threads


def _end_with(owner: int) -> None:
    """End this process when its owner has ended; the connection does not tell: forks of the trainer keep it open."""
    with suppress(ProcessLookupError):
        gone = select.poll()
        gone.register(os.pidfd_open(owner), select.POLLIN)
        if os.getppid() == owner:  # else it had ended, and the number may be another's
            gone.poll()
    os._exit(0)
