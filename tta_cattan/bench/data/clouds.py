"""Point clouds under a scanner's shifts: ten embedded parametric shapes, and ModelNet10 in the manner of ModelNet40-C.

Note: a scanner tilts, and misses a side, the same way for all objects of a domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from tta_cattan.bench import Domain
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, Benchmark
from tta_cattan.bench.data.datasets import balanced, read_npz
from tta_cattan.util.door import checked_array, checked_labels
from tta_cattan.util.files import sha256_file

AUGMENTATION = "turned about z, jittered"
JITTER, MOST_JITTER = 0.01, 0.05  # in units of the cloud's radius; PointDAN's and the authors' code
SOURCE_PER_CLASS, TARGET_PER_CLASS = 40, 20
_ROUND = 24  # sides of a polygon that approximates a circle

Shift = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]


class CloudBenchmark(Benchmark):
    """Clouds (3 x N) in the unit sphere, z up; training rotates them about z and jitters them, as the paper does."""

    num_classes = 10
    images = False

    def augment(self, inputs: Tensor) -> Tensor:
        return jitter(turn_about_z(inputs))


def take_points(points: np.ndarray, n: int) -> np.ndarray:
    """Return the first n of the points (N x 3); if there are fewer, they are repeated in order."""
    return points[np.arange(n) % len(points)]


def to_unit_sphere(points: np.ndarray) -> np.ndarray:
    """Move the mean of the points (n x 3) to the origin and scale the farthest to distance 1."""
    centred = points - points.mean(0)
    return centred / np.linalg.norm(centred, axis=1).max()


def y_up_to_z_up(points: np.ndarray) -> np.ndarray:
    """Rotate points (n x 3) by 90 degrees about the x axis: ``(x, y, z) -> (x, -z, y)``."""
    return np.stack([points[:, 0], -points[:, 2], points[:, 1]], 1)


def to_batch(clouds: list[np.ndarray]) -> Tensor:
    """Stack clouds of n points each (n x 3) into one tensor, B x 3 x n."""
    return torch.from_numpy(np.stack(clouds)).float().mT.contiguous()


def turn_about_z(clouds: Tensor) -> Tensor:
    """Rotate each cloud (B x 3 x N) by its own random angle about the z axis, which is up."""
    angle = 2 * math.pi * torch.rand(len(clouds), device=clouds.device, dtype=clouds.dtype)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    rows = [torch.stack(row, 1) for row in ((cos, -sin, zero), (sin, cos, zero), (zero, zero, zero + 1))]
    return torch.stack(rows, 1) @ clouds


def jitter(clouds: Tensor) -> Tensor:
    """Add clipped Gaussian noise to each coordinate of each point."""
    return clouds + (JITTER * torch.randn_like(clouds)).clamp_(-MOST_JITTER, MOST_JITTER)


@dataclass(frozen=True)
class Shape:
    """A profile of (radius, height) corners, revolved about the z axis into a solid with this number of sides."""

    profile: np.ndarray
    sides: int = _ROUND


def _arc(start: float, end: float, radius: float = 1.0, at: tuple[float, float] = (0.0, 0.0)) -> np.ndarray:
    """Return an arc of a profile, between two angles from the horizontal."""
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
    """Return n points (n x 3) drawn uniformly from the area of the triangles."""
    edges = triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    areas = np.linalg.norm(np.cross(*edges), axis=1)
    chosen = rng.choice(len(triangles), n, p=areas / areas.sum())
    u, v = rng.random((2, n, 1))
    outside = u + v > 1  # the other half of the parallelogram is folded back
    u, v = np.where(outside, 1 - u, u), np.where(outside, 1 - v, v)
    return triangles[chosen, 0] + u * edges[0][chosen] + v * edges[1][chosen]


def sample_shape(name: str, n: int, rng: np.random.Generator) -> np.ndarray:
    return sample_surface(surface(SHAPES[name]) * rng.uniform(0.6, 1.0, 3), n, rng)


def add_noise(points: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Add Gaussian noise of 0.02 per severity to every point of a cloud in the unit sphere."""
    return points + rng.normal(0, 0.02 * severity, points.shape)


