"""How a child process starts: with other options of Python, from a script, from a process that may have none."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from loaders import DataLoader, RAMDataset
from loaders.datasets.memory.shared import HeldShard
from loaders.errors import LoadersError, UnsendableError

ROOT = Path(__file__).parents[2]

SAME = """
import torch
from loaders import DataLoader, RAMDataset
dataset = RAMDataset.from_arrays(image=torch.randint(0, 256, (256, 3, 32, 32), dtype=torch.uint8))
for epoch in range(2):
    here = DataLoader(dataset, 16, shuffle=True, seed=epoch, num_workers=0)
    there = DataLoader(dataset, 16, shuffle=True, seed=epoch, num_workers=2, backend="subprocess")
    if not all(torch.equal(a.image, b.image) for a, b in zip(here, there, strict=True)):
        raise SystemExit("other batches")
"""

UNGUARDED = """
import os, sys, torch
import beside
from loaders import DataLoader, RAMDataset
print("runs", flush=True)
dataset = RAMDataset.from_arrays(x=torch.zeros(8, 4)).replace(transform=beside.where)
for folder, path in DataLoader(dataset, None, num_workers=1, backend="subprocess"):
    assert (folder, path) == (os.getcwd(), sys.path)
"""

BESIDE = """
import os, sys
def where(sample):
    return os.getcwd(), sys.path
"""


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=cwd,
    )


@pytest.mark.slow
def test_batches_are_the_same_where_python_skips_asserts() -> None:
    done = run("-O", "-c", SAME)

    assert done.returncode == 0, done.stderr


def test_a_script_needs_no_guard_and_the_child_finds_what_lies_beside_it(tmp_path: Path) -> None:
    """Its main module is not imported again, and what lies in the working folder is not taken for Python's own.

    Trainers run in folders where anything may lie; what the child needs before it has the path is Python's.
    """
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "train.py"
    script.write_text(UNGUARDED)
    (tmp_path / "scripts" / "beside.py").write_text(BESIDE)
    (tmp_path / "struct.py").write_text("raise SystemExit('of the working folder')")

    done = run(str(script), cwd=tmp_path)

    assert (done.returncode, done.stdout) == (0, "runs\n"), done.stderr


def test_a_path_of_any_length_and_kind_is_the_childs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As build systems make them: longer than an argument of a command may be."""
    more = [str(tmp_path / f"{number}{'x' * 200}") for number in range(1000)]
    monkeypatch.setattr(sys, "path", [*sys.path, *more, tmp_path])
    dataset = RAMDataset.from_arrays(x=torch.zeros(8, 4))

    assert len(list(DataLoader(dataset, 4, num_workers=1, backend="subprocess"))) == 2


class Local:
    def __call__(self, sample: Any) -> Any:
        return sample


def in_function() -> Any:
    def local(sample: Any) -> Any:
        return sample

    return local


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (lambda sample: sample, "<lambda>"),
        (in_function(), "local"),
        (threading.Lock(), "lock"),
    ],
    ids=["lambda", "local function", "lock"],
)
def test_what_a_child_cannot_be_given_is_named(transform: Any, name: str) -> None:
    dataset = RAMDataset.from_arrays(x=torch.zeros(8, 4)).replace(transform=in_list(transform))

    with pytest.raises(UnsendableError) as caught:
        iter(DataLoader(dataset, 4, num_workers=1, backend="subprocess"))

    assert name in caught.value.name
    assert "backend='thread'" in str(caught.value)


class Holds:
    def __init__(self, what: Any) -> None:
        self.what = what

    def __call__(self, sample: Any) -> Any:
        return sample


def in_list(what: Any) -> Holds:
    return Holds([what])


@pytest.mark.parametrize("module", ["__main__", pytest.param("made_up", marks=pytest.mark.slow)])
def test_so_is_what_it_would_not_find(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the main module or a notebook; or of a module that only this process has."""
    made = types.ModuleType(module)
    made.Local = Local  # type: ignore[attr-defined]
    monkeypatch.setattr(Local, "__module__", module)
    monkeypatch.setitem(sys.modules, module, made)
    dataset = RAMDataset.from_arrays(x=torch.zeros(8, 4)).replace(transform=Local())

    with pytest.raises(UnsendableError) as caught:
        next(iter(DataLoader(dataset, 4, num_workers=1, backend="subprocess")))

    assert module in str(caught.value)


def test_loaders_that_ask_for_a_copy_of_one_dataset_at_one_time_get_the_same() -> None:
    data = RAMDataset.from_arrays(x=torch.zeros(200, 100_000))
    (shard,) = data.store.shards
    assert isinstance(shard, HeldShard)
    begin = threading.Barrier(3)

    def ask(_: int) -> Any:
        begin.wait(30)
        return shard.file()

    with ThreadPoolExecutor(3) as asking:
        found = [*asking.map(ask, range(3))]

    assert len({*map(id, found)}) == len(shard.files) == 1


def test_arrays_that_do_not_fit_into_memory_twice_are_an_error_with_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loaders.datasets.memory.loading.available_memory", lambda: 1_000_000)
    dataset = RAMDataset.from_arrays(x=torch.zeros(1_000_000))

    with pytest.raises(LoadersError, match=r"0\.004 GB.*0\.001 GB"):
        iter(DataLoader(dataset, 4, num_workers=1, backend="subprocess"))


def try_in_daemon(results: "multiprocessing.SimpleQueue[int]") -> None:
    dataset = RAMDataset.from_arrays(x=torch.zeros(8, 4))
    results.put(len(list(DataLoader(dataset, 4, num_workers=1, backend="subprocess"))))


@pytest.mark.slow
def test_a_daemonic_process_may_have_one() -> None:
    context = multiprocessing.get_context("fork")
    results: multiprocessing.SimpleQueue[int] = context.SimpleQueue()
    process = context.Process(target=try_in_daemon, args=(results,), daemon=True)
    process.start()
    process.join(60)

    assert process.exitcode == 0
    assert results.get() == 2


ENDS = """
import torch
from loaders import DataLoader, RAMDataset
from tests.backends.test_starts import Ends

data = RAMDataset.from_arrays(x=torch.arange(40)).replace(transform=Ends("{how}"))
list(DataLoader(data, 8, num_workers=1, backend="subprocess"))
"""


class Ends:
    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self, sample: Any) -> None:
        if self.how == "exit":
            os._exit(9)
        os.kill(os.getpid(), signal.SIGBUS)
        time.sleep(9)  # a thread of its own gets the signal when it gets it


CUT = "a shard was cut, or its storage failed, while it was read: run 'packdata verify'"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("exit", "ended (9): what it printed says why"),
        ("bus", f"was killed by signal 7 (SIGBUS): {CUT}"),
    ],
)
def test_how_a_child_ended_is_said(how: str, said: str) -> None:
    done = run("-c", ENDS.format(how=how))

    assert done.stderr.splitlines()[-1].endswith(said)
