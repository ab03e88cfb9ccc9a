"""A common mistake of several ranks on one machine: all of them on the first device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


def shared_device(
    device: torch.device, num_devices: int, environ: Mapping[str, str]
) -> str | None:
    """Say so if this rank puts its batches on a device that is another local rank's, by all signs.

    Args:
        device: With its index.
        num_devices: How many this process sees.
        environ: Of the process, as ``torchrun`` sets it.

    Example:
        >>> import torch
        >>> environ = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
        >>> print(shared_device(torch.device("cuda:1"), 2, environ))
        None
        >>> print(shared_device(torch.device("cuda:0"), 2, environ))  # doctest: +ELLIPSIS
        local rank 1 of 2 puts batches on cuda:0, local rank 0's: ...
    """
    rank, world = (environ.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if not (rank.isdecimal() and world.isdecimal()) or int(world) < 2:
        return None
    if device.type != "cuda" or device.index != 0 or int(rank) == 0:
        return None
    if num_devices == 1 and environ.get("CUDA_VISIBLE_DEVICES"):  # one was given to each, no doubt
        return None
    where = f"local rank {rank} of {world} puts batches on {device}, local rank 0's"
    if num_devices <= int(rank):
        return f"{where}: this machine shows only {num_devices} for {world} ranks"
    return f"{where}: call torch.cuda.set_device({rank}) first, or pass device='cuda:{rank}'"
