"""A proxy before a store, which delays, limits and spoils what it passes on. ``python fault_proxy.py UPSTREAM``.

It prints its port. ``POST /-/`` with JSON sets how it behaves, ``GET /-/`` tells of the requests so far. It compares
``If-Match`` with the e-tags of the store, and Google's conditions with generations made of them, as the test servers do
not.
"""

import asyncio
import contextlib
import json
import re
import sys
import zlib
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

Headers = dict[str, str]
_S3_ERROR = '<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
_ANSWERS = {
    "503": (503, "SlowDown", {}),
    "503-after": (503, "SlowDown", {"Retry-After": "1"}),
    "301": (301, "PermanentRedirect", {"x-amz-bucket-region": "eu-west-1"}),
    "400-expired": (400, "ExpiredToken", {}),
    "403-expired": (403, "ExpiredToken", {}),
    "403-throttled": (403, "SlowDown", {}),
    "403": (403, "AccessDenied", {}),
    "404": (404, "NoSuchKey", {}),
    "412": (412, "PreconditionFailed", {}),
    "416": (416, "InvalidRange", {}),
    "500": (500, "InternalError", {}),
}


class Proxy:
    """Passes requests on.

    Settings: ``latency_s`` of each request; ``rate`` in bytes per second of each connection; ``faults``, each with a
    ``kind``, and ``at`` (numbers of requests, from 0), ``every`` (n-th request) and ``match`` (of the path) to choose;
    ``clock_s``: how much later it says that it is.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.settings: dict[str, Any] = {}
        self.requests: list[dict[str, Any]] = []
        self.num_flying = 0
        self.connecting = asyncio.Semaphore(
            4
        )  # servers of tests let few wait: what comes behind comes a second later

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
            while await self.one(reader, writer):
                pass
        writer.close()

    async def one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line, headers = await _head(reader)
        if not line:
            return False
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = line.split(" ", 2)
        if path.startswith("/-/"):
            writer.write(_response(200, {}, self.control(method, body)))
            await writer.drain()
            return True
        self.num_flying += 1
        try:
            return await self.answer(writer, line, headers, body)
        finally:
            self.num_flying -= 1

    async def answer(self, writer: Any, line: str, headers: Headers, body: bytes) -> bool:
        method, path, _ = line.split(" ", 2)
        told: dict[str, Any] = {"method": method, "path": path, "bytes": 0}
        told |= {"range": headers.get("range"), "beside": self.num_flying - 1}
        self.requests.append(told)
        fault = self.fault(method, path)
        await asyncio.sleep(self.settings.get("latency_s", 0))
        if fault in _ANSWERS:
            status, code, more = _ANSWERS[fault]
            writer.write(_response(status, more, _S3_ERROR.format(code=code).encode()))
            await writer.drain()
            return True
        if fault == "reset":
            writer.transport.abort()
            return False
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "200":
            headers.pop("range", None)
        if fault == "flip-sent" and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if method == "PUT":
            told["bytes"] = len(body)
            await asyncio.sleep(len(body) / self.settings.get("rate", 1e12))
        wanted, is_other = headers.get("if-match"), False
        generation = headers.get("x-goog-if-generation-match")
        status, answer, data = 0, Headers(), b""
        if (wanted or generation) and method == "PUT":
            look = re.sub("^PUT", "HEAD", line)
            _, answer, _ = await self.upstream(look, headers | {"content-length": "0"}, b"")
            is_other = wanted not in (None, answer.get("etag"))
            is_other |= generation not in (None, _generation(answer))
        if not is_other:
            status, answer, data = await self.upstream(line, headers, body)
            is_other = bool(wanted) and method == "GET" and answer.get("etag", wanted) != wanted
        if is_other:
            writer.write(_response(412, {}, _S3_ERROR.format(code="PreconditionFailed").encode()))
            await writer.drain()
            return True
        told["bytes"] += len(data)
        if "etag" in answer:
            answer["x-goog-generation"] = _generation(answer)
        if "clock_s" in self.settings:
            now = datetime.now(UTC) + timedelta(seconds=self.settings["clock_s"])
            answer["date"] = format_datetime(now, usegmt=True)
        return await self.pass_on(writer, fault, method, status, answer, data)

    async def pass_on(
        self, writer: Any, fault: str, method: str, status: int, answer: Headers, data: bytes
    ) -> bool:
        if fault == "flip" and data:
            middle = len(data) // 2
            data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        if fault == "short":
            data = data[: len(data) // 2]
        answer.pop("transfer-encoding", None)
        length = answer.get("content-length", "0") if method == "HEAD" else str(len(data))
        writer.write(_head_of(status, answer | {"content-length": length}))
        if fault == "cut" or (fault == "drop" and len(data) > 200_000):
            writer.write(data[: 200_000 if fault == "drop" else len(data) // 2])
            await writer.drain()
            writer.transport.abort()
            return False
        rate = self.settings.get("rate")
        rate = 20_000 if fault == "slow" else rate
        step = max(1, int((rate or 1 << 40) * 0.02))
        for first in range(0, len(data), min(step, 1 << 20)):
            writer.write(data[first : first + min(step, 1 << 20)])
            await writer.drain()
            if rate:
                await asyncio.sleep(min(step, len(data) - first) / rate)
        await writer.drain()
        return answer.get("connection", "") != "close"

    def fault(self, method: str, path: str) -> str:
        for fault in self.settings.get("faults", ()):
            if not re.search(fault.get("match", ""), path) or method != fault.get("method", "GET"):
                continue
            number_of = fault.setdefault("seen", 0)
            fault["seen"] += 1
            at, every = fault.get("at"), fault.get("every")
            if (at is None or number_of in at) and (every is None or number_of % every == 0):
                return str(fault["kind"])
        return ""

    def control(self, method: str, body: bytes) -> bytes:
        if method == "POST":
            self.settings, self.requests = json.loads(body), []
        return json.dumps(self.requests).encode()

    async def upstream(
        self, line: str, headers: Headers, body: bytes
    ) -> tuple[int, Headers, bytes]:
        async with self.connecting:
            return await self._exchange(line, headers, body)

    async def _exchange(
        self, line: str, headers: Headers, body: bytes
    ) -> tuple[int, Headers, bytes]:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        try:
            lines = [line, *(f"{n}: {v}" for n, v in headers.items() if n != "connection")]
            head = "\r\n".join([*lines, "connection: close"]) + "\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
            first, answer = await _head(reader)
            answer.pop("connection", None)
            data = b"" if line.startswith("HEAD") else await _body(reader, answer)
        finally:
            writer.close()
        return int(first.split(" ")[1]), answer, data


async def _head(reader: asyncio.StreamReader) -> tuple[str, Headers]:
    line = (await reader.readline()).decode("latin-1").strip()
    headers = {}
    while line and (text := (await reader.readline()).decode("latin-1").strip()):
        name, _, value = text.partition(":")
        headers[name.lower()] = value.strip()
    return line, headers


async def _body(reader: asyncio.StreamReader, headers: Headers) -> bytes:
    if headers.get("transfer-encoding") == "chunked":
        data = b""
        while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
            data += await reader.readexactly(size)
            await reader.readline()
        return data
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    return await reader.read()


def _generation(answer: Headers) -> str:
    return str(zlib.crc32(answer["etag"].encode())) if "etag" in answer else "0"


def _head_of(status: int, headers: Headers) -> bytes:
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _response(status: int, headers: Headers, body: bytes) -> bytes:
    return _head_of(status, headers | {"content-length": str(len(body))}) + body


async def main(upstream: str) -> None:
    host, _, port = upstream.rpartition(":")
    server = await asyncio.start_server(
        Proxy(host, int(port)).serve, "127.0.0.1", 0, limit=1 << 20
    )
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
