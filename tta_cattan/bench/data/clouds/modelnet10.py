"""ModelNet10 in one ``.npz`` file: the test clouds under the shifts of ``shapes_c``, in the manner of ModelNet40-C."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY
from tta_cattan.bench.data.clouds.benchmark import AUGMENTATION, take_points, to_batch, to_unit_sphere
from tta_cattan.bench.data.clouds.shapes_c import ShapesC, shifted
from tta_cattan.bench.data.datasets import balanced, read_npz
from tta_cattan.bench.domain import Domain
from tta_cattan.util.door import checked_array, checked_labels
from tta_cattan.util.files import sha256_file

_CLASSES = 10


@lru_cache(maxsize=8)
def load_clouds(path: Path, part: str, n: int, shift: str = "", severity: int = 0) -> TensorDataset:
    """Return the clouds ``x_<part>`` (N x points x 3, z up) of a file, n points of each, under a shift."""
    x, y = read_npz(path, (f"x_{part}", f"y_{part}"))
    checked_array(f"x_{part} in {path}", x, "real", (None, None, 3))
    y = checked_labels(f"y_{part} in {path}", y, len(x), _CLASSES)
    rng = np.random.default_rng(1)
    clouds = [to_unit_sphere(take_points(points, n)) for points in x.astype(np.float64)]
    return TensorDataset(to_batch([shifted(c, shift, severity, rng) for c in clouds]), torch.from_numpy(y))


@BENCHMARK_REGISTRY.register("modelnet10")
class ModelNet10(ShapesC):
    """``DATA_DIR/modelnet10_1024.npz`` with x_train, y_train, x_test, y_test; the training clouds are the source."""

    num_classes = _CLASSES

    def check(self) -> None:
        """Check the names of the shifts and the file."""
        super().check()
        self.source()
        self.target(Domain("clean"))

    def target(self, domain: Domain, seed: int = 0) -> Dataset:
        """Return test clouds under one shift (severity 0: as they are); NUM_EX of them are the same for every seed."""
        clouds = load_clouds(self._path(), "test", self.cfg.DATA.POINTS, domain.name, domain.severity)
        return balanced(clouds, self.cfg.CORRUPTION.NUM_EX, seed=0)

    def source(self) -> TensorDataset:
        """Return the training clouds."""
        return load_clouds(self._path(), "train", self.cfg.DATA.POINTS)

    def describe_source(self) -> dict[str, Any]:
        return {**self.describe(), "augmentation": AUGMENTATION}

    def describe(self) -> dict[str, Any]:
        node = self.cfg
        file = sha256_file(self._path())
        return {"name": "modelnet10", "file": file, "points": node.DATA.POINTS, "num_ex": node.CORRUPTION.NUM_EX}

    def _path(self) -> Path:
        return Path(self.cfg.DATA_DIR) / "modelnet10_1024.npz"
