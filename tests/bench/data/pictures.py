"""Pictures to corrupt, and how far a corruption took them."""

from __future__ import annotations

import numpy as np

from tta_cattan.bench.data.corruptions import corruption, image_rng


def scene(side: int, seed: int = 0) -> np.ndarray:
    """Return a coloured picture with smooth shades, sharp edges and fine texture."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side
    smooth = np.stack([0.5 + 0.4 * np.sin(6 * x + 2 * y), 0.3 + 0.5 * y, 0.7 - 0.5 * x * y], axis=-1)
    smooth[(x - 0.5) ** 2 + (y - 0.4) ** 2 < 0.05] = (0.9, 0.2, 0.1)
    smooth[(np.floor(7.3 * x + y) % 2 == 0) & (y > 0.7)] *= 0.3
    return (255 * np.clip(smooth + 0.05 * rng.standard_normal((side, side, 1)), 0, 1)).astype(np.uint8)


def flat(value: int, side: int = 96) -> np.ndarray:
    return np.full((side, side, 3), value, dtype=np.uint8)


def at(image: np.ndarray, name: str, severity: int, table: str, key: int = 0) -> np.ndarray:
    return corruption(name, severity, table)(image, image_rng(name, severity, key))


def mean_squared_error(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.mean((one.astype(float) - other) ** 2))
