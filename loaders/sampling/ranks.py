"""Who this process is among those that train together."""

from __future__ import annotations

import os

import torch.distributed as dist

from loaders.checks import whole_number
from loaders.errors import LoadersError


def resolve_rank(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return (rank, world size): the arguments, else what ``torch.distributed`` says, else (0, 1).

    Raises:
        ValueError: An argument is out of range.
        LoadersError: The launcher says that there are several processes, but nothing says which
            one this is. (Loading everything on each of them would look right, and not be.)

    Example:
        >>> resolve_rank(rank=1, world_size=4)
        (1, 4)
    """
    if world_size == 1 and rank is None:
        return 0, 1
    if is_distributed():
        rank = dist.get_rank() if rank is None else rank
        world_size = dist.get_world_size() if world_size is None else world_size
    if (rank, world_size) == (None, None):
        return 0, _alone()
    if rank is None or world_size is None:
        raise LoadersError(
            f"rank={rank} with world_size={world_size} leaves open which part of the data is for "
            "this process: pass both, or call torch.distributed.init_process_group() before "
            "iterating."
        )
    world_size = whole_number("world_size", world_size, at_least=1)
    return whole_number("rank", rank, at_least=0, below=world_size), world_size


def is_distributed() -> bool:
    """Tell whether ``torch.distributed`` knows the ranks already."""
    return dist.is_available() and dist.is_initialized()


def _alone() -> int:
    """Return world size 1, unless the environment of ``torchrun`` contradicts."""
    announced = os.environ.get("WORLD_SIZE", "")
    if announced.isdecimal() and int(announced) > 1:
        raise LoadersError(
            f"WORLD_SIZE is {announced}, but torch.distributed is not initialized and no rank "
            "was given, so every process would load all data. Call "
            "torch.distributed.init_process_group() before iterating, or pass rank= and "
            "world_size= (world_size=1 if each process is to have everything)."
        )
    return 1