def drop_side(points: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Drop the 10 % per severity of the points with the largest y, the side that a scanner does not see.

    Note: the remaining points are repeated, so that the number of points stays the same.
    """
    kept = np.argsort(points[:, 1], kind="stable")[: max(1, round(len(points) * (1 - 0.1 * severity)))]
    return take_points(points[rng.permutation(kept)], len(points))


def tilt(points: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Rotate a cloud by 10 degrees per severity about the x axis."""
    cos, sin = np.cos(np.radians(10 * severity)), np.sin(np.radians(10 * severity))
    return points @ np.array([[1, 0, 0], [0, cos, sin], [0, -sin, cos]])


def scan(points: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Tilt a cloud, drop a side of it and add noise."""
    for shift in (tilt, drop_side, add_noise):
        points = shift(points, severity, rng)
    return points


def thin_out(points: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Drop 18 % per severity of the half of the points nearest to a random point, so that the density varies."""
    near = np.argsort(np.linalg.norm(points - points[rng.integers(len(points))], axis=1))[: len(points) // 2]
    lost = rng.permutation(near)[: round(0.18 * severity * len(near))]
    kept: np.ndarray = np.delete(np.arange(len(points)), lost)
    return take_points(points[rng.permutation(kept)], len(points))


def bend(points: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Move each coordinate by a wave, ``0.05 severity sin(pi y + phase)``, along another coordinate ``y``."""
    return points + 0.05 * severity * np.sin(np.pi * np.roll(points, 1, axis=1) + rng.uniform(0, 2 * np.pi, 3))


SHIFTS: Mapping[str, Shift] = {
    "noise": add_noise,
    "missing": drop_side,
    "tilt": tilt,
    "scan": scan,
    "density": thin_out,
    "bend": bend,
}


def shifted(points: np.ndarray, shift: str, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Return a cloud under a shift (severity 0: unchanged), in the unit sphere."""
    return to_unit_sphere(SHIFTS[shift](points, severity, rng)) if severity else points


@cache
def make_clouds(per_class: int, seed: int, n: int, shift: str = "", severity: int = 0) -> TensorDataset:
    """Return clouds of n points of every shape, shifted if a severity is given; ``seed`` determines them all."""
    rng = np.random.default_rng(seed)
    clouds, labels = [], []
    for label, name in enumerate(SHAPES):
        for _ in range(per_class):
            clouds.append(shifted(to_unit_sphere(sample_shape(name, n, rng)), shift, severity, rng))
            labels.append(label)
    return TensorDataset(to_batch(clouds), torch.tensor(labels))


@BENCHMARK_REGISTRY.register("shapes_c")
class ShapesC(CloudBenchmark):
    """200 new clouds of ten shapes under a shift; 400 others, without a shift, are the source."""

    def check(self) -> None:
        """Check the names of the shifts; the data itself is computed."""
        self.check_corruptions(tuple(SHIFTS))

    def target(self, domain: Domain, seed: int = 0) -> Dataset:
        """Return new clouds under one shift (severity 0: none); the NUM_EX chosen are the same for every seed."""
        clouds = make_clouds(TARGET_PER_CLASS, 1, self.cfg.DATA.POINTS, domain.name, domain.severity)
        return balanced(clouds, self.cfg.CORRUPTION.NUM_EX, seed=0)

    def clean(self, seed: int = 0) -> Dataset:
        return self.target(Domain("clean"), seed)

    def has_source(self) -> bool:
        return True

    def source(self) -> TensorDataset:
        return make_clouds(SOURCE_PER_CLASS, 0, self.cfg.DATA.POINTS)

    def describe_source(self) -> dict[str, Any]:
        return {
            "name": "shapes",
            "n": len(self.source()),
            "points": self.cfg.DATA.POINTS,
            "augmentation": AUGMENTATION,
        }

    def describe(self) -> dict[str, Any]:
        return {"name": "shapes_c", "points": self.cfg.DATA.POINTS, "num_ex": self.cfg.CORRUPTION.NUM_EX}


@lru_cache(maxsize=8)
def load_clouds(path: Path, part: str, n: int, shift: str = "", severity: int = 0) -> TensorDataset:
    """Return the clouds ``x_<part>`` (N x points x 3, z up) of a file, n points of each, under a shift."""
    x, y = read_npz(path, (f"x_{part}", f"y_{part}"))
    checked_array(f"x_{part} in {path}", x, "real", (None, None, 3))
    y = checked_labels(f"y_{part} in {path}", y, len(x), CloudBenchmark.num_classes)
    rng = np.random.default_rng(1)
    clouds = [to_unit_sphere(take_points(points, n)) for points in x.astype(np.float64)]
    return TensorDataset(to_batch([shifted(c, shift, severity, rng) for c in clouds]), torch.from_numpy(y))


@BENCHMARK_REGISTRY.register("modelnet10")
class ModelNet10(ShapesC):
    """``DATA_DIR/modelnet10_1024.npz`` with x_train, y_train, x_test, y_test; the training clouds are the source."""

    def check(self) -> None:
        """Check the names of the shifts and the file."""
        super().check()
        self.source()
        self.target(Domain("clean"))

    def target(self, domain: Domain, seed: int = 0) -> Dataset:
        """Return test clouds under one shift (severity 0: none); the NUM_EX chosen are the same for every seed."""
        clouds = load_clouds(self._path(), "test", self.cfg.DATA.POINTS, domain.name, domain.severity)
        return balanced(clouds, self.cfg.CORRUPTION.NUM_EX, seed=0)

    def source(self) -> TensorDataset:
        return load_clouds(self._path(), "train", self.cfg.DATA.POINTS)

    def describe_source(self) -> dict[str, Any]:
        return {**self.describe(), "augmentation": AUGMENTATION}

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "name": "modelnet10", "file": sha256_file(self._path())}

    def _path(self) -> Path:
        return Path(self.cfg.DATA_DIR) / "modelnet10_1024.npz"
