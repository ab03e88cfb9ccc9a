"""Lightning, accelerate, transformers and ignite train and resume on the loader, on exactly the samples they should."""

import importlib
import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from loaders import DataLoader, ShardDataset
from tests.packdata.packing import pack_samples

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NUM, NUM_EPOCHS, BATCH_SIZE = 26, 3, 3  # as in framework_jobs.py


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "a"
    return pack_samples(path, NUM, fields=["score", "label"], format="parquet")


def run(framework: str, folder: Path, out: Path, world_size: int) -> list[dict[str, Any]]:
    """Return what each rank's model saw."""
    if importlib.util.find_spec(framework.split("-")[0]) is None:
        pytest.skip(f"{framework} is not installed")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={world_size}", str(ROOT / "tests/framework_jobs.py"),
        framework, str(folder), str(out),
    ]  # fmt: skip
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
        "HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1",  # tests/datasets is not Hugging Face's
    }  # fmt: skip
    done = subprocess.run(
        command, env=environment, cwd=out, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(world_size)]


def expected_training(folder: Path, rank: int, world_size: int) -> list[list[int]]:
    """Return the samples of every step of one rank, without any framework."""
    loader = DataLoader(
        ShardDataset(folder, fields=["sample_id"]), BATCH_SIZE, shuffle=True, seed=5,
        drop_last=True, rank=rank, world_size=world_size, num_workers=0,
    )  # fmt: skip
    return [batch.sample_id.tolist() for _ in range(NUM_EPOCHS) for batch in loader]


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("framework", ["lightning", "accelerate", "transformers"])
def test_a_run_that_was_cut_off_sees_what_an_undisturbed_one_would(
    folder: Path, tmp_path: Path, framework: str, world_size: int
) -> None:
    """Three epochs, cut off in the second; then evaluation sees each sample exactly once."""
    ranks = run(framework, folder, tmp_path, world_size)

    steps_per_epoch = NUM // (BATCH_SIZE * world_size)
    for rank, seen in enumerate(ranks):
        assert len(seen["first"]) == steps_per_epoch + 2
        assert seen["first"] + seen["second"] == expected_training(folder, rank, world_size)
    for kind in {"eval", "predict"} & set(ranks[0]):
        served = chain.from_iterable(chain.from_iterable(seen[kind] for seen in ranks))
        assert sorted(served) == list(range(NUM))
    if framework == "lightning":  # overfit_batches=2
        assert all(seen["overfit"] == seen["overfit"][:2] * NUM_EPOCHS for seen in ranks)
    if framework == "accelerate":  # every third step, and the last one of an epoch
        ends = sorted({*range(2, steps_per_epoch, 3), steps_per_epoch - 1})
        assert all(seen["synced"] == ends * 2 for seen in ranks)
    if framework == "transformers":  # by eval_dataset=, where one rank has a sample less
        assert all(sorted(seen["metrics"]) == list(range(NUM - 1)) for seen in ranks)
    if framework == "accelerate":
        served = chain.from_iterable(chain.from_iterable(seen["foreign"] for seen in ranks))
        assert sorted(served) == list(range(24))
        assert all(seen["gathered"] == list(range(25)) for seen in ranks)


@pytest.mark.parametrize(
    "framework", ["lightning-ends", "accelerate-ends", "transformers-ends", "ignite-ends"]
)
def test_a_run_resumes_from_any_step_also_from_the_last_of_an_epoch(
    folder: Path, tmp_path: Path, framework: str
) -> None:
    """Whether the framework skips batches, sets the epoch, or cycles through a shorter loader beside a longer one."""
    assert run(framework, folder, tmp_path, world_size=1) == [{"wrong": []}]
