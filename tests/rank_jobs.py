"""One of several training processes; ``test_ranks.py`` starts them through ``torchrun``.

Usage: ``rank_jobs.py DATASET STATE OUT``. What this rank was given goes to ``OUT/RANK.json``, by the name of the
check. No loader here is told its rank: all ask ``torch.distributed``.
"""

import json
import os
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from loaders import DataLoader, LoadersError, RAMDataset, ShardDataset

BATCH_SIZE = 4


def steps(loader: DataLoader) -> list[list[int]]:
    """Serve one epoch, or its rest; real rows only where they are marked."""
    served = []
    for batch in loader:
        ids = batch.sample_id if batch.valid is None else batch.sample_id[batch.valid]
        served.append(ids.tolist())
    return served


def error_before_init(dataset: Any) -> str | None:
    loader = DataLoader(dataset, BATCH_SIZE)
    try:
        iter(loader)
        len(loader)
    except LoadersError as error:
        return str(error)
    return None


def check(dataset: Any, state: dict[str, Any], **settings: Any) -> dict[str, Any]:
    def loader(**more: Any) -> DataLoader:
        return DataLoader(dataset, BATCH_SIZE, shuffle=True, seed=3, **settings, **more)

    train, marked = loader(drop_last=True), loader(pad="mark")
    seen: dict[str, Any] = {
        "train": [steps(train) for _ in range(2)],
        "train_len": len(train),
        "wrapped": steps(loader()),
        "exact": steps(loader(pad=False)),
        "marked": steps(marked),
        "marked_len": len(marked),
    }
    resumed = loader(pad=False)
    resumed.load_state_dict(state)
    seen["resumed"] = steps(resumed)
    broken_off = loader(drop_last=True)
    iterator = iter(broken_off)
    seen["before_break"] = next(iterator).sample_id.tolist()
    seen["state"] = broken_off.state_dict()
    return seen


def copied(dataset: Any, out: str) -> list[list[int]]:
    """Serve this rank's part by the loader that the first one has made, and asked for its length; keep that."""
    loader = DataLoader(dataset, BATCH_SIZE, pad=False)
    len(loader)
    box = [pickle.dumps(loader)]
    dist.broadcast_object_list(box, src=0)
    Path(out, f"{os.environ['RANK']}.pickle").write_bytes(box[0])
    return steps(pickle.loads(box[0]))


def shaken(sample: Any, generator: Any) -> Any:
    """Draw nothing, but say that it does."""
    return sample


def warnings_of(dataset: Any) -> list[int]:
    """Count the warnings of two epochs of torch's loader, of which each rank has a part."""
    random, counts = dataset.replace(transform=shaken), []
    sampler: Any = torch.utils.data.DistributedSampler(random)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            list(torch.utils.data.DataLoader(random, BATCH_SIZE, sampler=sampler))
        counts.append(len(found))
    return counts


def alone_afterwards(dataset: Any) -> list[list[int]]:
    """Serve all of it, by a loader that was used by several, when this process is by itself."""
    loader = DataLoader(dataset, BATCH_SIZE, pad=False)
    len(loader)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    return steps(loader)


def main(folder: str, state_file: str, out: str) -> None:
    shards = ShardDataset(folder, fields=["label", "sample_id"])
    state = json.loads(Path(state_file).read_text())
    result: dict[str, Any] = {"error": error_before_init(shards)}
    dist.init_process_group("gloo")
    ram = RAMDataset(shards, progress=False)
    result["shards"] = check(shards, state, num_workers=2)
    result["ram"] = check(ram, state, num_workers=1)
    result["child"] = check(shards, state, num_workers=1, backend="subprocess")
    result["copied"] = copied(shards, out)
    result["warnings"] = warnings_of(shards)
    result["alone"] = alone_afterwards(shards)
    Path(out, f"{os.environ['RANK']}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
