"""Reading shards back through liblmdb and pyarrow, in a process that a damaged file may end.

The contract of parent (``ReadBack``) and child (``serve``):

1. The child says "ready"; then it answers each request line with one line, in order.
2. A child that dies or exceeds its time over a shard is the finding about that shard; for the next
   shard another child is started.
3. The child ends when its input does, so that it outlives the parent by one shard at most.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from loaders.data.formats import open_columns, read_back
from loaders.data.manifest import ShardInfo
from loaders.errors import PackError

if TYPE_CHECKING:
    from collections.abc import Iterable

_START_S = 120.0
_SLOWEST_BYTES_PER_S = 5e6
_SPARE_BYTES = 4 << 30  # what libraries reserve besides a few times the shard


class ReadBack:
    """Compares shards with what their own libraries read; for one thread, ``with`` ends the child.

    Args:
        timeout_s: Longest time for a shard; by default one minute and what a slow disk needs.
    """

    def __init__(self, timeout_s: float | None = None) -> None:
        self.timeout_s = timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> ReadBack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(
        self, path: Path, info: ShardInfo, fields: Iterable[str] | None = None
    ) -> str | None:
        """Return how some fields of a shard differ, as its library reads it, from its mapped columns, or None."""
        if fields is not None:
            info = info._replace(places={name: info.places[name] for name in fields})
        if self._child is None:
            self._start()
        timeout_s = self.timeout_s or 60 + info.size_bytes / _SLOWEST_BYTES_PER_S
        request = json.dumps({"path": str(path.absolute()), "info": info.to_json()})
        answer = self._ask(request.encode() + b"\n", timeout_s)
        if isinstance(answer, str):
            return answer
        difference = json.loads(answer)
        return None if difference is None else str(difference)

    def _ask(self, request: bytes, timeout_s: float) -> bytes | str:
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(request)
            self._child.stdin.flush()
            answer = self._answers.get(timeout=timeout_s)
        except BrokenPipeError:
            answer = b""
        except queue.Empty:
            self.close()
            return f"reading it was not done after {timeout_s:.0f} s"
        return answer or self._death()

    def _death(self) -> str:
        """Say how the child ended, and forget it."""
        assert self._child is not None
        try:
            code = self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            code = 0
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        assert self._errors is not None
        self._errors.seek(0)
        last = self._errors.read()[-2000:].decode(errors="replace").strip().splitlines()[-1:]
        self.close()
        return ": ".join([f"reading it ended the process ({how})", *last])

    def _start(self) -> None:
        packages = (sys.modules[name].__file__ for name in ("packdata", "loaders"))
        roots = [str(Path(file).parents[1]) for file in packages if file is not None]
        path = os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        self._child = subprocess.Popen(  # -P: never import from where we stand
            [sys.executable, "-P", "-m", "packdata.inspect.readback"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"PYTHONPATH": path},
        )
        self._answers = queue.SimpleQueue()
        reader = threading.Thread(
            target=_pass_on, args=(self._child.stdout, self._answers), daemon=True
        )
        reader.start()
        try:
            ready = self._answers.get(timeout=_START_S)
        except queue.Empty:
            ready = b""
        if not ready:
            raise PackError(f"it cannot check shards: {self._death()}", sys.executable)

    def close(self) -> None:
        """End the child; it may be called twice."""
        if self._child is not None:
            assert self._child.stdin is not None
            self._child.kill()
            self._child.wait()
            with suppress(BrokenPipeError):  # what was not sent yet
                self._child.stdin.close()
            self._child = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def _pass_on(lines: IO[bytes], answers: queue.SimpleQueue[bytes]) -> None:
    """Put every line into the queue, and b"" at the end."""
    with lines:
        for line in lines:
            answers.put(line)
    answers.put(b"")


def serve() -> None:
    """Answer requests on standard input; the child's side."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    answers.write(b"ready\n")
    answers.flush()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        answer = _compare(Path(request["path"]), request["info"])
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _compare(path: Path, described: dict[str, Any]) -> str | None:
    info = ShardInfo.from_json(described)
    _limit_memory(_SPARE_BYTES + 6 * info.size_bytes)
    try:
        return read_back(path, open_columns(path, info))
    except Exception as error:  # whatever a library makes of damaged bytes is the finding
        return f"reading it failed ({type(error).__name__}: {error})"


def _limit_memory(more_bytes: int) -> None:
    """Make an absurd size in a damaged file an error instead of the machine's end."""
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not Linux
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = pages * resource.getpagesize() + more_bytes
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    serve()
