"""Why a store cannot be read: each cause has its own text and remedy, and what asking again does not mend is final."""

import gzip
import os
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from loaders import ShardDataset
from loaders.errors import ManifestError, RemoteError
from loaders.remote import origin
from loaders.remote.url import url_of
from tests.remote.conftest import ended, storage

FAST: dict[str, Any] = {"retry_timeout": 1.5, "timeout": 1}
AUTHORITY = ["-x509", "-subj", "/CN=authority", "-addext", "basicConstraints=critical,CA:TRUE"]


class Odd(BaseHTTPRequestHandler):
    """Ignores ranges, compresses what lies below ``gzip/``, and sends in circles what lies below ``circle/``."""

    root: Path
    seen: list[str | None]

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        if self.path.startswith("/circle/"):
            self.send_response(302)
            self.send_header("Location", self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path = self.root / self.path.lstrip("/").removeprefix("gzip/")
        data = path.read_bytes() if path.is_file() else b""
        self.send_response(200 if path.is_file() else 404)
        if self.path.startswith("/gzip/"):
            data = gzip.compress(data)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(root: Path, keys: tuple[Path, Path] | None = None) -> Iterator[tuple[str, list[Any]]]:
    """A server of a folder; yields where it is, and what it has seen of ``Authorization``."""
    handler = type("Handler", (Odd,), {"root": root, "seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if keys is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*keys)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    scheme = "http" if keys is None else "https"
    yield f"{scheme}://127.0.0.1:{server.server_port}", handler.seen  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def small(packed: Path) -> Path:
    return packed / "bucket" / "packed"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the certificate of an authority, and one of 127.0.0.1 that it has signed."""
    folder = tmp_path_factory.mktemp("keys")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    openssl(
        "req", *AUTHORITY, "-nodes", "-newkey", "rsa:2048", "-keyout", "a.key", "-out", "a.pem"
    )
    openssl(
        "req",
        "-nodes",
        "-newkey",
        "rsa:2048",
        "-keyout",
        "b.key",
        "-out",
        "b.csr",
        "-subj",
        "/CN=b",
    )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    signed = ["-CA", "a.pem", "-CAkey", "a.key", "-CAcreateserial", "-extfile", "names"]
    openssl("x509", "-req", "-in", "b.csr", *signed, "-out", "b.pem")
    return folder


def test_a_certificate_that_is_not_trusted_is_final_and_its_authority_can_be_named(
    small: Path, keys: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(small.parent, (keys / "b.pem", keys / "b.key")) as (url, _):
        began = time.monotonic()
        with pytest.raises(RemoteError) as caught:
            ShardDataset(f"{url}/packed", cache=cache)
        assert time.monotonic() - began < 10
        monkeypatch.setenv("AWS_CA_BUNDLE", str(keys / "a.pem"))

        assert len(ShardDataset(f"{url}/packed", cache=cache)) == 600

    assert "certificate" in caught.value.what
    assert "AWS_CA_BUNDLE" in caught.value.hint


def test_a_name_a_port_a_range_and_a_compressed_answer_have_each_its_remedy(
    small: Path, shared: Path
) -> None:
    def refused(url: str, name: str = "", **options: Any) -> tuple[str, str]:
        there = origin.origin_of(url_of(url), shared, options)
        with pytest.raises(RemoteError) as caught:
            there.ranges([(name, 0, 100)]) if name else there.manifest()
        return caught.value.what, caught.value.hint

    with serving(small) as (url, _):
        found = [
            refused("http://no-such-host.invalid/packed", **FAST),
            refused("s3://bucket/packed", **storage("http://127.0.0.1:1", **FAST)),
            refused(url, "manifest.json", **FAST),
            refused(f"{url}/gzip", **FAST),
            refused(f"{url}/circle", **FAST),
            refused(url.replace("http:", "https:"), **FAST),
        ]

    whats, hints = zip(*found, strict=True)
    words = (
        "name does not resolve",
        "refused",
        "range",
        "compressed",
        "address to the next",
        "TLS",
    )
    assert [word in what for word, what in zip(words, whats, strict=True)] == [True] * 6
    assert len(set(hints)) == 6


def test_a_page_in_the_place_of_the_manifest_is_told_from_a_damaged_dataset(
    shared: Path, tmp_path: Path
) -> None:
    """As a server answers that wants a login."""
    (tmp_path / "manifest.json").write_text("<html>")

    with serving(tmp_path) as (url, _), pytest.raises(ManifestError) as caught:
        ShardDataset(url, cache=shared)

    assert str(caught.value.path) == f"{url}/manifest.json"
    assert "pack" not in caught.value.hint


@pytest.mark.skipif(not Path("/bin/mount").exists(), reason="mounts a file system")
def test_a_whole_cache_that_is_read_only_is_served(
    packed: Path, server: str, tmp_path: Path
) -> None:
    """As one that an image of a container has, or a mounted copy."""
    folder, about = tmp_path / "cache", dict[str, Any](storage=storage(server))
    with ended(folder):
        remote = ShardDataset("s3://bucket/packed", cache=folder, **about)
        expected = [int(sample.label) for sample in remote]
        del remote
        (tmp_path / "there").mkdir()
        command = ["mount", "--bind", "-o", "ro", str(folder), str(tmp_path / "there")]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("nothing can be mounted here")
        try:
            assert not os.access(tmp_path / "there", os.W_OK)
            copy = ShardDataset("s3://bucket/packed", cache=tmp_path / "there", **about)
            assert [int(sample.label) for sample in copy] == expected
        finally:
            subprocess.run(["umount", "-l", str(tmp_path / "there")], check=True)
