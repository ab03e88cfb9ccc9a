"""One rank of a training that is stopped, killed and goes on; ``test_resume.py`` starts it. ``resume_jobs.py JSON``.

Its model is the samples that it has seen, in each epoch, saved together with the loader's state.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from loaders import DataLoader, RAMDataset, ShardDataset

EPOCHS = 2


class Job(NamedTuple):
    """What all ranks are given.

    Attributes:
        place: The dataset's folder, or its URL.
        cache: Of a URL.
        storage: Of a URL.
        checkpoint: The file that is gone on from, and saved to.
        meeting: The file over which the ranks find each other.
        is_shared: Whether it is read from a copy in memory, one for all ranks.
        backend: What makes batches.
        batch_size: Of each rank.
        stop_at: After how many steps of this turn the state is saved, and it ends; 0: never.
    """

    place: str
    cache: Any
    storage: Any
    checkpoint: str
    meeting: str
    is_shared: bool = False
    backend: Any = "thread"
    batch_size: int = 8
    stop_at: int = 0


def opened(job: Job) -> Any:
    options = {"cache": job.cache, "storage": job.storage} if "://" in job.place else {}
    dataset = ShardDataset(job.place, fields=["values", "sample_id"], **options)
    return RAMDataset(dataset, shared=True, progress=False) if job.is_shared else dataset


def saved(path: Path) -> dict[str, Any]:
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    return {"seen": [[] for _ in range(EPOCHS)], "loader": None}


def save(path: Path, model: dict[str, Any], loader: Any) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(model | {"loader": loader.state_dict()}))
    os.replace(beside, path)


def together(loader: Any) -> Iterator[list[int]]:
    """Yield the samples of all ranks at each step, until none has any; their bytes are those of their numbers."""
    batches = iter(loader)
    while True:
        batch: list[Any] = next(batches, [])
        assert all((each.values == each.sample_id % 251).all() for each in batch)
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, [int(each.sample_id) for each in batch])
        if not any(found):
            return
        yield [row for each in found for row in each]


def train(job: Job) -> None:
    loader: Any = DataLoader(  # a list is read alone, not many batches at once: shards are as small as batches here
        opened(job), job.batch_size, shuffle="lanes", pad=False, seed=3, num_workers=1,
        backend=job.backend, collate_fn=list,
    )  # fmt: skip
    path = Path(job.checkpoint)
    model, num_steps = saved(path), 0
    if model["loader"] is not None:
        loader.load_state_dict(model["loader"])
    dist.barrier()  # nobody saves before all have read
    for epoch in range(loader.epoch, EPOCHS):
        for rows in together(loader):
            model["seen"][epoch] += rows
            num_steps += 1
            is_last = num_steps == job.stop_at
            if dist.get_rank() == 0 and (is_last or num_steps % 3 == 0):
                save(path, model, loader)
                sys.stdout.write(f"{num_steps}\n")
                sys.stdout.flush()
            if is_last:
                return
        if dist.get_rank() == 0:
            save(path, model, loader)


def main(given: str) -> None:
    job = Job(**json.loads(given))
    rank, world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    dist.init_process_group("gloo", f"file://{job.meeting}", rank=rank, world_size=world_size)
    train(job)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
