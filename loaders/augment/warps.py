"""Matrices of rotations, shears and the like: from pixels of a result to those of its source, for N samples at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.augment.edits import NUM_VALUES

if TYPE_CHECKING:
    from loaders.augment.geometry import Floats


def affine_matrices(
    angle: Floats,
    translate: Any = (0.0, 0.0),
    scale: Any = 1.0,
    shear: Any = (0.0, 0.0),
    centre: Any = (0.0, 0.0),
) -> Floats:
    """Return the inverses of rotation, shear, scale and translation around a centre, ``(N, 3, 3)``.

    Coordinates are x, y in pixels from the upper left corner of the first pixel.

    Args:
        angle: ``(N,)`` degrees, clockwise.
        translate: Along x and y, in pixels: numbers or ``(N,)`` each, as what follows.
        scale: Of both axes.
        shear: Along x and y, in degrees.
        centre: That stays where it is, but for ``translate``.

    Source:
        ``_get_inverse_affine_matrix`` of torchvision says in which order they act.
    """
    turn, across, down = np.radians(angle), np.radians(shear[0]), np.radians(shear[1])
    a = np.cos(turn - down) / np.cos(down)
    b = -np.cos(turn - down) * np.tan(across) / np.cos(down) - np.sin(turn)
    c = np.sin(turn - down) / np.cos(down)
    d = -np.sin(turn - down) * np.tan(across) / np.cos(down) + np.cos(turn)
    matrices = np.zeros((len(turn), 3, 3))
    matrices[:, 0, 0], matrices[:, 0, 1] = d / scale, -b / scale
    matrices[:, 1, 0], matrices[:, 1, 1] = -c / scale, a / scale
    matrices[:, 2, 2] = 1
    x, y = centre
    from_x, from_y = x + translate[0], y + translate[1]
    matrices[:, 0, 2] = x - matrices[:, 0, 0] * from_x - matrices[:, 0, 1] * from_y
    matrices[:, 1, 2] = y - matrices[:, 1, 0] * from_x - matrices[:, 1, 1] * from_y
    return matrices


def as_values(matrices: Floats, interpolation: str, fill: Any) -> Floats:
    """Return the values of edits of kind ``WARP``, ``(N, NUM_VALUES)``."""
    values = np.zeros((len(matrices), NUM_VALUES))
    values[:, :6] = matrices[:, :2].reshape(-1, 6)
    values[:, 6] = interpolation == "bilinear"
    values[:, 7:10] = fill
    return values
