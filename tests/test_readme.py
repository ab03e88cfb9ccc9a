"""Every command and code block of the README runs as written, in the order of the page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from loaders import DataLoader, RAMDataset
from loaders.codecs.heads import picture_size

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the page assumes it: photos with classes in two splits, scenes and scans with masks, plays."""
    photos = ROOT / "tests/data/photos"
    for split, which in (("train", slice(0, 3)), ("val", slice(3, 4))):
        for kind in photos.iterdir():
            (tmp_path / "photos" / split / kind.name).mkdir(parents=True)
            for file in sorted(kind.iterdir())[which]:
                shutil.copy(file, tmp_path / "photos" / split / kind.name)
    (tmp_path / "scenes").mkdir()
    (tmp_path / "scene-masks").mkdir()
    for file in sorted(photos.glob("boats/*.jpg")):
        shutil.copy(file, tmp_path / "scenes")
        height, width = picture_size(file.read_bytes())
        mask = np.arange(height * width, dtype=np.int64).reshape(height, width) % 5
        cv2.imwrite(str(tmp_path / "scene-masks" / f"{file.stem}.png"), mask.astype(np.uint8))
    (tmp_path / "scans").mkdir()
    (tmp_path / "scan-masks").mkdir()
    for i in range(4):
        scan = np.arange(24 * 40 * 48).reshape(24, 40, 48) % 1000 - 100 * i
        np.save(tmp_path / f"scans/{i}.npy", scan.astype(np.int16))
        np.save(tmp_path / f"scan-masks/{i}.npy", scan > 0)
    real = ROOT / "tests/data/real"
    (tmp_path / "plays").mkdir()
    shutil.copy(real / "shakespeare.txt", tmp_path / "plays")
    shutil.copy(real / "taxis.csv", tmp_path)
    head, *rows = (real / "diamonds.csv").read_text().splitlines()
    for name, part in (("diamonds", rows[:2000]), ("diamonds-test", rows[2000:])):
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *part]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_blocks_run(folder: Path) -> None:
    """Commands by the shell with this environment's commands, code as one script per block."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    names: dict[str, Any] = {}

    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, "README.md", "exec"), names)
        elif (
            "tools/" not in block
        ):  # those two install; one is tested below, the other runs this test
            command = ["sh", "-e", "-c", block]
            done = subprocess.run(
                command,
                env=os.environ | {"PATH": path},
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"

    assert (folder / "sheet.png").stat().st_size > 1000
    assert len(BLOCKS) > 12


def test_the_trainer_of_the_page_gives_our_loader(folder: Path) -> None:
    """The block that needs a framework."""
    transformers = pytest.importorskip("transformers")
    (block,) = re.findall(r"^```py\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    names = {
        "transformers": transformers,
        "DataLoader": DataLoader,
        "dataset": RAMDataset.from_arrays(x=torch.zeros(9)),
    }

    exec(compile(block, "README.md", "exec"), names)
    trainer = object.__new__(names["MyTrainer"])
    trainer.args = SimpleNamespace(per_device_train_batch_size=4)

    assert [batch["x"].shape for batch in trainer.get_train_dataloader()] == [(4,), (4,)]


@pytest.mark.parametrize("source", [pytest.param("scenes", marks=pytest.mark.slow), "photos"])
def test_quickstart_runs_on_a_folder(folder: Path, source: str) -> None:
    """The quickstart's own steps, on a folder without classes and on one of splits, in this environment."""
    command = [
        sys.executable,
        str(ROOT / "tools/quickstart.py"),
        source,
        "--out",
        "out",
        "--steps",
        "3",
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=200)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "images/s" in done.stdout
    assert (folder / "out/sheet.png").exists()


def test_every_subcommand_is_on_the_page() -> None:
    """What the command can do is what the page shows."""
    from packdata.cli import build_parser

    commands = build_parser().parsers
    page = (ROOT / "README.md").read_text()

    assert commands
    assert not {name for name in commands if f"packdata {name}" not in page}


def test_named_tests_exist() -> None:
    """The page's table of guarantees names files that are there."""
    files = re.findall(r"`(tests/[\w/.]+)`", (ROOT / "README.md").read_text())

    assert files
    assert not [file for file in files if not (ROOT / file).exists()]
