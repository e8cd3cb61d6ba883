"""MNIST and USPS as a domain-adaptation benchmark, from ``.npz`` files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from tta_cattan.bench.data.arrays import read_npz
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY
from tta_cattan.bench.data.domain_files import DomainFiles

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
class DigitsDA(DomainFiles):
    """``DATA_DIR/<domain>.npz`` with x_train, y_train, x_test, y_test: from DATA.SOURCE to DATA.TARGET."""

    num_classes = 10
    short_names = {"mnist": "M", "usps": "U"}
    ending = ".npz"
    layout = f"one .npz file per domain with the arrays {', '.join(_KEYS)}"

    def load(self, path: Path) -> TensorDataset:
        """Return all images of a domain."""
        return load_digits_file(path)
