"""What type checkers know of samples and batches: mypy, strictly, with every run of it; pyright where it is installed.

``assert_type`` says what checkers must find, and each test looks whether it is so.
"""

import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, assert_type

import numpy as np
import pytest
from torch import Tensor

from loaders import DataLoader, Fields, Mixture, RAMDataset, ShardDataset, TokenWindows, concat

ROOT = Path(__file__).resolve().parent.parent


class Sound(NamedTuple):
    """A batch with a field that is no tensor."""

    wave: list[Tensor]
    label: Tensor


@pytest.fixture
def rows() -> RAMDataset:
    """Eight rows of two fields."""
    return RAMDataset.from_arrays(x=np.zeros((8, 3), np.float32), label=np.arange(8))


def sounds(folder: Path) -> Path:
    """Pack arrays of different lengths."""
    from loaders.schema import Array, Label
    from packdata import Writer

    with Writer(folder, {"wave": Array("float32", (None,)), "label": Label()}) as writer:
        for number in range(4):
            writer.add(wave=np.zeros(number + 1, np.float32), label=number)
    return folder


def test_samples_and_batches_hold_tensors(rows: RAMDataset) -> None:
    sample = rows[0]
    assert_type(sample, Fields)
    assert_type(sample.x, Tensor)
    assert isinstance(sample, Fields)
    assert isinstance(sample.x, Tensor)
    assert_type(rows[2:4], RAMDataset)
    assert_type(concat([rows, rows])[0].label, Tensor)
    for x, label in DataLoader(rows, 4):
        assert_type(x, Tensor)
        assert_type(label, Tensor)
        assert label.shape == (4,)
    for batch in DataLoader(Mixture([rows, rows]), 4, shuffle=None):
        assert_type(batch, Fields)
        assert_type(batch._asdict(), dict[str, Tensor])
        assert isinstance(batch, Fields)


def test_an_iterator_is_of_batches_and_can_be_closed(rows: RAMDataset) -> None:
    loader = DataLoader(rows, 4, shuffle=True)
    batches = iter(loader)
    assert_type(next(batches), Fields)
    batches.close()
    assert_type(next(loader.forever()), Fields)
    assert_type(loader.epoch, int)
    assert loader.epoch == 0


def test_whoever_makes_other_batches_says_what(rows: RAMDataset) -> None:
    def halve(samples: Any) -> dict[str, float]:
        return {"label": sum(sample.label.item() for sample in samples) / 2}

    assert_type(next(iter(DataLoader(rows, 4, collate_fn=halve))), dict[str, float])
    assert_type(next(iter(DataLoader(rows, 4, as_dict=True))), Any)
    assert_type(next(iter(DataLoader([1, 2, 3], num_workers=0))), Any)
    named: DataLoader[dict[str, Tensor]] = DataLoader(rows, 4, as_dict=True)
    assert_type(next(iter(named))["label"], Tensor)
    assert list(next(iter(named))) == ["x", "label"]


def test_fields_of_other_types_can_be_said(tmp_path: Path) -> None:
    dataset: ShardDataset[Sound] = ShardDataset(sounds(tmp_path / "a"))
    for waves, labels in DataLoader(dataset, 4):
        assert_type(waves, list[Tensor])
        assert_type(labels, Tensor)
        assert [len(wave) for wave in waves] == [1, 2, 3, 4]
    assert_type(dataset.select([1]), ShardDataset[Sound])
    assert_type(RAMDataset(dataset, progress=False), RAMDataset[Sound])


def test_what_is_said_of_types_is_not_pickled(tmp_path: Path) -> None:
    class Local(NamedTuple):
        wave: list[Tensor]
        label: Tensor

    dataset = ShardDataset[Local](sounds(tmp_path / "a"))
    loader = DataLoader[Local](dataset, 2)

    assert_type(next(iter(loader)).wave, list[Tensor])
    assert len(pickle.loads(pickle.dumps(loader)).dataset) == len(dataset)


def test_a_transform_says_what_a_sample_is(tmp_path: Path) -> None:
    def length(sample: Any) -> int:
        return len(sample.wave)

    dataset = ShardDataset(sounds(tmp_path / "a"), transform=length)
    assert_type(dataset[1], int)
    assert [*dataset] == [1, 2, 3, 4]


def checked(windows: TokenWindows) -> tuple[Tensor, int]:
    """Never called: checkers read it."""
    for tokens, targets in DataLoader(windows, 4):
        return tokens + targets, windows.vocab_size
    return windows[0].tokens, 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="pyright runs in node")
def test_pyright_agrees() -> None:
    pytest.importorskip("pyright")
    files = [*(ROOT / "examples").glob("*.py"), ROOT / "tests/test_types.py"]
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-4000:]
