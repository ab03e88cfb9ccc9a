"""High-throughput data loading for PyTorch: packed shards, uint8 batches, exact order.

::

    train = ShardDataset("packed/train", augment=[augment.RandomResizedCrop(224)])
    loader = DataLoader(train, batch_size=256, shuffle=True, drop_last=True, device="cuda")

Names are loaded when they are first used: ``import loaders.formats`` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loaders import augment
    from loaders.codecs import register_codec
    from loaders.datasets.packed import concat
    from loaders.datasets.ram import RAMDataset
    from loaders.datasets.samples import collate
    from loaders.datasets.shard import ShardDataset
    from loaders.device.normalize import Normalize
    from loaders.errors import LoadersError
    from loaders.loader import DataLoader
    from loaders.sampling import Balanced, BlockShuffled, Weighted, audit

__version__ = "0.1.0"

_WHERE = {
    "Balanced": "loaders.sampling",
    "BlockShuffled": "loaders.sampling",
    "DataLoader": "loaders.loader",
    "LoadersError": "loaders.errors",
    "Normalize": "loaders.device.normalize",
    "RAMDataset": "loaders.datasets.ram",
    "ShardDataset": "loaders.datasets.shard",
    "Weighted": "loaders.sampling",
    "audit": "loaders.sampling",
    "augment": "",
    "collate": "loaders.datasets.samples",
    "concat": "loaders.datasets.packed",
    "register_codec": "loaders.codecs",
}

__all__ = [
    "Balanced",
    "BlockShuffled",
    "DataLoader",
    "LoadersError",
    "Normalize",
    "RAMDataset",
    "ShardDataset",
    "Weighted",
    "audit",
    "augment",
    "collate",
    "concat",
    "register_codec",
]


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'loaders' has no attribute {name!r}")
    return getattr(import_module(where), name) if where else import_module(f"loaders.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
