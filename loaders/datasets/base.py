"""A dataset that threads can read: the work on a whole batch as a job of parts, and the host's half of that work."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeGuard

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import get_worker_info
from typing_extensions import TypeVar  # of torch: with a default, before Python 3.13

from loaders.buffers import Memory
from loaders.checks import shown, whole_number
from loaders.datasets.reading.job import BatchJob
from loaders.datasets.reading.samples import Fields
from loaders.device.accelerator import without_autocast
from loaders.sampling.batch import IndexBatch, current_batch
from loaders.sampling.ranks import is_distributed
from loaders.workers import complete

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from loaders.data.store import Store
    from loaders.datasets.reading.request import ReadPlan, Request
    from loaders.sampling.order import Order
    from loaders.schema import Field


_MAX_INDEX = (1 << 63) - 1
Halves = tuple["BatchDataset", "Callable[[Any], Any]"]
Collate = Callable[[Any], Any]


def whole_numbers(values: Any) -> npt.NDArray[np.int64]:
    """Return indices as one array; TypeError if they are no whole numbers."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"sample indices must be integers, got {array.dtype}: {values!r}"[:200])
    if array.dtype == np.uint64 and array.size and int(array.max()) > _MAX_INDEX:
        raise IndexError(f"sample index {array.max()} is out of range")
    return np.ascontiguousarray(array, np.int64).reshape(-1)


def index_array(indices: Any) -> npt.NDArray[np.int64]:
    """Return the indices of a batch without what our samplers attach; TypeError if they are no whole numbers."""
    return indices.indices if isinstance(indices, IndexBatch) else whole_numbers(indices)


def from_start(indices: npt.NDArray[np.int64], n: int, what: str) -> npt.NDArray[np.int64]:
    """Return indices from ``-n`` to ``n - 1`` as counted from the first; IndexError, of a ``what``, if one is not."""
    # A negative one is huge when it is seen as unsigned.
    if not len(indices) or np.maximum.reduce(indices.view(np.uint64)) < n:
        return indices
    if int(indices.min()) < -n or int(indices.max()) >= n:
        bad = indices[(indices < -n) | (indices >= n)][0]
        raise IndexError(f"there is no {what} {bad}, only {n} of them")
    return np.where(indices < 0, indices + n, indices)


SampleT = TypeVar("SampleT", covariant=True, default=Fields)


