"""Elastic transforms: a smooth field of random displacements, a function of a seed, in the frame of a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np

from loaders.augment.edits import hashed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]


class Ripple(NamedTuple):
    """The displacement field of one sample."""

    seed: int  # of the noise, below 2**24
    size: tuple[int, int]  # height and width of the frame in which pixels are displaced
    # Twice the largest displacement along x and y in pixels, before the noise is smoothed.
    alpha: tuple[float, float]
    sigma: tuple[float, float]  # of the smoothing, along x and y, in pixels; zeros for none
    frame: Floats  # ``(3, 3)``: from x, y of the result to those of that frame

    def displacements(self) -> npt.NDArray[np.float32]:
        """Return the displacement of each pixel of the frame, ``(height, width, 2)`` float32, x and y."""
        found = np.empty((*self.size, 2), np.float32)
        at = np.arange(found.size, dtype=np.int64).reshape(2, *self.size)
        noise = as_noise(hashed(at, self.seed).astype(np.float32))
        for i, plane in enumerate(noise):
            if any(self.sigma):
                size = kernel_size(self.sigma[i])
                across, down = (cv2.getGaussianKernel(size, s, cv2.CV_32F) for s in self.sigma)
                plane = cv2.sepFilter2D(plane, -1, across, down, borderType=cv2.BORDER_REFLECT_101)
            found[..., i] = plane * np.float32(self.alpha[i] / 2)
        return found

    def sources(self, size: Sequence[int]) -> Floats:
        """Return the x, y in the frame that each pixel of the result shows: ``(height, width, 2)``."""
        y, x = np.mgrid[: size[0], : size[1]] + 0.5
        points = np.stack([x, y, np.ones_like(x)], axis=-1) @ self.frame.T
        at = points[..., :2] / points[..., 2:]
        shift: Any = self.displacements()
        if self.size != tuple(size) or not (self.frame == np.eye(3)).all():
            x, y = np.moveaxis((at - 0.5).astype(np.float32), -1, 0)
            shift = cv2.remap(shift, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        return np.asarray(at + shift, np.float64)

    def moved(self, points: Floats) -> Floats:
        """Return approximately where points ``(..., 2)`` of the frame end up: minus the displacement at the point."""
        shift = self.displacements()
        x, y = np.moveaxis(np.floor(points).astype(np.int64), -1, 0)
        height, width = self.size
        found: Floats = points - shift[y.clip(0, height - 1), x.clip(0, width - 1)]
        return found


def as_noise(bits: Any) -> Any:
    """Map numbers 0..255 to -1..1."""
    return (bits + 0.5) / 128 - 1


def kernel_size(sigma: float) -> int:
    """Return the odd kernel size, in pixels, of a Gaussian."""
    return int(8 * sigma + 1) | 1
