"""Devices: which one is meant, and what copying ahead needs of it.

That is copies in the background, and events that say when they are done.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from loaders.checks import shown
from loaders.errors import LoadersError

if TYPE_CHECKING:
    from collections.abc import Mapping

_WITH_STREAMS = ("cuda", "xpu")  # cuda is ROCm's name, too


class Accelerator:
    """Copies tensors to one device; here to one without streams, or the CPU: a copy is done when ``copy`` returns."""

    # Whether copies run beside the caller; if not, there is nothing to gain from starting them early.
    is_ahead = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def copying(self) -> AbstractContextManager[Any]:
        """Return the context in which ``copy`` is called."""
        return nullcontext()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start a copy. The source must stay as it is until an event recorded later is done."""
        return tensor.to(self.device)

    def record(self) -> Any:
        """Return an event that is done when all copies started so far are."""

    def wait(self, event: Any, tensors: list[torch.Tensor]) -> None:
        """Let all work that the caller starts from now on wait for the event, and use these tensors."""

    def done(self, event: Any) -> bool:
        """Tell whether an event has happened, without waiting."""
        return True

    def synchronize(self, event: Any) -> None:
        """Wait until it has."""

    def is_busy(self) -> bool:
        """Tell whether work that the caller started there is not done yet."""
        return False


class StreamCopies(Accelerator):
    """CUDA, ROCm and XPU: copies on a stream of their own; without an index, of the current device.

    ``torch.cuda`` and ``torch.xpu`` have the same streams and events, in every release this project supports;
    ``torch.accelerator`` is younger than these.
    """

    is_ahead = True

    def __init__(self, device: torch.device) -> None:
        self._module: Any = getattr(torch, device.type)
        given: int | None = device.index
        index = self._module.current_device() if given is None else given
        super().__init__(torch.device(device.type, index))
        self._stream = self._module.Stream(self.device)

    def copying(self) -> AbstractContextManager[Any]:
        """Make the copying stream the current one: what is allocated meanwhile belongs to it."""
        return self._module.stream(self._stream)  # type: ignore[no-any-return]

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start a copy; it runs beside the caller if the source is page-locked."""
        return tensor.to(self.device, non_blocking=True)

    def record(self) -> Any:
        event = self._module.Event()
        event.record(self._stream)
        return event

    def wait(self, event: Any, tensors: list[torch.Tensor]) -> None:
        """Let the caller's current stream wait; the caller itself does not.

        The tensors were allocated on the copying stream. Marked as used by the current one, their
        memory is given to a later copy only when the work queued there until they are freed is done.
        """
        stream = self._module.current_stream(self.device)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)

    def done(self, event: Any) -> bool:
        return bool(event.query())

    def synchronize(self, event: Any) -> None:
        event.synchronize()

    def is_busy(self) -> bool:
        return not self._module.current_stream(self.device).query()


def as_device(device: torch.device | str | int, option: str = "device") -> torch.device:
    """Return the device that was asked for; ``option`` is what to leave out if there is none.

    Raises:
        TypeError: It is neither a device nor a name.
        ValueError: There is no such kind of device.
        LoadersError: This machine, or this build of torch, has no such device.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"device must be one that torch knows, such as 'cuda', 'cuda:1' or 'cpu', got {shown(device)}"
        ) from error
    if found.type not in (*_WITH_STREAMS, "mps"):
        return found
    num: int = getattr(torch, found.type).device_count()  # it starts no driver: forks still can
    if (found.index or 0) >= num:
        raise LoadersError(
            f"device={str(found)!r} cannot be used: torch {torch.__version__} sees {num} of that kind. Leave "
            f"{option} out, use 'cpu', or install the build of torch that is for your device"
        )
    return found


def accelerator_for(device: torch.device) -> Accelerator:
    """Return the way of copying to a device."""
    return StreamCopies(device) if device.type in _WITH_STREAMS else Accelerator(device)


def pins(device: torch.device | None) -> bool:
    """Tell whether batches for a device should lie in page-locked memory."""
    return device is not None and device.type in _WITH_STREAMS


def shared_device(
    device: torch.device, num_devices: int, environ: Mapping[str, str]
) -> str | None:
    """Return a warning if this rank puts its batches on what is most likely another local rank's device.

    Args:
        device: With its index.
        num_devices: How many this process sees.
        environ: Of the process, as ``torchrun`` sets it.

    Example:
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
