"""The fetcher: one process per cache folder, which holds all clients of stores. ``python -m loaders.remote.fetcher``.

1. Start: any client starts it; the holder of the folder's lock serves. What lies in ``parts/`` is deleted.
2. It serves its own user, over a socket in the folder. A connection says hello, with the URL and how to reach it. A
   client has gone when its connection ends, or its process: a fork of it keeps the connection open.
3. A client may give the order in which it will read shards. A file is fetched once for all that wait for it, and they
   get the same error. Files that are waited for come first, then those of the orders, each as far ahead as its share of
   the cache. What is needed last is evicted first, but nothing that a client was given right now.
4. While all that clients read fits into the cache, they may map all of it. Else each answer has a limit.
5. End: some seconds after its last client has gone, or by SIGTERM. The next one deletes what ``kill -9`` left. Where
   somebody removed the folder, or its lock, it ends without an answer: clients start the next one, and ask that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import math
import os
import signal
import socket
import sys
import time
from collections import Counter
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.errors import CacheError, ChecksumError, ManifestError, RemoteError
from loaders.remote.cached import CacheFolder, publish
from loaders.remote.faults import StoreFault, hide_secrets
from loaders.remote.folder import default_size, manifest_folder, shard_path, small_file
from loaders.remote.objects import delete, listing, put, read_ranges
from loaders.remote.orders import Orders
from loaders.remote.source import ServedURL
from loaders.remote.transfer import Download, Slots, not_written
from loaders.remote.url import URL
from loaders.remote.wire import (
    BEAT_S,
    MAX_CONNECTIONS,
    MAX_LINE_BYTES,
    SOCKET_NAME,
    File,
    encoded,
    error_message,
    peer,
    socket_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

logger = logging.getLogger("loaders.remote.fetcher")
IDLE_S = 3.0
_FAILED_S = 8.0  # a file that failed is not tried again
_MANIFEST_S = 5.0  # a manifest is shared by ranks that start together
_FULL_S = 10.0  # a file waits for room on a disk that evicted files which are still mapped fill
_AHEAD_BYTES = 512 << 20  # of files that are begun and not published, for all orders
NO_NEED = 1 << 62  # bytes: further ahead than any file that a client is known to need
Errors = (RemoteError, CacheError, ChecksumError, ManifestError)


class Connected:
    """A client's connection.

    Args:
        writer: Of it.
        pid: The process at its other end; 0 for one of another container.

    Attributes:
        size: How large it wants the cache to be.
        asked: The sizes of the files that it asked for, by hash.
        origin_id: By which its process and copies of it are counted together.
    """

    def __init__(self, writer: asyncio.StreamWriter, pid: int) -> None:
        self.writer, self.pid = writer, pid
        self.size: int | None = None
        self.asked: dict[str, int] = {}
        self.origin_id = ""
        self._descriptor = -1
        with contextlib.suppress(OSError):
            self._descriptor = os.pidfd_open(pid)
            asyncio.get_running_loop().add_reader(self._descriptor, writer.transport.abort)

    def close(self) -> None:
        """Close it."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
        self.writer.close()


