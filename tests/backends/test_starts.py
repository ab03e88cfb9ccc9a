"""How a child process starts: with other options of Python, from a script, from a process that may have none."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from loaders import DataLoader, RAMDataset

if TYPE_CHECKING:
    from pathlib import Path

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
import torch
from loaders import DataLoader, RAMDataset
dataset = RAMDataset.from_arrays(x=torch.zeros(8, 4))
next(iter(DataLoader(dataset, 4, num_workers=1, backend="subprocess", multiprocessing_context="spawn")))
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=100, check=False
    )


def test_batches_are_the_same_where_python_skips_asserts() -> None:
    done = run("-O", "-c", SAME)

    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_script_that_starts_itself_again_is_told_what_to_guard(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNGUARDED)

    done = run(str(script))

    assert done.returncode == 1
    assert "before it had handed over a batch" in done.stderr.splitlines()[-1]
    assert "__main__" in done.stderr.splitlines()[-1]


def try_in_daemon(results: multiprocessing.SimpleQueue[str]) -> None:
    dataset = RAMDataset.from_arrays(x=torch.zeros(8, 4))
    try:
        next(iter(DataLoader(dataset, 4, num_workers=1, backend="subprocess")))
    except RuntimeError as error:
        results.put(str(error))


def test_a_daemonic_process_is_told_that_it_may_have_none() -> None:
    context = multiprocessing.get_context("fork")
    results: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    process = context.Process(target=try_in_daemon, args=(results,), daemon=True)
    process.start()
    process.join(30)

    assert process.exitcode == 0
    assert "backend='thread'" in results.get()


INTERRUPTED = """
import multiprocessing, os, signal, sys, threading, time, torch
from loaders import DataLoader, RAMDataset

class Late(Exception): pass

def alarm(*_): raise Late

number = getattr(signal, sys.argv[1])
signal.signal(signal.SIGALRM, alarm)
threading.Thread(target=time.sleep, args=(20,), daemon=True).start()  # it takes the signal: nobody's mask helps
os.register_at_fork(after_in_parent=lambda: (os.kill(os.getpid(), number), time.sleep(0.1)))
loader = DataLoader(RAMDataset.from_arrays(x=torch.arange(40)), 8, num_workers=2, backend="subprocess")
try:
    print("lost:", len(list(loader)))
except (KeyboardInterrupt, Late) as error:
    print(type(error).__name__)
    assert not multiprocessing.active_children()
"""


@pytest.mark.parametrize(("name", "error"), [("SIGINT", "KeyboardInterrupt"), ("SIGALRM", "Late")])
def test_a_signal_while_the_child_is_forked_is_not_lost(name: str, error: str) -> None:
    """Python prints and forgets what its handler raises there."""
    done = run("-W", "always", "-c", INTERRUPTED, name)

    assert (done.stdout.strip(), done.stderr) == (error, "")


ENDS = """
import os, signal, sys, time, torch
from loaders import DataLoader, RAMDataset

def ends(sample):
    os._exit(9) if sys.argv[1] == "exit" else os.kill(os.getpid(), signal.SIGBUS)
    time.sleep(9)  # a thread of its own gets the signal when it gets it

data = RAMDataset.from_arrays(x=torch.arange(40)).replace(transform=ends)
list(DataLoader(data, 8, num_workers=1, backend="subprocess"))
"""


CUT = "a shard was cut, or its storage failed, while it was read: run 'packdata verify'"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("exit", "ended (9), before it had handed over a batch: what it printed says why"),
        ("bus", f"was killed by signal 7 (SIGBUS): {CUT}"),
    ],
)
def test_how_a_child_ended_is_said(how: str, said: str) -> None:
    done = run("-c", ENDS, how)

    assert done.stderr.splitlines()[-1].endswith(said)
