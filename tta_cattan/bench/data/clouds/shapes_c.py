"""The embedded benchmark of point clouds: ten parametric shapes, and the same as a bad scanner would see them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY
from tta_cattan.bench.data.clouds.benchmark import AUGMENTATION, CloudBenchmark
from tta_cattan.bench.data.clouds.geometry import to_batch, to_unit_sphere
from tta_cattan.bench.data.clouds.shapes import SHAPES, sample_shape
from tta_cattan.bench.data.clouds.shifts import SHIFTS
from tta_cattan.bench.domain import Domain

SOURCE_PER_CLASS, TARGET_PER_CLASS = 40, 20


@cache
def make_clouds(per_class: int, seed: int, n: int, shift: str = "", severity: int = 0) -> TensorDataset:
    """Return clouds of n points of every shape, shifted where a severity is given; ``seed`` decides all of it."""
    rng = np.random.default_rng(seed)
    clouds, labels = [], []
    for label, name in enumerate(SHAPES):
        for _ in range(per_class):
            points = to_unit_sphere(sample_shape(name, n, rng))
            if severity:
                points = to_unit_sphere(SHIFTS[shift](points, severity, rng))
            clouds.append(points)
            labels.append(label)
    return TensorDataset(to_batch(clouds), torch.tensor(labels))


@BENCHMARK_REGISTRY.register("shapes_c")
class ShapesC(CloudBenchmark):
    """200 new clouds of ten shapes under a shift; 400 others, as they are, are the source."""

    num_classes = len(SHAPES)

    def check(self) -> None:
        """Check the names of the shifts: the data is computed."""
        self.check_corruptions(tuple(SHIFTS))

    def target(self, domain: Domain) -> Dataset:
        """Return new clouds under one shift (severity 0: as they are)."""
        return self.part(make_clouds(TARGET_PER_CLASS, 1, self.cfg.DATA.POINTS, domain.name, domain.severity))

    def source(self) -> TensorDataset:
        """Return the training clouds."""
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
