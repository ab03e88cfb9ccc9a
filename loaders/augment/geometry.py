"""What ops do to a sample, as numbers: a ``Window`` while they act, then a ``Geometry`` of crop box, size and flips.

The ops act in turn on a *frame*: the image as the next op would see it. No pixel is moved yet: a ``Window`` records,
per axis, where the frame lies in the source (origin and extent, float64), its size in pixels, and whether it is
mirrored. Edges are rounded to whole source pixels once, at the end; where images are filtered
(``loaders.augment.resampling``) not even then. Hence:

- Ops that cancel out or change nothing cost nothing: ``Resize(256)`` of a 256-pixel image, then ``CenterCrop(224)``,
  is a plain copy of 224 x 224 pixels.
- A crop after a ``Resize`` is off by at most half a source pixel at each edge; not at all where it is filtered.
- Only what lies outside the *image* is padding. A crop with padding after another crop shows the image's own pixels
  around that crop, where torchvision has zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import cv2
import numpy as np

from loaders.augment.edits import hashed
from loaders.augment.resampling import FAST, Resampling, margin_of
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from loaders.augment.edits import Edits

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

_HALF_UP = 0.5 + 2.0**-20  # more than a half: float64 may miss an exact half by a hair


class Ripple(NamedTuple):
    """The displacement field of one sample: smooth noise, a function of a seed, in the frame of the sample."""

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
        """Return about where points ``(..., 2)`` of the frame end up in the result: minus the displacement there."""
        shift = self.displacements()
        x, y = np.moveaxis(np.floor(points).astype(np.int64), -1, 0)
        height, width = self.size
        there = points - shift[y.clip(0, height - 1), x.clip(0, width - 1)]
        return moved_points(np.linalg.inv(self.frame)[None], there)


def as_noise(bits: Any) -> Any:
    """Map numbers 0..255 to -1..1."""
    return (bits + 0.5) / 128 - 1


def kernel_size(sigma: float) -> int:
    """Return the odd kernel size, in pixels, of a Gaussian."""
    return int(8 * sigma + 1) | 1


class Move(NamedTuple):
    """The geometry of one sample: a row of a ``Geometry``, as plain numbers."""

    box: Sequence[Any]  # a row of ``Geometry.places``: y, x, height, width in source pixels
    size: Sequence[int]  # height and width of the result
    flip: Sequence[bool]  # vertical, horizontal
    matrix: Floats | None = None  # ``(3, 3)``, used instead of box and flip
    ripple: Ripple | None = None  # the displacements that follow the matrix


@dataclass(frozen=True, slots=True)
class Geometry:
    """The geometry of N samples, as ``apply`` takes it; iterates as ``boxes, sizes, flips``."""

    # ``(N, 4)``: y, x, height, width in source pixels, height and width at least 1. A box may reach outside its image:
    # that is padding. For K axes ``(N, 2 K)``: first the corner, then the extent.
    boxes: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]  # ``(N, 2)``: height and width of the result; ``(N, K)``
    flips: npt.NDArray[np.bool_]  # ``(N, 2)``, after the crop: vertical, horizontal; ``(N, K)``
    resampling: Resampling = FAST  # how the box comes to its size
    regions: Floats | None = None  # ``(N, 4)``, the boxes before rounding, if images are filtered
    # ``(N, 3, 3)``, if some samples are warped: from x, y of the result to x, y of the source. All zeros for samples
    # that are not; for those that are, ``boxes`` enclose what is read.
    matrices: Floats | None = None
    ripples: Sequence[Ripple] | None = None  # of each sample, between matrix and result
    edits: Edits | None = None  # what pixel ops do to the result
    # Of each sample, which of its boxes a crop around boxes keeps, ``(n,)``; None: all.
    kept: Sequence[npt.NDArray[np.bool_]] | None = None

    @property
    def is_warped(self) -> npt.NDArray[np.bool_]:
        """``(N,)`` bool: which samples have a matrix."""
        if self.matrices is None:
            return np.zeros(len(self), np.bool_)
        return np.asarray(self.matrices[:, 2, 2] != 0)

    @property
    def places(self) -> npt.NDArray[Any]:
        """The boxes to read: ``regions`` if images are filtered, else ``boxes``."""
        return self.boxes if self.regions is None else self.regions

    def move(self, i: int) -> Move:
        """Return the row of a sample."""
        return Move(
            self.places[i].tolist(),
            self.sizes[i].tolist(),
            self.flips[i].tolist(),
            self.matrices[i] if self.matrices is not None and self.is_warped[i] else None,
            None if self.ripples is None else self.ripples[i],
        )

    def covers(self, lengths: Ints) -> Ints:
        """Return boxes ``(N, 4)`` that cover all pixels to be read; ``lengths`` ``(N, 2)`` are the image sizes."""
        boxes = self.boxes
        if self.regions is not None:
            start, extent = self.regions[:, :2], self.regions[:, 2:]
            margin = margin_of(self.resampling.interpolation, extent / self.sizes)
            first, last = np.floor(start - margin), np.ceil(start + extent + margin)
            # The filter's margin ends at the image's edge: beyond it nothing is read.
            first = np.where(start >= 0, np.maximum(first, 0), first)
            last = np.where(start + extent <= lengths, np.minimum(last, lengths), last)
            boxes = np.concatenate([first, last - first], axis=1).astype(np.int64)
        if self.matrices is not None:
            boxes = np.where(self.is_warped[:, None], self.boxes, boxes)
        if self.resampling.padding_mode == "constant":
            return boxes
        is_outside = (boxes[:, :2] < 0) | (boxes[:, :2] + boxes[:, 2:] > lengths)
        whole = np.concatenate([np.zeros_like(lengths), lengths], axis=1)
        return np.where(is_outside.any(axis=1, keepdims=True), whole, boxes)

    def __len__(self) -> int:
        return len(self.boxes)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return iter((self.boxes, self.sizes, self.flips))


class Window:
    """Where the frames of N samples lie in their sources; ops move it in turn.

    Arrays are ``(N, 2)``, axis 1 being y, x (for volumes ``(N, 3)``: z, y, x), unless said otherwise. On an axis that
    is not mirrored, frame pixels ``[a, b]`` are source pixels ``origin + [a, b] * extent / size``.

    Attributes:
        indices: ``(N,)``: the samples' positions in the dataset, for messages.
        origin: Source position of the frame's first edge, float64.
        extent: Source pixels that the frame covers, float64.
        size: Size of the frame in pixels, int64.
        flip: True where the frame is mirrored.
        points: Source positions to crop around, for the next op, NaN for none; None: no sample has one.
        base: ``(N, 3, 3)``, once an op has warped: "source" above is then an intermediate frame, and this maps its
            x, y to the real source. Zeros for samples that are not warped; None: none is.
        boxes: The boxes of each sample in source pixels; None: no op asks for them.
        kept: ``(total,)`` bool: which boxes are kept, those of all samples end to end; None: all.
        ripples: The displacements of each sample; "source" above is then the frame in which they act. None: none.
        beyond: ``(N, 3, 3)``: maps x, y of that frame to the real source.
    """

    __slots__ = (
        *("base", "beyond", "boxes", "extent", "flip", "indices", "kept", "origin", "points"),
        *("ripples", "size", "sizes"),
    )

    def __init__(self, sizes: Ints, indices: npt.NDArray[Any]) -> None:
        self.indices = indices
        self.size = sizes.copy()  # an op may change it in place
        self.origin = np.zeros(sizes.shape)
        self.extent = sizes.astype(np.float64)
        self.flip = np.zeros(sizes.shape, np.bool_)
        self.points: Floats | None = None
        self.base: Floats | None = None
        self.boxes: Sequence[npt.NDArray[Any]] | None = None
        self.kept: npt.NDArray[np.bool_] | None = None
        self.ripples: list[Ripple] | None = None
        self.beyond: Floats | None = None
        self.sizes = self.size.copy()

    def frame_points(self) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return the points in frame pixels ``(N, 2)``, and which of them are in the frame ``(N,)``."""
        assert self.points is not None
        at = (self.points - self.origin) * self.size / self.extent
        at = np.where(self.flip, self.size - at, at)
        is_inside: npt.NDArray[np.bool_] = np.all((at >= 0) & (at < self.size), axis=1)
        return np.floor(np.where(is_inside[:, None], at, 0)).astype(np.int64), is_inside

    def frame_boxes(self) -> tuple[Floats, Ints]:
        """Return all boxes in frame pixels, clipped to it, ``(total, 4)``, and their number per sample ``(N,)``."""
        assert self.boxes is not None
        counts = np.array([len(each) for each in self.boxes], np.int64)
        boxes = np.concatenate([*self.boxes, np.zeros((0, 4))]).astype(np.float64)
        owners = np.repeat(np.arange(len(counts)), counts)
        matrices = self._matrices() if self.beyond is None else self.beyond @ self._matrices()
        inverses = np.linalg.inv(matrices)[owners]
        frame = np.tile(self.size[owners, ::-1], 2).astype(np.float64)
        return np.clip(enclosing(inverses, boxes), 0, frame), counts

    def crop(self, corner: Ints, size: Ints) -> None:
        """Cut to ``size`` frame pixels from ``corner`` on; either may lie outside the frame."""
        corner = np.where(self.flip, self.size - corner - size, corner)
        # Multiplied before divided: exact wherever the result is a whole number.
        self.origin += corner * self.extent / self.size
        self.extent = size * self.extent / self.size
        self.size = np.broadcast_to(size, self.size.shape)

    def resize(self, size: Ints) -> None:
        """Resize the frame to ``size`` pixels."""
        self.size = np.broadcast_to(size, self.size.shape)

    def mirror(self, axis: int, rows: npt.NDArray[np.bool_]) -> None:
        """Flip the frames of some rows along one axis."""
        self.flip[:, axis] ^= rows

    def warp(
        self, matrices: Floats, rows: npt.NDArray[np.bool_], size: Ints | None = None
    ) -> None:
        """Warp the frames of some rows.

        Args:
            matrices: ``(N, 3, 3)``: from x, y of the new frame to x, y of the present one.
            rows: ``(N,)`` bool: which samples.
            size: ``(N, 2)``: sizes of the new frames; None: unchanged.

        Raises:
            BatchError: The samples are not images.
        """
        if self.base is None:
            self.base = np.zeros((len(self.size), 3, 3))
        total = self._matrices() @ matrices
        self.base = np.where(rows[:, None, None], total / total[:, 2:, 2:], self.base)
        self.size = self.size if size is None else size
        rows = rows[:, None]
        self.origin, self.extent = (
            np.where(rows, values, kept)
            for values, kept in ((0.0, self.origin), (self.size, self.extent))
        )
        self.flip = self.flip & ~rows

    def displace(
        self, seeds: Ints, alpha: tuple[float, float], sigma: tuple[float, float]
    ) -> None:
        """Displace the pixels of all frames, as ``Ripple`` does.

        Raises:
            BatchError: The samples are not images, or a previous op displaced them.
        """
        if self.ripples is not None:
            raise BatchError("ElasticTransform works once per list of ops")
        self.beyond, self.base = self._matrices(), None
        self.ripples = [
            Ripple(seed, (height, width), alpha, sigma, np.eye(3))
            for seed, (height, width) in zip(seeds.tolist(), self.size.tolist(), strict=True)
        ]
        self.origin, self.extent = np.zeros(self.size.shape), self.size.astype(np.float64)
        self.flip = np.zeros_like(self.flip)

    def _matrices(self) -> Floats:
        """Return the maps from x, y of the frame to x, y of the source, or of the frame that is displaced."""
        if self.size.shape[1] != 2:
            what = f"arrays of {self.size.shape[1]} axes can only be cropped and flipped"
            raise BatchError(what)
        step = self.extent / self.size
        matrices = np.zeros((len(step), 3, 3))
        matrices[:, 2, 2] = 1
        for axis, column in ((0, 1), (1, 0)):  # x comes first there
            sign = np.where(self.flip[:, axis], -1, 1)
            edge = np.where(self.flip[:, axis], self.extent[:, axis], 0)
            matrices[:, column, column] = step[:, axis] * sign
            matrices[:, column, 2] = self.origin[:, axis] + edge
        if self.base is None:
            return matrices
        is_warped = self.base[:, 2, 2] != 0
        return np.where(is_warped[:, None, None], self.base @ matrices, matrices)

    def _warped(self, geometry: Geometry) -> Geometry:
        """Add matrices, and for warped samples the boxes that enclose what is read."""
        if self.ripples is None and self.base is None:  # as of volumes, always
            return geometry
        matrices, ripples = self._matrices(), self.ripples
        height, width = geometry.sizes.T.astype(np.float64)
        zero = np.zeros_like(width)
        read = np.stack([zero, zero, width, height], axis=1)
        is_warped = np.ones(len(read), np.bool_)
        if ripples is not None and self.beyond is not None:
            ripples = [each._replace(frame=at) for each, at in zip(ripples, matrices, strict=True)]
            reach = np.array([each.alpha for each in ripples]).reshape(-1, 2) / 2
            read = enclosing(matrices, read) + np.concatenate([-reach, reach], axis=1)
            matrices = self.beyond
        elif self.base is not None:
            is_warped = self.base[:, 2, 2] != 0
            matrices = matrices * is_warped[:, None, None]
        found = enclosing(matrices, read)
        low, high = np.floor(found[:, 1::-1]) - 1, np.ceil(found[:, :1:-1]) + 1
        low, high = np.clip(low, 0, self.sizes - 1), np.clip(high, 1, self.sizes)
        boxes = np.concatenate([low, np.maximum(high - low, 1)], axis=1).astype(np.int64)
        rows = is_warped[:, None]
        return replace(
            geometry,
            boxes=np.where(rows, boxes, geometry.boxes),
            flips=geometry.flips & ~rows,
            regions=None if geometry.regions is None else np.where(rows, boxes, geometry.regions),
            matrices=matrices,
            ripples=ripples,
        )

    def geometry(self, resampling: Resampling = FAST) -> Geometry:
        """Round the edges to whole source pixels, at least one per axis; filtered images also keep the exact edges.

        Halves are always rounded up: equal extents stay equal when they shift by whole pixels, and boxes inside the
        image stay inside.
        """
        first = np.floor(self.origin + _HALF_UP)
        last = np.floor(self.origin + self.extent + _HALF_UP)
        centre = np.floor(self.origin + self.extent / 2)
        first = np.where(first < last, first, centre)
        extent = np.maximum(last - first, 1)
        boxes = np.concatenate([first, extent], axis=1).astype(np.int64)
        regions = None
        if resampling.is_filtered and self.size.shape[1] == 2:
            regions = np.concatenate([self.origin, self.extent], axis=1)
        kept = None
        if self.kept is not None and self.boxes is not None:
            kept = np.split(self.kept, np.cumsum([len(each) for each in self.boxes])[:-1])
        return self._warped(
            Geometry(boxes, np.array(self.size), self.flip, resampling, regions, kept=kept)
        )


