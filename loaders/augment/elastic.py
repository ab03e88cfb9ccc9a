"""Elastic transforms: a smooth field of random displacements, a function of a seed, in a sample's frame."""

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
    """How the pixels of a sample are displaced."""

    seed: int  # of the noise, below 2**24
    size: tuple[int, int]  # height and width of the frame that it is displaced in
    # Twice the most that a pixel moves along x and y, before the noise is smoothed.
    alpha: tuple[float, float]
    sigma: tuple[float, float]  # of the smoothing, along x and y, in pixels; zeros for none
    frame: Floats  # ``(3, 3)``: from x, y of the result to those of that frame

    def displacements(self) -> npt.NDArray[np.float32]:
        """Return by how much each pixel of the frame moves, ``(height, width, 2)``, x and y."""
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
        """Return which x, y of the frame, displaced, the pixels of a result show: ``(height, width, 2)``."""
        y, x = np.mgrid[: size[0], : size[1]] + 0.5
        points = np.stack([x, y, np.ones_like(x)], axis=-1) @ self.frame.T
        at = points[..., :2] / points[..., 2:]
        shift: Any = self.displacements()
        if self.size != tuple(size) or not (self.frame == np.eye(3)).all():
            x, y = np.moveaxis((at - 0.5).astype(np.float32), -1, 0)
            shift = cv2.remap(shift, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        return np.asarray(at + shift, np.float64)

    def moved(self, points: Floats) -> Floats:
        """Return where points ``(..., 2)`` of the frame are shown in it, nearly: displaced back by what moves there."""
        shift = self.displacements()
        x, y = np.moveaxis(np.floor(points).astype(np.int64), -1, 0)
        height, width = self.size
        found: Floats = points - shift[y.clip(0, height - 1), x.clip(0, width - 1)]
        return found


def as_noise(bits: Any) -> Any:
    """Turn floats from 0 to 255 into such from -1 to 1."""
    return (bits + 0.5) / 128 - 1


def kernel_size(sigma: float) -> int:
    """Return the size of a kernel, which is odd."""
    return int(8 * sigma + 1) | 1