class BatchDataset(torch.utils.data.Dataset[SampleT], ABC):
    """A map-style dataset that reads a batch at once, as a job that threads can share.

    Attributes:
        plan: How batches are read.
        num_replaced: Samples that ``on_error="replace"`` replaced so far.
        device: Where the samples lie already; None is the host's memory.
        finishes_late: True where batches stay in the host's half until they are handed over, also on
            the host: what waits is smaller then, and what is handed over is still in the cache.
        max_workers: Threads that are of use: more would only compete for the interpreter; None is any number.
        has_own_samples: True of a subclass with a ``__getitem__`` or ``__getitems__`` of its own, which says what
            samples are.
        epoch: The epoch that ``dataset[i]`` is augmented for, as ``set_epoch`` said.
    """

    plan: ReadPlan
    num_replaced: int = 0
    device: torch.device | None = None
    finishes_late: bool = False
    max_workers: int | None = None
    has_own_samples: ClassVar[bool] = False
    epoch: int = 0
    _of_several: ClassVar[str] = (
        "Subset(dataset, indices) of torch.utils.data takes several of them"
    )
    _is_epoch_set: bool = False
    _num_untold: int = 0  # samples that were read for no epoch in particular
    _has_warned: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Make batches serve what a subclass's own ``__getitem__`` returns, too."""
        super().__init_subclass__(**options)
        own = vars(cls)
        if "has_own_samples" in own or not own.keys() & {"__getitem__", "__getitems__"}:
            return
        cls.has_own_samples = True
        if "__getitems__" not in own:
            cls.__getitems__ = lambda self, indices: [self[i] for i in indices]  # type: ignore[method-assign]

    @property
    def stored_fields(self) -> Mapping[str, Field]:
        """The stored fields that samples are made of, as far as they are known."""
        return {}

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Identifies the samples and their order; a resumed run must have the same."""

    # -- batches -----------------------------------------------------------------------------------

    @abstractmethod
    def request(self, indices: Any, num_workers: int = 1) -> Request:
        """Return the request to read a batch on ``num_workers`` threads; a request is returned as it is."""

    def job(
        self, indices: Any, memory: Memory, num_workers: int = 1, collate: Collate | None = None
    ) -> Any:
        """Return the work of reading a batch, which ``num_workers`` threads may share, and of collating it."""
        return BatchJob(self.request(indices, num_workers), memory, collate)

    # -- samples -----------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> SampleT:
        """Return one sample as a named tuple of tensors."""
        if not is_one(index):
            what = f"a sample index must be an int, got {shown(index)}"
            raise TypeError(f"{what}; {self._of_several}")
        sample: SampleT = self.read([index])[0]
        return sample

    def __iter__(self) -> Iterator[SampleT]:
        """Yield the samples one by one, as they lie; a ``DataLoader`` is faster."""
        return (self[i] for i in range(len(self)))

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the samples of a batch, read together; ``loaders.collate`` takes them without a copy."""
        return self.read(indices)

    def read(self, indices: Sequence[int]) -> Any:
        """Return the samples of a batch as they are stored, whatever a subclass makes of them."""
        job = self.job(indices, Memory())
        self._warn_if_frozen(indices)
        with without_autocast():
            return complete(job)

    def as_batch(self, indices: Any, seed: int = 0) -> IndexBatch:
        """Return indices with seed, epoch and draws: their own, those of the batch that is read, or what was set."""
        if isinstance(indices, IndexBatch):
            return indices
        array, epoch, draws, origin = whole_numbers(indices), self.epoch, None, current_batch()
        if len(array) and hasattr(indices[0], "epoch"):
            origin, draws = indices[0], np.array([i.draw for i in indices], np.int64)
        if origin is not None:
            own = getattr(origin, "seed", None)
            epoch, seed = origin.epoch, seed if own is None else own
        return IndexBatch(array, epoch, draws, None, seed)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch ``dataset[i]`` augments for, under a sampler that does not say it itself."""
        self.epoch = whole_number("epoch", epoch, at_least=0)
        self._is_epoch_set = True

    @property
    def is_random(self) -> bool:
        """Whether a sample differs from epoch to epoch."""
        return False

    @property
    def may_draw(self) -> bool:
        """Whether a sample may differ from one reading to the next: also by a user's transform."""
        return self.is_random

    def _warn_if_frozen(self, indices: Sequence[int]) -> None:
        """Warn, once, of crops and flips by chance for which no epoch was set: torch's loader does not set one.

        Here that shows when a second epoch begins; of torch's worker processes, the first one warns at once.
        Samples that are taken one by one here may be meant to be the same.
        """
        if self._has_warned or self._is_epoch_set or current_batch() is not None:
            return
        # Batches and indices of our samplers have an epoch.
        if not len(indices) or hasattr(indices, "epoch") or hasattr(indices[0], "epoch"):
            return
        worker = get_worker_info()
        is_again = worker is not None and worker.id == 0
        if worker is None and len(indices) > 1:
            num_ranks = dist.get_world_size() if is_distributed() else 1
            is_again = self._num_untold * num_ranks >= len(self)
            self._num_untold += len(indices)
        if not is_again or not self.is_random:
            return
        self._has_warned = True
        what = f"crops, flips and transforms are drawn for epoch {self.epoch} each time, since no epoch is set"
        remedy = "DataLoader of loaders does; with torch's, pass sampler=loaders.sampling.EpochSampler(len(dataset))"
        warnings.warn(
            f"{what}: {remedy}, or call dataset.set_epoch(n) (persistent workers will not see the change)",
            stacklevel=4,
        )

    # -- what a loader wants to know ---------------------------------------------------------------

    @property
    def stores(self) -> tuple[Store, ...]:
        """Where samples are read from."""
        return ()

    def shards_read(self, indices: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
        """Return for each of ``stores`` the numbers of the shards that some samples lie in, each at least once."""
        return ()

    def order(self, seed: int, batch_size: int) -> Order | None:
        """Return the order in which the samples want to be served; None: as the loader's arguments say."""
        return None

    def by_shard(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
        """Return how many samples each shard has, and the samples shard by shard (None: they lie so).

        Raises:
            ValueError: Samples are not made shard by shard.
        """
        raise ValueError(
            f"a {type(self).__name__} cannot name the shard of a sample: its samples span several"
        )

    def halves(self, device: torch.device) -> Halves | None:
        """Return a dataset of the host's halves of batches, which are cheap to move, and what finishes them; or None.

        The latter is called with one batch at a time, moved to the device, on the trainer's thread and the device's
        current stream.
        """
        return None

    @property
    def sample_nbytes(self) -> int | None:
        """Bytes of a sample whose fields are all copied as they are, else None."""
        return self.plan.sample_nbytes


def reads_batches(dataset: Any) -> TypeGuard[BatchDataset]:
    """Return True if a dataset reads whole batches itself: ours do, unless a subclass has its own ``__getitem__``."""
    return isinstance(dataset, BatchDataset) and not dataset.has_own_samples


def check_stored(
    dataset: Any, user: str, instead: str = "join with torch's ConcatDataset"
) -> None:
    """Raise TypeError for a dataset whose own ``__getitem__`` would be left out."""
    if getattr(dataset, "has_own_samples", False):
        what = f"{user} reads what is stored, and {type(dataset).__name__} has a __getitem__ of its own"
        raise TypeError(f"{what}: do it in transform=..., or {instead}")


def is_one(index: Any) -> bool:
    """Tell whether a value stands for one sample; arrays and tensors of one number do."""
    is_single = math.prod(getattr(index, "shape", ())) == 1
    return is_single and hasattr(index, "__index__")


Whole = TypeVar("Whole", bound=BatchDataset[Any])


class SamplesOf(BatchDataset[Fields], Generic[Whole]):
    """The samples of another dataset, read by a plan of their own: the host's half of them, for example."""

    def __init__(self, dataset: Whole, plan: ReadPlan | None = None) -> None:
        self.dataset, self.device, self.plan = dataset, dataset.device, plan or dataset.plan
        self.max_workers = dataset.max_workers

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def fingerprint(self) -> str:
        return self.dataset.fingerprint

    @property
    def is_random(self) -> bool:
        return self.dataset.is_random

    @property
    def may_draw(self) -> bool:
        return self.dataset.may_draw

    @property
    def stores(self) -> tuple[Store, ...]:
        return self.dataset.stores

    def shards_read(self, indices: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
        return self.dataset.shards_read(indices)

    def by_shard(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
        return self.dataset.by_shard()

    def request(self, indices: Any, num_workers: int = 1) -> Request:
        request = self.dataset.request(indices, num_workers)
        request.plan = self.plan
        return request

    @property
    def num_replaced(self) -> int:  # type: ignore[override]  # counted where samples are read
        return self.dataset.num_replaced

    def set_epoch(self, epoch: int) -> None:
        """Tell the dataset, too."""
        super().set_epoch(epoch)
        self.dataset.set_epoch(epoch)
