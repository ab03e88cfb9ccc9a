from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loaders import DataLoader, ShardDataset
from loaders.bench.cli import build_parser, main
from loaders.bench.measure import Config, Result, Run
from loaders.bench.plot import MissingExtra, plot
from loaders.bench.sweep import Sweep
from loaders.limits import usable_cores
from loaders.tuning import cache_file, read_workers
from tests.packdata.packing import pack_samples

if TYPE_CHECKING:
    from pathlib import Path

QUICK = ["--seconds", "0.5", "--repeats", "1"]


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return pack_samples(tmp_path / "packed", 12)


def test_the_word_sweep_may_be_left_out(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command: a table with the chosen line marked, a verdict, the stages, what to change."""
    assert main([str(packed), *QUICK, "--size", "32"]) == 0

    out = capsys.readouterr().out
    assert "samples/s" in out
    assert "<- chosen" in out
    assert "verdict: " in out
    assert "read" in out
    assert "decode" in out


def test_json_has_every_repeat_and_the_verdict(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "sweep",
                str(packed),
                "--workers",
                "0",
                "1",
                "--seconds",
                "0.5",
                "--no-trials",
                "--size",
                "32",
                "--json",
            ]
        )
        == 0
    )

    found = json.loads(capsys.readouterr().out)
    assert [result["num_workers"] for result in found["results"]] == [0, 1]
    assert all(len(result["samples_per_s_repeats"]) == 3 for result in found["results"])
    assert found["verdict"]["bound"] in found["verdict"]["limits"] or found["verdict"][
        "bound"
    ] in ("overhead", "memory")
    assert found["page_cache"] == "warm"


def test_a_training_step_is_run_on_real_batches(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = "tests.bench.constructed:slow_step_of_batch"
    options = ["--workers", "1", "--batch-size", "4", "--size", "32", "--step", step]

    assert main([str(packed), *options, "--seconds", "2", "--repeats", "1"]) == 0

    out = capsys.readouterr().out
    assert "The training step is the limit" in out
    assert "with your step:" in out


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--step", "train"], "not of the form module:name"),
        (["--step", "tests.bench.constructed:__doc__"], "a str, not a function"),
        (["--step", "tests.bench.constructed:no_step"], "has no 'no_step'"),
        (["--plot", "no/such/sweep.png"], "there is no folder 'no/such'"),
        (["--plot", "sweep.gif"], "must end in .png, .svg, .pdf"),
        (["--device", "gpu"], "device must be one that torch knows"),
        (["--seconds", "-1"], "seconds above 0, got '-1'"),
        (["--workers", "-1"], "a whole number from 0, got '-1'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_would_fail_in_the_end_fails_before_anything_is_measured(
    packed: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    option: list[str],
    words: str,
) -> None:
    monkeypatch.setattr("loaders.bench.cli.run_sweep", None)
    if option[0] == "--plot":
        pytest.importorskip("matplotlib")

    try:
        code: Any = main([str(packed), *option])
    except SystemExit as ended:  # of argparse
        code = ended.code

    assert code in (1, 2)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("size", "how"), [("64", "at 73 px"), ("256", "as they are")])
def test_a_folder_of_images_is_told_what_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: str, how: str
) -> None:
    """Files in memory, and packing (at the size of the crop, if that is smaller), are tried on a sample."""
    import cv2

    rng = np.random.default_rng(0)
    for i in range(6):
        cv2.imwrite(str(tmp_path / f"{i}.jpg"), rng.integers(0, 255, (300, 300, 3), np.uint8))

    assert main([str(tmp_path), *QUICK, "--size", size, "--workers", "0", "--json"]) == 0

    done = capsys.readouterr()
    assert f"packing 6 images {how}" in done.err
    changes = json.loads(done.out)["verdict"]["changes"]
    assert any(f"pack {how} (packdata images {tmp_path}" in change["what"] for change in changes)


def test_recommend_prints_a_line_that_auto_then_uses(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recommend", str(packed), *QUICK, "--size", "0", "--keep"]) == 0

    line = capsys.readouterr().out.strip()
    dataset = ShardDataset(packed)
    made: dict[str, Any] = {"DataLoader": DataLoader, "dataset": dataset}
    loader = eval(line, made)
    assert isinstance(loader, DataLoader)
    assert cache_file().exists()
    assert read_workers(dataset, usable_cores()) == loader.num_workers
    assert DataLoader(dataset).num_workers == loader.num_workers


@pytest.mark.parametrize(("available", "is_kept"), [(1.0, True), (0.3, False)])
def test_what_is_recommended_is_kept_on_a_quiet_machine_only(
    packed: Path, monkeypatch: pytest.MonkeyPatch, available: float, is_kept: bool
) -> None:
    cache_file().unlink(missing_ok=True)
    monkeypatch.setattr("loaders.bench.stages.available_share", lambda *_: available)

    assert main(["recommend", str(packed), *QUICK, "--size", "0"]) == 0

    assert cache_file().exists() is is_kept


def test_plan_prints_what_is_served_and_floats(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", str(packed), "--size", "32", "--batch-size", "100", "--workers", "4"]

    assert main([*arguments, "--ranks", "2", "--ram", "decoded", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["as served"]["cache_copies"] == 2
    assert figures["as served"]["batch_bytes"] == 100 * (3 * 32 * 32 + 8)
    assert figures["with float32 for uint8"]["batch_bytes"] == 100 * (4 * 3 * 32 * 32 + 8)
    assert main(arguments) == 0
    assert "one batch" in capsys.readouterr().out


def test_doctor_prints_findings(
    packed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from loaders.bench import doctor

    monkeypatch.setattr(doctor, "CHECKS", (doctor.cores, doctor.file_system))

    assert main(["doctor", str(packed), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["findings"]) == 2
    assert main(["doctor"]) == 0
    assert "cores" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["sweep", "recommend", "plan", "doctor"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args([command, "--help"])
    assert "usage" in capsys.readouterr().out


def test_what_cannot_be_measured_is_an_error_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere"]) == 1
    assert capsys.readouterr().err.startswith("loaders.bench: 'nowhere' is no folder")


def a_sweep() -> Sweep:
    results = [
        Result(
            Config(workers, 64, backend),
            [Run(1000.0 * (workers + 1) + r, 0.1, [0.01], 64, 1.0, 0.1, 10**8) for r in range(3)],
        )
        for backend in ("thread", "process")
        for workers in (0, 1, 2)
    ]
    return Sweep("some/dataset", results)


def test_a_picture_is_written_with_a_line_per_backend_and_the_choice_marked(
    tmp_path: Path,
) -> None:
    plot(a_sweep(), tmp_path / "sweep.svg")

    assert "<svg" in (tmp_path / "sweep.svg").read_text()
    plot(a_sweep(), tmp_path / "sweep.png", subtitle="a machine")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"pip install matplotlib"):
        plot(a_sweep(), tmp_path / "sweep.png")


def test_the_choice_is_the_fewest_workers_that_are_about_as_fast() -> None:
    sweep = a_sweep()
    sweep.results[1].runs = [Run(2990.0, 0.1, [], 64, 1.0, 0.1)]

    assert sweep.best.config == Config(1, 64, "thread")
