"""What a loader will read of datasets at URLs: sent to the fetcher, and refused where a cache cannot serve it."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.data.shards import PackedShard
from loaders.datasets.base import SamplesOf
from loaders.errors import CacheError
from loaders.remote.ahead import Ahead, Needs
from loaders.sampling.batch import evaluate
from loaders.sampling.locality import Lanes
from loaders.system.limits import local_ranks
from loaders.text import describe_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from loaders.data.view import View
    from loaders.datasets.base import BatchDataset
    from loaders.remote.origin import Origin
    from loaders.remote.wire import File
    from loaders.sampling.cursor import Pass
    from loaders.sampling.order import Order
    from loaders.sampling.plan import Plan

    Int64s = npt.NDArray[np.int64]

logger = logging.getLogger(__name__)
_STRETCHES = 128  # of an epoch
_MAX_SAMPLES = 1 << 24  # that are looked ahead
_MUCH_READ = 4  # times the bytes of the samples of a view
_MUCH_MORE = 1.3  # times its share: a node reads a shard more at the ends of its lanes


class LoaderPass:
    """What a loader reads of the datasets at one URL, in this pass and the next; ``num_at_once`` batches at a time."""

    def __init__(
        self,
        dataset: BatchDataset[Any],
        origin: Origin,
        order: Order,
        plan: Plan,
        epoch: int,
        num_at_once: int = 1,
    ) -> None:
        self._dataset, self.origin, self._order = dataset, origin, order
        self._plan, self._epoch, self._num_at_once = plan, epoch, num_at_once
        self.files: list[File] = []
        self._places: list[Int64s] = []  # of each shard of each store: which file it is
        for store in dataset.stores:
            files, places = store.files_at(origin)
            self._places.append(np.where(places < 0, -1, places + len(self.files)))
            self.files += files

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in {file.hash: file for file in self.files}.values())

    def needs(self, plan: Plan | None = None) -> Needs:
        """Return what this rank, or another plan, reads in this epoch and the next one."""
        return Needs(self.files, self._stretches(plan or self._plan))

    def _stretches(self, plan: Plan) -> Iterator[tuple[int, Int64s]]:
        start = 0
        for epoch, part in ((self._epoch, plan), (self._epoch + 1, replace(plan, start=0))):
            step = max(self._num_at_once, part.num_remaining_steps // _STRETCHES)
            for steps in evaluate(self._order, part, epoch):
                for first in range(0, len(steps.indices), step):
                    indices = steps.indices[first : first + step].ravel()
                    yield start, self._files_of(indices)
                    start += len(indices)
                if start > _MAX_SAMPLES:
                    return

    def _files_of(self, indices: Int64s) -> Int64s:
        shards = self._dataset.shards_read(indices)
        found = [places[each] for places, each in zip(self._places, shards, strict=True)]
        files = np.concatenate(found)
        return files[files >= 0]

    def warn_of_scattered(self) -> None:
        """Say once that a view has few samples of many shards: these are fetched whole."""
        view: View | None = getattr(self._dataset, "view", None)  # of one that is packed
        if view is None or view.numbers is None:
            return
        numbers = np.unique(view.store.shards_of(view.numbers)).tolist()
        read = [s for n in numbers if isinstance(s := view.store.shards[n], PackedShard)]
        nbytes = sum(shard.info.size_bytes for shard in read)
        rows = sum(shard.num_samples for shard in read)
        if rows > _MUCH_READ * len(view):
            self._warn(
                "%s: %s are fetched for %s of samples: packdata.write(view, dst) makes a dataset of these alone",
                describe_size(nbytes),
                describe_size(nbytes * len(view) // rows),
            )

    def check(self) -> None:
        """Say what an order costs more than lanes would; CacheError if what this node reads at a time does not fit."""
        budget, size = self.origin.budget(), self.size_bytes
        if size <= budget:
            return
        ranks = local_ranks()
        ranks = ranks if not self._plan.world_size % ranks else 1
        node = self.needs(self._plan.of_node(ranks))
        if (least := node.least_bytes()) > budget:
            raise self._refusal(least, budget)
        downloaded = node.epoch_bytes(budget) / 2  # of two epochs
        share = size * ranks / self._plan.world_size
        if downloaded > _MUCH_MORE * share:
            self._warn(
                "%s: %s downloads about %s in each epoch for a node whose share is %s; shuffle='lanes' reads no more "
                "where the number of nodes divides that of lanes",
                type(self._order).__name__,
                describe_size(downloaded),
                describe_size(share),
            )

    def _refusal(self, least: int, budget: int) -> CacheError:
        name, order = type(self._order).__name__, self._order
        what = f"{name} reads {describe_size(least)} at a time, and it may hold {describe_size(budget)}"
        remedy = "shuffle='lanes', or "
        if isinstance(order, Lanes):
            num = order.num_lanes * budget // least
            fits = 1 << num.bit_length() - 1 if num else 0
            seeded = f"seed={order.seed}, num_lanes={fits}"
            remedy = f"sampler=loaders.sampling.Lanes(dataset, {seeded}), or " if fits else ""
        remedy = f"Use {remedy}cache= of at least {describe_size(least)}"
        return CacheError(what, self.origin.inside.parent, remedy)

    def _warn(self, text: str, *args: object) -> None:
        """Say something once, not in each epoch."""
        if (text, args) not in self.origin.said:
            self.origin.said.add((text, args))
            logger.warning(text, self.origin.url, *args)


def _origins(dataset: BatchDataset[Any]) -> list[Origin]:
    return list(dict.fromkeys(origin for store in dataset.stores for origin in store.remotes))


def tell_ahead(
    dataset: BatchDataset[Any], order: Order, current: Pass, num_at_once: int
) -> list[Ahead]:
    """Return what sends fetchers, once it is started, what a pass will read; CacheError if a cache is too small."""
    ahead: list[Ahead] = []

    def position() -> tuple[int, bool]:
        """Return how many samples were handed over, and whether that is all."""
        return current.num_steps * current.plan.batch_size, current.is_over

    if all(store.is_all_open for store in dataset.stores):
        return ahead  # nothing is to be fetched, and nothing that is mapped is evicted
    dataset = dataset.dataset if isinstance(dataset, SamplesOf) else dataset
    for origin in _origins(dataset):
        reading = LoaderPass(dataset, origin, order, current.plan, current.epoch, num_at_once)
        reading.warn_of_scattered()
        reading.check()
        ahead.append(Ahead(origin, reading.needs, position))
    return ahead


def remote_counts(dataset: BatchDataset[Any]) -> dict[str, float]:
    """Return what fetchers have counted for the URLs of a dataset, and what their caches hold."""
    counts, caches = Counter[str](), set[Any]()
    for origin in _origins(dataset):
        found = origin.counts()
        if origin.inside in caches:
            found |= {"cached_bytes": 0, "budget_bytes": 0}  # they are of the cache
        caches.add(origin.inside)
        counts.update(found)
    return dict(counts)
