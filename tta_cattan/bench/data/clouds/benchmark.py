"""What the benchmarks of point clouds share."""

from __future__ import annotations

from torch import Tensor
from torch.utils.data import Dataset

from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.data.clouds.geometry import jitter, turn_about_z
from tta_cattan.bench.data.sampling import limited

AUGMENTATION = "turned about z, jittered"


class CloudBenchmark(Benchmark):
    """Clouds (3 x N) in the unit sphere, z up; training turns them about z and jitters them, as the paper does."""

    num_classes = 10
    images = False

    def augment(self, inputs: Tensor) -> Tensor:
        """Return the clouds turned about the z axis and jittered, each its own way."""
        return jitter(turn_about_z(inputs))

    def part(self, dataset: Dataset) -> Dataset:
        """Return CORRUPTION.NUM_EX samples (-1: all) of all classes: the first ones would be of one class."""
        return limited(dataset, max(0, self.cfg.CORRUPTION.NUM_EX), 1.0, seed=0)
