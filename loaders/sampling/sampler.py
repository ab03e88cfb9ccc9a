"""Samplers in the form that PyTorch and its frameworks know, over the pure functions here.

What they hold is where the epoch stands: as little as a resume needs.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeVar

from torch.utils.data import BatchSampler, DistributedSampler

from loaders.checks import Settled, one_of, shown, whole_number
from loaders.errors import StateError
from loaders.sampling.batch import SampleIndex, index_batches, samples
from loaders.sampling.cursor import Cursor, Pass
from loaders.sampling.first import sampled
from loaders.sampling.order import Order, Sequential, Shuffled, batch_starts
from loaders.sampling.plan import BatchPlan, Pad, Plan
from loaders.sampling.ranks import is_distributed, resolve_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sized

_T = TypeVar("_T")
_PER_EPOCH = ("weights", "labels")  # of what an order chooses by
_STATE_VERSION = 1


class EpochSampler(Settled, DistributedSampler[SampleIndex]):
    """One rank's samples of each epoch, in an order that is computed, never stored.

    A ``DistributedSampler``, so that frameworks which slice other samplers by rank leave it alone.
    Differences: a full pass advances the epoch (``set_epoch`` still selects one); it resumes at
    any sample, on any world size; each index is a ``SampleIndex``, so augmentation knows epoch and
    draw under any DataLoader.

    Args:
        order: What to sample; an int n means ``Shuffled(n, seed)`` or, with ``shuffle=False``,
            ``Sequential(n)``.
        shuffle: Only with an int; default True.
        seed: Only with an int; default 0.
        rank: This process; by default asked of ``torch.distributed`` at the first ``iter`` or
            ``len``.
        world_size: Number of processes; default as for ``rank``.
        drop_last: Leave out what would make ranks uneven.
        pad: How ranks come to equal lengths otherwise, see ``Plan``. (Padding is only marked in
            batches.)

    Raises:
        ValueError: An argument is out of range, or given twice.
        LoadersError: At ``iter`` or ``len``: several processes, but no way to tell which one this
            is.

    Example:
        >>> sampler = EpochSampler(6, shuffle=False, rank=1, world_size=2)
        >>> list(sampler), sampler.epoch
        ([1, 3, 5], 1)
    """

    _settled = frozenset(
        ["order", "dataset", "shuffle", "seed", "drop_last", "pad", "given_ranks"]
    )

    def __init__(
        self,
        order: Order | SupportsIndex,
        *,
        shuffle: bool | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        pad: Pad = True,
    ) -> None:
        # Not super().__init__(): it would ask for the ranks now.
        made = _as_order(order, shuffle, seed)
        self.shuffle = not isinstance(made, Sequential)
        self.order = sampled(made)
        self.dataset: Sized = range(made.length)  # type: ignore[assignment]
        # Samples as they lie have one, too: for augmentation.
        given = self.order.describe().get("seed", 0) if seed is None else seed
        self.seed = whole_number("seed", given)
        self.drop_last, self.pad = drop_last, pad
        self.cursor = Cursor()  # where the current epoch stands
        self._ranks: tuple[int, int] | None = None
        self.given_ranks = (rank, world_size)
        if self.given_ranks != (None, None):  # whatever is wrong with them is said now
            ranks = resolve_rank(rank, world_size)
            self._ranks = None if None in self.given_ranks else ranks
        Plan(self.order.length, 1, drop_last=drop_last, pad=pad)  # refuses now, not at iter

    def __iter__(self) -> Iterator[SampleIndex]:
        self._resolve()
        return self._follow(self.plan, samples, self.seed)

    def __len__(self) -> int:
        return self.plan().num_samples

    def batches(
        self, batch_size: int, drop_last: bool | None = None, pad: Pad | None = None
    ) -> EpochBatches:
        """Return a batch sampler over this epoch and position, as ``DataLoader`` takes it."""
        return EpochBatches(
            self, batch_size, self.drop_last if drop_last is None else drop_last, pad
        )

    def plan(
        self, batch_size: int | None = None, drop_last: bool | None = None, pad: Pad | None = None
    ) -> Plan:
        """Return this rank's plan of the current epoch, from where the next ``iter`` begins.

        Args:
            batch_size: Samples of a step; None: the samples one by one, of an order that makes batches, too.
            drop_last: See ``Plan``; default: the sampler's.
            pad: See ``Plan``; default: the sampler's.
        """
        rank, world_size = self._resolve()
        drop_last = self.drop_last if drop_last is None else drop_last
        pad = self.pad if pad is None else pad
        length, start = self.order.length, self.cursor.start
        size = 1 if batch_size is None else batch_size
        starts = None if batch_size is None else batch_starts(self.order, self.epoch)
        if starts is not None:
            return BatchPlan(length, size, rank, world_size, drop_last, pad, start, starts=starts)
        unit, num_lanes = getattr(self.order, "unit", 1), getattr(self.order, "num_lanes", 1)
        return Plan(length, size, rank, world_size, drop_last, pad, start, unit, num_lanes)

    def go_on(self, make_plan: Callable[[], Plan] | None = None) -> Plan:
        """Go to the next epoch if nothing is left of this one, and return the plan to follow.

        All of an epoch was taken, without asking whether there is more (``zip``), or a loaded state leaves no step
        of it. What ``set_epoch`` chose is served as it is.
        """
        make_plan = make_plan or self.plan
        if self.cursor.is_over:
            self.cursor.go(self.epoch + 1)
        plan, cursor = make_plan(), self.cursor
        if cursor.start and cursor.epoch != cursor.chosen and not plan.num_steps_of_all:
            cursor.go(cursor.epoch + 1)
            plan = make_plan()
        return plan

    def begin(self, plan: Plan) -> Pass:
        """Begin a pass over the current epoch; the state tells of it from now on."""
        return self.cursor.begin(plan)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; the current one keeps its position.

        After ``load_state_dict``, the epoch that was current when the state was taken goes on where it was: it has
        nothing left if the state was taken at its end.
        """
        self.cursor.set_epoch(epoch, self.order.length)

    def state_dict(self, pending: int = 0) -> dict[str, int | str]:
        """Return where the epoch stands, in primitives, the same on every rank; at its end, the start of the next.

        Counted is what was taken from the iterators. A DataLoader that prefetches takes more than
        it has delivered: ``loaders.DataLoader`` therefore counts what it hands over.

        Args:
            pending: How many of the last steps to leave out: they come again after a resume.

        Raises:
            StateError: Fewer steps of the epoch were done since the iteration began, or the state was loaded.
        """
        details = getattr(self.order, "details", dict)
        state = {"version": _STATE_VERSION, **self.order.describe(), **details()}
        return state | self.cursor.state(pending)

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        *,
        weights: Literal["new"] | None = None,
        skips: bool = True,
    ) -> None:
        """Let the next ``iter`` go on where the state was taken, on any world and batch size.

        Args:
            state: What ``state_dict`` returned.
            weights: ``"new"``: a mixture goes on by weights of its own, which may differ from those of the state; each
                source goes on where it was.
            skips: False: the next ``iter`` of this sampler, or of its batches, yields the epoch from its start; only
                ``plan`` begins at the state.

        Raises:
            StateError: The state is not of this order; it says in what they differ.
        """
        order, place = continued(self.order, state, weights)
        self.__dict__["order"] = order
        self.cursor.load(*place, state.get("chosen"), is_loaders=not skips)

    @property
    def epoch(self) -> int:
        """The current epoch; assigning one is ``set_epoch``."""
        return self.cursor.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    @property
    def rank(self) -> int:  # type: ignore[override]  # resolved late
        """This process among ``num_replicas``."""
        return self._resolve()[0]

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """The world size."""
        return self._resolve()[1]

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """This rank's samples of a full epoch."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """All ranks' samples of a full epoch, padding included."""
        if self.drop_last or self.pad:
            return self.num_samples * self.num_replicas
        return self.order.length

    def _resolve(self) -> tuple[int, int]:
        is_asked = None in self.given_ranks
        if self._ranks is None or (is_asked and is_distributed()):
            ranks = resolve_rank(*self.given_ranks)
            if is_asked and not is_distributed():  # it may still become so
                return ranks
            self._ranks = ranks
        return self._ranks

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what ``torch.distributed`` said here: a copy may be another rank's."""
        return self.__dict__ | ({"_ranks": None} if None in self.given_ranks else {})

    def _follow(
        self, make_plan: Callable[[], Plan], items: Callable[..., Iterator[_T]], seed: int
    ) -> Iterator[_T]:
        """Yield a plan's items, one per step, and count them; all from the first ``next`` on.

        (torch's DataLoader makes two iterators of a batch sampler and uses one.)
        """
        if self.cursor.is_loaders:
            self.cursor.start, self.cursor.is_loaders = 0, False
        current = self.begin(self.go_on(make_plan))
        for item in items(self.order, current.plan, current.epoch, seed):
            current.count()
            yield item
        current.end()


