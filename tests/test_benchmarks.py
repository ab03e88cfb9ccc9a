"""Every benchmark case runs, at a size that measures nothing."""

import ast
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def ran(script: str, *words: str, out: Path, status: int = 0) -> Any:
    """Run a benchmark into a folder; return its process."""
    command = [sys.executable, str(ROOT / "benchmarks" / script), *words, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stderr
    return done


def can_mount() -> bool:
    """Tell whether file systems in user space can be compiled and mounted."""
    tools = all(map(shutil.which, ("cc", "pkg-config", "fusermount3")))
    if not tools or not os.access("/dev/fuse", os.W_OK):
        return False
    return not subprocess.run(["pkg-config", "--exists", "fuse3"], check=False).returncode


NEEDS_FUSE = pytest.mark.skipif(
    not can_mount(), reason="needs libfuse 3, a C compiler and /dev/fuse"
)
CASES = [
    ("spine", ["--scale", "0.1"], 12),
    ("tokens", ["--tokens", "100000", "--workers", "1"], 4),
    ("arrays", ["--side", "80", "--volumes", "2", "--crops", "16"], 4),
    ("tables", ["--rows", "20000", "--csv-rows", "2000"], 2),
    ("cluster", ["--pictures", "20", "--parts", "3", "--items", "20000"], 12),
    ("trust", ["--scale", "0.06", "--seconds", "0.05", "--epochs", "21"], 19),
    ("remote", ["--scale", "0.2"], 13),
    pytest.param("storage", ["--scale", "0.02", "--late-us", "100"], 2, marks=NEEDS_FUSE),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes", "num_cases"),
    CASES,
    ids=["spine", "tokens", "arrays", "tables", "cluster", "trust", "remote", "storage"],
)
def test_cases_run(tmp_path: Path, name: str, sizes: list[str], num_cases: int) -> None:
    """Each contender of each case gives a figure, and the report names them all."""
    ran(f"{name}.py", *sizes, "--repeats", "1", out=tmp_path)

    cases = json.loads((tmp_path / f"results/{name}.json").read_text())["cases"]
    report = (tmp_path / "RESULTS.md").read_text()
    assert len(cases) == num_cases
    assert all(v > 0 for case in cases for values in case["results"].values() for v in values)
    assert all(name in report for case in cases for name in case["results"])


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
def test_codec_cases_run(tmp_path: Path) -> None:
    """Each codec and scale has bytes and a rate, in the report and in the JSON file."""
    ran("codecs.py", "--sizes", "32", "--samples", "24", "--repeats", "1", out=tmp_path)

    codecs = json.loads((tmp_path / "results/codecs.json").read_text())["cases"][0]["codecs"]
    assert len(codecs) == 11
    assert all(rate > 0 for codec in codecs for rate in codec["images_per_s"])
    assert all(f"| {codec['name']} |" in (tmp_path / "RESULTS.md").read_text() for codec in codecs)


@pytest.mark.slow
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
        "normalize", "dct", "augment", "gather", "prefetch", "jpeg", "edits"
    }  # fmt: skip
    assert all(row["value"] > 0 for row in result["rows"])
    assert result["conditions"]["dry_run"]
    assert bare.returncode == 2
    assert "no CUDA device" in bare.stderr


@pytest.mark.slow
def test_a_gpu_case_that_fails_or_hangs_takes_no_other_with_it(tmp_path: Path) -> None:
    """What the others found is written, and which failed; of the first, a package cannot be imported."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/pyarrow.py").write_text("raise ImportError('broken')")
    path = os.pathsep.join([str(tmp_path / "broken"), *sys.path])

    def run(out: Path, *options: str) -> Any:
        script = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "--dry-run", "cpu"]
        env = os.environ | {"PYTHONPATH": path}
        done = subprocess.run(
            [*script, "--out", str(out), *options], env=env, capture_output=True, timeout=200
        )
        assert done.returncode == 1
        return json.loads((out / "gpu.json").read_text())

    broken = run(tmp_path / "one", "--only", "dct", "augment")
    slow = run(tmp_path / "two", "--only", "augment", "--limit", "0.01")

    assert broken["failed"] == ["dct"]
    assert {row["case"] for row in broken["rows"]} == {"augment"}
    assert (slow["failed"], slow["rows"]) == (["augment"], [])


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["jpeg256", "raw28", "tokens", "table"])
def test_comparison_runs(tmp_path: Path, workload: str) -> None:
    """Ours and torch's loader serve the same values, all samples, and have rates; a peer that cannot run is listed."""
    sizes = ["--scale", "0.01", "--seconds", "0.1", "--repeats", "2", "--workers", "1"]
    where = ["--cache", str(tmp_path / "cache"), "--here", "--peers", "torch,absent"]

    ran("compare.py", workload, *sizes, *where, out=tmp_path, status=1)

    result = json.loads((tmp_path / f"results/compare-{workload}.json").read_text())
    assert list(result["failed"]) == ["absent"]
    assert set(result["peers"]) == {"loaders", "torch"}
    for peer in result["peers"].values():
        assert peer["seen"] == peer["distinct"] == result["num_samples"]
        assert len(peer["rates"]) == 2
        assert min(peer["rates"]) > 0
    assert (tmp_path / "results/compare.png").stat().st_size > 5_000
    assert "| torch DataLoader |" in (tmp_path / "RESULTS.md").read_text()


