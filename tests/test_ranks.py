"""What several training processes get together: real ones, started by ``torchrun``, that talk over gloo."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from loaders import DataLoader, ShardDataset
from tests.packdata.packing import pack_samples

ROOT = Path(__file__).parents[1]
NUM, BATCH_SIZE = 45, 4
TAKEN = 3  # steps of 4 that one process took before the run went on with others


def flat(parts: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


def loader(folder: Path, **settings: Any) -> DataLoader:
    dataset = ShardDataset(folder, fields=["label", "sample_id"])
    return DataLoader(
        dataset, BATCH_SIZE, shuffle=True, seed=3, num_workers=0, world_size=1, **settings
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_samples(tmp_path_factory.mktemp("packed") / "a", NUM, fields=["label", "score"])


def launch(folder: Path, out: Path, world_size: int) -> tuple[list[int], list[dict[str, Any]]]:
    """Return what one process had taken before, and what each of the others got."""
    alone = loader(folder)
    iterator = iter(alone)
    taken = flat(next(iterator).sample_id.tolist() for _ in range(TAKEN))
    (out / "state.json").write_text(json.dumps(alone.state_dict()))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={world_size}", str(ROOT / "tests/rank_jobs.py"),
        str(folder), str(out / "state.json"), str(out),
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, cwd=out, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return taken, [json.loads((out / f"{rank}.json").read_text()) for rank in range(world_size)]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_processes_share_each_epoch_as_promised(
    folder: Path, tmp_path: Path, world_size: int
) -> None:
    """Each promise, for mapped shards, for RAM, and through child processes."""
    taken, ranks = launch(folder, tmp_path, world_size)

    for kind in ("shards", "ram", "child"):
        parts = [rank[kind] for rank in ranks]
        check_training(folder, parts, world_size)
        check_evaluation(parts)
        check_resume(folder, taken, parts)
    assert sorted(flat(flat(rank["copied"]) for rank in ranks)) == list(range(NUM))
    kept = pickle.loads((tmp_path / "0.pickle").read_bytes())  # nobody is beside this process
    assert flat(batch.sample_id.tolist() for batch in kept) == list(range(NUM))
    assert all(flat(rank["alone"]) == list(range(NUM)) for rank in ranks)
    for rank in ranks:
        assert rank["warnings"] == [0, 1]  # not before this rank's part begins anew
        if world_size == 1:
            assert rank["error"] is None
        else:
            assert (
                f"WORLD_SIZE is {world_size}, but torch.distributed is not init" in rank["error"]
            )


def check_training(folder: Path, parts: list[dict[str, Any]], world_size: int) -> None:
    """Equal full steps, and on whatever many ranks the order that one process has."""
    num_steps = NUM // (BATCH_SIZE * world_size)
    alone = loader(folder, drop_last=True)
    for epoch in range(2):
        served = [part["train"][epoch] for part in parts]
        assert [len(steps) for steps in served] == [num_steps] * world_size
        together = flat(flat(step) for step in zip(*served, strict=True))
        order = flat(batch.sample_id.tolist() for batch in alone)
        assert together == order[: len(together)]
    assert {part["train_len"] for part in parts} == {num_steps}


def check_evaluation(parts: list[dict[str, Any]]) -> None:
    """Each sample exactly once, uneven or marked; wrapped, each at least once in equal steps."""
    exact = [flat(part["exact"]) for part in parts]
    assert sorted(flat(exact)) == list(range(NUM))
    assert max(map(len, exact)) - min(map(len, exact)) <= BATCH_SIZE
    assert sorted(flat(flat(part["marked"]) for part in parts)) == list(range(NUM))
    assert len({len(part["marked"]) for part in parts} | {p["marked_len"] for p in parts}) == 1
    assert len({len(flat(part["wrapped"])) for part in parts}) == 1
    assert set(flat(flat(part["wrapped"]) for part in parts)) == set(range(NUM))


def check_resume(folder: Path, taken: list[int], parts: list[dict[str, Any]]) -> None:
    """From one process to several, and from them to one."""
    assert sorted(taken + flat(flat(part["resumed"]) for part in parts)) == list(range(NUM))
    assert all(part["state"] == parts[0]["state"] for part in parts)
    alone = loader(folder, pad=False)
    alone.load_state_dict(parts[0]["state"])
    rest = flat(batch.sample_id.tolist() for batch in alone)
    assert sorted(flat(part["before_break"] for part in parts) + rest) == list(range(NUM))
