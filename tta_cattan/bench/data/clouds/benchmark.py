"""What the benchmarks of point clouds share: the geometry of a cloud, and the augmentation of training."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tta_cattan.bench.data.benchmark import Benchmark

AUGMENTATION = "turned about z, jittered"
JITTER, MOST_JITTER = 0.01, 0.05  # in units of the cloud's radius; PointDAN's and the authors' code


class CloudBenchmark(Benchmark):
    """Clouds (3 x N) in the unit sphere, z up; training turns them about z and jitters them, as the paper does."""

    num_classes = 10
    images = False

    def augment(self, inputs: Tensor) -> Tensor:
        """Return the clouds turned about the z axis and jittered, each its own way."""
        return jitter(turn_about_z(inputs))


def take_points(points: np.ndarray, n: int) -> np.ndarray:
    """Return the first n points (of n x 3); fewer are repeated from the first on."""
    return points[np.arange(n) % len(points)]


def to_unit_sphere(points: np.ndarray) -> np.ndarray:
    """Move the mean of the points (n x 3) to the origin and scale the farthest to distance 1."""
    centred = points - points.mean(0)
    return centred / np.linalg.norm(centred, axis=1).max()


def y_up_to_z_up(points: np.ndarray) -> np.ndarray:
    """Turn points (n x 3) by 90 degrees about the x axis: ``(x, y, z) -> (x, -z, y)``."""
    return np.stack([points[:, 0], -points[:, 2], points[:, 1]], 1)


def to_batch(clouds: list[np.ndarray]) -> Tensor:
    """Stack clouds of n points each (n x 3) to one tensor, B x 3 x n."""
    return torch.from_numpy(np.stack(clouds)).float().mT.contiguous()


def turn_about_z(clouds: Tensor) -> Tensor:
    """Turn each cloud (B x 3 x N) by its own random angle about the z axis, which is up."""
    angle = 2 * math.pi * torch.rand(len(clouds), device=clouds.device, dtype=clouds.dtype)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    rows = [torch.stack(row, 1) for row in ((cos, -sin, zero), (sin, cos, zero), (zero, zero, zero + 1))]
    return torch.stack(rows, 1) @ clouds


def jitter(clouds: Tensor) -> Tensor:
    """Move each point by its own Gaussian step, clipped, per coordinate."""
    return clouds + (JITTER * torch.randn_like(clouds)).clamp_(-MOST_JITTER, MOST_JITTER)
