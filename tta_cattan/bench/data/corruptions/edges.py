"""Canny edges and histogram equalisation, for the drops of `spatter`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tta_cattan.bench.data.corruptions.pixels import ByteImage

_TAN_22_5 = np.sqrt(2) - 1


def canny(image: ByteImage, low: float, high: float) -> NDArray[np.bool_]:
    """Mark the ridges of the gradient ``|gx| + |gy|`` above ``low`` that are connected to one above ``high``."""
    values = image.astype(np.float64)
    gx = ndimage.sobel(values, axis=1, mode="nearest")
    gy = ndimage.sobel(values, axis=0, mode="nearest")
    strength = np.abs(gx) + np.abs(gy)
    ridges = (strength > low) & _is_peak(strength, gx, gy)
    groups, _ = ndimage.label(ridges, structure=np.ones((3, 3)))
    strong = np.unique(groups[ridges & (strength > high)])
    return ridges & np.isin(groups, strong)


def _is_peak(strength: NDArray[np.float64], gx: NDArray[np.float64], gy: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell where the gradient is larger than at both neighbours along its direction, to the nearest 45 degrees."""
    padded = np.pad(strength, 1)
    height, width = strength.shape

    def at(down: int, right: int) -> NDArray[np.float64]:
        return padded[1 + down : 1 + down + height, 1 + right : 1 + right + width]

    # One strict comparison and one not keep a plateau of two equal pixels as an edge of one.
    along_x = (strength > at(0, -1)) & (strength >= at(0, 1))
    along_y = (strength > at(-1, 0)) & (strength >= at(1, 0))
    falling = (strength > at(-1, -1)) & (strength > at(1, 1))
    rising = (strength > at(-1, 1)) & (strength > at(1, -1))
    flat = np.abs(gy) < _TAN_22_5 * np.abs(gx)
    steep = np.abs(gx) < _TAN_22_5 * np.abs(gy)
    return np.select([flat, steep, gx * gy >= 0], [along_x, along_y, falling], rising)


def equalise(image: ByteImage) -> ByteImage:
    """Spread grey levels evenly: ``255 (C(v) - C(v0)) / (1 - C(v0))``, C their cumulative share, v0 the lowest."""
    counts = np.bincount(image.ravel(), minlength=256)
    lowest = counts[image.min()]
    if lowest == image.size:
        return image
    return np.round(255 * np.maximum(np.cumsum(counts) - lowest, 0) / (image.size - lowest)).astype(np.uint8)[image]
