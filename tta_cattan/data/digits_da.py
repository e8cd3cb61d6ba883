"""MNIST and USPS as a domain-adaptation benchmark, from ``.npz`` files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from tta_cattan.data.arrays import first, read_npz
from tta_cattan.data.benchmark import BENCHMARK_REGISTRY, Benchmark
from tta_cattan.domain import Domain
from tta_cattan.errors import UserError
from tta_cattan.files import sha256_file

SIZE = 28
_KEYS = ("x_train", "y_train", "x_test", "y_test")


@lru_cache(maxsize=4)
def load_digits_file(path: Path) -> TensorDataset:
    """Return all images of ``path`` (train and test parts) as 28x28 floats in [0, 1], and their labels."""
    x_train, y_train, x_test, y_test = read_npz(path, _KEYS)
    images = torch.from_numpy(np.concatenate([x_train, x_test])).float().div_(255)[:, None]
    if images.shape[-1] != SIZE:
        images = F.interpolate(images, (SIZE, SIZE), mode="bilinear", align_corners=False)
    return TensorDataset(images, torch.from_numpy(np.concatenate([y_train, y_test])).long())


@BENCHMARK_REGISTRY.register("digits_da")
class DigitsDA(Benchmark):
    """``DATA_DIR/<domain>.npz`` with x_train, y_train, x_test, y_test: from DATA.SOURCE to DATA.TARGET."""

    num_classes = 10

    def domains(self) -> list[Domain]:
        """Return the one target domain."""
        return [Domain(self.cfg.DATA.TARGET)]

    def check(self) -> None:
        """Check that both files are there."""
        for key in ("SOURCE", "TARGET"):
            path = self._path(self.cfg.DATA[key])
            if not path.is_file():
                raise UserError(
                    f"DATA.{key} = {self.cfg.DATA[key]!r}: {path} does not exist; DATA_DIR must hold one .npz file per "
                    f"domain with the arrays {', '.join(_KEYS)}"
                )

    def target(self, domain: Domain) -> TensorDataset:
        """Return all images of the target domain, or the first CORRUPTION.NUM_EX."""
        return first(load_digits_file(self._path(domain.name)), self.cfg.CORRUPTION.NUM_EX)

    def source(self) -> TensorDataset:
        """Return all images of the source domain."""
        return load_digits_file(self._path(self.cfg.DATA.SOURCE))

    def describe_source(self) -> dict[str, Any]:
        return {"name": self.cfg.DATA.SOURCE, "sha256": sha256_file(self._path(self.cfg.DATA.SOURCE))}

    def describe(self) -> dict[str, Any]:
        target = self._path(self.cfg.DATA.TARGET)
        return {"name": "digits_da", "target": sha256_file(target), "num_ex": self.cfg.CORRUPTION.NUM_EX}

    def _path(self, domain: str) -> Path:
        return Path(self.cfg.DATA_DIR) / f"{domain}.npz"
