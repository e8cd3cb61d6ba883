"""Office-Caltech10 as SURF histograms: four small domains, features instead of images."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import TensorDataset

from tta_cattan.data.adaptation import DomainBenchmark
from tta_cattan.data.arrays import first, read_npz
from tta_cattan.data.benchmark import BENCHMARK_REGISTRY
from tta_cattan.domain import Domain
from tta_cattan.errors import UserError
from tta_cattan.files import sha256_file

DIM = 800


def scale_histograms(counts: np.ndarray, how: str) -> np.ndarray:
    """Return histograms as they are, as shares ``x / sum(x)``, or as shares with mean 0 and variance 1 per column.

    Note: the last takes mean and deviation from the very domain that is scaled, a target's from its unlabelled samples.
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
    if counts.ndim != 2 or counts.shape[1] != DIM or labels.shape != (len(counts),) or not np.isfinite(counts).all():
        raise UserError(
            f"{path}: x is of shape {counts.shape} with y of shape {labels.shape}; it must hold finite histograms, "
            f"N x {DIM}, with N labels"
        )
    scaled = scale_histograms(counts.astype(np.float64), how)
    return TensorDataset(torch.from_numpy(scaled).float(), torch.from_numpy(labels).long())


@BENCHMARK_REGISTRY.register("office_caltech10")
class OfficeCaltech10(DomainBenchmark):
    """``DATA_DIR/<domain>_surf800.npz`` with x (N x 800) and y."""

    num_classes = 10
    images = False
    short_names: ClassVar[dict[str, str]] = {"amazon": "A", "caltech": "C", "dslr": "D", "webcam": "W"}

    def check(self) -> None:
        """Check that the files are there."""
        for name in (self.source_domain, *(domain.name for domain in self.domains())):
            path = self._path(name)
            if not path.is_file():
                raise UserError(
                    f"{path} does not exist; DATA_DIR must hold <domain>_surf800.npz with the arrays x (N x {DIM}) and "
                    f"y for the domains {', '.join(self.short_names)}"
                )

        self.check_features(DIM)

    def target(self, domain: Domain) -> TensorDataset:
        """Return all samples of a domain, or the first CORRUPTION.NUM_EX."""
        return first(self._load(domain.name), self.cfg.CORRUPTION.NUM_EX)

    def source(self) -> TensorDataset:
        """Return all samples of the source domain."""
        return self._load(self.source_domain)

    def describe_source(self) -> dict[str, Any]:
        path = self._path(self.source_domain)
        return {"name": self.source_domain, "sha256": sha256_file(path), "scaling": self.cfg.DATA.SCALING}

    def describe(self) -> dict[str, Any]:
        paths = [self._path(name) for name in self.short_names]
        return {"name": "office_caltech10", "files": {path.stem: sha256_file(path) for path in paths if path.is_file()}}

    def _load(self, domain: str) -> TensorDataset:
        return load_histograms(self._path(domain), self.cfg.DATA.SCALING)

    def _path(self, domain: str) -> Path:
        return Path(self.cfg.DATA_DIR) / f"{domain}_surf800.npz"
