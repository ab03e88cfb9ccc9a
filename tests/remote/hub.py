"""A stand-in for the Hugging Face hub: the few routes by which a dataset is read. ``python hub.py ROOT PORT``.

``ROOT/datasets/OWNER/NAME`` is a repository's main branch.
"""

import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_COMMIT = "0" * 40


class Hub(BaseHTTPRequestHandler):
    """Answers for the repositories of ``root``."""

    root = Path()
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        match unquote(urlsplit(self.path).path).strip("/").split("/"):
            case ["api", "datasets", owner, name]:
                self.tell({"id": f"{owner}/{name}", "sha": _COMMIT, "siblings": []}, owner, name)
            case ["api", "datasets", owner, name, "tree", _, *inside]:
                folder = self.root / "datasets" / owner / name / "/".join(inside)
                self.tell(
                    [self.entry(path, owner, name) for path in folder.iterdir()], owner, name
                )
            case ["datasets", owner, name, "resolve", _, *inside]:
                self.give(self.root / "datasets" / owner / name / "/".join(inside))
            case _:
                self.answer(404, b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        is_json = "json" in self.headers.get("content-type", "")
        match unquote(urlsplit(self.path).path).strip("/").split("/"):
            case ["api", "datasets", owner, name, "paths-info", _]:
                wanted = json.loads(body)["paths"] if is_json else parse_qs(body)["paths"]
                folder = self.root / "datasets" / owner / name
                found = [folder / each for each in wanted if (folder / each).exists()]
                self.tell([self.entry(path, owner, name) for path in found], owner, name)
            case _:
                self.answer(404, b"")

    def entry(self, path: Path, owner: str, name: str) -> dict[str, Any]:
        inside = str(path.relative_to(self.root / "datasets" / owner / name))
        if path.is_dir():
            return {"type": "directory", "oid": "0", "path": inside, "size": 0}
        oid = hashlib.sha256(path.read_bytes()).hexdigest()
        return {"type": "file", "oid": oid, "path": inside, "size": path.stat().st_size}

    def tell(self, what: Any, owner: str, name: str) -> None:
        if (self.root / "datasets" / owner / name).is_dir():
            self.answer(200, json.dumps(what).encode(), {"Content-Type": "application/json"})
        else:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def give(self, path: Path) -> None:
        if not path.is_file():
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        data, status = path.read_bytes(), 200
        more = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": _COMMIT}
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            more["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            data, status = data[int(first) : int(last or len(data)) + 1], 206
        self.answer(status, data, more)

    def answer(self, status: int, data: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    Hub.root = Path(sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Hub).serve_forever()
