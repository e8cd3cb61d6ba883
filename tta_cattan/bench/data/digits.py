"""Handwritten digits: scikit-learn's embedded ones, corrupted, and adaptation between MNIST and USPS."""

from __future__ import annotations

import gzip
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import TensorDataset

from tta_cattan.bench import Domain
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, Benchmark, DomainBenchmark
from tta_cattan.bench.data.corruptions import COMMON, EXTRA, corrupt_batch
from tta_cattan.bench.data.datasets import first, read_npz, to_tensor
from tta_cattan.util.door import checked_array, checked_labels
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_file

N_CLASSES = 10
N_TRAIN = 1297
SIZE = 32
MNIST_SIZE = 28
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@lru_cache(maxsize=1)
def load_digit_images() -> tuple[np.ndarray, np.ndarray]:
    """Return the 1,797 real 8x8 digits as 32x32 RGB (uint8, N x 32 x 32 x 3) and their labels, in a fixed order."""
    # Only the file is read: importing scikit-learn takes seconds in every process.
    package = find_spec("sklearn")
    if package is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    with gzip.open(Path(str(package.origin)).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.int64)
    small = (rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    images = np.stack([np.asarray(Image.fromarray(d).resize((SIZE, SIZE), Image.Resampling.BICUBIC)) for d in small])
    # The original order has runs by writer; a fixed shuffle makes the two parts alike.
    order = np.random.default_rng(0).permutation(len(images))
    return np.repeat(images[order, :, :, None], 3, axis=3), rows[order, -1]


@cache
def corrupted_test_images(name: str, severity: int) -> np.ndarray:
    """Return the corrupted test digits; cached, because every method and seed needs them."""
    return corrupt_batch(load_digit_images()[0][N_TRAIN:], name, severity, strengths="cifar")


@BENCHMARK_REGISTRY.register("digits_c")
class DigitsC(Benchmark):
    """500 test digits under the 15 (+ 4) common corruptions at CIFAR's strengths; the other 1,297 are the source."""

    num_classes = N_CLASSES

    def check(self) -> None:
        """Check the names of the corruptions: the data itself ships with scikit-learn."""
        self.check_corruptions((*COMMON, *EXTRA))

    def target(self, domain: Domain, seed: int = 0) -> TensorDataset:
        """Return the test digits under one corruption (severity 0: none)."""
        images, labels = load_digit_images()
        images, labels = images[N_TRAIN:], labels[N_TRAIN:]
        if domain.severity:
            images = corrupted_test_images(domain.name, domain.severity)
        return first(TensorDataset(to_tensor(images), torch.from_numpy(labels)), self.cfg.CORRUPTION.NUM_EX)

    def clean(self, seed: int = 0) -> TensorDataset:
        return self.target(Domain("clean"), seed)

    def has_source(self) -> bool:
        return True

    def source(self) -> TensorDataset:
        images, labels = load_digit_images()
        return TensorDataset(to_tensor(images[:N_TRAIN]), torch.from_numpy(labels[:N_TRAIN]))

    def describe_source(self) -> dict[str, Any]:
        return {"name": "digits", "n": N_TRAIN}

    def describe(self) -> dict[str, Any]:
        return {"name": "digits_c", "num_ex": self.cfg.CORRUPTION.NUM_EX}


@lru_cache(maxsize=4)
def load_digits_file(path: Path) -> TensorDataset:
    """Return all images of ``path`` (train and test parts) as 28x28 floats in [0, 1], and their labels."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; DATA_DIR must hold one .npz file per domain with {', '.join(_ARRAYS)}")
    x_train, y_train, x_test, y_test = read_npz(path, _ARRAYS)
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        checked_array(f"x_{part} in {path}", x, "uint8", (None, *x_train.shape[1:3]))
        checked_labels(f"y_{part} in {path}", y, len(x), N_CLASSES)
    images = torch.from_numpy(np.concatenate([x_train, x_test])).float().div_(255)[:, None]
    if images.shape[-1] != MNIST_SIZE:
        images = F.interpolate(images, (MNIST_SIZE, MNIST_SIZE), mode="bilinear", align_corners=False)
    return TensorDataset(images, torch.from_numpy(np.concatenate([y_train, y_test]).astype(np.int64)))


@BENCHMARK_REGISTRY.register("digits_da")
class DigitsDA(DomainBenchmark):
    """``DATA_DIR/<domain>.npz`` with x_train, y_train, x_test, y_test: from DATA.SOURCE to DATA.TARGET."""

    num_classes = N_CLASSES
    short_names = {"mnist": "M", "usps": "U"}

    def check(self) -> None:
        """Check what the files of the source and of the targets hold."""
        for name in self.used_domains():
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
