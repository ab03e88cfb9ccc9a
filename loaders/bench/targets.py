"""What is measured: a packed folder or URL, or any Dataset as ``module:object``."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders import augment
from loaders.data.shards import FileShard
from loaders.datasets.base import BatchDataset
from loaders.datasets.shard import ShardDataset
from loaders.datasets.tokens.windows import TokenWindows
from loaders.datasets.views import unwrap
from loaders.errors import LoadersError
from loaders.remote.url import is_url
from loaders.sampling.order import Computed, Shuffled
from loaders.schema import Image, Tokens
from loaders.text import describe_size

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

CROP = 224  # px, as is usual
_WINDOW = 1024  # tokens, as TokenWindows has it by default
_ENDLESS = 1 << 40


class TargetError(LoadersError, ValueError):
    """What was named to be measured cannot be."""


@dataclass
class MeasuredDataset:
    """A dataset to measure."""

    name: str  # as it was given
    dataset: Any  # views of torch's as a loader serves them
    # The files that hold its bytes; empty where that is not known.
    files: list[Path] = field(default_factory=list)
    size: int = 0  # height and width that images are cropped to, or 0
    window: int = 0  # tokens of the windows that a packed stream of tokens is served in, or 0
    python: str = ""  # what makes the dataset that was measured

    @property
    def backend(self) -> str:
        """The backend that suits it: threads for loaders' datasets, processes for third-party ones."""
        return "thread" if isinstance(self.dataset, BatchDataset) else "process"

    @property
    def stored_bytes(self) -> int:
        """Bytes of its files, as far as they are there."""
        return sum(file.stat().st_size for file in self.files if file.exists())


def is_map_style(dataset: Any) -> bool:
    """Tell whether samples are had by number: an ``IterableDataset`` of torch's has a ``__getitem__``, too."""
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return False
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def spread(num: int, count: int) -> list[int]:
    """Return some of so many indices, spread evenly."""
    return np.linspace(0, num - 1, min(count, num)).astype(np.int64).tolist()  # type: ignore[no-any-return]


def load(spec: str, *, size: int = CROP) -> MeasuredDataset:
    """Find what a folder or ``module:object`` (a Dataset, or a function or class that makes one) means.

    A packed dataset at a URL is fetched first, so that loading is measured, and not the link.
    Images that differ in size are cropped to ``size`` at random and flipped, as in training; 0 leaves them. TargetError
    says what was found instead.
    """
    path = Path(spec)
    if path.is_dir():
        return _folder(spec, path, size)
    if is_url(spec):
        return _packed(spec, ShardDataset(spec), size)
    if ":" in spec:
        found = load_object(spec)
        is_made = isinstance(found, torch.utils.data.Dataset) or (
            is_map_style(found) and not isinstance(found, type)
        )
        if not is_made and not callable(found):
            raise TargetError(f"{spec!r} is a {type(found).__name__}, not a Dataset")
        dataset = unwrap(found if is_made else found())
        return MeasuredDataset(spec, dataset, _files_of(dataset), python=f"{spec} as it is")
    raise TargetError(f"{spec!r} is no folder; name a packed folder or module:object")


def load_object(spec: str) -> Any:
    """Import ``module:object``; the current folder is searched too."""
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise TargetError(f"{spec!r} is not of the form module:name, such as train:step")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise TargetError(f"{spec!r}: there is no module {error.name!r} on sys.path") from error
    try:
        return attrgetter(name)(module)
    except AttributeError as error:
        raise TargetError(f"{spec!r}: module {module_name!r} has no {name!r}") from error


def _files_of(dataset: Any) -> list[Path]:
    stores = dataset.stores if isinstance(dataset, BatchDataset) else ()
    shards = [shard for store in stores for shard in store.shards if isinstance(shard, FileShard)]
    return [shard.path for shard in shards if shard.origin is None]


def _folder(spec: str, path: Path, size: int) -> MeasuredDataset:
    if (path / "manifest.json").exists():
        return _packed(spec, ShardDataset(path), size)
    inner = sorted(p.parent.name for p in path.glob("*/manifest.json"))
    hint = "pack it ('packdata images'), or name a Dataset as module:object"
    if inner:
        hint = f"it holds the packed datasets {', '.join(inner)}: name one"
    raise TargetError(f"{spec!r} has no manifest.json; {hint}")


def _packed(spec: str, plain: ShardDataset[Any], size: int) -> MeasuredDataset:
    """Serve a packed dataset as training does."""
    files = _fetched(spec, plain)
    if isinstance(plain.schema.fields.get("tokens"), Tokens):  # rows are how they are stored
        num_tokens = int(plain.column("num_tokens").sum())
        if num_tokens < 2:
            raise TargetError(f"{spec!r} has {num_tokens} tokens: there is no window of them")
        length = min(_WINDOW, num_tokens - 1)
        python = f"TokenWindows({spec!r}, length={length})"
        windows = TokenWindows(spec, length)
        return MeasuredDataset(spec, windows, files, window=length, python=python)
    images = [field for field in plain.schema.fields.values() if isinstance(field, Image)]
    ops = ops_for(size) if any(image.size is None for image in images) else []
    listed = ", ".join(f"augment.{op!r}" for op in ops)
    python = f"ShardDataset({spec!r}{f', augment=[{listed}]' if ops else ''})"
    dataset = ShardDataset[Any](spec, augment=ops)
    return MeasuredDataset(spec, dataset, files, size if ops else 0, python=python)


def _fetched(spec: str, dataset: ShardDataset[Any]) -> list[Path]:
    """Return a dataset's files: of one at a URL those of the cache, when all of them are there."""
    shards = [shard for shard in dataset.store.shards if isinstance(shard, FileShard)]
    size = sum(shard.info.size_bytes for shard in shards)
    if any(size > origin.budget() for origin in dataset.store.remotes):
        what = f"{spec!r} has {describe_size(size)}, and its cache is smaller: the link would be measured"
        raise TargetError(f"{what}. Give a larger --cache, or copy a part of it ('packdata copy')")
    with dataset.view.in_order():
        return [shard.fetch() for shard in shards]


def ops_for(size: int) -> list[Any]:
    """Return the usual augmentation of training, or none for size 0."""
    if not size:
        return []
    return [augment.RandomResizedCrop(size), augment.RandomHorizontalFlip()]


@dataclass(frozen=True, repr=False)
class Endless(Computed):
    """Every sample again and again, in one shuffle of many copies: a measurement never reaches the end of its epoch."""

    n: int
    seed: int = 0
    _kind = "endless"

    @property
    def length(self) -> int:
        return self.n * max(1, _ENDLESS // self.n)

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s]:
        drawn = Shuffled(self.length, self.seed).at(epoch, positions)[0]
        copies = drawn // self.n
        return drawn - copies * self.n, copies  # np.divmod takes several times as long
