"""Which shards the steps to come will read, in the order of need: for whoever fetches or keeps them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from loaders.sampling.batch import evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from loaders.sampling.order import Order
    from loaders.sampling.plan import Plan

    Int64s = npt.NDArray[np.int64]


def node_plan(plan: Plan, ranks_per_node: int) -> Plan:
    """Return what all ranks of a rank's node read together, as the plan of one rank.

    Args:
        plan: Of one rank.
        ranks_per_node: Consecutive ranks, whose number divides the world size.

    Raises:
        ValueError: It does not.
    """
    num_nodes, rest = divmod(plan.world_size, ranks_per_node)
    if rest:
        what = f"ranks_per_node must divide {plan.world_size} ranks"
        raise ValueError(f"{what}, got {ranks_per_node}")
    return replace(
        plan,
        batch_size=plan.batch_size * ranks_per_node,
        rank=plan.rank // ranks_per_node,
        world_size=num_nodes,
    )


def shards_ahead(
    order: Order, plan: Plan, epoch: int, shards_of: Callable[[Int64s], Int64s]
) -> Iterator[tuple[int, Int64s]]:
    """Yield which shards the steps of a plan read, a stretch of steps at a time, as far ahead as one asks.

    Args:
        order: Of any kind.
        plan: From where on, and for whom.
        epoch: Of the order.
        shards_of: Says which shard each of some samples lies in, as ``dataset.shards_of`` does.

    Yields:
        The first step of a stretch, counted from where the plan begins, and the shards it reads, each once, in the
        order in which they are needed first. Stretches are one step at first, then up to some 65,536 samples; a shard
        comes in each of them that reads it.
    """
    step = 0
    for steps in evaluate(order, plan, epoch):
        shards = shards_of(steps.indices.ravel())
        distinct, firsts = np.unique(shards, return_index=True)
        yield step, distinct[np.argsort(firsts)]
        step += len(steps.indices)
