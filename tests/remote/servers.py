"""Real servers that speak S3, each a process of its own, and the fault proxy before one."""

import base64
import contextlib
import hmac
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

_BIN = Path(sys.executable).parent
# As a store does, it lets connections wait, not ask again after a second; and answers at once, not after the 40 ms
# that Nagle's algorithm waits for an acknowledgement.
_LOCALBUCKET = """
import localbucket, os, socketserver, time
socketserver.TCPServer.request_queue_size = 1024
socketserver.StreamRequestHandler.disable_nagle_algorithm = True
class Far(localbucket.S3Handler):  # LATENCY_S away
    def _dispatch(self, action):
        time.sleep(float(os.environ.get("LATENCY_S", 0)))
        super()._dispatch(action)
localbucket.S3Handler = Far
localbucket.main()
"""
AZURE = {
    "account_name": "devstoreaccount1",
    "account_key": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
}
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
        deadline = time.monotonic() + 60
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
def bucket(root: Path, port: int | None = None, latency_s: float = 0) -> Iterator[str]:
    """Serve the folders of ``root`` as buckets; yields ``http://host:port``."""
    port = port or free_port()
    command = [sys.executable, "-c", _LOCALBUCKET, str(root), "--port", str(port)]
    with running(command, port, LATENCY_S=str(latency_s)):
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


@contextlib.contextmanager
def hub(root: Path) -> Iterator[str]:
    """Serve ``root/datasets/OWNER/NAME`` as datasets of the Hugging Face hub."""
    port = free_port()
    command = [sys.executable, str(Path(__file__).with_name("hub.py")), str(root), str(port)]
    with running(command, port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def azurite(root: Path, container: str) -> Iterator[str]:
    """Serve an empty container of the account that is the same in all emulators of Azure, by a program from npm."""
    port = free_port()
    command = ["azurite-blob", "--location", str(root), "--blobPort", str(port), "--silent"]
    with running([*command, "--disableTelemetry", "--skipApiVersionCheck"], port):
        endpoint = f"http://127.0.0.1:{port}/{AZURE['account_name']}"
        _make_container(endpoint, container)
        yield endpoint


def _make_container(endpoint: str, container: str) -> None:
    """Do what obstore cannot, as whoever makes a bucket."""
    account = AZURE["account_name"]
    about = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    headers = [f"{name}:{value}" for name, value in about.items()]
    place = [f"/{account}/{account}/{container}", "restype:container"]
    signed = "\n".join(["PUT", *([""] * 11), *headers, *place])
    digest = hmac.digest(base64.b64decode(AZURE["account_key"]), signed.encode(), "sha256")
    about["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
    url, about["Content-Length"] = f"{endpoint}/{container}?restype=container", "0"
    request = urllib.request.Request(url, None, about, method="PUT")
    urllib.request.urlopen(request, timeout=10).close()


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