def moved_points(matrices: npt.NDArray[Any], points: Floats) -> Floats:
    """Transform points ``(N, n, 2)``, x and y, by matrices ``(N, 3, 3)``; a matrix of zeros gives 0, 0."""
    found = points @ matrices[:, :2, :2].swapaxes(1, 2) + matrices[:, None, :2, 2]
    under = points @ matrices[:, 2, :2, None] + matrices[:, None, 2:, 2]
    return np.asarray(np.divide(found, under, out=np.zeros_like(found), where=under != 0))


def corners_of(boxes: Any) -> Any:
    """Return the corners of boxes ``(n, 4)``: ``(n, 4, 2)``."""
    return boxes[:, [0, 1, 2, 1, 0, 3, 2, 3]].reshape(-1, 4, 2)


def enclosing(matrices: npt.NDArray[Any], boxes: Floats) -> Floats:
    """Transform boxes ``(n, 4)`` by matrices ``(n, 3, 3)``; return the boxes that enclose their corners."""
    found = moved_points(matrices, corners_of(boxes))
    return np.concatenate([found.min(axis=1), found.max(axis=1)], axis=1)


@runtime_checkable
class Op(Protocol):
    """One step of an augmentation, vectorized over samples: it moves a window, or (``PixelOp``) edits pixels.

    Attributes:
        num_draws: Number of uniform draws per sample; an op that takes one per axis sets ``per_axis = True``.
    """

    __slots__ = ()

    num_draws: ClassVar[int]

    def move(self, window: Window, draws: Floats) -> None:
        """Move the window, in place; ``draws`` is ``(N, num_draws)`` uniform in [0, 1). The default leaves it."""
        return

    def resized(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return the frame's size after the op, given the size before; None if samples differ. The default keeps it."""
        return size


class SizedBySample(Op):
    """An op whose results differ in size from sample to sample."""

    __slots__ = ()

    def resized(self, size: tuple[int, int] | None) -> None:
        """Return None: sizes differ."""


def between(limits: Sequence[float], draws: Floats) -> Floats:
    """Scale uniform draws to [low, high)."""
    low, high = limits
    return low + (high - low) * draws


def pick(draws: Floats, count: Any) -> Ints:
    """Scale uniform draws to ints in [0, count); ``count`` is a number or an array."""
    found: Ints = np.floor(draws * count).astype(np.int64)
    return found