@pytest.mark.parametrize(
    "script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda at: at.stem
)
def test_what_a_benchmark_takes_of_the_packages_is_there(script: Path) -> None:
    """Few of them run here, and a name that moved would be noticed at the next measurement."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(
            ("loaders", "packdata")
        ):
            module = importlib.import_module(str(node.module))
            for each in node.names:
                assert hasattr(module, each.name) or find_spec(f"{node.module}.{each.name}")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmarks' modules can be imported, as they import each other."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.syspath_prepend(ROOT)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "told"), [
    (signal.SIGKILL, "the process ended"), (signal.SIGSTOP, "no answer within"),
])  # fmt: skip
def test_a_peer_that_dies_or_hangs_is_an_error_of_its_own(
    tmp_path: Path, scripts: None, monkeypatch: pytest.MonkeyPatch, number: int, told: str
) -> None:
    """Whatever becomes of a peer while the others take their turns, its own turn says so."""
    compare = importlib.import_module("compare")
    place = compare.place_of("torch", tmp_path, here=True)
    peer = compare.Running("torch", place, tmp_path / "torch.log")
    monkeypatch.setitem(compare.LIMIT_S, "cover", 0.5)
    monkeypatch.setattr(peer, "tell", lambda number: None)  # nobody wakes it up
    os.killpg(peer.process.pid, number)

    try:
        with pytest.raises(compare.PeerError, match=told):
            peer.ask("cover")
    finally:
        monkeypatch.undo()
        peer.close()


def test_ratios_say_who_is_faster_and_the_picture_is_drawn(tmp_path: Path, scripts: None) -> None:
    """Above 1 ours is; below, the ratio is bold; ranges that overlap are a tie; a peer that failed is named as such."""
    chart = importlib.import_module("chart")
    where = {"repeats": 2, "cpu": "a CPU", "cores": 2, "workers": 2}
    for name, theirs in (
        ("raw28", [500.0, 700.0]),
        ("tokens", [950.0, 1050.0]),
        ("table", [2000.0, 3000.0]),
    ):
        peers = {"loaders": {"rates": [900.0, 1100.0]}, "spdl": {"rates": theirs}}
        told = {"conditions": where, "unit": "rows/s", "peers": peers, "failed": {"grain": "no"}}
        (tmp_path / "results").mkdir(exist_ok=True)
        (tmp_path / f"results/compare-{name}.json").write_text(json.dumps(told))
        (tmp_path / f"results/compare-{name}.md").write_text(f"### {name}\n")

    table = chart.publish(tmp_path)

    assert "| SPDL | 1.67 | ≈ 1.00 | **0.40** |" in table
    assert "1,000 rows/s" in table
    page = (tmp_path / "RESULTS.md").read_text()
    assert table in page
    assert page.index("### raw28") < page.index("### table")
    assert 10_000 < (tmp_path / "results/compare.png").stat().st_size < 150_000
    (work, *_) = chart.read(tmp_path / "results")
    assert chart.ratio_cell(work, "grain") == "failed"


def wheel_of(folder: Path, **changes: tuple[str, str]) -> Path:
    """Return a wheel of this checkout, with some lines of `loaders/rng.py` replaced."""
    path = folder / "loaders-0.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for package in (ROOT / "loaders", ROOT / "tools/packdata"):
            for file in package.rglob("*.py"):
                text = file.read_text()
                for old, new in changes.values() if file.name == "rng.py" else ():
                    assert old in text
                    text = text.replace(old, new)
                wheel.writestr(str(file.relative_to(package.parent)), text)
        info = "loaders-0.0.0.dist-info"
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: loaders\nVersion: 0.0.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.slow
def test_two_versions_are_compared(tmp_path: Path) -> None:
    """This version does what it does itself; one that draws other numbers is told from it."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    same = wheel_of(tmp_path / "a")
    other = wheel_of(tmp_path / "b", draws=("0x9E3779B97F4A7C15", "0x9E3779B97F4A7C17"))
    script = [sys.executable, str(ROOT / "benchmarks/same.py"), "--examples", "30", "--wheel"]

    runs = [
        subprocess.run([*script, str(wheel)], capture_output=True, text=True, timeout=300)
        for wheel in (same, other)
    ]

    assert [run.returncode for run in runs] == [0, 1], [run.stdout + run.stderr for run in runs]
