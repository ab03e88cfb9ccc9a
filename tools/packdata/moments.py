"""Mean, deviation and range of numbers that come in parts: no digit is lost to a large mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_LEVELS = {"min": 0, "p5": 5, "p50": 50, "p95": 95, "max": 100}


@dataclass(slots=True)
class Moments:
    """Mean, deviation and range of floats, joined pairwise.

    Source:
        Chan, Golub, LeVeque: "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared distances from the mean
    least: float = math.inf
    most: float = -math.inf

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Moments:
        """Summarize numbers, among which is no NaN."""
        if not values.size:
            return cls()
        wide = values.astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):  # infinities have no deviation
            mean = float(wide.mean())
            squares = float(np.square(wide - mean).sum())
        return cls(wide.size, mean, squares, float(wide.min()), float(wide.max()))

    def add(self, other: Moments) -> None:
        """Take the numbers of another summary in."""
        if not other.count:
            return
        count, distance = self.count + other.count, other.mean - self.mean
        if math.isfinite(distance):
            self.squares += other.squares + distance * distance * self.count * other.count / count
            self.mean += distance * other.count / count
        else:
            self.squares, self.mean = math.nan, self.mean + other.mean
        self.count = count
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)

    @property
    def std(self) -> float:
        """Standard deviation of the population, not of a sample of it."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


def percentiles(numbers: npt.NDArray[Any]) -> dict[str, float]:
    """Return the ends, the middle and what lies 5 % from each end, by name.

    Example:
        >>> percentiles(np.arange(201))
        {'min': 0.0, 'p5': 10.0, 'p50': 100.0, 'p95': 190.0, 'max': 200.0}
    """
    found = np.percentile(numbers, [*_LEVELS.values()]).tolist()
    return dict(zip(_LEVELS, found, strict=True))
