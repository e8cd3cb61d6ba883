"""Parametric shapes as point clouds: a profile, turned about the z axis with some number of sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

_ROUND = 24  # sides of what is round


@dataclass(frozen=True)
class Shape:
    """A profile of (radius, height) corners and the number of sides it is turned with."""

    profile: np.ndarray
    sides: int = _ROUND


def _arc(start: float, end: float, radius: float = 1.0, at: tuple[float, float] = (0.0, 0.0)) -> np.ndarray:
    """Return an arc of a profile, by its angles against the horizontal."""
    angle = np.linspace(start, end, _ROUND // 2 + 1)
    return np.stack([at[0] + radius * np.cos(angle), at[1] + radius * np.sin(angle)], 1)


def _line(*corners: tuple[float, float]) -> np.ndarray:
    return np.array(corners)


_TUBE = _line((0, -1), (1, -1), (1, 1), (0, 1))
_TENT = _line((0, -1), (1, -1), (0, 1))
SHAPES: Mapping[str, Shape] = {
    "sphere": Shape(_arc(-np.pi / 2, np.pi / 2)),
    "box": Shape(_TUBE, 4),
    "cylinder": Shape(_TUBE),
    "cone": Shape(_TENT),
    "pyramid": Shape(_TENT, 4),
    "prism": Shape(_TUBE, 3),
    "torus": Shape(_arc(0, 2 * np.pi, 0.35, (0.65, 0.0))),
    "capsule": Shape(np.concatenate([_arc(-np.pi / 2, 0, at=(0, -0.8)), _arc(0, np.pi / 2, at=(0, 0.8))])),
    "dome": Shape(np.concatenate([_line((0, 0)), _arc(0, np.pi / 2)])),
    "spindle": Shape(_line((0, -1), (1, 0), (0, 1))),
}


def surface(shape: Shape) -> np.ndarray:
    """Return the triangles (T x 3 x 3) that ``shape`` consists of."""
    angle = 2 * np.pi * np.arange(shape.sides + 1) / shape.sides
    circle = np.stack([np.cos(angle), np.sin(angle), np.ones_like(angle)], 1)
    rings = np.stack([circle * (radius, radius, height) for radius, height in shape.profile])
    a, b, c, d = rings[:-1, :-1], rings[:-1, 1:], rings[1:, :-1], rings[1:, 1:]
    return np.concatenate([np.stack([a, b, c], 2), np.stack([b, d, c], 2)]).reshape(-1, 3, 3)


def sample_surface(triangles: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return n points (n x 3) that are uniform on the area of the triangles."""
    edges = triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    areas = np.linalg.norm(np.cross(*edges), axis=1)
    chosen = rng.choice(len(triangles), n, p=areas / areas.sum())
    u, v = rng.random((2, n, 1))
    outside = u + v > 1  # the other half of the parallelogram is folded back
    u, v = np.where(outside, 1 - u, u), np.where(outside, 1 - v, v)
    return triangles[chosen, 0] + u * edges[0][chosen] + v * edges[1][chosen]


def sample_shape(name: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return n points on a shape of random proportions."""
    return sample_surface(surface(SHAPES[name]) * rng.uniform(0.6, 1.0, 3), n, rng)
