"""MNIST and USPS as a domain-adaptation benchmark, from ``.npz`` files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from tta_cattan.data.adaptation import DomainBenchmark
from tta_cattan.data.arrays import first, read_npz
from tta_cattan.data.benchmark import BENCHMARK_REGISTRY
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
class DigitsDA(DomainBenchmark):
    """``DATA_DIR/<domain>.npz`` with x_train, y_train, x_test, y_test: from DATA.SOURCE to DATA.TARGET."""

    num_classes = 10
    short_names = {"mnist": "M", "usps": "U"}

    def check(self) -> None:
        """Check that the files of the source and of the targets are there."""
        for name in (self.source_domain, *(domain.name for domain in self.domains())):
            path = self._path(name)
            if not path.is_file():
                raise UserError(
                    f"{path} does not exist; DATA_DIR must hold one .npz file per domain with the arrays "
                    f"{', '.join(_KEYS)}"
                )

    def target(self, domain: Domain) -> TensorDataset:
        """Return all images of the target domain, or the first CORRUPTION.NUM_EX."""
        return first(load_digits_file(self._path(domain.name)), self.cfg.CORRUPTION.NUM_EX)

    def source(self) -> TensorDataset:
        """Return all images of the source domain."""
        return load_digits_file(self._path(self.source_domain))

    def describe_source(self) -> dict[str, Any]:
        return {"name": self.source_domain, "sha256": sha256_file(self._path(self.source_domain))}

    def describe(self) -> dict[str, Any]:
        paths = [self._path(name) for name in self.short_names]
        return {"name": "digits_da", "files": {path.stem: sha256_file(path) for path in paths if path.is_file()}}

    def _path(self, domain: str) -> Path:
        return Path(self.cfg.DATA_DIR) / f"{domain}.npz"
