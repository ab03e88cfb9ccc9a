"""The training example of benchmarks/train.py, as people will copy it: alone, killed and resumed, on two ranks."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packdata
from loaders.schema import Image, Label

SCRIPT = Path(__file__).parents[1] / "benchmarks/train.py"
NUM, NUM_VAL, BATCH_SIZE = 40, 21, 8
SETTINGS = [
    "--batch-size",
    f"{BATCH_SIZE}",
    "--model",
    "tiny",
    "--size",
    "32",
    "--workers",
    "1",
    "--print-every",
    "1",
]


@pytest.fixture(scope="module")
def train() -> Any:
    spec = importlib.util.spec_from_file_location("train_example", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)  # as for a script
        spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in one order, here and in the processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes that a glance tells apart: bright above, or bright below."""
    folder = tmp_path_factory.mktemp("packed")
    fields = {
        "image": Image(size=(48, 48), codec="raw"),
        "label": Label(classes=("above", "below")),
    }
    for split, num in (("train", NUM), ("val", NUM_VAL)):
        rng = np.random.default_rng(num)
        samples = []
        for i in range(num):
            image = rng.integers(0, 160, (48, 48, 3), np.uint8)
            image[24 * (i % 2) : 24 * (i % 2) + 24] += 95
            samples.append({"image": image, "label": i % 2})
        packdata.pack(samples, folder / split, fields, format="parquet")
    return folder


def run(train: Any, packed: Path, out: Path, *options: str) -> dict[str, float]:
    arguments = ["run", str(packed), "--out", str(out), "--record", str(out), *SETTINGS, *options]
    found: dict[str, float] = train.run(train.parse(arguments))
    return found


def steps_of(out: Path, rank: int = 0) -> list[dict[str, Any]]:
    """Return the logged training steps of a rank."""
    lines = [json.loads(line) for line in (out / f"rank{rank}.jsonl").read_text().splitlines()]
    return [line for line in lines if "step" in line]


def evaluated(out: Path, rank: int = 0) -> list[int]:
    """Return the samples that a rank evaluated."""
    lines = [json.loads(line) for line in (out / f"rank{rank}.jsonl").read_text().splitlines()]
    return list(chain.from_iterable(line["samples"] for line in lines if "evaluated" in line))


