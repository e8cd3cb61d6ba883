"""Corruptions of the air between the camera and the scene."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tta_cattan.bench.data.corruptions.filters import streak, zoom_centre
from tta_cattan.bench.data.corruptions.frost_texture import crop_texture, grow_texture
from tta_cattan.bench.data.corruptions.pixels import ByteImage, FloatImage, luma, to_bytes, to_float


def snow(
    image: FloatImage,
    rng: np.random.Generator,
    mean: float,
    spread: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> FloatImage:
    """Whiten the scene and let flakes fall: ``keep x + (1 - keep) max(x, 1.5 luma + 0.5) + flakes``.

    The flakes are magnified noise ``N(mean, spread)`` above ``threshold``, streaked downwards, plus the same layer
    turned by 180 degrees.
    """
    noise = zoom_centre(rng.normal(mean, spread, size=image.shape[:2]), zoom)
    flakes = to_float(to_bytes(np.where(noise < threshold, 0, noise)))
    fallen = to_float(to_bytes(streak(flakes, radius, sigma, rng.uniform(-135, -45)) + 0.5 / 255))[..., None]
    whitened = np.maximum(image, 1.5 * luma(image)[..., None] + 0.5)
    return keep * image + (1 - keep) * whitened + fallen + fallen[::-1, ::-1]


def frost(
    image: FloatImage,
    rng: np.random.Generator,
    keep: float,
    weight: float,
    scale: float,
    *,
    textures: Sequence[ByteImage] | None = None,
) -> FloatImage:
    """Look through a frozen pane: ``keep x + weight texture``.

    The texture is a random crop of one of ``textures`` (photographs of frost, shrunk by ``scale``) or, where none are
    given, grown at random. Note: the published benchmarks used photographs, which we may not ship, so only with them
    does this corruption look the same; ours has their mean, contrast, tint and spectrum, not their shapes.
    """
    shape = image.shape[:2]
    texture = grow_texture(shape, scale, rng) if textures is None else crop_texture(textures, shape, scale, rng)
    return keep * image + weight * texture


def fog(image: FloatImage, rng: np.random.Generator, thickness: float, decay: float) -> FloatImage:
    """Add drifting fog and rescale: ``(x + thickness plasma) m / (m + thickness)`` with ``m = max x``."""
    height, width = image.shape[:2]
    side = 1 << (max(height, width) - 1).bit_length()
    plasma = plasma_fractal(side, decay, rng)[:height, :width, None]
    brightest = image.max()
    return (image + thickness * plasma) * (brightest / (brightest + thickness))


def plasma_fractal(side: int, decay: float, rng: np.random.Generator) -> FloatImage:
    """Return a periodic random landscape in [0, 1] of ``side`` (a power of two) by the diamond-square algorithm.

    Each new point is the mean of its four neighbours plus uniform noise, whose amplitude falls by ``decay ** 2`` each
    time that the grid is halved.
    """
    land = np.zeros((side, side))
    amplitude = 1.0
    step = side

    def settle(first: FloatImage, first_axis: int, second: FloatImage, second_axis: int) -> FloatImage:
        """Return the noisy mean of two grids and of their neighbours, one back in the first, one on in the second."""
        neighbours = first + np.roll(first, 1, first_axis) + second + np.roll(second, -1, second_axis)
        return neighbours / 4 + rng.uniform(-amplitude, amplitude, size=neighbours.shape)

    while step > 1:
        half = step // 2
        corners = land[::step, ::step]
        centres = settle(np.roll(corners, -1, 0), 0, np.roll(corners, -1, 1), 0)
        land[half::step, half::step] = centres
        land[::step, half::step] = settle(centres, 0, corners, 1)
        land[half::step, ::step] = settle(centres, 1, corners, 0)
        step = half
        amplitude /= decay**2

    land -= land.min()
    return land / land.max()
