"""What is measured: a packed folder or URL, a folder of loose images, or any Dataset as ``module:object``."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import torch

from loaders import augment
from loaders.augment.pixels import apply
from loaders.augment.planning import plan
from loaders.data.shards import FileShard
from loaders.datasets.base import BatchDataset
from loaders.datasets.memory.ram import RAMDataset
from loaders.datasets.shard import ShardDataset
from loaders.datasets.tokens.windows import TokenWindows
from loaders.datasets.views import unwrap
from loaders.errors import LoadersError
from loaders.remote.url import is_url
from loaders.sampling.order import Computed, Shuffled
from loaders.schema import Image, Tokens
from loaders.system import opencv
from loaders.text import describe_size

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

CROP = 224  # px, as is usual
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp"})
_WINDOW = 1024  # tokens, as TokenWindows has it by default
_ENDLESS = 1 << 40


class TargetError(LoadersError, ValueError):
    """What was named to be measured cannot be."""


@dataclass
class MeasuredDataset:
    """A dataset to measure."""

    name: str  # as it was given
    open: Callable[[], Any]  # makes the dataset
    # The files that hold its bytes; empty where that is not known.
    files: list[Path] = field(default_factory=list)
    size: int = 0  # height and width that images are cropped to, or 0
    window: int = 0  # tokens of the windows that a packed stream of tokens is served in, or 0
    python: str = ""  # what makes the dataset that was measured

    @cached_property
    def dataset(self) -> Any:
        """The dataset, made when it is first needed; views of torch's as a loader serves them."""
        return unwrap(self.open())

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
    Images that differ in size, and loose ones, are cropped to ``size`` at random and flipped, as in training; 0 leaves
    them. TargetError says what was found instead.
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
        make = (lambda: found) if is_made else found
        return MeasuredDataset(spec, make, _files_of(unwrap(found)), python=f"{spec} as it is")
    raise TargetError(
        f"{spec!r} is no folder; give a packed folder, a folder of images, or module:object"
    )


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
    files = sorted(
        p
        for p in path.rglob("*")
        if p.suffix.lower() in SUFFIXES and p.name[0] != "." and p.is_file()
    )
    if files:
        return MeasuredDataset(spec, lambda: ImageFiles(files, size), files, size)
    inner = sorted(p.parent.name for p in path.glob("*/manifest.json"))
    hint = f"; it holds the packed datasets {', '.join(inner)}: name one" if inner else ""
    raise TargetError(f"{spec!r} has neither a manifest.json nor images{hint}")


def _packed(spec: str, plain: ShardDataset[Any], size: int) -> MeasuredDataset:
    """Serve a packed dataset as training does."""
    files = _fetched(spec, plain)
    if isinstance(plain.schema.fields.get("tokens"), Tokens):  # rows are how they are stored
        num_tokens = int(plain.column("num_tokens").sum())
        if num_tokens < 2:
            raise TargetError(f"{spec!r} has {num_tokens} tokens: there is no window of them")
        length = min(_WINDOW, num_tokens - 1)
        python = f"TokenWindows({spec!r}, length={length})"
        make_windows = partial(TokenWindows, spec, length)
        return MeasuredDataset(spec, make_windows, files, window=length, python=python)
    images = [field for field in plain.schema.fields.values() if isinstance(field, Image)]
    ops = ops_for(size) if any(image.size is None for image in images) else []
    listed = ", ".join(f"augment.{op!r}" for op in ops)
    python = f"ShardDataset({spec!r}{f', augment=[{listed}]' if ops else ''})"
    make = partial(ShardDataset[Any], spec, augment=ops)
    return MeasuredDataset(spec, make, files, size if ops else 0, python=python)


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


class ImageFiles(torch.utils.data.Dataset[Any]):
    """Loose files as many projects read them: the folder is the class, OpenCV, a random crop (0: none), a flip."""

    def __init__(self, files: list[Path], size: int) -> None:
        self.files, self.size = files, size
        names = sorted({file.parent.name for file in files})
        self.labels = [names.index(file.parent.name) for file in files]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        opencv.use_one_thread()
        image = cv2.imread(str(self.files[i]), cv2.IMREAD_COLOR_RGB)
        if image is None:
            hint = "'packdata images --on-error skip' leaves such files out; measure what it packs"
            raise TargetError(f"{self.files[i]}: OpenCV cannot read it; {hint}")
        if not self.size:
            return torch.from_numpy(image).permute(2, 0, 1), self.labels[i]
        draw = torch.randint(1 << 40, (1,)).numpy()
        shape = np.array([image.shape[:2]], np.int64)
        drawn = plan(ops_for(self.size), shape, seed=0, epoch=0, indices=draw)
        crop = apply(image, drawn.boxes[0].tolist(), drawn.sizes[0], drawn.flips[0])
        return torch.from_numpy(crop).permute(2, 0, 1), self.labels[i]

    def in_ram(self, count: int) -> RAMDataset:
        """Return some of the same files, held in memory and served by this package."""
        files = [self.files[i] for i in spread(len(self), count)]
        targets = [file.parent.name for file in files]
        return RAMDataset.from_files(files, targets, progress=False, augment=ops_for(self.size))


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
