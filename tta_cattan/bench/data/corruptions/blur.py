"""Corruptions of the lens and of the hand that holds the camera."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tta_cattan.bench.data.corruptions.filters import convolve, disk_kernel, gaussian, streak, zoom_centre
from tta_cattan.bench.data.corruptions.pixels import FloatImage, to_bytes, to_float


def gaussian_blur(image: FloatImage, _rng: np.random.Generator, sigma: float) -> FloatImage:
    """Smooth with a Gaussian of ``sigma`` pixels."""
    return gaussian(image, sigma)


def defocus_blur(image: FloatImage, _rng: np.random.Generator, radius: float, alias_blur: float) -> FloatImage:
    """Convolve with the disk that a point out of focus becomes."""
    return convolve(image, disk_kernel(radius, alias_blur))


def glass_blur(image: FloatImage, rng: np.random.Generator, sigma: float, reach: int, rounds: int) -> FloatImage:
    """Smooth, let neighbouring pixels wander up to ``reach`` pixels, ``rounds`` times, and smooth again."""
    smooth = to_float(to_bytes(gaussian(image, sigma)))
    height, width = image.shape[:2]
    pixels = smooth.reshape(height * width, -1)
    return gaussian(pixels[_wander(height, width, rng, reach, rounds)].reshape(image.shape), sigma)


def _wander(height: int, width: int, rng: np.random.Generator, reach: int, rounds: int) -> NDArray[np.intp]:
    """Return, for each pixel, the index of the pixel whose value ends up there.

    Pixels are visited from the bottom right to the top left, and each takes the value that its random neighbour has
    at that moment. Note: the published benchmarks were meant to swap the two, but their generator swapped views of
    one array, which copies; we follow what they contain.
    """
    rows = np.arange(height - reach, reach, -1)
    columns = np.arange(width - reach, reach, -1)
    here = (rows[:, None] * width + columns[None, :]).ravel()
    # Lists, because the visits depend on each other and single list items are far quicker than array items.
    source = list(range(height * width))
    targets = here.tolist()
    for _ in range(rounds):
        right, down = rng.integers(-reach, reach, size=(2, here.size))
        for target, neighbour in zip(targets, (here + down * width + right).tolist(), strict=True):
            source[target] = source[neighbour]
    return np.array(source)


def motion_blur(image: FloatImage, rng: np.random.Generator, radius: float, sigma: float) -> FloatImage:
    """Blur along a line within 45 degrees of the horizontal."""
    # ImageMagick rounded its result to 8 bits; half a level more turns our truncation into that.
    return streak(image, radius, sigma, rng.uniform(-45, 45)) + 0.5 / 255


def zoom_blur(image: FloatImage, _rng: np.random.Generator, stop: float, step: float) -> FloatImage:
    """Average the picture with its magnifications by ``1, 1 + step, ...`` below ``stop``."""
    factors = np.arange(1, stop, step)
    planes = np.ascontiguousarray(image.transpose(2, 0, 1))
    total = planes + sum(zoom_centre(planes, float(factor)) for factor in factors)
    return (total / (len(factors) + 1)).transpose(1, 2, 0)
