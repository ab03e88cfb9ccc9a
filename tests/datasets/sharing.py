"""Ranks as real processes, for the tests of what they share."""

import contextlib
import hashlib
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from loaders import DataLoader, RAMDataset
from loaders.datasets.memory import shared
from loaders.datasets.memory.memfile import MemoryFile, fill_memory_file

_PATIENCE_S = 60.0
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.datasets.sharing"])


class Rank:
    """A process that opens a dataset, says how that went, and answers questions about it.

    Args:
        folder: Of the dataset.
        paused: Stop in the middle of loading, until it is told to go on.
        forks: Fork there first, and say which process that is.
        settings: Of the dataset.
    """

    def __init__(
        self, folder: Path, *, paused: bool = False, forks: bool = False, **settings: Any
    ) -> None:
        self._pipe, theirs = _context.Pipe()
        arguments = (theirs, folder, os.environ["LOADERS_CACHE"], paused, forks, settings)
        self.process = _context.Process(target=_be_rank, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def hear(self) -> Any:
        """Return the next thing it says."""
        assert self._pipe.poll(_PATIENCE_S), "a rank says nothing"
        return self._pipe.recv()

    def open(self) -> Any:
        """Return how opening the dataset went, whether or not it had to wait."""
        said = self.hear()
        return self.hear() if said == "waiting" else said

    def ask(self, question: str) -> Any:
        """Return its answer."""
        self._pipe.send(question)
        return self.hear()

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        self.process.join(_PATIENCE_S)


def _be_rank(
    pipe: Connection,
    folder: Path,
    cache: str,
    paused: bool,
    forks: bool,
    settings: dict[str, Any],
) -> None:
    os.environ["LOADERS_CACHE"] = cache
    torch.set_num_threads(1)
    logging.getLogger("loaders.datasets.memory.shared").addHandler(_Waiting(pipe))
    logging.getLogger("loaders.datasets.memory.shared").setLevel("INFO")
    if paused:
        _pause_loading(pipe, forks)
    before = pss()["Pss_Anon"]
    try:
        dataset = RAMDataset(folder, progress=False, **{"shared": True} | settings)
    except BaseException as error:
        pipe.send((type(error).__name__, str(error), memfds()))
        return
    pipe.send("loaded")
    answers: dict[str, Callable[[], Any]] = {
        "digest": lambda: digest(dataset),
        "pss": lambda: pss() | {"growth": pss()["Pss_Anon"] - before},
    }
    while True:
        pipe.send(answers[pipe.recv()]())


class _Waiting(logging.Handler):
    """Says so when a rank has found one that is at loading already."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        if "loads the copy that this one will share" in record.msg:
            self._pipe.send("waiting")


def _pause_loading(pipe: Connection, forks: bool) -> None:
    def load(*args: Any, **options: Any) -> MemoryFile:
        pipe.send("loading")
        if forks:
            if not (pid := os.fork()):
                time.sleep(_PATIENCE_S)
                os._exit(0)
            pipe.send(pid)
        pipe.recv()
        return fill_memory_file(*args, **options)

    vars(shared)["fill_memory_file"] = load


def pss() -> dict[str, int]:
    """Return this process's share of the memory it uses, in bytes, by kind."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return {
        words[0][:-1]: int(words[1]) << 10
        for line in lines
        if (words := line.split())[0].startswith("Pss")
    }


def digest(dataset: Any, **options: Any) -> str:
    """Hash every batch of an epoch."""
    state = hashlib.blake2b()
    for batch in DataLoader(dataset, batch_size=3, shuffle=True, seed=5, **options):
        for values in batch:
            for value in values:
                data = value.numpy().tobytes() if isinstance(value, torch.Tensor) else value
                state.update(data if isinstance(data, bytes) else repr(data).encode())
    return state.hexdigest()


def memfds() -> int:
    """Return how many copies are open in this process."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum("memfd:loaders " in link for link in links)
