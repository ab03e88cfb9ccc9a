"""Which indices, in which order, for which rank: pure functions of (seed, epoch, position).

``permutation`` shuffles, ``order`` says which index stands where in an epoch, ``plan`` cuts the
epoch into steps and ranks, ``batch`` brings both together as batches of indices; ``sampler`` shows
them to PyTorch and remembers where the epoch stands, ``ranks`` asks who this process is, and
``audit`` proves that nothing is missed.
"""

from loaders.sampling.audit import AuditReport, audit, audit_plans
from loaders.sampling.batch import IndexBatch, SampleIndex, index_batches
from loaders.sampling.bylength import ByLength
from loaders.sampling.locality import BlockShuffled, Lanes
from loaders.sampling.mixture import MixtureOrder
from loaders.sampling.order import Order, Sequential, Shuffled
from loaders.sampling.permutation import permute
from loaders.sampling.plan import Pad, Plan
from loaders.sampling.ranks import resolve_rank
from loaders.sampling.sampler import EpochBatches, EpochSampler, check_state
from loaders.sampling.weighted import Balanced, Weighted

__all__ = [
    "AuditReport",
    "Balanced",
    "BlockShuffled",
    "ByLength",
    "EpochBatches",
    "EpochSampler",
    "IndexBatch",
    "Lanes",
    "MixtureOrder",
    "Order",
    "Pad",
    "Plan",
    "SampleIndex",
    "Sequential",
    "Shuffled",
    "Weighted",
    "audit",
    "audit_plans",
    "check_state",
    "index_batches",
    "permute",
    "resolve_rank",
]
