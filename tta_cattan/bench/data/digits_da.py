"""MNIST and USPS: domains that are one ``.npz`` file each."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from tta_cattan.bench import Domain
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, DomainBenchmark
from tta_cattan.bench.data.datasets import read_npz
from tta_cattan.util.door import checked_array, checked_labels
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_file

_SIDE, _CLASSES = 28, 10
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@lru_cache(maxsize=4)
def load_digits_file(path: Path) -> TensorDataset:
    """Return all images of ``path`` (train and test parts) as 28x28 floats in [0, 1], and their labels."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; DATA_DIR must hold one .npz file per domain with {', '.join(_ARRAYS)}")
    x_train, y_train, x_test, y_test = read_npz(path, _ARRAYS)
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        checked_array(f"x_{part} in {path}", x, "uint8", (None, *x_train.shape[1:3]))
        checked_labels(f"y_{part} in {path}", y, len(x), _CLASSES)
    images = torch.from_numpy(np.concatenate([x_train, x_test])).float().div_(255)[:, None]
    if images.shape[-1] != _SIDE:
        images = F.interpolate(images, (_SIDE, _SIDE), mode="bilinear", align_corners=False)
    return TensorDataset(images, torch.from_numpy(np.concatenate([y_train, y_test]).astype(np.int64)))


@BENCHMARK_REGISTRY.register("digits_da")
class DigitsDA(DomainBenchmark):
    """``DATA_DIR/<domain>.npz`` with x_train, y_train, x_test, y_test: from DATA.SOURCE to DATA.TARGET."""

    num_classes = _CLASSES
    short_names = {"mnist": "M", "usps": "U"}

    def check(self) -> None:
        """Check what the files of the source and of the targets hold."""
        for name in (self.source_domain, *(domain.name for domain in self.domains())):
            load_digits_file(self._path(name))

    def whole_target(self, domain: Domain) -> TensorDataset:
        return load_digits_file(self._path(domain.name))

    def source(self) -> TensorDataset:
        return load_digits_file(self._path(self.source_domain))

    def describe_source(self) -> dict[str, Any]:
        return {"name": self.source_domain, "sha256": sha256_file(self._path(self.source_domain))}

    def describe(self) -> dict[str, Any]:
        paths = [self._path(name) for name in self.short_names]
        return {"name": self.name, "files": {path.stem: sha256_file(path) for path in paths if path.is_file()}}

    def _path(self, domain: str) -> Path:
        return Path(self.cfg.DATA_DIR) / f"{domain}.npz"
