"""Office-Caltech10 as SURF histograms: four small domains, features instead of images."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from tta_cattan.bench.data.arrays import read_npz
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY
from tta_cattan.bench.data.domain_files import DomainFiles
from tta_cattan.util.errors import UserError

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
class OfficeCaltech10(DomainFiles):
    """``DATA_DIR/<domain>_surf800.npz`` with x (N x 800) and y."""

    num_classes = 10
    images = False
    short_names = {"amazon": "A", "caltech": "C", "dslr": "D", "webcam": "W"}
    ending = "_surf800.npz"
    layout = f"<domain>_surf800.npz with the arrays x (N x {DIM}) and y for the domains amazon, caltech, dslr, webcam"

    def check(self) -> None:
        """Check that the files are there and that the model takes what is in them."""
        super().check()
        self.check_features(DIM)

    def load(self, path: Path) -> TensorDataset:
        """Return the samples of a domain, scaled by ``DATA.SCALING``."""
        return load_histograms(path, self.cfg.DATA.SCALING)

    def describe_source(self) -> dict[str, Any]:
        return {**super().describe_source(), "scaling": self.cfg.DATA.SCALING}
