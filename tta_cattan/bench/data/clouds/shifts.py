"""How point clouds differ from one domain to another, at severities 1 to 5: pure functions of a seeded generator.

Note: a scanner leans and stands the same way for all objects of a domain: tilt and missing side are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tta_cattan.bench.data.clouds.geometry import take_points

Shift = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]


def add_noise(points: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Move every point of a cloud in the unit sphere by Gaussian noise of 0.02 per severity."""
    return points + rng.normal(0, 0.02 * severity, points.shape)


def drop_side(points: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Leave out the 10 % per severity of the points with the largest y, the side that a scanner does not see.

    Note: the points that are left are repeated, so that their number stays.
    """
    kept = np.argsort(points[:, 1], kind="stable")[: max(1, round(len(points) * (1 - 0.1 * severity)))]
    return take_points(points[rng.permutation(kept)], len(points))


def tilt(points: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Turn a cloud by 10 degrees per severity about the x axis."""
    cos, sin = np.cos(np.radians(10 * severity)), np.sin(np.radians(10 * severity))
    return points @ np.array([[1, 0, 0], [0, cos, sin], [0, -sin, cos]])


def scan(points: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Tilt a cloud, leave out a side of it and add noise."""
    for shift in (tilt, drop_side, add_noise):
        points = shift(points, severity, rng)
    return points


SHIFTS: Mapping[str, Shift] = {"noise": add_noise, "missing": drop_side, "tilt": tilt, "scan": scan}
