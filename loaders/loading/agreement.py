"""Ranks that train together make their loaders alike: what differs is an error, not overlapping data.

The n-th loader of each rank is compared through the ``TCPStore`` at ``MASTER_ADDR`` and ``MASTER_PORT``, which
``torchrun`` and frameworks set: the first rank leaves what its loader was made of, and no rank waits for another.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from datetime import timedelta
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from loaders.datasets.views import fingerprint_of
from loaders.errors import LoadersError
from loaders.sampling.ranks import is_distributed

if TYPE_CHECKING:
    from loaders.sampling.sampler import EpochBatches

logger = logging.getLogger(__name__)
_TIMEOUT_S = 5.0
_numbers = Counter[int]()  # loaders that were made so far, by process


def next_number() -> int:
    """Return which loader of this process the next one is, of those that take their rank from the process."""
    _numbers[os.getpid()] += 1
    return _numbers[os.getpid()]


def check_ranks_agree(number: int, steps: EpochBatches, dataset: Any) -> None:
    """Compare a loader with those of its number on other ranks, where they answer; LoadersError if one differs."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not is_distributed() or dist.get_world_size() < 2 or not host or not port:
        return
    store = _store_at(host, port, os.getpid())
    if store is None:
        return
    # With restarts the store may outlive a rank whose count begins anew, at an epoch of before.
    may_restart = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    sampler = steps.sampler
    made_of: dict[str, Any] = {
        "seed": steps.seed,
        "batch_size": steps.batch_size,
        "drop_last": steps.drop_last,
        "pad": steps.pad,
        "dataset": fingerprint_of(dataset),
        **(sampler.order.describe() if may_restart else sampler.state_dict()),
    }
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), dist.get_world_size(), number
    key = f"loaders/{'/'.join(map(str, attempt))}"
    here = json.dumps(made_of, sort_keys=True)
    try:
        others = store.compare_set(key, "", here).decode()
    except RuntimeError as error:  # the store is gone: rank 0 has ended, say
        logger.info("loaders of ranks are not compared: %s", error)
        return
    if others == here:
        return
    there = json.loads(others)
    names = [name for name in {**made_of, **there} if made_of.get(name) != there.get(name)]
    mine, other = ({name: each.get(name) for name in names} for each in (made_of, there))
    raise LoadersError(
        f"loader {number} differs between ranks, which would train on overlapping data: here it has {mine}, on another "
        f"rank {other}. "
        "Make it alike on all ranks (the same seed, too; states are loaded on all), or pass rank= and world_size= "
        "where a rank has a loader of its own"
    )


@cache
def _store_at(host: str, port: str, pid: int) -> Any:
    """Return this process's connection to a store, or None if none answers in time."""
    stores, timeout = list[Any](), timedelta(seconds=_TIMEOUT_S)

    def connect() -> None:
        try:
            made = dist.TCPStore(  # type: ignore[attr-defined]
                host, int(port), is_master=False, timeout=timeout, wait_for_workers=False
            )
            stores.append(made)
        except (RuntimeError, ValueError, TypeError) as error:  # also of a bad port
            logger.info("loaders of ranks are not compared: no store answers: %s", error)

    # The constructor waits for ever for another service that says nothing.
    thread = Thread(target=connect, daemon=True)
    thread.start()
    thread.join(2 * _TIMEOUT_S)
    return next(iter(stores), None)
