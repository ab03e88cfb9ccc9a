# /// script
# dependencies = ["mosaicml-streaming==0.13.0"]
# ///
"""MosaicML Streaming: MDS shards, local, through torch's DataLoader.

Settings: `StreamingDataset(shuffle=True, batch_size=...)` with its default shuffle, `num_canonical_nodes=1` for a
single machine; shards of 32 MB; workers kept between epochs. Streaming imports torchvision; where pip brings a
build for CUDA, which cannot be imported beside torch for CPUs, a module without its operators takes its place:
nothing here uses them.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any

import torch

try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]
    transforms = types.ModuleType("torchvision.transforms")
    functional = types.ModuleType("torchvision.transforms.functional")
    functional.to_tensor = None
    transforms.functional, transforms.ToTensor = functional, None
    datasets = types.ModuleType("torchvision.datasets")
    datasets.VisionDataset = type("VisionDataset", (), {})
    package = types.ModuleType("torchvision")
    package.transforms, package.datasets = transforms, datasets
    for module in (
        package,
        transforms,
        functional,
        datasets,
    ):  # others ask whether it is installed
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    sys.modules |= {m.__name__: m for m in (package, transforms, functional, datasets)}

from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from benchmarks.peers.protocol import Epoch, Job, from_records, serve, worker_options


def prepare(job: Job) -> None:
    """Write MDS."""
    columns = {"x": "bytes", "id": "int"}
    with MDSWriter(out=f"{job.folder}/mds", columns=columns, size_limit=32 << 20) as writer:
        for i, record in enumerate(job.records()):
            writer.write({"x": record, "id": i})


def open_epochs(job: Job) -> Epoch:
    """Open a StreamingDataset and a DataLoader."""
    clean_stale_shared_memory()
    dataset = StreamingDataset(
        local=f"{job.folder}/mds", shuffle=True, batch_size=job.batch, num_canonical_nodes=1
    )

    def collate(samples: list[dict[str, Any]]) -> Any:
        return from_records(job, [s["x"] for s in samples], [s["id"] for s in samples])

    loader = torch.utils.data.DataLoader(
        dataset,
        job.batch,
        collate_fn=collate,
        **worker_options(job),
    )
    return lambda: iter(loader)


if __name__ == "__main__":
    serve(prepare, open_epochs)
