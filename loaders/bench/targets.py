"""What is measured: a packed folder or URL, a folder of loose images, or any Dataset as ``module:object``."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import torch

from loaders import augment
from loaders.augment.pixels import apply
from loaders.augment.planning import draw_geometry
from loaders.data.shards import PackedShard
from loaders.datasets.base import BatchDataset
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


@dataclass
class MeasuredDataset:
    """A dataset to measure."""

    name: str  # as it was given
    open: Callable[[], Any]  # makes the dataset
    size: int = 0  # height and width that images are cropped to, or 0
    window: int = 0  # tokens of the windows that a packed stream of tokens is served in, or 0
    python: str = ""  # what makes the dataset that was measured

    @cached_property
    def dataset(self) -> Any:
        """The dataset, made when it is first needed; views of torch's as a loader serves them."""
        dataset = unwrap(self.open())
        if not isinstance(dataset, torch.utils.data.Dataset) and not is_map_style(dataset):
            raise LoadersError(f"{self.name!r} is a {type(dataset).__name__}, not a Dataset")
        return dataset

    @property
    def backend(self) -> str:
        """The backend that suits it: threads for loaders' datasets, processes for third-party ones."""
        return "thread" if isinstance(self.dataset, BatchDataset) else "process"


def is_map_style(dataset: Any) -> bool:
    """Tell whether samples are had by number: an ``IterableDataset`` of torch's has a ``__getitem__``, too."""
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return False
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def load(spec: str, *, size: int = CROP) -> MeasuredDataset:
    """Find what a folder or ``module:object`` (a Dataset, or a function or class that makes one) means.

    A packed dataset at a URL is fetched first, so that loading is measured, and not the link.
    Images that differ in size, and loose ones, are cropped to ``size`` at random and flipped, as in training; 0 leaves
    them. LoadersError names what is there instead.
    """
    path = Path(spec)
    if path.is_dir():
        return _folder(spec, path, size)
    if is_url(spec):
        return _packed(spec, ShardDataset(spec), size)
    if ":" in spec:
        found = load_object(spec)
        make = found if callable(found) else lambda: found
        return MeasuredDataset(spec, make, python=f"{spec} as it is")
    raise LoadersError(
        f"{spec!r} is no folder; pass a packed folder, a folder of images, or module:object"
    )


def load_object(spec: str) -> Any:
    """Import ``module:object``; the current folder is searched too."""
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise LoadersError(f"{spec!r} is not of the form module:name, such as train:step")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return attrgetter(name)(importlib.import_module(module_name))
    except (ModuleNotFoundError, AttributeError) as error:
        raise LoadersError(f"{spec!r} cannot be imported: {error}") from error


def _folder(spec: str, path: Path, size: int) -> MeasuredDataset:
    if (path / "manifest.json").exists():
        return _packed(spec, ShardDataset(path), size)
    files = sorted(
        p
        for p in path.rglob("*")
        if p.suffix.lower() in SUFFIXES and p.name[0] != "." and p.is_file()
    )
    if files:
        return MeasuredDataset(spec, lambda: ImageFiles(files, size), size)
    inner = sorted(p.parent.name for p in path.glob("*/manifest.json"))
    hint = f"; it holds the packed datasets {', '.join(inner)}: name one" if inner else ""
    raise LoadersError(f"{spec!r} has neither a manifest.json nor images{hint}")


def _packed(spec: str, plain: ShardDataset[Any], size: int) -> MeasuredDataset:
    """Serve a packed dataset as training does."""
    _fetch(spec, plain)
    if isinstance(plain.schema.fields.get("tokens"), Tokens):  # rows are how they are stored
        num_tokens = int(plain.column("num_tokens").sum())
        if num_tokens < 2:
            raise LoadersError(f"{spec!r} has {num_tokens} tokens: there is no window of them")
        length = min(_WINDOW, num_tokens - 1)
        python = f"TokenWindows({spec!r}, length={length})"
        make_windows = partial(TokenWindows, spec, length)
        return MeasuredDataset(spec, make_windows, window=length, python=python)
    images = [field for field in plain.schema.fields.values() if isinstance(field, Image)]
    ops = ops_for(size) if any(image.size is None for image in images) else []
    listed = ", ".join(f"augment.{op!r}" for op in ops)
    python = f"ShardDataset({spec!r}{f', augment=[{listed}]' if ops else ''})"
    make = partial(ShardDataset[Any], spec, augment=ops)
    return MeasuredDataset(spec, make, size if ops else 0, python=python)


def _fetch(spec: str, dataset: ShardDataset[Any]) -> None:
    """Bring all shards of a dataset at a URL into its cache; a missing shard is an error here."""
    shards = [each for each in dataset.store.shards if isinstance(each, PackedShard)]
    size = sum(shard.info.size_bytes for shard in shards)
    if any(size > origin.budget() for origin in dataset.store.remotes):
        what = f"{spec!r} has {describe_size(size)}, and its cache is smaller: the link would be measured"
        raise LoadersError(f"{what}. Use a larger --cache, or a part ('packdata copy')")
    with dataset.view.fetching_ahead():
        for shard in shards:
            shard.fetch()


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
            raise LoadersError(f"{self.files[i]}: OpenCV cannot read it; {hint}")
        if not self.size:
            return torch.from_numpy(image).permute(2, 0, 1), self.labels[i]
        draw = torch.randint(1 << 40, (1,)).numpy()
        shape = np.array([image.shape[:2]], np.int64)
        drawn = draw_geometry(ops_for(self.size), shape, seed=0, epoch=0, indices=draw)
        crop = apply(image, drawn.boxes[0].tolist(), drawn.sizes[0], drawn.flips[0])
        return torch.from_numpy(crop).permute(2, 0, 1), self.labels[i]


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
