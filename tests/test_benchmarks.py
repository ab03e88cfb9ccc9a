"""Every benchmark case runs, at a size that measures nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_spine_cases_run(tmp_path: Path) -> None:
    """Each contender of each case gives a rate, and the report names them all."""
    script = ROOT / "benchmarks/spine.py"
    command = [
        sys.executable,
        str(script),
        "--scale",
        "0.1",
        "--repeats",
        "1",
        "--out",
        str(tmp_path),
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    cases = json.loads((tmp_path / "results/spine.json").read_text())["cases"]
    report = (tmp_path / "RESULTS.md").read_text()
    assert all(
        value > 0 for case in cases for values in case["results"].values() for value in values
    )
    assert all(name in report for case in cases for name in case["results"])