def launch(packed: Path, out: Path, *options: str, ranks: int = 1) -> subprocess.Popen[str]:
    """Start a run as a process of its own, or as several."""
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [
        sys.executable, *(several if ranks > 1 else []), str(SCRIPT), "run", str(packed),
        "--out", str(out), "--record", str(out), *SETTINGS, *options,
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_the_loss_falls_and_every_sample_is_evaluated_once(
    train: Any, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(train, packed, tmp_path, "--epochs", "8", "--lr", "2")

    losses = [step["loss"] for step in steps_of(tmp_path)]
    assert losses[0] == pytest.approx(np.log(2), abs=0.4)
    assert np.mean(losses[-5:]) < 0.3
    assert found["val_accuracy"] > 0.9
    assert found["val_samples"] == NUM_VAL
    assert sorted(evaluated(tmp_path)) == sorted([*range(NUM_VAL)] * 8)
    assert 0 <= found["data_wait"] <= 1
    assert (
        len(re.findall(r"^epoch \d step \d+/40 .*data_wait", capsys.readouterr().out, re.M)) == 40
    )


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    train: Any, packed: Path, tmp_path: Path
) -> None:
    """`kill -9` in an epoch; the same command then delivers the very samples, to the same weights."""
    options = ("--epochs", "12", "--checkpoint-every", "3")
    undisturbed = run(train, packed, tmp_path / "whole", *options)
    whole = steps_of(tmp_path / "whole")
    out = tmp_path / "killed"
    process = launch(packed, out, *options)
    try:
        wait_for_lines(out / "rank0.jsonl", 8, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=100)
    killed = steps_of(out)

    resumed = run(train, packed, out, *options)

    rest = steps_of(out)[len(killed) :]
    assert 0 < rest[0]["step"] <= len(killed) < len(whole)
    assert killed == whole[: len(killed)]
    assert rest == whole[rest[0]["step"] :]
    assert (resumed["loss"], resumed["val_loss"]) == (undisturbed["loss"], undisturbed["val_loss"])
    assert_same_weights(tmp_path / "whole", out)


def wait_for_lines(path: Path, num: int, process: subprocess.Popen[str]) -> None:
    began = time.monotonic()
    while not path.exists() or path.read_bytes().count(b"\n") < num:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() - began < 100
        time.sleep(0.002)


def assert_same_weights(a: Path, b: Path, rtol: float = 0, atol: float = 0) -> None:
    states = [torch.load(out / "checkpoint.pt", weights_only=True)["model"] for out in (a, b)]
    torch.testing.assert_close(*states, rtol=rtol, atol=atol)


def test_a_run_stops_between_epochs_and_is_extended(
    train: Any, packed: Path, tmp_path: Path
) -> None:
    """The end of an epoch is a place to resume, too; a finished run only evaluates again."""
    run(train, packed, tmp_path, "--epochs", "1")
    again = run(train, packed, tmp_path, "--epochs", "1")
    run(train, packed, tmp_path, "--epochs", "2")

    assert [step["step"] for step in steps_of(tmp_path)] == list(range(10))
    assert again["val_samples"] == NUM_VAL
    assert "loss" not in again


def test_accumulation_is_a_larger_batch(train: Any, packed: Path, tmp_path: Path) -> None:
    """In equal parts, and in unequal ones."""
    run(train, packed, tmp_path / "1", "--epochs", "2")
    for parts in ("2", "3"):
        run(train, packed, tmp_path / parts, "--epochs", "2", "--accumulate", parts)

        pairs = zip(steps_of(tmp_path / "1"), steps_of(tmp_path / parts), strict=True)
        for one, several in pairs:
            assert one["samples"] == several["samples"]
            assert one["loss"] == pytest.approx(several["loss"], rel=1e-4)
        assert_same_weights(tmp_path / "1", tmp_path / parts, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_two_ranks_train_as_one_and_evaluate_each_sample_once(
    train: Any, packed: Path, tmp_path: Path
) -> None:
    """Under torchrun: the same batches, cut in two; weights that stay equal; then one rank goes on."""
    run(train, packed, tmp_path / "one", "--epochs", "2")
    two = tmp_path / "two"
    process = launch(packed, two, "--epochs", "2", "--accumulate", "2", ranks=2)
    output = process.communicate(timeout=200)[0]
    assert process.returncode == 0, output
    assert "Warning" not in output, output
    assert output.count(f"val_samples {NUM_VAL}\n") == 2, output

    ranks = [steps_of(two, rank) for rank in range(2)]
    for alone, *parts in zip(steps_of(tmp_path / "one"), *ranks, strict=True):
        assert alone["samples"] == list(chain.from_iterable(part["samples"] for part in parts))
        assert alone["loss"] == pytest.approx(np.mean([part["loss"] for part in parts]), rel=1e-4)
    assert_same_weights(tmp_path / "one", two, rtol=1e-3, atol=1e-5)
    together = chain(evaluated(two, 0), evaluated(two, 1))
    assert sorted(together) == sorted([*range(NUM_VAL)] * 2)

    for out in (tmp_path / "one", two):
        run(train, packed, out, "--epochs", "3")
    assert [s["samples"] for s in steps_of(two)[10:]] == [
        s["samples"] for s in steps_of(tmp_path / "one")[10:]
    ]


@pytest.mark.parametrize("options", [("--ram",), ("--precision", "bf16"), ("--seed", "3")])
def test_options_run(train: Any, packed: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    assert np.isfinite(run(train, packed, tmp_path, "--epochs", "1", *options)["val_loss"])


@pytest.mark.slow
def test_compiled_is_the_same_to_rounding(train: Any, packed: Path, tmp_path: Path) -> None:
    """In a process of its own; the checkpoint has the names of the model, and both go on from it."""
    run(train, packed, tmp_path / "plain", "--epochs", "1")
    process = launch(packed, tmp_path / "compiled", "--epochs", "1", "--compile")
    output = process.communicate(timeout=280)[0]
    assert process.returncode == 0, output

    assert_same_weights(tmp_path / "plain", tmp_path / "compiled", rtol=1e-3, atol=1e-4)
    assert run(train, packed, tmp_path / "compiled", "--epochs", "1")["val_samples"] == NUM_VAL


def test_one_folder_is_split(train: Any, packed: Path, tmp_path: Path) -> None:
    """A tenth of each class is held out, and nothing of it trained on."""
    found = run(train, packed / "train", tmp_path, "--epochs", "1")
    parts = train.open_datasets(train.parse(["run", str(packed / "train")]))
    images = [{image.numpy().tobytes() for image, _ in part.replace(augment=[])} for part in parts]

    assert found["val_samples"] == NUM // 10
    assert [len(part) for part in images] == [NUM - NUM // 10, NUM // 10]
    assert not images[0] & images[1]
    assert parts[1].column("label").tolist().count(0) == NUM // 20


def test_seeds_change_the_training_and_not_the_evaluation(train: Any, packed: Path) -> None:
    """Order and crops of training differ by seed and epoch; evaluation sees the same pixels each time."""
    arguments = ["run", str(packed), *SETTINGS]
    pairs = [
        train.make_loaders(train.parse([*arguments, "--seed", seed]), 1, torch.device("cpu"))
        for seed in "01"
    ]
    trained, evaluated_on = zip(*pairs, strict=True)

    def pixels(loader: Any) -> bytes:
        return torch.cat([batch.image for batch in loader]).numpy().tobytes()

    assert len({pixels(loader) for loader in trained * 2}) == 4
    assert len({pixels(loader) for loader in evaluated_on * 2}) == 1


def test_what_does_not_fit_is_said(
    train: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        run(train, packed, tmp_path, "--batch-size", "41")
    args = train.parse(["run", str(packed), "--batch-size", "9"])
    with pytest.raises(SystemExit, match="--batch-size"):
        train.make_loaders(args, 2, torch.device("cpu"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SystemExit, match="tensorboard"):
        train.tensorboard(tmp_path)


@pytest.mark.slow
def test_every_step_of_the_ladder_runs(tmp_path: Path) -> None:
    """At a size that measures nothing: each has times and losses, and all draw, print and explain the same."""
    photos = Path(__file__).parent / "data/photos"
    sizes = ["--num", "24", "--batch-size", "8", "--rounds", "1", "--size", "64", "--workers", "1"]
    sizes += ["--lr", "0.001"]  # the same first weights, hardly changed
    command = [
        sys.executable,
        str(SCRIPT),
        "compare",
        "--photos",
        str(photos),
        "--out",
        str(tmp_path),
        *sizes,
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=280)

    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "results/train.json").read_text())
    assert len(told["summary"]) == 9
    assert all(
        len(seen["losses"]) == 2 and seen["train_s"][0] > 0 for seen in told["epochs"].values()
    )
    first = [row["first_loss"] for row in told["summary"].values()]
    assert max(first) - min(first) < 0.3
    table = (tmp_path / "results/train.md").read_text()
    assert all(f"| {name} |" in table for name in told["summary"])
    assert (tmp_path / "results/train.png").stat().st_size > 10_000
