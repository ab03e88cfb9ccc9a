"""High-throughput data loading for PyTorch: packed shards, uint8 batches, exact order.

::

    train = ShardDataset("packed/train", augment=[augment.RandomResizedCrop(224)])
    loader = DataLoader(train, batch_size=256, shuffle=True, drop_last=True, device="cuda")

Names are loaded when they are first used: ``import loaders.data.formats`` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from loaders.version import __version__ as __version__

if TYPE_CHECKING:
    from loaders import augment as augment
    from loaders.codecs import register_codec as register_codec
    from loaders.datasets.encoded import JpegOnDevice as JpegOnDevice
    from loaders.datasets.memory.ram import RAMDataset as RAMDataset
    from loaders.datasets.mixture import Mixture as Mixture
    from loaders.datasets.mosaic import Mosaic as Mosaic
    from loaders.datasets.packed import concat as concat
    from loaders.datasets.reading.samples import Fields as Fields
    from loaders.datasets.reading.samples import collate as collate
    from loaders.datasets.shard import ShardDataset as ShardDataset
    from loaders.datasets.tokens.windows import TokenWindows as TokenWindows
    from loaders.device.augment import BatchAugment as BatchAugment
    from loaders.device.decode import DctFinish as DctFinish
    from loaders.device.decode import Yuv420Finish as Yuv420Finish
    from loaders.device.jpeg import JpegFinish as JpegFinish
    from loaders.device.mix import CutMix as CutMix
    from loaders.device.mix import MixUp as MixUp
    from loaders.device.mix import seeded as seeded
    from loaders.device.normalize import Denormalize as Denormalize
    from loaders.device.normalize import Normalize as Normalize
    from loaders.dumping import dump as dump
    from loaders.dumping import dump_on as dump_on
    from loaders.errors import LoadersError as LoadersError
    from loaders.loading.loader import DataLoader as DataLoader
    from loaders.profiling import profile as profile
    from loaders.sampling import Balanced as Balanced
    from loaders.sampling import BlockShuffled as BlockShuffled
    from loaders.sampling import Weighted as Weighted
    from loaders.sampling import audit as audit

_WHERE = {
    "Balanced": "loaders.sampling",
    "BlockShuffled": "loaders.sampling",
    "BatchAugment": "loaders.device.augment",
    "CutMix": "loaders.device.mix",
    "MixUp": "loaders.device.mix",
    "DataLoader": "loaders.loading.loader",
    "DctFinish": "loaders.device.decode",
    "Denormalize": "loaders.device.normalize",
    "Fields": "loaders.datasets.reading.samples",
    "JpegFinish": "loaders.device.jpeg",
    "JpegOnDevice": "loaders.datasets.encoded",
    "LoadersError": "loaders.errors",
    "Mixture": "loaders.datasets.mixture",
    "Mosaic": "loaders.datasets.mosaic",
    "Normalize": "loaders.device.normalize",
    "RAMDataset": "loaders.datasets.memory.ram",
    "ShardDataset": "loaders.datasets.shard",
    "TokenWindows": "loaders.datasets.tokens.windows",
    "Weighted": "loaders.sampling",
    "Yuv420Finish": "loaders.device.decode",
    "audit": "loaders.sampling",
    "augment": "",
    "collate": "loaders.datasets.reading.samples",
    "concat": "loaders.datasets.packed",
    "dump": "loaders.dumping",
    "dump_on": "loaders.dumping",
    "profile": "loaders.profiling",
    "register_codec": "loaders.codecs",
    "seeded": "loaders.device.mix",
}

# Of a computed list mypy takes no name; without one, those imported as themselves.
if not TYPE_CHECKING:
    __all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        from loaders.checks import did_you_mean
        from loaders.gone import gone

        hint = gone(f"loaders.{name}", did_you_mean(name, _WHERE))
        raise AttributeError(f"module 'loaders' has no attribute {name!r}{hint}")
    return getattr(import_module(where), name) if where else import_module(f"loaders.{name}")


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *_WHERE})
