"""Every benchmark case runs, at a size that measures nothing."""

from __future__ import annotations

import json
import os
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


@pytest.mark.slow
def test_token_cases_run(tmp_path: Path) -> None:
    """Windows of tokens: each contender of each case gives a rate."""
    sizes = ["--tokens", "100000", "--repeats", "1", "--workers", "1", "--out", str(tmp_path)]
    command = [sys.executable, str(ROOT / "benchmarks/tokens.py"), *sizes]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    cases = json.loads((tmp_path / "results/tokens.json").read_text())["cases"]
    assert len(cases) == 4
    assert all(
        value > 0 for case in cases for values in case["results"].values() for value in values
    )


@pytest.mark.slow
def test_a_character_model_learns(tmp_path: Path) -> None:
    """A text of few words costs much less than a guess after some steps, also where it was not seen."""
    text = tmp_path / "a.txt"
    text.write_text("to be, or not to be: that is the question.\n" * 500)
    sizes = ["--steps", "60", "--batch", "8", "--length", "32", "--width", "32", "--depth", "1"]
    command = [sys.executable, str(ROOT / "benchmarks/charmodel.py"), str(text), *sizes, "--json"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["first_loss"] > 4
    assert found["held_out_loss"] < 2.5


@pytest.mark.slow
def test_array_cases_run(tmp_path: Path) -> None:
    """Crops out of volumes: each contender gives a rate, warm and cold."""
    sizes = ["--side", "80", "--volumes", "2", "--crops", "16", "--repeats", "1"]
    command = [sys.executable, str(ROOT / "benchmarks/arrays.py"), *sizes, "--out", str(tmp_path)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    cases = json.loads((tmp_path / "results/arrays.json").read_text())["cases"]
    assert len(cases) == 4
    assert all(
        value > 0 for case in cases for values in case["results"].values() for value in values
    )


@pytest.mark.slow
def test_table_cases_run(tmp_path: Path) -> None:
    """Shuffled rows, and packing CSV: each contender gives a rate."""
    sizes = ["--rows", "20000", "--csv-rows", "2000", "--repeats", "1"]
    command = [sys.executable, str(ROOT / "benchmarks/tables.py"), *sizes, "--out", str(tmp_path)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    cases = json.loads((tmp_path / "results/tables.json").read_text())["cases"]
    assert len(cases) == 2
    assert all(
        value > 0 for case in cases for values in case["results"].values() for value in values
    )


@pytest.mark.slow
def test_codec_cases_run(tmp_path: Path) -> None:
    """Each codec and scale has bytes and a rate, in the report and in the JSON file."""
    script = ROOT / "benchmarks/codecs.py"
    options = ["--sizes", "32", "--samples", "24", "--repeats", "1", "--out", str(tmp_path)]

    done = subprocess.run(
        [sys.executable, str(script), *options], capture_output=True, text=True, timeout=300
    )

    assert done.returncode == 0, done.stderr
    codecs = json.loads((tmp_path / "results/codecs.json").read_text())["cases"][0]["codecs"]
    assert len(codecs) == 11
    assert all(rate > 0 for codec in codecs for rate in codec["images_per_s"])
    assert all(f"| {codec['name']} |" in (tmp_path / "RESULTS.md").read_text() for codec in codecs)


def test_gpu_cases_run_on_the_cpu(tmp_path: Path) -> None:
    """Every case is right and gives its figures; without CUDA a real run says so and measures nothing."""
    script = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "--out", str(tmp_path)]

    done = subprocess.run(
        [*script, "--dry-run", "cpu"], capture_output=True, text=True, timeout=200
    )
    bare = subprocess.run(
        script,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert {row["case"] for row in result["rows"]} == {
        "normalize", "dct", "augment", "gather", "prefetch"
    }  # fmt: skip
    assert all(row["value"] > 0 for row in result["rows"])
    assert result["conditions"]["dry_run"]
    assert bare.returncode == 2
    assert "no CUDA device" in bare.stderr


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["jpeg256", "raw28", "tokens", "table"])
def test_comparison_runs(tmp_path: Path, workload: str) -> None:
    """Ours and torch's loader serve the same values, all samples, and have rates; a peer that cannot run is listed."""
    cache = tmp_path / "cache"
    sizes = ["--scale", "0.01", "--seconds", "0.1", "--repeats", "2", "--workers", "1"]
    where = ["--cache", str(cache), "--out", str(tmp_path), "--here"]
    command = [sys.executable, str(ROOT / "benchmarks/compare.py"), workload, *sizes, *where]

    done = subprocess.run(
        [*command, "--peers", "torch,absent"], capture_output=True, text=True, timeout=300
    )

    assert done.returncode == 1, done.stderr
    result = json.loads((tmp_path / f"compare-{workload}.json").read_text())
    assert list(result["failed"]) == ["absent"]
    assert set(result["peers"]) == {"loaders", "torch"}
    for peer in result["peers"].values():
        assert peer["seen"] == peer["distinct"] == result["num_samples"]
        assert len(peer["rates"]) == 2
        assert min(peer["rates"]) > 0
    assert (tmp_path / f"compare-{workload}.png").stat().st_size > 1000
