"""Devices: which one is meant; copies in the background, and events that say when they are done.

Batches have the same pixels whatever mode they are asked for in. Autocast computes in half precision. It belongs to a
thread, so workers never have it; what is computed on the trainer's thread leaves it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from loaders.checks import shown
from loaders.errors import LoadersError

if TYPE_CHECKING:
    from collections.abc import Sequence

_WITH_STREAMS = ("cuda", "xpu")  # cuda is ROCm's name, too


class Accelerator:
    """Copies tensors to one device; here to one without streams, or the CPU: a copy is done when ``copy`` returns."""

    # Whether copies run beside the caller; if not, there is nothing to gain from starting them early.
    is_ahead = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor there."""
        return tensor.to(self.device)

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
        super().__init__(indexed(device))
        self._stream = self._module.Stream(self.device)

    def copying(self) -> Any:
        """Return a context in which the copying stream is the current one: what is allocated there belongs to it."""
        return self._module.stream(self._stream)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start a copy, beside the caller if the source is page-locked, which stays as it is until an event is done."""
        return tensor.to(self.device, non_blocking=True)

    def record(self) -> Any:
        """Return an event that is done when all copies started so far are."""
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


def indexed(device: torch.device) -> torch.device:
    """Return a device with its index: where it has none, that of the current one of its kind."""
    given: int | None = device.index
    if given is not None or device.type not in _WITH_STREAMS:
        return device
    return torch.device(device.type, getattr(torch, device.type).current_device())


def accelerator_for(device: torch.device) -> Accelerator:
    """Return the way of copying to a device."""
    return StreamCopies(device) if device.type in _WITH_STREAMS else Accelerator(device)


def pins(device: torch.device | None) -> bool:
    """Tell whether batches for a device should lie in page-locked memory."""
    return device is not None and device.type in _WITH_STREAMS


def without_autocast() -> ExitStack:
    """Return a context in which operations compute as the types of their tensors say."""
    stack = ExitStack()
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def row_of(
    values: Sequence[float], like: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return a few numbers where a tensor lies, without a copy from the host that would wait for the device."""
    return torch.stack(
        [torch.full((), value, dtype=dtype, device=like.device) for value in values]
    )
