"""Connections to the fetcher of a cache folder, which is started where none runs.

A broken connection is a dead fetcher, or one whose folder was removed: one client of the machine starts the next one.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders import version
from loaders.errors import CacheError
from loaders.remote.folder import prepare
from loaders.remote.patience import START_S
from loaders.remote.wire import Connection

if TYPE_CHECKING:
    from collections.abc import Mapping

NOBODY = (FileNotFoundError, ConnectionError)
_PAUSE_S = 0.02
_PASSED = frozenset(  # to the fetcher, which serves several jobs: nothing of one of them
    ["PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "TZ"]
)


def connect(inside: Path, hello: Mapping[str, Any]) -> Connection:
    """Return a new connection, which has said hello; a fetcher is started if none runs."""
    connection = _connected(inside)
    try:
        connection.ask("hello", **hello)
    except BaseException:
        connection.close()
        raise
    return connection


def failure(what: str, inside: Path) -> CacheError:
    """Return the error that a folder has no fetcher which answers."""
    return CacheError(what, inside.parent, f"Look into {inside / 'fetcher.log'}")


def _connected(inside: Path) -> Connection:
    deadline = time.monotonic() + START_S
    while True:
        with suppress(*NOBODY):
            return Connection(inside)
        prepare(inside.parent)  # somebody may have removed it
        with open(inside / "start", "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another client starts one
                time.sleep(_PAUSE_S)
            else:
                with suppress(*NOBODY):
                    return Connection(inside)
                _start(inside)
        if time.monotonic() > deadline:
            raise failure("no fetcher answers there", inside)


def _start(inside: Path) -> None:
    """Start a fetcher, and wait until it listens, or has found that another one does."""
    packages = str(Path(version.__file__).parents[1])
    path = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH", "")]))
    passed = {n: v for n, v in os.environ.items() if n in _PASSED or n.lower().endswith("_proxy")}
    try:
        with open(inside / "fetcher.log", "ab") as log:
            subprocess.run(
                [sys.executable, "-P", "-m", "loaders.remote.fetcher", str(inside)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,  # no pipe of the trainer's: what waits for its end would wait for the fetcher's
                cwd="/",
                env=passed | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
                timeout=START_S,
                check=True,
            )
    except subprocess.SubprocessError as error:
        raise failure("the cache's fetcher could not be started", inside) from error
