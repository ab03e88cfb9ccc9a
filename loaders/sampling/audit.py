"""Proof that a plan delivers what it says, by looking at every position of every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loaders.checks import shown, whole_number
from loaders.sampling.order import Order
from loaders.sampling.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from loaders.sampling.plan import Pad

    Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What all ranks of an epoch (or of its rest) get together.

    Attributes:
        plan: The plan of rank 0.
        steps: Number of steps of each rank.
        num_missed: Positions that no rank delivers.
        num_repeated: Positions delivered more than once; marked padding does not count.
        faults: What contradicts the plan's promise, in words; empty if nothing does.
    """

    plan: Plan
    steps: tuple[int, ...]
    num_missed: int
    num_repeated: int
    faults: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is as promised."""
        return not self.faults

    def __str__(self) -> str:
        plan, verdict = self.plan, "ok" if self.ok else "FAILED"
        lines = [
            f"{verdict}: {plan.length} positions from {plan.start} on, "
            f"world_size={plan.world_size}, batch_size={plan.batch_size}, "
            f"drop_last={plan.drop_last}, pad={plan.pad!r}",
            f"steps per rank: {', '.join(map(str, sorted(set(self.steps))))}",
            f"never delivered: {self.num_missed}",
            f"delivered more than once: {self.num_repeated}",
        ]
        return "\n  ".join([*lines, *(f"fault: {fault}" for fault in self.faults)])


def audit(
    length: int,
    *,
    batch_size: int = 1,
    world_size: int = 1,
    drop_last: bool = False,
    pad: Pad = True,
    start: int = 0,
    order: Order | None = None,
    epoch: int = 0,
) -> AuditReport:
    """Evaluate an epoch on every rank and report whether each sample comes as often as promised.

    Args:
        length: Positions in the epoch; that of ``order`` if there is one.
        batch_size: Samples per rank and step.
        world_size: Number of ranks.
        drop_last: Leave out the tail.
        pad: What to do about an uneven tail, see ``Plan``.
        start: Where the epoch is resumed.
        order: Prove as well that this order has something else at every position.
        epoch: Of the order.

    Raises:
        TypeError: A number is not an integer, or ``order`` is not an ``Order``.
        ValueError: A number is out of range.

    Example:
        >>> print(audit(10, batch_size=2, world_size=3, pad=False))
        ok: 10 positions from 0 on, world_size=3, batch_size=2, drop_last=False, pad=False
          steps per rank: 2
          never delivered: 0
          delivered more than once: 0
    """
    ranks = range(whole_number("world_size", world_size, at_least=1))
    unit, num_lanes = getattr(order, "unit", 1), getattr(order, "num_lanes", 1)
    plans = [
        Plan(length, batch_size, rank, world_size, drop_last, pad, start, unit, num_lanes)
        for rank in ranks
    ]
    return audit_plans(plans, order=order, epoch=epoch)


def audit_plans(
    plans: Sequence[Plan], *, order: Order | None = None, epoch: int = 0
) -> AuditReport:
    """Audit plans, however they were made.

    Args:
        plans: One for each rank; the first one says what is promised.
        order: Checked as well, if it is given: no two positions may have the same sample and draw.
        epoch: Of the order.
    """
    plan, steps = plans[0], tuple(each.num_remaining_steps for each in plans)
    counts = _delivered_counts(plans)
    excess = counts.astype(np.int64) - _promised_counts(plan)
    less, more = np.flatnonzero(excess < 0), np.flatnonzero(excess > 0)
    faults = [
        *_step_faults(plan, steps),
        *_fault("delivered less often than promised", less),
        *_fault("delivered more often than promised", more),
        *([] if order is None else _order_faults(order, plan.length, epoch)),
    ]
    num_missed, num_repeated = int((counts == 0).sum()), int((counts > 1).sum())
    return AuditReport(plan, steps, num_missed, num_repeated, tuple(faults))


def _delivered_counts(plans: Sequence[Plan]) -> npt.NDArray[np.uint32]:
    """Count how often each position is delivered, those before the start once already."""
    counts = np.zeros(plans[0].length, np.uint32)
    counts[: plans[0].start] = 1
    for plan in plans:
        for positions, valid in plan.chunks():
            np.add.at(counts, positions if valid is None else positions[valid], 1)
    return counts


def _promised_counts(plan: Plan) -> Int64s:
    """Count how often each position is due: once, but for dropped tail and unmarked padding."""
    counts = np.ones(plan.length, np.int64)
    tail = (plan.length - plan.start) % (plan.batch_size * plan.world_size)
    if plan.drop_last:
        counts[plan.length - tail :] = 0
    elif plan.pad is True:
        padding = -(-tail // (plan.unit * plan.world_size)) * plan.unit * plan.world_size - tail
        np.add.at(counts, np.arange(padding) % max(plan.length, 1), 1)
    return counts


def _step_faults(plan: Plan, steps: tuple[int, ...]) -> Iterator[str]:
    uneven = 0 if plan.drop_last or plan.pad else 1
    if max(steps) - min(steps) > uneven:
        fewest, most = steps.index(min(steps)), steps.index(max(steps))
        yield f"rank {fewest} has {min(steps)} steps, rank {most} has {max(steps)}"


def _fault(finding: str, positions: Int64s) -> Iterator[str]:
    if positions.size:
        yield f"{positions.size} positions {finding}, the first is {positions[0]}"


def _order_faults(order: Order, length: int, epoch: int) -> Iterator[str]:
    """Find positions that hold what another position of the epoch holds, draw included."""
    if not isinstance(order, Order):
        raise TypeError(f"order must be an order, such as Shuffled(n), got {shown(order)}")
    if order.length != length:
        yield f"the order has {order.length} positions, not {length}"
        return
    indices, drawn = order.at(epoch, np.arange(length))
    draws = np.zeros_like(indices) if drawn is None else drawn
    ascending = np.lexsort((draws, indices))
    same = (np.diff(indices[ascending]) == 0) & (np.diff(draws[ascending]) == 0)
    positions = np.sort(ascending[1:][same])
    yield from _fault("hold the same index and draw as another", positions)
