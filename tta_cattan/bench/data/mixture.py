"""Source and target samples in equal parts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset


def half_and_half(source: Dataset, target: Dataset, seed: int) -> tuple[Dataset, Tensor]:
    """Return as many samples of each as the smaller has, chosen by ``seed``, and which of them are of the source."""
    n = min(len(source), len(target))
    generator = torch.Generator().manual_seed(seed)
    parts = [Subset(data, torch.randperm(len(data), generator=generator)[:n].tolist()) for data in (source, target)]
    return ConcatDataset(parts), torch.arange(2 * n) < n
