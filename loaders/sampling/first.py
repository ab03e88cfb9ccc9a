"""``LOADERS_SAMPLE``: the first samples of every epoch alone, to see whether a training runs at all."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.sampling.order import batch_starts

if TYPE_CHECKING:
    import numpy.typing as npt

    from loaders.sampling.order import Order

    Int64s = npt.NDArray[np.int64]

logger = logging.getLogger(__name__)
VARIABLE = "LOADERS_SAMPLE"


@dataclass(frozen=True, eq=False)
class FirstSamples:
    """The first ``num`` samples of each epoch of an order, which says everything else."""

    order: Order
    num: int

    @property
    def length(self) -> int:
        return min(self.num, self.order.length)

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s | None]:
        return self.order.at(epoch, positions)

    def describe(self) -> dict[str, int | str]:
        return {**self.order.describe(), "length": self.length, "sample": self.num}

    def batch_starts(self, epoch: int) -> Int64s | None:
        """Return where batches of the order's own begin, and the end; the last one may be cut."""
        starts = batch_starts(self.order, epoch)
        return None if starts is None else np.append(starts[starts < self.length], self.length)

    def __getattr__(self, name: str) -> Any:
        # "continued" would go on without this, and copies are made before there is an order.
        if name == "continued" or name.startswith("__") or "order" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.order, name)


def sampled(order: Order) -> Order:
    """Return an order, or its first samples if the environment asks for these; ValueError if it asks for no number."""
    num = num_first()
    return order if num is None or isinstance(order, FirstSamples) else FirstSamples(order, num)


def num_first() -> int | None:
    """Return how many samples of each epoch to serve; None: all."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{VARIABLE} is a number of samples from 1, got {text!r}")
    _say_once(int(text))
    return int(text)


@cache
def _say_once(num: int) -> None:
    what = f"{VARIABLE} is set: loaders serve the first {num:,} samples of each epoch alone"
    logger.warning("%s, and states that they save are refused without it", what)
