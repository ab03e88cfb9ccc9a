"""Real servers that speak S3, each a process of its own, and the fault proxy before one."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_BIN = Path(sys.executable).parent
SECRET = {"access_key_id": "somebody", "secret_access_key": "swordfish-42"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, **environment: str) -> Iterator[subprocess.Popen[Any]]:
    """Run a server until the end of the block, from when it listens on."""
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env=os.environ | environment, **quiet)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
        yield server
    finally:
        server.kill()
        server.wait()


@contextlib.contextmanager
def bucket(root: Path, port: int | None = None) -> Iterator[str]:
    """Serve the folders of ``root`` as buckets; yields ``http://host:port``."""
    port = port or free_port()
    command = [str(_BIN / "localbucket"), str(root), "--port", str(port)]
    with running(command, port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def signed_bucket(root: Path) -> Iterator[str]:
    """The same, for those who sign their requests by ``SECRET``."""
    port = free_port()
    command = [str(_BIN / "nanio"), "serve", "--data-dir", str(root), "--host", "127.0.0.1"]
    keys = {
        "NANIO_ACCESS_KEY": SECRET["access_key_id"],
        "NANIO_SECRET_KEY": SECRET["secret_access_key"],
    }
    with running([*command, "--port", str(port)], port, **keys):
        yield f"http://127.0.0.1:{port}"


class Proxy:
    """The fault proxy."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def set(self, **settings: Any) -> None:
        """Behave so from now on; the requests so far are forgotten."""
        self._control(json.dumps(settings).encode())

    def requests(self, suffix: str = "") -> list[dict[str, Any]]:
        """The requests for paths that end so."""
        return [each for each in self._control(None) if each["path"].endswith(suffix)]

    def _control(self, data: bytes | None) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.endpoint}/-/", data, timeout=10) as answer:
            requests: list[dict[str, Any]] = json.load(answer)
            return requests


@contextlib.contextmanager
def proxy(upstream: str) -> Iterator[Proxy]:
    """Put the fault proxy before a server."""
    command = [sys.executable, str(Path(__file__).with_name("fault_proxy.py"))]
    server = subprocess.Popen([*command, upstream.removeprefix("http://")], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        yield Proxy(f"http://127.0.0.1:{int(server.stdout.readline())}")
    finally:
        server.kill()
        server.communicate()
