"""A device of the tests: copies run when the test says so, and read the host's memory only then."""

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from loaders.device.accelerator import Accelerator


class Event:
    """Done when its copies have run."""

    def __init__(
        self, name: str, copies: list[tuple[torch.Tensor, torch.Tensor]], log: list[str]
    ) -> None:
        self.name, self.copies, self.log, self.is_done = name, copies, log, False

    def happen(self) -> None:
        for target, source in self.copies:
            target.copy_(source)
        self.copies, self.is_done = [], True

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self.log.append(f"synchronize {self.name}")
        self.happen()


class ManualCopies(Accelerator):
    """An accelerator over host memory.

    Attributes:
        events: All of them, oldest first.
        log: What was called, in order.
    """

    device = torch.device("cpu")
    is_ahead = True

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.log: list[str] = []
        self._started: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.fail_after: int | None = None

    def copying(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                raise RuntimeError("out of device memory")
        target = torch.full_like(tensor, 77)
        # A stream does not keep the source alive; that is what is tested.
        self._started.append((target, torch.from_numpy(_alias(tensor))))
        return target

    def record(self) -> Event:
        event = Event(str(len(self.events)), self._started, self.log)
        self._started = []
        self.events.append(event)
        self.log.append(f"copy {len(self.events) - 1}")
        return event

    def wait(self, event: Event, tensors: list[torch.Tensor]) -> None:
        self.log.append(f"hand over {self.events.index(event)}, {len(tensors)} tensors")


def _alias(tensor: torch.Tensor) -> Any:
    """See a tensor's memory without keeping it."""
    described = {
        "data": (tensor.data_ptr(), False),
        "shape": tuple(tensor.shape),
        "strides": tuple(n * tensor.element_size() for n in tensor.stride()),
        "typestr": tensor.numpy().dtype.str,
        "version": 3,
    }
    return np.asarray(SimpleNamespace(__array_interface__=described))