class Fetcher:
    """Serves the clients of a folder.

    Args:
        inside: The cache folder of this version, locked.
    """

    def __init__(self, inside: Path) -> None:
        self._inside = inside
        self._stored = CacheFolder(inside)
        self._clients = set[Connected]()
        self._sources: dict[str, ServedURL] = {}
        self._counts: dict[str, Counter[str]] = {}  # by the id of an origin
        self._orders = Orders()
        self._downloads: dict[str, Download] = {}
        self._failed: dict[str, tuple[float, Exception]] = {}
        self._slots = Slots(MAX_CONNECTIONS)
        self._last_seen, self._put_at = time.monotonic(), -1e9
        self._default_size = default_size(inside, self._stored.used_bytes)
        self._stop = asyncio.Event()

    @property
    def budget(self) -> int:
        """What the cache may hold: the largest size that a live client asked for, as far as its disk has room."""
        asked = [client.size for client in self._clients if client.size is not None]
        disk = os.statvfs(self._inside)
        taken = self._stored.used_bytes + self._stored.reserved_bytes
        return min(max(asked, default=self._default_size), taken + disk.f_bavail * disk.f_frsize)

    def _map_limit(self) -> int | None:
        """Return how many bytes a process may map, where what all clients read does not fit into the cache."""
        files, budget = dict(self._orders.files), self.budget
        for client in self._clients:
            files |= client.asked
        if sum(files.values()) <= budget:
            return None
        processes = {
            each.pid or each for each in self._clients if each.asked or each in self._orders
        }
        return budget // max(1, len(processes))

    # -- clients -----------------------------------------------------------------------------------

    async def run(self, listening: socket.socket, on_ready: Callable[[], object]) -> None:
        """Serve until all clients have gone."""
        options: dict[str, Any] = {"limit": MAX_LINE_BYTES}
        if sys.version_info >= (3, 13):
            # Else asyncio looks for the socket by the name that it was bound to, which is of a descriptor.
            options["cleanup_socket"] = False
        server = await asyncio.start_unix_server(self._serve, sock=listening, **options)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop.set)
        on_ready()
        while not (self._is_idle() or self._stop.is_set() or self._stored.is_removed()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 0.1)
            self._pump()
        server.close()
        if not self._stored.is_removed():  # else it is that of another one
            with contextlib.suppress(OSError):
                (self._inside / SOCKET_NAME).unlink()

    def _is_idle(self) -> bool:
        if self._clients:
            self._last_seen = time.monotonic()
        return time.monotonic() - self._last_seen > IDLE_S

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid, uid = peer(writer.get_extra_info("socket"))
        if uid != os.getuid():
            writer.close()
            return
        client = Connected(writer, pid)
        self._clients.add(client)
        try:
            source = await self._greet(reader, client)
            while source is not None and (line := await reader.readline()):
                await self._answer(writer, self._do(json.loads(line), source, client))
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            logger.debug("a client has gone: %s", type(error).__name__)
        finally:
            self._clients.discard(client)
            self._orders.drop(client)
            self._set_distances()
            if not self._clients:
                for download in [*self._downloads.values()]:
                    self._drop(download)
            self._last_seen = time.monotonic()
            client.close()

    async def _greet(self, reader: asyncio.StreamReader, client: Connected) -> ServedURL | None:
        message = json.loads(await reader.readline() or b"null")
        if message is None:
            return None
        client.size, client.origin_id = message["size"], message["id"]
        self._counts.setdefault(client.origin_id, Counter())
        source: ServedURL | None = None

        async def greet() -> dict[str, Any]:
            nonlocal source
            source = self._source(message)
            return {}

        await self._answer(client.writer, greet())
        return source

    def _source(self, hello: dict[str, Any]) -> ServedURL:
        """Return what reads a URL: made anew where the client brings all that this needs."""
        if hello["id"] not in self._sources:
            if missing := hello["missing"]:
                what = (
                    f"{', '.join(missing)} of storage= is not pickled, and not set in this process"
                )
                hint = "Set them in the environment of this process, too, or open the URL here"
                raise RemoteError(what, hello["url"], hint)
            how = [hello["url"], hello["storage"], hello["environment"]]
            key = json.dumps(how, sort_keys=True)  # all ranks share one client of the store
            if key not in self._sources:
                self._sources[key] = ServedURL(URL(how[0]), how[1], how[2])
            self._sources[hello["id"]] = self._sources[key]
        return self._sources[hello["id"]]

    async def _answer(
        self, writer: asyncio.StreamWriter, work: Coroutine[Any, Any, dict[str, Any]]
    ) -> None:
        """Send what some work comes to, and meanwhile that it is being worked on."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=BEAT_S))[0]:
                writer.write(encoded({"wait": True}))
                await writer.drain()
            answer = task.result()
        except (*Errors, OSError) as error:
            if self._stored.is_removed():
                self._stop.set()
                raise ConnectionAbortedError from error  # who hears nothing asks the next one
            if isinstance(error, OSError):
                error = not_written(error, self._inside.parent)
            writer.write(encoded(error_message(error)))
        except Exception as error:  # whatever it is: a client that hears nothing asks again
            logger.exception("an answer failed")
            what = f"its fetcher has a defect: {hide_secrets(repr(error), {})}"
            defect = RemoteError(what, self._inside, "Report it")
            writer.write(encoded(error_message(defect)))
        else:
            data = answer.pop("data", b"")
            writer.write(encoded({"ok": True, **answer}))
            writer.write(data)
        finally:
            task.cancel()
        await writer.drain()

    async def _do(
        self, message: dict[str, Any], source: ServedURL, client: Connected
    ) -> dict[str, Any]:
        match message["op"]:
            case "alive":
                return {"budget": self.budget}
            case "manifest":
                return {"folder": str(await self._manifest(source, again=message["again"]))}
            case "file":
                return await self._small_file(source, message["name"])
            case "ranges":
                with self._waiting(client):
                    return await read_ranges(source, message["wanted"])
            case "listing":
                return await listing(source, message)
            case "put":
                try:
                    path = Path(message["path"])
                    written = await put(source, message["name"], path, message["only"])
                    return {"is_written": written}
                finally:
                    self._put_at = time.monotonic()  # it may be a manifest, of whichever folder
            case "delete":
                await delete(source, message["names"])
                return {}
            case "shard":
                file = File(message["file"], message["size"], message["hash"])
                client.asked[file.hash] = file.size
                is_here = self._stored.has(file.hash)
                self._counts[client.origin_id]["hits" if is_here else "misses"] += 1
                with self._waiting(client):
                    await self._shard(source, file)
                self._stored.note_answer(client, file.hash)
                return {"limit": self._map_limit()}
            case "order":
                listed = message["files"]
                files = None if listed is None else [File(*each) for each in listed]
                self._orders.put(client, source, files, message["upcoming"])
                self._set_distances()
                self._pump()
                return {"limit": self._map_limit()}
            case "stats":
                return {"stats": self._stats(source, client)}
        raise RemoteError(f"unknown request {message['op']!r}", source.url, "Update loaders")

    @contextlib.contextmanager
    def _waiting(self, client: Connected) -> Iterator[None]:
        """Count what a client waits for."""
        began = time.monotonic()
        try:
            yield
        finally:
            counts = self._counts[client.origin_id]
            counts["waited_us"] += round(1e6 * (time.monotonic() - began))

    def _stats(self, source: ServedURL, client: Connected) -> dict[str, Any]:
        counts = self._counts[client.origin_id]
        return {
            "bytes": source.num_bytes,
            "requests": source.num_requests,
            "retries": source.num_retries,
            "hits": counts["hits"],
            "misses": counts["misses"],
            "waited_s": counts["waited_us"] / 1e6,
            "cached_bytes": self._stored.used_bytes,
            "budget_bytes": self.budget,
        }

    # -- manifests ---------------------------------------------------------------------------------

    def _folder(self, source: ServedURL) -> Path:
        folder = manifest_folder(self._inside, source.url, source.endpoint)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    async def _manifest(self, source: ServedURL, *, again: bool) -> Path:
        """Fetch the manifest, unless that was done right now; offline the last one is used."""
        folder = self._folder(source)
        path = folder / "manifest.json"
        async with source.manifest_lock:
            asked = time.monotonic()
            is_new = asked - source.manifest_at < _MANIFEST_S and source.manifest_at > self._put_at
            if is_new and not again and path.exists():
                return folder
            try:
                got = await source.get("manifest.json")
            except StoreFault as fault:
                if fault.kind == "missing":
                    what = "there is no packed dataset (no manifest.json)"
                    raise ManifestError(what, source.url, fault.hint) from None
                if fault.kind != "network" or not path.exists():
                    raise source.refused("opened", "", fault) from None
                logger.warning("%s does not answer: its last manifest is used", source.url)
                asked = time.monotonic()
            else:
                publish(path, got.data)
                about = {"url": str(source.url), "etag": got.etag}
                publish(folder / "about.json", json.dumps(about).encode())
            source.manifest_at = asked
            return folder

    async def _small_file(self, source: ServedURL, name: str) -> dict[str, Any]:
        """Fetch a file that lies beside the manifest; the client checks its content."""
        try:
            got = await source.get(name)
        except StoreFault as fault:
            if fault.kind == "missing":
                return {"path": None, "answer": source.public(fault.text), "hint": fault.hint}
            raise source.refused("fetched", name, fault) from None
        path = small_file(self._folder(source), name)
        publish(path, got.data)
        return {"path": str(path), "etag": got.etag, "version": got.version}

    # -- shards ------------------------------------------------------------------------------------

    async def _shard(self, source: ServedURL, file: File) -> None:
        """Wait until a file is published."""
        while not self._stored.has(file.hash):
            if failure := self._failure(file):
                raise failure
            download = self._download(source, file)
            download.distance = -1
            self._pump()
            await asyncio.shield(download.done)

    def _failure(self, file: File) -> Exception | None:
        """Return the error of a file that was just tried."""
        when, error = self._failed.get(file.hash, (-math.inf, None))
        return error if time.monotonic() - when < _FAILED_S else None

    def _download(self, source: ServedURL, file: File) -> Download:
        download = self._downloads.get(file.hash)
        if download is None:
            target = shard_path(self._inside, file.file, file.hash)
            part = self._inside / "parts" / target.name
            download = Download(source, file, part, target, self._slots)
            self._downloads[file.hash] = download
        return download

    def _drop(self, download: Download) -> None:
        """Forget a download, whatever has come of it."""
        self._downloads.pop(download.file.hash, None)
        if download.task is not None:
            self._stored.reserved_bytes -= download.file.size
            download.task.cancel()

    async def _fetch(self, download: Download) -> None:
        try:
            await download.run()
        except Errors as error:
            self._fail(download, error)
        except OSError as error:
            self._fail(download, not_written(error, self._inside.parent))
        except Exception as error:  # whatever it is: a download that ends silently is a hang
            logger.exception("a download failed")
            what = f"its fetcher has a defect: {error!r}"
            self._fail(download, RemoteError(what, download.url, "Report it"))
        else:
            self._end(download)
        self._pump()

    def _end(self, download: Download) -> None:
        self._downloads.pop(download.file.hash)
        self._stored.add(download.file.hash, download.target, download.file.size)
        download.done.set_result(None)

    def _fail(self, download: Download, error: Exception) -> None:
        """End a download with an error, the same for all that wait."""
        self._drop(download)
        self._failed[download.file.hash] = time.monotonic(), error
        logger.error("%s", error)
        download.done.set_exception(error)
        if isinstance(error, RemoteError) and download.is_silent:
            for other in [*self._downloads.values()]:  # nobody waits for a minute more
                if other.source is download.source and other.distance < 0:
                    self._fail(other, RemoteError(error.what, other.url, error.hint))

    # -- what next ---------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Begin what there is room for; without clients nothing is fetched."""
        if not self._clients:
            return
        for download in [*self._downloads.values()]:
            if download.task is None and download.distance < 0:
                self._begin(download)
        self._begin_ahead()

    def _set_distances(self) -> None:
        for digest, download in self._downloads.items():
            if download.distance >= 0:
                download.distance = self._orders.distances.get(digest, NO_NEED)

    def _begin_ahead(self) -> None:
        """Begin files of all orders: any while there is room, then those needed soon, evicting those needed later."""
        orders = self._orders.each()
        share, most = self.budget // max(1, len(orders)), _AHEAD_BYTES // max(1, len(orders))
        for order in orders:
            begun, is_full = 0, False
            for distance, is_near, file in order.wanted(share):
                if begun > most or (is_full and not is_near):
                    break
                if file.hash in self._downloads:
                    begun += file.size
                elif not self._is_known(file):
                    download = self._download(order.source, file)
                    download.distance = distance
                    if self._begin(download, distance if is_near else NO_NEED):
                        begun += file.size
                        continue
                    self._downloads.pop(file.hash, None)
                    if is_near:
                        break
                    is_full = True

    def _is_known(self, file: File) -> bool:
        return file.hash in self._stored.files or self._failure(file) is not None

    def _begin(self, download: Download, beyond: float = -1.0) -> bool:
        """Give a file room, if there is some."""
        size, budget = download.file.size, self.budget
        if size > budget:
            what = f"the cache may hold {budget:,} bytes, and a shard has {size:,}"
            hint = f"Set cache= to more than {size:,} bytes, and free its disk"
            self._fail(download, CacheError(what, self._inside.parent, hint))
            return False
        if not self._stored.reserve(size, budget, self._orders.distances, beyond):
            return False
        try:
            download.open()
        except OSError as error:
            self._stored.reserved_bytes -= size
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if not is_full or time.monotonic() - download.asked_at > _FULL_S:
                self._fail(download, not_written(error, self._inside.parent))
            return False
        download.task = asyncio.create_task(self._fetch(download))
        return True


def _lock(inside: Path) -> int | None:
    """Return the folder's lock, held until this process ends; None if another fetcher has it."""
    descriptor = os.open(inside / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def _listen(inside: Path) -> socket.socket:
    (inside / SOCKET_NAME).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with socket_name(inside) as name:
        listening.bind(name)
    os.chmod(inside / SOCKET_NAME, 0o600)
    listening.listen(1024)
    return listening


def _run(inside: Path, ready: int) -> int:
    log = RotatingFileHandler(inside / "fetcher.log", maxBytes=500_000, backupCount=1)
    log.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[log], level=logging.INFO)
    try:
        lock = _lock(inside)
        if lock is not None:
            listening = _listen(inside)
            logger.info("serving %s", inside)
            asyncio.run(Fetcher(inside).run(listening, lambda: os.write(ready, b"1")))
            logger.info("no client is left")
        else:
            os.write(ready, b"1")
    except Exception:
        logger.exception("the fetcher ends")
        return 1
    return 0


def main(argv: list[str]) -> int:
    """Serve a folder, in a detached process; return when it listens: 0, or 1 if it cannot."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return 0 if os.read(reading, 1) else 1
    os.close(reading)
    code = _run(Path(argv[1]), writing)
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
