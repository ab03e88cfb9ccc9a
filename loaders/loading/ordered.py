"""The order of a loader and its place in it: steps, epochs, states. The loader asks it for all three."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from loaders.checks import shown, whole_number
from loaders.datasets.base import BatchDataset
from loaders.datasets.views import fingerprint_of, ours_in
from loaders.errors import StateError
from loaders.loading.delivery import BatchT
from loaders.sampling.batch import IndexBatch, entered, evaluate, index_batches, numbered
from loaders.sampling.order import batch_starts
from loaders.sampling.sampler import EpochBatches, EpochSampler, IndexSource, continued, is_ours

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loaders.loading.options import LoaderOptions
    from loaders.loading.resume import ThirdParty
    from loaders.sampling.plan import Pad

_STATE_VERSION = 1


class OrderedLoader(torch.utils.data.DataLoader[BatchT]):
    """The order of a loader, and its place in it; the subclass makes the batches."""

    backend: str
    seed: int
    rank: int | None
    world_size: int | None
    pad: Pad
    _others: ThirdParty | None
    _served: Any
    _singles: EpochBatches | None = None  # steps of an order of loaders, where batch_size is None
    _set_to: int | None = None  # the epoch that someone chose
    _options: LoaderOptions

    def _number_steps(self) -> None:
        """Cut a loaders sampler into steps, which know their place in the epoch: they can be resumed."""
        given, sampler = self.batch_sampler, self.sampler
        if isinstance(given, EpochBatches) and is_ours(given):
            batches = given
            if (given.pad, given.seed) != (self.pad, self.seed):
                batches = EpochBatches(
                    given.sampler, given.batch_size, given.drop_last, self.pad, self.seed
                )
            # Frameworks look there for what divides by rank.
            object.__setattr__(self, "sampler", given.sampler)
        elif isinstance(sampler, EpochSampler) and is_ours(sampler):
            drop_last = self.drop_last or sampler.drop_last
            batches = EpochBatches(sampler, self.batch_size or 1, drop_last, self.pad, self.seed)
        else:
            return
        if self.batch_size is None and given is None:
            if batch_starts(batches.sampler.order, 0) is not None:
                raise ValueError(
                    "batch_size=None serves single samples, and the sampler makes batches: leave it out"
                )
            self._singles = batches
        else:
            object.__setattr__(self, "batch_sampler", batches)  # torch forbids it

    @property
    def _steps(self) -> EpochBatches | None:
        """The sampler of an order of this package: batches, or samples where ``batch_size`` is None."""
        batches: Any = self.batch_sampler
        return batches if is_ours(batches) else self._singles

    def _check_length(self, sampler: EpochSampler) -> None:
        """Raise ValueError for a third-party dataset whose length changed since the loader was made."""
        options, dataset = self._options, self._options.dataset
        is_given = options.sampler is not None or not options.has_own_order
        if not (
            isinstance(dataset, BatchDataset) or is_given or len(dataset) == len(sampler.dataset)
        ):
            what = f"the dataset has {len(dataset)} samples, and had {len(sampler.dataset)} when this loader was made"
            raise ValueError(f"{what}: make another DataLoader")

    @property
    def _index_form(self) -> Callable[[IndexBatch], Any] | None:
        """Turns a step into what the dataset is given; None: the dataset is given the step itself."""
        as_list = IndexBatch.samples if self._holds_ours else list
        if self._singles is not None:
            return lambda indices: as_list(indices)[0]
        if self.backend != "process" or isinstance(self.dataset, BatchDataset):
            return None
        return as_list

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether accelerate shall keep the state of this loader with its own."""
        return self._steps is not None

    def _index_source(self) -> IndexSource:
        """Return an iterable of indices. Torch's iterator takes it, too; it keeps it if its workers persist."""
        loader = weakref.proxy(self)  # or the two would keep each other, and the workers
        return IndexSource(lambda: loader._one_by_one())

    def _one_by_one(self) -> Iterator[Any]:
        """Yield steps: each in its context where torch's iterator fetches it here right afterwards."""
        steps, form, others = self._steps, self._index_form, self._others
        if steps is not None:
            order, epoch = steps.sampler.order, steps.sampler.epoch
            indices: Iterator[Any] = index_batches(order, steps.plan(), epoch, steps.seed)
            indices = indices if form is None else map(form, indices)
        else:
            assert others is not None
            given = self.sampler if self.batch_sampler is None else self.batch_sampler
            number = partial(_numbered, self.dataset, self.seed, given)
            indices = others.take(number if self._holds_ours else lambda _: given)
        return entered(indices) if self.backend == "process" and not self.num_workers else indices

    def _indices(self, chunk_size: int) -> Iterator[Any]:
        """Return the indices of batches one by one, or many at a time, as many as chunks of so many divide."""
        steps = self._steps
        if steps is None or self._index_form is not None:
            return self._one_by_one()
        sampler = steps.sampler
        return evaluate(sampler.order, steps.plan(), sampler.epoch, steps.seed, chunk_size)

    @cached_property
    def _holds_ours(self) -> bool:
        """Whether indices set the epoch of a loaders dataset, or of those inside a third-party one."""
        return any(True for _ in ours_in(self.dataset))

    @property
    def _makes_batches(self) -> bool:
        """Whether the order says how large each batch is."""
        steps = self._steps
        return steps is not None and batch_starts(steps.sampler.order, 0) is not None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration serves; the current one keeps its position."""
        epoch = self._set_to = whole_number("epoch", epoch, at_least=0)
        samplers: tuple[Any, ...] = (self.sampler, self.batch_sampler)
        for part in (*samplers, self.dataset, self._served, self._others):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration serves, or goes on with."""
        place: Any = self._others if self._steps is None else self._steps.sampler
        return int(place.epoch)

    def forever(self) -> Iterator[BatchT]:
        """Return batches, epoch after epoch, without end: from where the loader stands, and ``state_dict`` as ever.

        Raises:
            ValueError: Ranks have unequal steps (``pad=False``), and would drift; or, at ``next``, there is no batch.
        """
        steps = self._steps
        if steps is not None and not (steps.pad or steps.drop_last):
            last = replace(steps.plan(), rank=steps.sampler.num_replicas - 1)
            if last.num_steps < replace(last, rank=0).num_steps:
                what = "with pad=False ranks have unequal steps, and in forever() their epochs would drift apart"
                raise ValueError(f"{what}: set drop_last=True, or drop pad")
        return self._forever()

    def _forever(self) -> Iterator[BatchT]:
        num_empty = 0
        while num_empty < 2:  # of a resumed epoch, nothing may be left for this rank
            num_empty += 1
            for batch in self:
                num_empty = 0
                yield batch
        raise ValueError(f"forever() would never yield: {self!r} has no batch")

    def state_dict(self, pending: int = 0) -> dict[str, Any]:
        """Return the position: what was delivered, not what was prefetched. Primitives only, the same on every rank.

        Args:
            pending: Batches that were handed over and not trained on yet: they are served again after a resume.

        Raises:
            StateError: Samples are in an order that no state can tell, or fewer batches were handed over.
        """
        if not self.in_order:
            raise StateError(
                "with in_order=False the order of batches is not reproducible, so there is no state of it"
            )
        if self._steps is not None:
            place = self._steps.sampler.state_dict(pending)
        else:
            assert self._others is not None
            place = self._others.state_dict(self, pending)
        state = {"version": _STATE_VERSION, "dataset": fingerprint_of(self.dataset)}
        return {**state, "seed": self.seed, "sampler": place}

    def load_state_dict(
        self, state: dict[str, Any], *, weights: Literal["new"] | None = None
    ) -> None:
        """Continue from a state at the next ``iter``; any world size, batch size and number of workers may do so.

        Args:
            state: What ``state_dict`` returned.
            weights: ``"new"``: a ``Mixture`` goes on by its own weights, which may differ from those of the state; each
                source goes on where it was, and no sample of it is lost or comes twice in a pass.

        Raises:
            StateError: It is of another dataset, or another order of it, or no state.
        """
        if not isinstance(state, Mapping):
            raise StateError(f"a loader's state is what state_dict() returned, got {shown(state)}")
        fingerprint = fingerprint_of(self.dataset)
        if state.get("version") != _STATE_VERSION:
            raise StateError(
                f"the state has version {state.get('version')!r}, this release reads {_STATE_VERSION}"
            )
        if state.get("dataset") != fingerprint:
            raise StateError(
                f"the state belongs to dataset {state.get('dataset')}, this one is {fingerprint}: "
                "it was packed, selected or split differently"
            )
        steps, place = self._steps, state.get("sampler", {})
        seed, here = state.get("seed"), self.seed
        if steps is not None:
            continued(steps.sampler.order, place, weights)
        if seed not in (None, here) and any(part.is_random for part in ours_in(self.dataset)):
            raise StateError(
                f"the state was taken with seed={seed!r}, this loader has seed={here}: its crops would differ"
            )
        if steps is None:
            assert self._others is not None
            self._others.load_state_dict(place)
            return
        steps.sampler.load_state_dict(place, weights=weights, skips=False)


def _numbered(dataset: Any, seed: int, batches: Any, epoch: int) -> Iterator[Any]:
    may_draw = getattr(dataset, "may_draw", hasattr(dataset, "__len__"))
    num, as_lists = len(dataset) if may_draw else 0, not isinstance(dataset, BatchDataset)
    return numbered(batches, epoch, num, seed, as_lists=as_lists)
