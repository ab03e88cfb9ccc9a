"""What was measured is told whatever fails beside it; and what is asked for is done, or it is said that it is not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from loaders import DataLoader
from loaders.bench import cli
from loaders.bench.cli import main
from loaders.bench.measure import Config
from loaders.bench.sweep import Sweep
from tests.bench.constructed import Stream, a_result
from tests.packdata.packing import pack_samples

HERE = "tests.bench.test_cli_failures"
QUICK = ["--seconds", "0.1", "--repeats", "1"]
FEW = ["--workers", "0", "--batch-size", "64", *QUICK]


@pytest.fixture(autouse=True)
def few_samples_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaders.bench.sweep._FEW_SAMPLES", 0)


class LongStream(Stream):
    """It knows how much there is of it."""

    def __len__(self) -> int:
        return 4096


def bad_step(batch: Any) -> None:
    """Break."""
    raise ValueError("no good")


def no_factory() -> Any:
    """Break, too."""
    raise RuntimeError("boom")


def lines_of(text: str, first: str) -> list[str]:
    """Return the lines from the one that begins so on."""
    lines = text.splitlines()
    return lines[next(i for i, line in enumerate(lines) if line.startswith(first)) :]


def test_a_step_that_raises_is_an_error_below_the_figures(
    swept: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The traceback shows the user's own code; one line says what it was."""
    assert main(["tests.bench.constructed:instant", *FEW, "--step", f"{HERE}:bad_step"]) == 1

    out, said = capsys.readouterr()
    trace = lines_of(said, "Traceback")
    assert __file__ in "".join(trace)
    assert trace[-2:] == ["ValueError: no good", "loaders.bench: ValueError: no good"]
    assert "* chosen: " in out


def test_a_factory_that_raises_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([f"{HERE}:no_factory", *FEW]) == 1

    out, said = capsys.readouterr()
    assert out == ""
    assert said.splitlines()[0] == "Traceback (most recent call last):"
    assert __file__ in said
    assert said.splitlines()[-1] == "loaders.bench: RuntimeError: boom"


@pytest.mark.parametrize("command", ["sweep", "recommend", "plan"])
def test_a_shard_that_is_missing_is_an_error_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    packed = pack_samples(tmp_path / "d", 6)
    for shard in packed.glob("shard-*"):
        shard.unlink()

    assert main([command, str(packed)]) == 1

    said = capsys.readouterr().err
    assert "the shard is missing. Run 'packdata verify'" in said.splitlines()[-1]
    assert "Traceback" not in said


@pytest.mark.parametrize("command", ["sweep", "recommend"])
def test_where_every_setting_failed_in_some_run_nothing_is_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    result = a_result(Config(0, 64, "process"), 2)
    result.error = "OSError: no room"
    monkeypatch.setattr(cli, "run_sweep", lambda *_, **options: Sweep("d", [result]))

    assert main([command, "tests.bench.constructed:instant", *QUICK]) == 1

    out, said = capsys.readouterr()
    assert said.endswith("loaders.bench: every setting failed in some run: OSError: no room\n")
    assert out == ""


@pytest.mark.parametrize("command", ["sweep", "plan", "recommend"])
def test_a_stream_with_a_length_is_a_stream(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setattr(
        "loaders.bench.sweep.time_target", lambda _, config, **more: a_result(config, 1).runs[0]
    )
    options = [
        "--batch-size",
        "16",
        "--json",
        *(QUICK if command != "plan" else ["--workers", "2"]),
    ]

    assert main([command, f"{HERE}:LongStream", *options]) == 0

    found = json.loads(capsys.readouterr().out)
    if command == "plan":
        assert found["plan"]["batch_bytes"] == 16 * 4
    else:
        assert found["chosen"]["num_workers"] <= 1
    if command == "recommend":
        loader = eval(found["line"], {"DataLoader": DataLoader, "dataset": LongStream()})
        assert next(iter(loader)).tolist() == list(range(16))


@pytest.mark.parametrize(
    ("size", "is_of_one_size", "is_said"),
    [("32", True, True), ("0", True, False), (None, True, False), ("32", False, False)],
)
def test_a_size_that_changes_nothing_is_said_to(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    size: str | None,
    is_of_one_size: bool,
    is_said: bool,
) -> None:
    image = "pixels" if is_of_one_size else "image"
    packed = pack_samples(tmp_path / "d", 6, fields=[image, "label"])

    assert main(["plan", str(packed), *([] if size is None else ["--size", size])]) == 0

    said = "--size 32 is left out: only folders of images of many sizes are cropped"
    assert (said in capsys.readouterr().err) is is_said


def test_loose_images_of_one_size_are_measured_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(4):
        cv2.imwrite(str(tmp_path / f"{i}.png"), np.full((40, 30, 3), i, np.uint8))
    options = ["--size", "0", "--workers", "0", "--json"]

    assert main([str(tmp_path), *QUICK, *options]) == 0

    out, said = capsys.readouterr()
    assert json.loads(out)["facts"]["sample_bytes"] == 3 * 40 * 30 + 8
    assert "crops" not in said


@pytest.mark.parametrize(
    ("option", "word"), [([], ", device='cuda')"), (["--device", "cpu"], ")")]
)
def test_the_line_has_the_device_that_was_asked_for(
    judged: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: list[str],
    word: str,
) -> None:
    """As on a machine with a GPU."""
    swept = Sweep("d", [a_result(Config(1, 64, "process"))])
    monkeypatch.setattr(cli, "run_sweep", lambda *_, **options: swept)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)

    assert main(["recommend", "tests.bench.constructed:instant", *QUICK, *option]) == 0

    line = (
        "DataLoader(dataset, batch_size=64, shuffle=True, num_workers=1, persistent_workers=True"
    )
    assert capsys.readouterr().out == f"{line}{word}\n"


@pytest.mark.slow
def test_who_reads_no_further_is_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loaders.bench", "doctor", str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, told = process.communicate(timeout=100)

    assert process.returncode == 0
    assert told == ""
