"""MNIST and USPS, and Office-Caltech10's SURF histograms: domains that are one ``.npz`` file each."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, DomainBenchmark
from tta_cattan.bench.data.datasets import read_npz
from tta_cattan.bench.domain import Domain
from tta_cattan.util.door import checked_array, checked_labels
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_file


class DomainFiles(DomainBenchmark):
    """``DATA_DIR/<domain><ending>`` holds all samples of a domain."""

    ending: str
    layout: str  # what DATA_DIR must hold, for an error message

    @abstractmethod
    def load(self, path: Path) -> TensorDataset:
        """Return the samples of a domain's file."""

    def check(self) -> None:
        """Check that the files of the source and of the targets are there, and what they hold."""
        for name in (self.source_domain, *(domain.name for domain in self.domains())):
            if not self._path(name).is_file():
                raise UserError(f"{self._path(name)} does not exist; DATA_DIR must hold {self.layout}")
            self.load(self._path(name))

    def whole_target(self, domain: Domain) -> TensorDataset:
        return self.load(self._path(domain.name))

    def source(self) -> TensorDataset:
        """Return all samples of the source domain."""
        return self.load(self._path(self.source_domain))

    def describe_source(self) -> dict[str, Any]:
        return {"name": self.source_domain, "sha256": sha256_file(self._path(self.source_domain))}

    def describe(self) -> dict[str, Any]:
        paths = [self._path(name) for name in self.short_names]
        return {"name": self.name, "files": {path.stem: sha256_file(path) for path in paths if path.is_file()}}

    def _path(self, domain: str) -> Path:
        return Path(self.cfg.DATA_DIR) / f"{domain}{self.ending}"


_DIGIT_SIDE, _DIGIT_CLASSES = 28, 10
_DIGIT_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@lru_cache(maxsize=4)
def load_digits_file(path: Path) -> TensorDataset:
    """Return all images of ``path`` (train and test parts) as 28x28 floats in [0, 1], and their labels."""
    x_train, y_train, x_test, y_test = read_npz(path, _DIGIT_ARRAYS)
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        checked_array(f"x_{part} in {path}", x, "uint8", (None, None, None))
        checked_labels(f"y_{part} in {path}", y, len(x), _DIGIT_CLASSES)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise UserError(
            f"{path} has images of the shapes {x_train.shape[1:]} and {x_test.shape[1:]}: they must be alike; get it "
            "again"
        )
    images = torch.from_numpy(np.concatenate([x_train, x_test])).float().div_(255)[:, None]
    if images.shape[-1] != _DIGIT_SIDE:
        images = F.interpolate(images, (_DIGIT_SIDE, _DIGIT_SIDE), mode="bilinear", align_corners=False)
    return TensorDataset(images, torch.from_numpy(np.concatenate([y_train, y_test]).astype(np.int64)))


@BENCHMARK_REGISTRY.register("digits_da")
class DigitsDA(DomainFiles):
    """``DATA_DIR/<domain>.npz`` with x_train, y_train, x_test, y_test: from DATA.SOURCE to DATA.TARGET."""

    num_classes = _DIGIT_CLASSES
    short_names = {"mnist": "M", "usps": "U"}
    ending = ".npz"
    layout = f"one .npz file per domain with the arrays {', '.join(_DIGIT_ARRAYS)}"

    def load(self, path: Path) -> TensorDataset:
        """Return all images of a domain."""
        return load_digits_file(path)


_SURF_BINS, _SURF_CLASSES = 800, 10


def scale_histograms(counts: np.ndarray, how: str) -> np.ndarray:
    """Return histograms as they are, as shares ``x / sum(x)``, or as shares with mean 0 and variance 1 per column.

    Note: the last uses mean and deviation of the domain itself: a target's come from its unlabelled samples.
    """
    if how == "none":
        return counts
    shares = counts / np.maximum(counts.sum(1, keepdims=True), np.finfo(np.float32).tiny)
    if how == "l1":
        return shares
    deviation = shares.std(0)
    return (shares - shares.mean(0)) / np.where(deviation > 0, deviation, 1)  # a constant column becomes 0


@lru_cache(maxsize=8)
def load_histograms(path: Path, how: str) -> TensorDataset:
    """Return the scaled histograms and the labels of a domain's file."""
    counts, labels = read_npz(path, ("x", "y"))
    checked_array(f"x in {path}", counts, "real", (None, _SURF_BINS))
    labels = checked_labels(f"y in {path}", labels, len(counts), _SURF_CLASSES)
    scaled = scale_histograms(counts.astype(np.float64), how)
    return TensorDataset(torch.from_numpy(scaled).float(), torch.from_numpy(labels))


@BENCHMARK_REGISTRY.register("office_caltech10")
class OfficeCaltech10(DomainFiles):
    """``DATA_DIR/<domain>_surf800.npz`` with x (N x 800) and y: features instead of images."""

    num_classes = _SURF_CLASSES
    images = False
    short_names = {"amazon": "A", "caltech": "C", "dslr": "D", "webcam": "W"}
    ending = "_surf800.npz"
    layout = f"<domain>{ending} with the arrays x (N x {_SURF_BINS}) and y for the domains {', '.join(short_names)}"

    def check(self) -> None:
        """Check that the files are there and that the model takes features of their length."""
        super().check()
        self.check_features(_SURF_BINS)

    def load(self, path: Path) -> TensorDataset:
        """Return the samples of a domain, scaled by ``DATA.SCALING``."""
        return load_histograms(path, self.cfg.DATA.SCALING)

    def describe_source(self) -> dict[str, Any]:
        return {**super().describe_source(), "scaling": self.cfg.DATA.SCALING}
