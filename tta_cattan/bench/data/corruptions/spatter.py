"""Drops of water or mud on the lens."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from tta_cattan.bench.data.corruptions.edges import canny, equalise
from tta_cattan.bench.data.corruptions.filters import gaussian
from tta_cattan.bench.data.corruptions.pixels import FloatImage

_WATER = np.array([175, 238, 238]) / 255
_MUD = np.array([63, 42, 20]) / 255
_LIT_FROM_TOP_LEFT = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])


def spatter(
    image: FloatImage,
    rng: np.random.Generator,
    mean: float,
    spread: float,
    sigma: float,
    threshold: float,
    weight: float,
    mud: int,
) -> FloatImage:
    """Splash the lens: smoothed noise ``N(mean, spread)`` above ``threshold`` is liquid.

    Water adds ``weight m`` of pale turquoise, m the shading of the drops; mud, whose outline is smoothed with a
    Gaussian of ``weight`` pixels, covers what is behind it.
    """
    liquid = gaussian(rng.normal(mean, spread, size=image.shape[:2]), sigma)
    liquid[liquid < threshold] = 0
    if mud:
        cover = gaussian((liquid > threshold).astype(np.float64), weight)
        cover = np.where(cover < 0.8, 0, cover)[..., None]
        return (1 - cover) * image + cover * _MUD
    return image + weight * _water_shading(liquid)[..., None] * _WATER


def _water_shading(liquid: FloatImage) -> FloatImage:
    """Return how bright each drop is, in [0, 1]: the distance from its outline, embossed by a light from one side."""
    # 8 bits wrap around where the noise exceeds 1, in the published benchmarks too.
    depth = (liquid * 255).astype(np.int64).astype(np.uint8)
    edges = canny(depth, 50, 150)
    distance = ndimage.distance_transform_edt(~edges) if edges.any() else np.full(depth.shape, 20.0)
    height = equalise(_box(np.minimum(distance, 20)).astype(np.uint8)).astype(np.float64)
    embossed = np.clip(ndimage.correlate(height, _LIT_FROM_TOP_LEFT, mode="mirror"), 0, 255)
    shading = depth * np.round(_box(embossed))
    return shading / max(shading.max(), 1)


def _box(image: FloatImage) -> FloatImage:
    """Return the mean over 3 x 3 pixels."""
    # Not a running sum: its rounding errors would truncate a mean of 2 to 1. This sum of whole numbers is exact.
    return ndimage.correlate(image, np.ones((3, 3)), mode="mirror") / 9
