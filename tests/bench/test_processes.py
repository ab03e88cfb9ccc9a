import os
import subprocess
import sys
from pathlib import Path

import pytest

from loaders.bench import measure
from loaders.bench.measure import family, memory, own_memory

HOLDING = """
import sys
kept = bytearray(40 << 20)
print(1, flush=True)
sys.stdin.read()
"""


def test_children_count_with_their_memory() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.read(1) == b"1"

        pids = family()
        own = own_memory([child.pid])

        child.communicate()
    assert child.pid in pids
    assert os.getpid() in pids
    assert own > 40 << 20


def test_files_that_are_missing_or_odd_count_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for processes that have just ended, and systems without these files."""
    monkeypatch.setattr(measure, "PROC", tmp_path)
    (tmp_path / "7").mkdir()
    (tmp_path / "7/smaps_rollup").write_text(
        "00-ff ---p 0 0:0 0 [rollup]\nRss: x kB\nPss: 8 kB\nPss_File: 3 kB\n\n"
    )

    assert family(7) == [7]
    assert memory([7, 8]) == 8 << 10
    assert own_memory([7, 8]) == 5 << 10


def test_children_of_children_belong_to_the_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "PROC", tmp_path)
    for parent, children in {"7/task/7": "8 9", "7/task/70": "10", "9/task/9": "11 "}.items():
        (tmp_path / parent).mkdir(parents=True)
        (tmp_path / parent / "children").write_text(children)

    assert sorted(family(7)) == [7, 8, 9, 10, 11]