class EpochBatches(Settled, BatchSampler):
    """The batches of an ``EpochSampler``: one ``IndexBatch`` per step of this rank.

    Epoch, position, state and ranks are the sampler's. Of any other sampler, also a subclass that yields something
    else, they are torch's: frameworks make batch samplers anew, of a sampler of their own.

    Args:
        sampler: Says what, from where and for which rank.
        batch_size: Samples per rank and step.
        drop_last: Leave out the last steps that are not full on every rank.
        pad: See ``Plan``; default: the sampler's.
        seed: Of augmentation; default: the sampler's.

    Example:
        >>> [list(batch) for batch in EpochSampler(5, shuffle=False).batches(2)]
        [[0, 1], [2, 3], [4]]
    """

    _settled = frozenset(["sampler", "batch_size", "drop_last", "pad", "seed"])

    def __init__(
        self,
        sampler: Any,
        batch_size: int,
        drop_last: bool = False,
        pad: Pad | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.sampler: EpochSampler = sampler
        is_known = is_ours(sampler)
        its_seed, its_pad = (sampler.seed, sampler.pad) if is_known else (0, True)
        self.seed: int = its_seed if seed is None else seed
        self.pad: Pad = its_pad if pad is None else pad
        if not is_known and (pad, seed) != (None, None):
            what = "pad and seed are for samplers of loaders"
            raise ValueError(f"{what}: {type(sampler).__name__} yields indices of its own")

    def __iter__(self) -> Iterator[Any]:
        if not is_ours(self.sampler):
            return super().__iter__()
        self.sampler.plan()  # whatever is wrong with the ranks is said now
        return self.sampler._follow(self.plan, index_batches, self.seed)

    def __len__(self) -> int:
        return self.plan().num_steps if is_ours(self.sampler) else super().__len__()

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; the current one keeps its position."""
        self.sampler.set_epoch(epoch)

    @property
    def start_iteration(self) -> None:
        """The step of the current epoch at which the next ``iter`` begins; ignite sets it to resume."""

    @start_iteration.setter
    def start_iteration(self, step: int | None) -> None:
        if step is not None:
            self.sampler.cursor.start = replace(self.plan(), start=0).delivered(step)

    @property
    def even_batches(self) -> bool:
        """Whether all ranks have equal steps; accelerate's ``join_uneven_inputs`` sets it."""
        return self.drop_last or bool(self.pad)

    @even_batches.setter
    def even_batches(self, is_even: bool) -> None:
        if bool(is_even) != self.even_batches and not self.drop_last:
            what = f"even_batches={is_even} does not change a loader that has pad={self.pad!r}"
            warnings.warn(f"{what}: make it with pad={bool(is_even)}", stacklevel=2)

    def plan(self) -> Plan:
        """Return this rank's plan of the current epoch, from where the next ``iter`` begins."""
        return self.sampler.plan(self.batch_size, self.drop_last, self.pad)


class IndexSource:
    """The indices of a loader, from the start at each ``iter``.

    (A loader counts by itself what it hands over; torch's makes iterators that it does not use.)
    """

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


def is_ours(given: Any) -> bool:
    """Return True if a sampler, or batch sampler, yields what its order says: a subclass may yield something else."""
    if isinstance(given, EpochBatches):
        return _yields_as(EpochBatches, given) and is_ours(given.sampler)
    return isinstance(given, EpochSampler) and _yields_as(EpochSampler, given)


def _yields_as(kind: type[Any], given: Any) -> bool:
    own = type(given)
    return (own.__iter__, own.__len__) == (kind.__iter__, kind.__len__)


def continued(
    order: Order, state: Mapping[str, Any], weights: Literal["new"] | None = None
) -> tuple[Order, tuple[int, int]]:
    """Return the order that goes on from a state, and the epoch and position there; StateError if it is another's."""
    _check_place(state)
    place = state["epoch"], state["delivered"]
    own = getattr(order, "continued", None)
    if weights is not None:
        one_of("weights", weights, ["new"])
        if own is None:
            raise StateError(f"weights='new' is only for mixtures, this order is {shown(order)}")
    if own is not None:
        order, place = own(state, weights)
    if weights is None:
        check_state(state, order)
    return order, place


def check_state(state: Mapping[str, Any], order: Order) -> None:
    """Raise ``StateError``, naming what differs, unless ``state`` belongs to this order."""
    _check_place(state)
    expected = {"sample": None, **order.describe()}
    if state.get("delivered") in (0, order.length):  # the next epoch may have other weights
        expected = {name: value for name, value in expected.items() if name not in _PER_EPOCH}
    differing = [name for name in expected if state.get(name) != expected[name]]
    if differing:
        differences = ", ".join(
            f"{name} {state.get(name)!r} (here {expected[name]!r})" for name in differing
        )
        raise StateError(f"the sampler's state belongs to another order: {differences}")
    _check_range(state, "delivered", order.length + 1)


def _check_place(state: Any) -> None:
    """Raise ``StateError`` unless this is a state of a sampler, of whatever order."""
    if not isinstance(state, Mapping) or state.get("version") != _STATE_VERSION:
        what = f"a sampler's state is what state_dict() returned, of version {_STATE_VERSION}"
        raise StateError(f"{what}, got {shown(state)}")
    for name in ("epoch", "delivered", *({"chosen"} & state.keys())):
        _check_range(state, name, 1 << 63)


def _check_range(state: Mapping[str, Any], name: str, limit: int) -> None:
    value = state.get(name)
    if not isinstance(value, int) or not 0 <= value < limit:
        raise StateError(f"{name} in a sampler state must be in [0, {limit}), got {value!r}")


def _as_order(order: Order | SupportsIndex, shuffle: bool | None, seed: int | None) -> Order:
    if isinstance(order, type) or not isinstance(order, SupportsIndex | Order):
        what = "an order, such as Balanced(labels, num_samples), or a number of samples"
        raise TypeError(f"order must be {what}, got {shown(order)}")
    if isinstance(order, Order):
        if (shuffle, seed) != (None, None):
            raise ValueError(
                f"shuffle={shuffle} and seed={seed} go with a number of samples, "
                "an order has its own"
            )
        return order
    n = index(order)
    return Sequential(n) if shuffle is False else Shuffled(n, 0 if seed is None else seed)
