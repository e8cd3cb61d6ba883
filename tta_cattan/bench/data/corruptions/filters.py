"""The image operations that corruptions are made of: 8-bit and float images, linear filters, resampling, edges."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, signal

FloatImage: TypeAlias = NDArray[np.float64]  # in [0, 1]
ByteImage: TypeAlias = NDArray[np.uint8]
_TAN_22_5 = np.sqrt(2) - 1


def to_float(image: ByteImage) -> FloatImage:
    """Return ``image / 255`` in double precision, always a new array."""
    return image / np.float64(255)


def to_bytes(image: FloatImage) -> ByteImage:
    """Return ``floor(255 clip(image, 0, 1))``: the benchmarks were stored by truncation, not by rounding."""
    # Without the margin the last bit of a sum decides whether a flat 128 is stored as 128 or as 127.
    return np.floor(np.clip(image, 0, 1) * 255 + 1e-6).astype(np.uint8)


def luma(image: FloatImage) -> FloatImage:
    """Return the grey value ``0.299 R + 0.587 G + 0.114 B`` of each pixel."""
    return image @ np.array([0.299, 0.587, 0.114])


def gaussian(image: FloatImage, sigma: float, *, mode: str = "nearest", truncate: float = 4.0) -> FloatImage:
    """Smooth the two spatial axes with a Gaussian of ``sigma`` pixels, cut off at ``truncate`` sigmas."""
    return ndimage.gaussian_filter(image, sigma, mode=mode, truncate=truncate, axes=(0, 1))


def convolve(image: FloatImage, kernel: FloatImage) -> FloatImage:
    """Convolve each channel with a square kernel of odd side; the image is mirrored about its border pixels."""
    margin = kernel.shape[0] // 2
    padded = np.pad(image, ((margin, margin), (margin, margin), (0, 0)), mode="reflect")
    return signal.fftconvolve(padded, kernel[..., None], mode="valid", axes=(0, 1))


@lru_cache(maxsize=32)
def disk_kernel(radius: float, alias_blur: float) -> FloatImage:
    """Return a uniform disk, its rim softened by a small Gaussian of ``alias_blur`` pixels, that sums to 1."""
    reach, taps = (8, 1) if radius <= 8 else (math.floor(radius), 2)
    squares: np.ndarray = np.arange(-reach, reach + 1) ** 2
    disk = (squares[:, None] + squares[None, :] <= radius**2).astype(np.float64)
    soft = ndimage.gaussian_filter(disk, alias_blur, radius=taps, mode="mirror")
    # Mirroring at the edge of the grid adds mass to a disk that touches it, which would brighten the picture.
    return soft / soft.sum()


def streak(image: FloatImage, radius: float, sigma: float, angle: float) -> FloatImage:
    """Blur along one direction: ``sum_i k_i image[p + round(i u)]``, ``k_i ~ exp(-i^2 / 2 sigma^2)``, ``i = 0..2r``.

    ``u`` is the unit vector at ``angle`` degrees from the x axis towards the bottom. The half-sided kernel and the
    repeated border pixels are those of ImageMagick's motion blur, which made the published benchmarks.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    down = np.ceil(steps * math.sin(math.radians(angle)) - 0.5).astype(int)
    right = np.ceil(steps * math.cos(math.radians(angle)) - 0.5).astype(int)

    height, width = image.shape[:2]
    margin = len(steps)
    padded = np.pad(image, [(margin, margin)] * 2 + [(0, 0)] * (image.ndim - 2), mode="edge")
    blurred = np.zeros_like(image)
    for weight, y, x in zip(weights, margin + down, margin + right, strict=True):
        blurred += weight * padded[y : y + height, x : x + width]
    return blurred


@lru_cache(maxsize=256)
def zoom_matrix(size: int, factor: float) -> NDArray[np.float64]:
    """Return the ``size x size`` matrix that magnifies the middle of a row by ``factor``, linearly interpolated."""
    crop = math.ceil(size / factor)
    zoomed = round(crop * factor)
    first, skipped = (size - crop) // 2, (zoomed - size) // 2
    position = (np.arange(size) + skipped) * ((crop - 1) / max(zoomed - 1, 1))
    left = np.minimum(position.astype(int), max(crop - 2, 0))
    share = position - left
    matrix = np.zeros((size, size))
    rows = np.arange(size)
    matrix[rows, first + left] = 1 - share
    matrix[rows, np.minimum(first + left + 1, size - 1)] += share
    return matrix


def zoom_centre(planes: FloatImage, factor: float) -> FloatImage:
    """Magnify the centre of ``(..., height, width)`` planes by ``factor >= 1`` and keep their size."""
    height, width = planes.shape[-2:]
    return zoom_matrix(height, factor) @ planes @ zoom_matrix(width, factor).T


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
