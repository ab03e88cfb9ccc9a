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
import os
import pickle
import signal
import socket
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.errors import CacheError, LoadersError, ManifestError, RemoteError
from loaders.remote.faults import StoreFault, hide_secrets
from loaders.remote.folder import (
    CacheFolder,
    default_size,
    manifest_folder,
    shard_path,
    small_file,
)
from loaders.remote.patience import BEAT_S, FAILED_S, FULL_S, IDLE_S
from loaders.remote.served import BUCKET_OPS, ServedURL
from loaders.remote.transfer import Download
from loaders.remote.wire import (
    LENGTH_BYTES,
    MAX_CONNECTIONS,
    SOCKET_NAME,
    File,
    encoded,
    peer,
    socket_name,
)
from loaders.system.publish import publish_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loaders.remote.served import Reached

logger = logging.getLogger("loaders.remote.fetcher")
_AHEAD_BYTES = 512 << 20  # of files that are begun and not published, for all orders
_NEAR_SHARE, _NEAR_BYTES = 32, 2 << 30  # of a client's share of the cache: what it will read soon
_NO_NEED = 1 << 62  # bytes: further ahead than any file that a client is known to need


class Connected:
    """A client's connection, and what the client has said."""

    source: ServedURL  # where it reads

    def __init__(self, writer: asyncio.StreamWriter, pid: int) -> None:
        self.writer, self.pid = writer, pid  # 0: of another container
        self.size: int | None = None  # how large it wants the cache to be
        # Of its dataset, in whichever process: shards that were there or not, and seconds waited for.
        self.counts: dict[str, float] = {"hits": 0, "misses": 0, "waited_s": 0.0}
        self.sizes: dict[str, int] = {}  # of the files that it may read, or asked for, by hash
        self.files: list[File] = []  # of its order
        self.upcoming: list[File] = []  # which it will read, the next one first
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
    """Serves the clients of a cache folder, that of this version, which is locked."""

    def __init__(self, inside: Path) -> None:
        self._inside = inside
        self._stored = CacheFolder(inside)
        self._clients = set[Connected]()
        self._sources: dict[str, ServedURL] = {}  # by the id of an origin
        self._counts: dict[str, dict[str, float]] = {}  # likewise
        self._needs: dict[str, int] = {}  # how many bytes ahead files are needed, by hash
        self._downloads: dict[str, Download] = {}  # also those that failed right now
        # Of requests for files that are fetched ahead, and that clients wait for: those begin at once.
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS), asyncio.Semaphore(MAX_CONNECTIONS)
        self._last_seen = time.monotonic()
        self._default_size = default_size(inside, self._stored.used_bytes)
        self._stop = asyncio.Event()

    @property
    def budget(self) -> int:
        """What the cache may hold: the largest size that a live client asked for, as far as its disk has room."""
        asked = [client.size for client in self._clients if client.size is not None]
        disk = os.statvfs(self._inside)
        taken = self._stored.used_bytes + self._reserved()
        return min(max(asked, default=self._default_size), taken + disk.f_bavail * disk.f_frsize)

    def _reserved(self) -> int:
        """Return the bytes of what is on its way."""
        begun = (each for each in self._downloads.values() if each.task and not each.done.done())
        return sum(each.file.size for each in begun)

    def _limit(self) -> int | None:
        """Return how many bytes a process may map, where what all clients read does not fit into the cache."""
        files, budget = dict[str, int](), self.budget
        for client in self._clients:
            files |= client.sizes
        processes = {each.pid or each for each in self._clients if each.sizes}
        fits = sum(files.values()) <= budget
        return None if fits else budget // max(1, len(processes))

    # -- clients -----------------------------------------------------------------------------------

    async def run(self, listening: socket.socket, on_ready: Callable[[], object]) -> None:
        """Serve until all clients have gone."""
        options: dict[str, Any] = {}
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
            while True:
                size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
                await self._answer(client, await reader.readexactly(size))
        except (OSError, EOFError) as error:
            logger.debug("a client has gone: %s", type(error).__name__)
        finally:
            self._clients.discard(client)
            self._measure()
            if not self._clients:
                for download in self._downloads.values():
                    if download.task is not None:
                        download.task.cancel()
                self._downloads.clear()
            self._last_seen = time.monotonic()
            client.close()

    async def _answer(self, client: Connected, question: bytes) -> None:
        """Send the answer to a question, and meanwhile that it is being worked on."""
        writer, task = client.writer, asyncio.ensure_future(self._read(client, question))
        try:
            while not (await asyncio.wait({task}, timeout=BEAT_S))[0]:
                writer.write(encoded(...))
                await writer.drain()
            answer = task.result()
        except Exception as error:  # whatever it is: a client that hears nothing asks again
            if self._stored.is_removed():
                self._stop.set()
                raise ConnectionAbortedError from error  # who hears nothing asks the next one
            answer = self._public(error)
        finally:
            task.cancel()
        writer.write(encoded(answer))
        await writer.drain()

    def _public(self, error: Exception) -> Exception:
        """Return the error that a client gets."""
        if isinstance(error, LoadersError):
            return error
        if isinstance(error, OSError):
            what = f"the cache cannot be written ({error.strerror or error})"
            hint = "Check that its disk has room, and that you may write there"
            return CacheError(what, self._inside.parent, hint)
        logger.error("a defect", exc_info=error)
        what = f"the cache's fetcher has a defect: {hide_secrets(repr(error), {})}"
        return RemoteError(what, self._inside.parent, "Report the defect")

    async def _read(self, client: Connected, question: bytes) -> Any:
        op, about = pickle.loads(question)  # noqa: S301  # of a process of our own user
        return await self.do(client, op, **about)

    async def do(self, client: Connected, op: str, **about: Any) -> Any:
        """Return the answer to a question, which is for a bucket, or for a method of its name."""
        began = time.monotonic()
        try:
            if op in BUCKET_OPS:
                return await client.source.ask_bucket(op, **about)
            return await getattr(self, f"_on_{op}")(client, **about)
        finally:
            if op in ("shard", "ranges"):
                client.counts["waited_s"] += time.monotonic() - began

    async def _on_hello(
        self, client: Connected, id: str, size: int | None, missing: list[str], reached: Reached
    ) -> None:
        """Note where a client reads: what reads there is made where it brings all that this needs."""
        if id not in self._sources:
            if missing:
                what = f"{', '.join(missing)} of storage= is not pickled, and not set here"
                hint = "Set them in the environment of this process, too, or open the URL here"
                raise RemoteError(what, reached[0], hint)
            # All ranks share one client of the store.
            same = (source for source in self._sources.values() if source.reached == reached)
            self._sources[id] = next(same, None) or ServedURL(*reached)
        client.source, client.size = self._sources[id], size
        client.counts = self._counts.setdefault(id, client.counts)

    async def _on_stats(self, client: Connected) -> dict[str, float]:
        source = client.source
        of_source = {"bytes": source.num_bytes, "requests": source.num_requests}
        of_source["retries"] = source.num_retries
        of_cache = {"cached_bytes": self._stored.used_bytes, "budget_bytes": self.budget}
        return of_source | client.counts | of_cache

    # -- manifests ---------------------------------------------------------------------------------

    def _folder(self, source: ServedURL) -> Path:
        folder = manifest_folder(self._inside, source.url, source.endpoint)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    async def _on_manifest(self, client: Connected) -> Path:
        """Fetch the manifest, once for all that ask meanwhile; offline the last one is used."""
        source, folder = client.source, self._folder(client.source)
        path, asked = folder / "manifest.json", time.monotonic()
        async with source.manifest_lock:
            if source.manifest_at > asked and path.exists():
                return folder
            began = time.monotonic()
            try:
                got = await source.get("manifest.json")
            except StoreFault as fault:
                if fault.kind == "missing":
                    what = "there is no packed dataset (no manifest.json)"
                    raise ManifestError(what, source.url, fault.hint) from None
                if fault.kind != "network" or not path.exists():
                    raise source.refused("opened", "", fault) from None
                logger.warning("%s does not answer: its last manifest is used", source.url)
                began = time.monotonic()  # or each that waits would ask in vain
            else:
                publish_bytes(path, got.data)
                about = {"url": str(source.url), "etag": got.etag}
                publish_bytes(folder / "about.json", json.dumps(about).encode())
            source.manifest_at = began
            return folder

    async def _on_file(self, client: Connected, name: str) -> dict[str, Any]:
        """Fetch a file that lies beside the manifest; the client checks its content."""
        source = client.source
        try:
            got = await source.get(name)
        except StoreFault as fault:
            if fault.kind == "missing":
                return {"path": None, "answer": source.public(fault.text), "hint": fault.hint}
            raise source.refused("fetched", name, fault) from None
        path = small_file(self._folder(source), name)
        publish_bytes(path, got.data)
        return {"path": path, "etag": got.etag, "version": got.version}

    # -- shards ------------------------------------------------------------------------------------

    async def _on_shard(self, client: Connected, file: File) -> int | None:
        """Answer when a file is published."""
        client.sizes[file.hash] = file.size
        client.counts["hits" if self._stored.has(file.hash) else "misses"] += 1
        while not self._stored.has(file.hash):
            download = self._download(client.source, file)
            self._downloads[file.hash] = download
            download.is_waited = True
            self._pump()
            await asyncio.shield(download.done)
        self._stored.note_answer(client, file.hash)
        return self._limit()

    async def _on_ranges(self, client: Connected, wanted: Sequence[Any]) -> list[bytes | str]:
        return await client.source.ranges(wanted)

    async def _on_order(
        self, client: Connected, files: list[File] | None, upcoming: list[int] | None
    ) -> int | None:
        """Note the files of a client's dataset, and the numbers of those that it will read; None: as before."""
        if files is not None:
            client.files = files
            client.sizes |= {file.hash: file.size for file in files}
        if upcoming is not None:
            client.upcoming = [client.files[number] for number in upcoming]
            self._measure()
        self._pump()
        return self._limit()

    def _measure(self) -> None:
        """Note how many bytes ahead each file is needed, by the client that comes to it first."""
        self._needs = needs = dict[str, int]()
        for client in self._clients:
            passed = 0
            for file in client.upcoming:
                needs[file.hash] = min(passed, needs.get(file.hash, passed))
                passed += file.size

    def _download(self, source: ServedURL, file: File) -> Download:
        """Return the download of a file, which may have failed right now, or a new one."""
        target = shard_path(self._inside, file)
        part = self._inside / "parts" / target.name
        known = self._downloads.get(file.hash)
        return known or Download(source, file, part, target, self._turns)

    async def _fetch(self, download: Download) -> None:
        try:
            await download.run()
        except Exception as error:  # whatever it is: a download that ends silently is a hang
            self._fail(download, error)
        else:
            file = self._downloads.pop(download.file.hash).file
            self._stored.add(file.hash, download.target, file.size)
            download.done.set_result(None)
        self._pump()

    def _fail(self, download: Download, error: Exception) -> None:
        """End a download with an error, the same for all that wait, now and for ``FAILED_S``."""
        error = self._public(error)
        logger.error("%s", error)
        self._downloads[download.file.hash] = download
        download.failed_at = time.monotonic()
        download.done.set_exception(error)

    # -- what next ---------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Begin what there is room for; without clients nothing is fetched."""
        if not self._clients:
            return
        for digest, download in [*self._downloads.items()]:
            if download.done.done():
                if time.monotonic() - download.failed_at > FAILED_S:
                    del self._downloads[digest]
            elif download.task is None:
                self._begin(download)
        self._begin_ahead()

    def _begin_ahead(self) -> None:
        """Begin files of all orders, each up to its share of the cache.

        A file that is needed soon may evict files that are needed later; any other evicts only what no client needs.
        Else an epoch would evict all that it has just read, half of which can stay until the next epoch.
        """
        clients = [client for client in self._clients if client.files]
        share, most = self.budget // max(1, len(clients)), _AHEAD_BYTES // max(1, len(clients))
        near = min(_NEAR_BYTES, share // _NEAR_SHARE)
        for client in clients:
            passed = begun = 0
            for file in client.upcoming:
                if begun > most or (passed and passed + file.size > share):
                    break
                if file.hash in self._downloads:
                    begun += file.size
                elif file.hash not in self._stored.files:
                    is_near = not passed or passed + file.size <= near
                    download = self._download(client.source, file)
                    if not self._begin(download, passed if is_near else _NO_NEED):
                        break
                    begun += file.size
                passed += file.size

    def _begin(self, download: Download, beyond: float = -1.0) -> bool:
        """Begin a file if there is room, or can be, by evicting files that are needed further ahead than ``beyond``."""
        file, budget = download.file, self.budget
        if file.size > budget:
            what = f"the cache may hold {budget:,} bytes, and a shard has {file.size:,}"
            hint = f"Set cache= to more than {file.size:,} bytes, and free its disk"
            self._fail(download, CacheError(what, self._inside.parent, hint))
            return False
        left = budget - self._reserved() - file.size
        if not self._stored.make_room(left, self._needs, beyond):
            return False
        try:
            download.open()
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if not is_full or time.monotonic() - download.asked_at > FULL_S:
                self._fail(download, error)
            return False
        self._downloads[file.hash] = download
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


def _run(inside: Path, on_ready: Callable[[], object]) -> None:
    log = RotatingFileHandler(inside / "fetcher.log", maxBytes=500_000, backupCount=1)
    log.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[log], level=logging.INFO)
    try:
        if _lock(inside) is None:
            on_ready()
            return
        logger.info("serving %s", inside)
        asyncio.run(Fetcher(inside).run(_listen(inside), on_ready))
        logger.info("no client is left")
    except Exception:
        logger.exception("the fetcher ends")


def main(argv: list[str]) -> int:
    """Serve a folder, in a detached process; return when it listens: 0, or 1 if it cannot."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return 0 if os.read(reading, 1) else 1
    os.close(reading)
    _run(Path(argv[1]), lambda: os.write(writing, b"1"))
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
