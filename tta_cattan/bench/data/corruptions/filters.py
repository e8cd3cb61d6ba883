"""Linear filters and resampling that several corruptions share."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, signal

from tta_cattan.bench.data.corruptions.pixels import FloatImage


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
