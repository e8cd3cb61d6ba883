"""Corruptions that are independent from pixel to pixel."""

from __future__ import annotations

import numpy as np

from tta_cattan.bench.data.corruptions.pixels import FloatImage


def gaussian_noise(image: FloatImage, rng: np.random.Generator, scale: float) -> FloatImage:
    """Add sensor noise: ``x + scale n``, ``n ~ N(0, 1)``."""
    return image + scale * rng.standard_normal(image.shape)


def shot_noise(image: FloatImage, rng: np.random.Generator, photons: float) -> FloatImage:
    """Count photons: ``Poisson(photons x) / photons``."""
    return rng.poisson(image * photons) / photons


def impulse_noise(image: FloatImage, rng: np.random.Generator, amount: float) -> FloatImage:
    """Replace a share ``amount`` of the values by 0 or 1, each channel on its own."""
    hit = rng.random(image.shape) < amount
    return np.where(hit, rng.random(image.shape) < 0.5, image)


def speckle_noise(image: FloatImage, rng: np.random.Generator, scale: float) -> FloatImage:
    """Add noise in proportion to the brightness: ``x + scale x n``, ``n ~ N(0, 1)``."""
    return image + scale * image * rng.standard_normal(image.shape)
