from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from loaders.bench import processes
from loaders.bench.processes import (
    MemoryUse,
    bytes_read,
    children_cpu_s,
    cpu_s,
    family,
    memory,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

BUSY = """
import sys, time
kept = bytearray(40 << 20)
end = time.process_time() + 0.2
while time.process_time() < end:
    pass
print(1, flush=True)
sys.stdin.read()
"""


def test_children_count_with_their_memory_and_cpu_time() -> None:
    before = cpu_s(family())
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.read(1) == b"1"

        pids = family()
        own = memory([child.pid]).own_bytes
        spent = cpu_s(pids) - before

        child.communicate()
    assert child.pid in pids
    assert os.getpid() in pids
    assert own > 40 << 20
    assert spent > 0.15


def test_children_that_ended_stay_counted() -> None:
    """As workers do at the end of an epoch: their work was done, and no figure falls below what it was."""
    before = cpu_s(family())

    subprocess.run([sys.executable, "-c", BUSY], stdin=subprocess.DEVNULL, timeout=60, check=True)

    assert cpu_s(family()) - before > 0.15


def test_files_that_are_missing_or_odd_count_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for processes that have just ended, and systems without these files."""
    monkeypatch.setattr(processes, "PROC", tmp_path)
    (tmp_path / "7").mkdir()
    (tmp_path / "7/smaps_rollup").write_text(
        "00-ff ---p 0 0:0 0 [rollup]\nRss: x kB\nPss: 8 kB\nPss_File: 3 kB\n\n"
    )

    assert family(7) == [7]
    assert memory([7, 8]) == MemoryUse(8 << 10, 5 << 10)
    assert bytes_read([7]) is None
    assert children_cpu_s([7]) == 0.0


def test_a_name_with_brackets_and_spaces_is_read_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) b) S 1 7 7 0 -1 4 5 6 7 8 250 50 20 10 20 0 1 0\n")
    (tmp_path / "7/io").write_text("rchar: 5\nread_bytes: 4096\n")

    assert children_cpu_s([7]) == 330 / os.sysconf("SC_CLK_TCK")
    assert bytes_read([7]) == 4096


def test_children_of_children_belong_to_the_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    for parent, children in {"7/task/7": "8 9", "7/task/70": "10", "9/task/9": "11 "}.items():
        (tmp_path / parent).mkdir(parents=True)
        (tmp_path / parent / "children").write_text(children)

    assert sorted(family(7)) == [7, 8, 9, 10, 11]
