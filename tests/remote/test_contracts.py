"""Who may start a fetcher, who may ask one, and who shares it."""

import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from loaders import ShardDataset
from loaders.errors import RemoteError
from loaders.remote import origin
from loaders.remote.url import url_of
from loaders.remote.wire import encoded
from tests.remote.conftest import ended, fetcher_of, storage
from tests.remote.test_remote import S3

OPEN = """
import json, sys
from loaders import ShardDataset
url, cache, options = json.loads(sys.argv[1])
print(int(ShardDataset(url, cache=cache, storage=options)[9].label))
"""


@pytest.mark.parametrize("url", [S3, "hf://datasets/me/packed"])
def test_without_the_extra_a_url_is_refused_with_the_command_that_helps(
    url: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_spec(_: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(origin, "find_spec", find_spec)

    with pytest.raises(RemoteError) as caught:
        ShardDataset(url, cache=cache)

    assert "pip install 'loaders[remote]'" in caught.value.hint
    assert not cache.exists()


def can_isolate() -> bool:
    """Tell whether a process may have networks and process numbers of its own."""
    try:
        done = subprocess.run(["unshare", "-n", "-p", "-f", "true"], capture_output=True)
    except OSError:
        return False
    return not done.returncode


@pytest.mark.skipif(not can_isolate(), reason="needs namespaces of its own")
def test_containers_that_share_a_cache_share_its_fetcher(server: str, cache: Path) -> None:
    kept = ShardDataset(S3, cache=cache, storage=storage(server))
    before, number = len(kept), fetcher_of(cache)
    arguments = json.dumps([S3, str(cache), storage(server)])

    # It does not reach the server itself.
    command = ["unshare", "-n", "-p", "-f", sys.executable, "-c", OPEN, arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "2\n"
    assert fetcher_of(cache) == number > 0
    assert len(kept) == before


ASK = """
import socket, sys
asking = socket.socket(socket.AF_UNIX)
asking.settimeout(10)
asking.connect(sys.argv[1])
asking.sendall(bytes.fromhex(sys.argv[2]))
print(asking.recv(100))
"""
ANY_PYTHON = Path("/usr/bin/python3")  # that of a root user need not be readable for others


@pytest.mark.skipif(os.geteuid() != 0 or not ANY_PYTHON.exists(), reason="becomes another user")
def test_another_user_is_not_served(server: str) -> None:
    with TemporaryDirectory() as above, ended(Path(above) / "cache") as cache:
        kept = ShardDataset(S3, cache=cache, storage=storage(server))
        for path in (Path(above), cache, cache / "v2"):
            path.chmod(0o755)
        (cache / "v2" / "socket").chmod(0o666)
        hello = encoded(("hello", {"id": "1", "reached": (url_of(S3), {}, {})})).hex()
        command = [str(ANY_PYTHON), "-c", ASK, str(cache / "v2" / "socket"), hello]

        done = subprocess.run(command, user=65534, capture_output=True, text=True, timeout=30)

        assert done.stdout in ("", "b''\n")  # the end, or an error
        assert len(kept)
